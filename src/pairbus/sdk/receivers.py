"""Receivers that return no pings and keep their time-outs: the SDK's own object, with a subclass as its class.

A ping that is received is completed (in peek-lock) and the call goes on waiting, within its time. In an iteration a
ping counts as activity, so `max_wait_time` starts again; pings end with the first that is delivered, so this is rare.

The sync SDK blocks for ever on a peer that accepts TCP and stays silent, whatever time-out a call has: opening,
settling, renewing, and every request with a time-out, is `guarded`. The asyncio SDK waits for ever for the answer to a
settlement or a renewal: these are cancelled, and the connection is dropped. In both SDKs such calls end within 30
seconds with the SDK's OperationTimeoutError; it is not known then whether the message was settled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode, ServiceBusReceiver
from azure.servicebus import aio as sdk_aio
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.ledger.rows import BILLING_UNIT_BYTES, billing_groups
from pairbus.sdk.encoding import encode
from pairbus.sdk.failures import failure_of
from pairbus.sdk.messages import body_size
from pairbus.sdk.watchdog import guarded
from pairbus.telemetry import operations

PING_CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
ReceiverMeter = Callable[[str, int, int, str], None]
"Function of kind, number of messages, their bytes, outcome (`ok` or kind of failure). Over 64 KB: one message a call."

_log = logging.getLogger("pairbus")
NEVER = float("inf")
SETTLE_S = 28.0  # limit of a settlement or a renewal with all its retries: the SDK has none
CLOSE_S = 1.0  # limit for closing a silent connection
OPEN_S = 15.0  # limit for opening a connection and its link, unless the call has less time
_WAIT_S = 60.0  # the SDK's own limit of a receive without max_wait_time
_OPERATIONS = {
    b"com.microsoft:peek-message": "peek",
    b"com.microsoft:renew-lock": "renew",
    b"com.microsoft:renew-session-lock": "renew",
    b"com.microsoft:receive-by-sequence-number": "receive",
}
_ENVELOPE_BYTES = 200  # header, annotations and properties that a service puts around a body
_DOUBT_BYTES = 1024  # largest error of that number; a size near a multiple of 64 KB is measured
Messages = list[ServiceBusReceivedMessage]


def _is_ping(message: ServiceBusReceivedMessage) -> bool:
    return message.content_type == PING_CONTENT_TYPE


def _no_meter(kind: str, count: int, size: int, outcome: str) -> None:
    pass


def _without_pings(messages: Messages) -> tuple[Messages, Messages]:
    """Split messages into the caller's and pings."""
    pings = [message for message in messages if _is_ping(message)]
    return [message for message in messages if not _is_ping(message)] if pings else messages, pings


def _arrived(receiver: Any, messages: Messages) -> tuple[Messages, Messages]:
    """Tell the meter of a receive, and split its messages; without messages, check for a faulted client."""
    if not messages:
        receiver._check_client()
    _tell_received(receiver._meter, messages)
    return _without_pings(messages)


def _tell_received(meter: ReceiverMeter, messages: Messages) -> None:
    if meter is _no_meter:
        return
    if not messages:
        meter("empty receive", 1, 0, "ok")
    for count, size_bytes in billing_groups(map(_size_of, messages)):
        meter("receive", count, size_bytes, "ok")


def _size_of(message: ServiceBusReceivedMessage) -> int:
    estimate = body_size(message) + _ENVELOPE_BYTES + 40 * len(message.application_properties or ())
    above = estimate + _DOUBT_BYTES
    is_near = above > BILLING_UNIT_BYTES and above % BILLING_UNIT_BYTES < 2 * _DOUBT_BYTES
    return len(encode(message)) if is_near else estimate


def _deadline(own_wait_s: float | None, wait_s: float | None) -> float:
    wait_s = own_wait_s if wait_s is None else wait_s
    return time.monotonic() + (_WAIT_S if wait_s is None else wait_s)


def _limit_of(kind: str, timeout: float | None) -> float | None:
    """Return the time limit of a request; None: only the SDK's own."""
    return SETTLE_S if timeout is None and kind == "renew" else timeout


def _ping_stays(error: Exception) -> None:
    """Log that a ping was not completed. The caller gets no error: the ping expires a second later anyway."""
    _log.debug("a ping was not completed: %s", error)


# One base class each and no mixin: an object can get another class only when both have the same memory layout.


