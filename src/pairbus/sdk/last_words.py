"""What a peer said when it ended a link or a connection, which the SDK keeps and does not tell.

A send that waits for its answer when the service detaches the link, or closes the connection, gets
`ServiceBusConnectionError: amqp:unknown-error`, whatever the service has said (measured): throttling and a lost right
look like a lost connection, and would divert messages. Yet each link and connection keeps its error. It is looked up
before the SDK drops them, and the SDK gets it to translate instead of the one that says nothing; that one becomes its
cause.

A link for tokens that is detached is worse, the SDK waits for it until the time is over. One that the service closes
while nothing is sent is therefore looked for before each send. Since nobody reads then, the first send hears of it on
its way; after a pause, one that needs a new token for itself begins with a new connection.

A link that has carried messages before may have been ended long ago, when a queue was disabled for a minute: what is
said about the entity is then believed only of a new link, which the next attempt opens. Throttling and rights are
believed at once, because the next attempt may not come in time, and then they would divert.

A session that is ended with an error keeps nothing: for the SDK, and so for us, that is a link that never opens.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from typing import Any

from azure.servicebus import ServiceBusSender
from azure.servicebus import aio as sdk_aio
from azure.servicebus._pyamqp.client import AMQPClient
from azure.servicebus._pyamqp.constants import CbsState
from azure.servicebus._pyamqp.error import AMQPException

from pairbus.pairing.policy import Kind
from pairbus.sdk.failures import kind_said

IDLE_S = 30.0  # the service closes nothing sooner


def hear(sender: Any) -> None:
    """Have this new sender, of either flavour, tell in its errors what the peer has said."""
    sender.__class__ = _AsyncEar if isinstance(sender, sdk_aio.ServiceBusSender) else _Ear


# Classes, not attributes of each sender, whose dictionary would be twice as large with one of its own. The last two
# methods are coroutines in asyncio: what they return is passed on.


class _Ear(ServiceBusSender):
    _heard: AMQPException | None = None
    "Of the handler that was closed last, unless its failure was handled before."
    _handled: object = None
    "The handler whose failure was handled last; the SDK closes it afterwards, or uses it again."

    def _open(self, timeout: float | None = None) -> None:
        if not is_open(self):
            self._running = False
            super()._open(timeout)

    def _close_handler(self) -> Any:
        _before_closing(self)
        return super()._close_handler()  # type: ignore[no-untyped-call]

    def _handle_exception(self, exception: BaseException) -> Any:
        return super()._handle_exception(_heard_instead_of(exception, self))


class _AsyncEar(sdk_aio.ServiceBusSender):
    _heard: AMQPException | None = None
    _handled: object = None

    async def _open(self, timeout: float | None = None) -> None:
        if not is_open(self):
            self._running = False
            await super()._open(timeout)

    def _close_handler(self) -> Any:
        _before_closing(self)
        return super()._close_handler()  # type: ignore[no-untyped-call]

    def _handle_exception(self, exception: BaseException) -> Any:
        return super()._handle_exception(_heard_instead_of(exception, self))  # type: ignore[no-untyped-call]


def is_open(sender: Any) -> bool:
    """The next send need not open a connection. Asked before each one."""
    return sender._running and _has_tokens(sender._handler)


def _has_tokens(handler: Any) -> bool:
    """False: the link for them has ended, and only a new connection has another; or the next one is due, and that link
    may have ended while nobody looked."""
    tokens = handler._cbs_authenticator
    if tokens is None or tokens.state is CbsState.ERROR:
        return tokens is None
    now = time.time()
    is_due = tokens._expires_on - now <= tokens._refresh_window
    return not is_due or now - handler._connection._last_frame_received_time < IDLE_S


def _before_closing(sender: Any) -> None:
    handler = sender._handler
    heard = None if handler is sender._handled else _last_words(handler, is_request=False)
    if heard is not sender._heard:
        sender._heard = heard


def _heard_instead_of(exception: BaseException, sender: Any) -> Any:
    """What the peer has said, where the SDK's exception does not say it."""
    handler = sender._handler
    heard = sender._heard if handler is None else _last_words(handler, is_request=_is_request(exception))
    sender._heard, sender._handled = None, handler
    if heard is not None:
        sender._running = False  # the SDK would go on with the dead link, and fail for the same reason
        if exception is not heard and kind_said(exception) is None and _is_believed(heard, handler):
            heard.__cause__ = exception
            return heard
    return exception


def _is_believed(heard: AMQPException, handler: Any) -> bool:
    kind = kind_said(heard)
    if kind in (None, Kind.BUSY, Kind.UNAUTHORIZED):
        return kind is not None
    link = getattr(handler, "_link", None)
    return link is None or link.delivery_count <= 1


def _is_request(exception: BaseException) -> bool:
    """Whether it comes from a request to the management of the entity, and not from a send."""
    frames = (frame for frame, _ in traceback.walk_tb(exception.__traceback__))
    return any(frame.f_code.co_name == "_mgmt_request_response" for frame in frames)


def _last_words(handler: AMQPClient | None, *, is_request: bool) -> AMQPException | None:
    for owner in _owners(handler, is_request=is_request):
        error = getattr(owner, "_error", None)
        if isinstance(error, AMQPException):
            return error
    return None


def _owners(handler: Any, *, is_request: bool) -> Iterator[Any]:
    """Links and connection of a handler: the message's own first, then that for tokens, and those for requests. What
    ended one of these long ago says nothing about a send, which goes on without them."""
    yield getattr(handler, "_link", None)
    requests = getattr(handler, "_mgmt_links", {}).values() if is_request else ()
    for operation in (getattr(handler, "_cbs_authenticator", None), *requests):
        pair = getattr(operation, "_mgmt_link", None)
        yield getattr(pair, "_request_link", None)
        yield getattr(pair, "_response_link", None)
    yield getattr(handler, "_connection", None)
