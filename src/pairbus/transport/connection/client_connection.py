"""The asyncio AMQP 1.0 client: connect, send, receive, settle, manage; a deadline on every wait.

    async with await connect("Endpoint=sb://…") as connection:
        sender = await connection.sender("orders")
        await sender.send(payload)
        receiver = await connection.receiver("orders")
        messages = await receiver.receive(100, timeout_s=5)
        await receiver.complete(messages)

Payloads are encoded messages and pass unaltered. A connection that is lost stays lost: all callers that wait on it get
ConnectionLost at once, and decide whether and when to `connect` again.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeVar

from pairbus.amqp.connection import ConnectionSettings, Trace
from pairbus.amqp.performatives import Source, Target
from pairbus.amqp.session import Session
from pairbus.errors import ConfigError
from pairbus.pairing.policy import Silence
from pairbus.transport.connection.dial import Ssl, context_for, dial
from pairbus.transport.connection.endpoint import Endpoint, open_properties
from pairbus.transport.connection.shared_work import SharedWork
from pairbus.transport.connection.steps import Hearing, Steps
from pairbus.transport.connection.wire import Wire
from pairbus.transport.errors import ConnectionLost, Refused, Timeout, TransportError
from pairbus.transport.links.link_end import LinkEnd, new_session
from pairbus.transport.links.management import Management
from pairbus.transport.links.receiver import Receiver
from pairbus.transport.links.requests import open_requests
from pairbus.transport.links.sender import Sender
from pairbus.transport.links.session_filter import Wanted, filter_of, properties_of, wait_of
from pairbus.transport.times import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, FAR_S, IDLE_TIME_OUT_S, SILENCE_S, TIMEOUT_S
from pairbus.transport.tokens.cbs import TokenRefused, Tokens
from pairbus.transport.tokens.credential import credential_for

CREDIT = 256
FRAME_SIZE_MAX = 1 << 20
CHANNEL_MAX = 4999  # as Azure; every data link has a session of its own
ATTACHES_MAX = 200  # attaches without an answer at one time: the clock of an attach begins when it is really sent
Mode = Literal["peek-lock", "receive-and-delete"]
_RENEW_TOKEN = "RenewToken"  # in the text of the detach of a link whose token has expired
E = TypeVar("E", bound=LinkEnd)


async def connect(  # noqa: PLR0913 - users write the options as keywords
    endpoint: Endpoint | str,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
    silence_s: float = SILENCE_S,
    ssl: Ssl = None,
    credential: object | None = None,
    idle_time_out_s: float = IDLE_TIME_OUT_S,
    container_id: str | None = None,
    proxy: str | None = None,
    user_agent: str | None = None,
    trace: Trace | None = None,
    hearing: Hearing | None = None,
) -> ClientConnection:
    """Connect to an endpoint or connection string: name, socket, TLS, SASL and open, all within `timeout_s`.

    `silence_s`: longest time without a sign of life of the peer in each of these steps, and later in each put of a
    token and each attach. `credential`: any azure-identity credential, or one of `pairbus.transport.tokens.credential`;
    without one the endpoint's own key or signature is used. A peer that is silent for one and a half `idle_time_out_s`
    counts as dead. `proxy` ("http://[user:password@]host:port") is for web sockets. `user_agent` stands in front of
    ours in the open. `trace` is told of every frame, never with a token or a body. `hearing` is told of the peer's
    silence.
    Raises ConfigError, Timeout, Refused (by SASL, or by a close with a reason) or ConnectionLost.
    """
    if isinstance(endpoint, str):
        endpoint = Endpoint.parse(endpoint)
    if proxy is not None and endpoint.transport != "websocket":
        raise ConfigError("proxy: only web sockets go through an HTTP proxy; ask for transport 'websocket'")
    who = credential_for(endpoint, credential)
    context = context_for(ssl) if endpoint.tls else None
    settings = ConnectionSettings(
        container_id=container_id or f"pairbus-{uuid.uuid4().hex[:12]}",
        hostname=endpoint.hostname,
        max_frame_size=FRAME_SIZE_MAX,
        channel_max=CHANNEL_MAX,
        idle_time_out_ms=int(idle_time_out_s * 1000),
        unsettled_max=0x7FFFFFFF,  # the caller limits received messages that are not settled; credit limits the rest
        properties=open_properties(user_agent),
    )
    wire = Wire(settings, who.sasl(endpoint.hostname), trace)
    where = f"{endpoint.host}:{endpoint.port}"
    steps = Steps(where, silence_s, wire.loop.time() + timeout_s, hearing)
    try:
        if endpoint.transport == "websocket":
            from pairbus.transport.connection.websocket import (
                connect_websocket,  # an HTTP client, which few connections need
            )

            await connect_websocket(endpoint, context, wire, steps, proxy)
        else:
            await dial(endpoint, wire, steps, context)
        await steps.step("SASL and the open", wire.opened, heard=lambda: wire.core.last_received)
    except OSError as error:
        wire.abort()
        raise ConnectionLost(f"no connection to {where}: {error}") from None
    except BaseException:
        wire.abort()
        raise
    return ClientConnection(wire, endpoint, Tokens(wire, who, silence_s), silence_s)


class ClientConnection:
    """An open connection. Links are opened one at a time or at once, from any task of its event loop."""

    def __init__(self, wire: Wire, endpoint: Endpoint, tokens: Tokens, silence_s: float) -> None:
        self._wire = wire
        self._tokens = tokens
        self._silence_s = silence_s
        self.endpoint = endpoint
        self.opened_at = wire.loop.time()
        self.is_full = False
        "True: the peer takes no more tokens on this connection, even if we counted fewer."
        self.is_silent = False
        "True: the peer left the last opening of a link unanswered, and may open no more links on this connection."
        self._managements: dict[str, Management] = {}
        self._where = f"{endpoint.host}:{endpoint.port}"
        self._opening = SharedWork[str](self._where)
        self._attaching = asyncio.Semaphore(ATTACHES_MAX)
        self._answered_at = -math.inf
        "Time of the last answer to an attach."
        self._on_their_way = 0
        "Links that are being opened and have no session yet."

    def __repr__(self) -> str:
        return f"<Connection {self.endpoint.host}:{self.endpoint.port} {self.loss or 'open'}>"

    @property
    def peer_properties(self) -> dict[str, object]:
        """Return the properties of the peer's open: product, version and abilities."""
        return dict(self._wire.core.remote_open.properties or {}) if self._wire.core.remote_open is not None else {}

    @property
    def loss(self) -> TransportError | None:
        """The reason why the connection is over; None while it is good."""
        return self._wire.loss

    @property
    def has_links(self) -> bool:
        """True when links are open or being opened, apart from those of `$cbs`."""
        return self._tokens.has_users

    def has_room(self, path: str) -> bool:
        """Return True when one more link to the entity fits, by tokens that Azure allows and the peer's channels."""
        if self.loss is not None or self.is_full or not self._tokens.has_room(self.endpoint.audience(path)):
            return False
        remote = self._wire.core.remote_open
        channels = min(CHANNEL_MAX, remote.channel_max if remote is not None else CHANNEL_MAX)  # and one for $cbs
        return not self.has_links or len(self._wire.core.sessions) + self._on_their_way < channels

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close, waiting at most `timeout_s` for the peer. Sends in flight end with an unknown outcome: await them."""
        self._opening.cancel_all()
        self._tokens.close()
        await self._wire.close(timeout_s)

    async def sender(
        self,
        path: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        name: str | None = None,
        hearing: Hearing | None = None,
    ) -> Sender:
        """Open a link that sends to the entity. `timeout_s` limits this call, and is the sender's own default.

        `hearing` is told of the peer's silence.
        """
        path, deadline = self.endpoint.path(path), self._wire.loop.time() + timeout_s

        def attach(session: Session) -> Sender:
            link = session.new_sender(name or f"sender-{uuid.uuid4().hex[:12]}")
            sender = Sender(self._wire, link, f"sender {path}", timeout_s)
            link.attach(source=Source(address=link.name), target=Target(address=path), snd_settle_mode=0)
            return sender

        return await self._open_link(path, attach, deadline, hearing)

    async def receiver(
        self,
        path: str | None = None,
        *,
        mode: Mode = "peek-lock",
        sub_queue: Literal["dead-letter"] | None = None,
        credit: int = CREDIT,
        timeout_s: float = TIMEOUT_S,
        session: Wanted | None = None,
        identifier: str | None = None,
    ) -> Receiver:
        """Open a link that receives from the entity; `links/receiver.py` explains `credit`.

        `session`, for an entity with sessions: an id, or NextSession; `Receiver.session_id` is the session that it got.
        `identifier` names the receiver in errors of the service.
        """
        path, deadline = self.endpoint.path(path), self._wire.loop.time() + timeout_s
        entity = path if sub_queue is None else f"{path}/$DeadLetterQueue"
        locking = mode == "peek-lock"

        async def renew(tokens: list[uuid.UUID], timeout_s: float) -> list[int]:
            deadline = self._wire.loop.time() + timeout_s
            management = await self.management(entity, timeout_s=timeout_s)
            return await management.renew_lock(tokens, deadline - self._wire.loop.time())

        def attach(channel: Session) -> Receiver:
            link = channel.new_receiver(f"receiver-{uuid.uuid4().hex[:12]}")
            receiver = Receiver(self._wire, link, f"receiver {entity}", timeout_s, credit, renew)
            link.attach(
                source=Source(address=entity, filter=filter_of(session)),
                target=Target(address=link.name),
                snd_settle_mode=0 if locking else 1,
                # Service Bus expects "second" of a receiver that sends unsettled dispositions; RabbitMQ refuses a link
                # with it, but answers them nevertheless. Only Service Bus has `$cbs`.
                rcv_settle_mode=1 if locking and self._tokens.in_use else 0,
                properties=properties_of(session, identifier),
            )
            return receiver

        return await self._open_link(entity, attach, deadline, wait_s=wait_of(session))

    async def management(
        self, path: str | None = None, *, timeout_s: float = TIMEOUT_S, silence_s: float = math.inf
    ) -> Management:
        """Return the `$management` node of the entity: the same object for every call while its links are good.

        `silence_s`: longest silence of the peer, as far as it is shorter than that of the connection's steps. Requests
        that are under way on links that fell silent end there; this call opens new links.
        """
        path, deadline = self.endpoint.path(path), self._wire.loop.time() + timeout_s
        known = self._managements.get(path)
        if known is not None and known.over is None and not known.is_silent:
            return known
        what = f"{path}/$management"
        opening = partial(self._open_management, path, timeout_s)
        return await self._opening.run(path, opening, what, deadline, silence_s=silence_s)

    # ── opening ──

    @contextmanager
    def _watched(self, silence_s: float) -> Iterator[None]:
        """Note whether the peer left the opening of a link unanswered: its token, or its attach."""
        try:
            yield
        except Timeout as error:
            self.is_silent |= error.silence.lasted_s >= silence_s
            raise
        except Refused:
            self.is_silent = False
            raise
        self.is_silent = False

    async def _open_link(
        self,
        path: str,
        attach: Callable[[Session], E],
        deadline: float,
        hearing: Hearing | None = None,
        wait_s: float = 0.0,
    ) -> E:
        hearing, silence_s = hearing or Hearing(), self._silence_s + wait_s
        with self._watched(silence_s):
            audience = await self._authorise(path, deadline, hearing)
            await self._take_turn(path, audience, deadline, hearing)
            try:
                end = self._begin(audience, attach)
                steps = Steps(self._where, silence_s, deadline, hearing)
                try:
                    await steps.step(f"the answer to the attach of {path}", end.attached(deadline))
                except BaseException as error:
                    if isinstance(error, Refused):
                        self._answered_at = self._wire.loop.time()
                    end.leave()  # the answer may have come in the turn in which the caller left
                    raise
                self._answered_at = self._wire.loop.time()
            finally:
                self._attaching.release()
        return end

    async def _take_turn(self, path: str, audience: str, deadline: float, hearing: Hearing) -> None:
        """Wait until one more attach may be sent: until then, the peer owes answers to those before it."""
        began, loop = self._wire.loop.time(), self._wire.loop
        try:
            with hearing.awaiting(lambda: max(began, self._answered_at)):
                async with asyncio.timeout_at(deadline):
                    await self._attaching.acquire()
        except BaseException as error:
            self._unused(audience)
            if isinstance(error, TimeoutError):
                silence = Silence(loop.time() - max(began, self._answered_at), self._silence_s)
                raise Timeout(f"{path}: there was no turn for its link in time", silence) from None
            raise

    def _begin(self, audience: str, attach: Callable[[Session], E]) -> E:
        try:
            end = attach(new_session(self._wire))
        except BaseException:
            self._unused(audience)
            raise
        self._on_their_way -= 1
        end.when_over = lambda: self._over(audience, end)
        return end

    async def _open_management(self, path: str, timeout_s: float, hearing: Hearing) -> Management:
        far = self._wire.loop.time() + FAR_S
        with self._watched(self._silence_s):
            audience = await self._authorise(path, far, hearing)
            node = f"{path}/$management"
            opening = asyncio.ensure_future(open_requests(self._wire, node, far, timeout_s))
            try:
                requests = await Steps(self._where, self._silence_s, hearing=hearing).step(node, opening)
            except BaseException:
                if opening.done() and not opening.cancelled() and opening.exception() is None:
                    opening.result().leave()  # the answer came in the turn in which the caller left
                self._unused(audience)
                raise
        self._on_their_way -= 1
        if requests.over is None:
            requests.sender.when_over = lambda: self._over(audience, requests.sender)
        else:
            self._tokens.release(audience)
        known = self._managements[path] = Management(self._wire, requests, timeout_s)
        return known

    async def _authorise(self, path: str, deadline: float, hearing: Hearing) -> str:
        if self._wire.loss is not None:
            raise self._wire.loss.again(outcome_unknown=False)
        audience = self.endpoint.audience(path)
        self._on_their_way += 1
        try:
            await self._tokens.acquire(audience, deadline, hearing)
        except BaseException as error:
            self._on_their_way -= 1
            self.is_full |= isinstance(error, TokenRefused) and error.fills_connection
            raise
        return audience

    def _unused(self, audience: str) -> None:
        self._on_their_way -= 1
        self._tokens.release(audience)

    def _over(self, audience: str, end: LinkEnd) -> None:
        self._tokens.release(audience)
        if _RENEW_TOKEN in str(end.over):
            self._tokens.forget(audience)