class _SkipsPings(ServiceBusReceiver):
    _meter: ReceiverMeter = staticmethod(_no_meter)
    _check_client: Callable[[], None] = staticmethod(lambda: None)
    _until = NEVER
    "Deadline of the call under way."

    def _open(self, *args: Any, **kwargs: Any) -> None:
        self._check_client()
        opening = partial(super()._open, *args, **kwargs)
        if self._running:
            opening()
        else:
            guarded(opening, self, min(self._until, time.monotonic() + OPEN_S))

    def _backoff(
        self,
        retried_times: int,
        last_exception: Exception,
        abs_timeout_time: float | None = None,
        entity_name: str | None = None,
    ) -> None:
        """Wait before a retry, but begin no retry after the deadline of the call."""
        until = self._until if abs_timeout_time is None else min(self._until, abs_timeout_time)
        super()._backoff(retried_times, last_exception, until, entity_name)

    def _within(self, limit_s: float | None, call: Callable[[], Any]) -> Any:
        """Make a call that ends after `limit_s` at the latest, and not later than the call that it is part of."""
        if limit_s is None:
            return call()
        outer = self._until
        self._until = min(outer, time.monotonic() + limit_s)
        try:
            return guarded(call, self, self._until)
        finally:
            self._until = outer

    @operations.receive
    def receive_messages(self, max_message_count: int | None = 1, max_wait_time: float | None = None) -> Messages:
        self._until = deadline = _deadline(self._max_wait_time, max_wait_time)
        try:
            while True:
                with _Metered(self, "receive"):
                    messages = super().receive_messages(max_message_count, max_wait_time)
                wanted, pings = _arrived(self, messages)
                for ping in pings:
                    self._complete_ping(ping)
                max_wait_time = deadline - time.monotonic()
                if wanted or not pings or max_wait_time <= 0:
                    return wanted
        finally:
            self._until = NEVER

    def peek_messages(
        self, max_message_count: int = 1, *, sequence_number: int = 0, timeout: float | None = None, **kwargs: Any
    ) -> Messages:
        while True:
            messages = super().peek_messages(
                max_message_count, sequence_number=sequence_number, timeout=timeout, **kwargs
            )
            wanted, pings = _without_pings(messages)
            if wanted or not pings:
                return wanted
            sequence_number = int(pings[-1].sequence_number or 0) + 1

    @operations.receive
    def _inner_next(self, wait_time: float | None = None) -> ServiceBusReceivedMessage:
        while True:
            with _Metered(self, "receive"):
                message = super()._inner_next(wait_time)
            _tell_received(self._meter, [message])
            if not _is_ping(message):
                return message
            self._complete_ping(message)

    def _complete_ping(self, ping: ServiceBusReceivedMessage) -> None:
        if self._receive_mode == ServiceBusReceiveMode.PEEK_LOCK:
            try:
                self.complete_message(ping)
            except (ServiceBusError, ValueError) as error:
                _ping_stays(error)

    @operations.settle
    def _settle_message_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        settle = partial(super()._settle_message_with_retry, *args, **kwargs)
        with _Metered(self, "complete"):
            return self._within(SETTLE_S, settle)

    @operations.ask
    def _mgmt_request_response_with_retry(self, mgmt_operation: bytes, *args: Any, **kwargs: Any) -> Any:
        kind = _OPERATIONS.get(mgmt_operation, "management")
        ask = partial(super()._mgmt_request_response_with_retry, mgmt_operation, *args, **kwargs)
        with _Metered(self, kind):
            answer = self._within(_limit_of(kind, kwargs.get("timeout")), ask)
        if kind == "receive":
            _tell_received(self._meter, answer)
        return answer


class _SkipsPingsAsync(sdk_aio.ServiceBusReceiver):
    _meter: ReceiverMeter = staticmethod(_no_meter)
    _check_client: Callable[[], None] = staticmethod(lambda: None)

    @operations.receive
    async def receive_messages(self, max_message_count: int | None = 1, max_wait_time: float | None = None) -> Messages:
        deadline = _deadline(self._max_wait_time, max_wait_time)
        while True:
            with _Metered(self, "receive"):
                messages = await super().receive_messages(max_message_count, max_wait_time)
            wanted, pings = _arrived(self, messages)
            for ping in pings:
                await self._complete_ping(ping)
            max_wait_time = deadline - time.monotonic()
            if wanted or not pings or max_wait_time <= 0:
                return wanted

    async def peek_messages(
        self, max_message_count: int = 1, *, sequence_number: int = 0, timeout: float | None = None, **kwargs: Any
    ) -> Messages:
        while True:
            messages = await super().peek_messages(
                max_message_count, sequence_number=sequence_number, timeout=timeout, **kwargs
            )
            wanted, pings = _without_pings(messages)
            if wanted or not pings:
                return wanted
            sequence_number = int(pings[-1].sequence_number or 0) + 1

    @operations.receive
    async def _inner_anext(self, wait_time: float | None = None) -> ServiceBusReceivedMessage:
        while True:
            with _Metered(self, "receive"):
                message = await super()._inner_anext(wait_time)
            _tell_received(self._meter, [message])
            if not _is_ping(message):
                return message
            await self._complete_ping(message)

    async def _complete_ping(self, ping: ServiceBusReceivedMessage) -> None:
        if self._receive_mode == ServiceBusReceiveMode.PEEK_LOCK:
            try:
                await self.complete_message(ping)
            except (ServiceBusError, ValueError) as error:
                _ping_stays(error)

    @operations.settle
    async def _settle_message_with_retry(self, *args: Any, **kwargs: Any) -> Any:
        with _Metered(self, "complete"):
            settling = super()._settle_message_with_retry(*args, **kwargs)  # type: ignore[no-untyped-call]
            return await self._within(SETTLE_S, settling)

    @operations.ask
    async def _mgmt_request_response_with_retry(self, mgmt_operation: bytes, *args: Any, **kwargs: Any) -> Any:
        kind = _OPERATIONS.get(mgmt_operation, "management")
        with _Metered(self, kind):
            asking = super()._mgmt_request_response_with_retry(mgmt_operation, *args, **kwargs)
            limit_s = _limit_of(kind, kwargs.get("timeout"))
            # The SDK's own time-out gets a moment to end the call with a better error.
            answer = await self._within(None if limit_s is None else limit_s + CLOSE_S / 2, asking)
        if kind == "receive":
            _tell_received(self._meter, answer)
        return answer

    async def _within(self, limit_s: float | None, call: Awaitable[Any]) -> Any:
        """Wait for a call of the SDK; after `limit_s` cancel it, and drop the silent connection."""
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await call
        except TimeoutError:
            if not limit.expired():
                raise
            await self._drop_connection()
            raise OperationTimeoutError(message="no answer in time; the connection was broken off") from None

    async def _drop_connection(self) -> None:
        """Close the connection, also when the peer is silent; the next call opens a new one."""
        handler = self._handler
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._close_handler()  # type: ignore[no-untyped-call]
        except (TimeoutError, OSError, AMQPException, ServiceBusError) as error:
            _log.debug("closing a silent connection: %r", error)
        self._handler, self._running = None, False
        writer = getattr(getattr(getattr(handler, "_connection", None), "_transport", None), "writer", None)
        if writer is not None:
            writer.transport.abort()


class _Metered:
    """One operation of a receiver: refused when its client was faulted, and told to the meter when it has ended.

    A receive that succeeds is told by `_tell_received`, which knows the number of messages.
    """

    __slots__ = ("_kind", "_receiver")

    def __init__(self, receiver: Any, kind: str) -> None:
        self._receiver = receiver
        self._kind = kind

    def __enter__(self) -> None:
        self._receiver._check_client()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        meter = self._receiver._meter
        if kind is None:
            if self._kind != "receive":
                meter(self._kind, 1, 0, "ok")
            return
        if issubclass(kind, StopIteration | StopAsyncIteration):
            meter("empty receive", 1, 0, "ok")
        elif isinstance(error, ServiceBusError):
            failure = failure_of(error)
            meter(self._kind, 1, 0, "internal" if failure is None else failure.kind.value)
        self._receiver._check_client()


Receiver = TypeVar("Receiver", bound=ServiceBusReceiver | sdk_aio.ServiceBusReceiver)


def skip_pings(
    receiver: Receiver,
    meter: ReceiverMeter | None = None,
    check_client: Callable[[], None] | None = None,
) -> Receiver:
    """Return the same receiver, still an instance of the SDK's class, which from now on returns no pings.

    `check_client` raises when the client was faulted: the receiver ends with it.
    """
    receiver.__class__ = _SkipsPingsAsync if isinstance(receiver, sdk_aio.ServiceBusReceiver) else _SkipsPings
    for name, value in (("_meter", meter), ("_check_client", check_client)):
        if value is not None:
            setattr(receiver, name, value)  # of the class that it has now
    return receiver


async def end_async_receiver(receiver: sdk_aio.ServiceBusReceiver) -> None:
    """End a receiver of a faulted client, as `break_socket` does for the sync SDK."""
    try:
        await receiver.close()
    except (ServiceBusError, OSError, ValueError) as error:
        _log.debug("a receiver of a faulted client was not closed: %s", error)
