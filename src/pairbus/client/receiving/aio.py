"""The receiver for asyncio: its calls are awaited in the engine's own loop."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Self

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusSession as SdkSession

from pairbus.client.receiving.face import (
    SHUT_DOWN,
    Messages,
    ReceiverFace,
    ReceiverWork,
    Request,
    now_ns,
    renewed,
    settlement,
)
from pairbus.sdk import received as sdk
from pairbus.telemetry import operations


class ServiceBusReceiver(ReceiverFace):
    """A receiver of one queue or subscription, or of their dead letters. Any number of tasks may share it."""

    async def __aenter__(self) -> Self:
        if self._closed:
            raise ValueError(SHUT_DOWN)
        self._check_live()
        await self._run(lambda receiver: receiver.open())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        """Iterate over messages until none has come for `max_wait_time`, or without it until `close`."""
        while found := await self._receive_next():
            yield found[0]

    async def __anext__(self) -> ServiceBusReceivedMessage:
        found = await self._receive_next()
        if not found:
            raise StopAsyncIteration
        return found[0]

    @property
    def session(self) -> ServiceBusSession:
        """The session; None on an entity without sessions."""
        return self._session  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the receiver: messages that nobody has read are given back, a call that waits returns."""
        receiver = self._closing()
        if receiver is not None and receiver.is_here:
            await receiver.close()

    # ── receiving ──

    @operations.receive
    async def receive_messages(self, max_message_count: int | None = 1, max_wait_time: float | None = None) -> Messages:
        """Return messages as soon as there is one, at most `max_message_count`; none when none came in time."""
        count, wait_s = self._check_receive(max_message_count, max_wait_time)
        return await self._receive(count, wait_s)

    @operations.receive
    async def _receive_next(self) -> Messages:
        self._check_live()
        return await self._receive(1, self._options.max_wait_time or math.inf)

    async def _receive(self, count: int, wait_s: float) -> Messages:
        if not count:
            return []
        began_ns = now_ns()
        incoming = await self._run(lambda receiver: receiver.receive(count, wait_s))
        return self._delivered(incoming, began_ns)

    async def receive_deferred_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> Messages:
        began_ns, request = now_ns(), self._receiving_deferred(sequence_numbers, timeout, kwargs)
        return [] if request is None else self._deferred(await self._ask(request.name, request), began_ns)

    async def peek_messages(
        self, max_message_count: int = 1, *, sequence_number: int = 0, timeout: float | None = None, **kwargs: Any
    ) -> Messages:
        """Return messages without locking them, from a sequence number on, or behind the last one that was seen."""
        began_ns, request = now_ns(), self._peeking(max_message_count, sequence_number, timeout, kwargs)
        return self._peeked(await self._ask(request.name, request), began_ns)

    # ── settling ──

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """Complete a message: the queue removes it. Like every settlement it returns after the service's answer."""
        await self._settle(message, "complete")

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """Give a message back to the queue; the delivery counts."""
        await self._settle(message, "abandon")

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Set a message aside: from now on it is received by its sequence number only."""
        await self._settle(message, "defer")

    async def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Move a message to the dead-letter queue."""
        await self._settle(message, "dead-letter", reason, error_description)

    @operations.settle
    async def _settle(
        self, message: Any, operation: str, reason: str | None = None, description: str | None = None
    ) -> None:
        locked, said = self._check_settling(message, operation), settlement(operation, reason, description)
        with self._span_of(message, operation):
            await self._run(lambda receiver: receiver.settle(locked, said))
            sdk.mark_settled(message)

    async def renew_message_lock(
        self, message: ServiceBusReceivedMessage, *, timeout: float | None = None, **kwargs: Any
    ) -> datetime:
        """Renew the lock of a message; return its new end."""
        request = self._renewing(message, timeout, kwargs)
        return renewed(message, await self._ask(request.name, request))

    # ── the engine ──

    @operations.ask
    async def _ask(self, name: str, request: Request) -> Any:
        return await self._run(request.work)

    async def _run(self, work: ReceiverWork) -> Any:
        try:
            return await work(self._present.of(self._client._life.engine_here(), self._options))
        finally:
            self._note_session()

    def _new_session(self, session_id: Any) -> ServiceBusSession:
        return ServiceBusSession(session_id, self)  # type: ignore[arg-type]


class ServiceBusSession(SdkSession):
    """The session of a receiver: its id, its state, its lock."""

    _receiver: Any

    async def get_state(self, *, timeout: float | None = None, **kwargs: Any) -> bytes:
        request = self._receiver._getting_state(timeout, kwargs)
        return await self._receiver._ask(request.name, request)  # type: ignore[no-any-return]

    async def set_state(
        self, state: str | bytes | bytearray | None, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        request = self._receiver._setting_state(state, timeout, kwargs)
        await self._receiver._ask(request.name, request)

    async def renew_lock(self, *, timeout: float | None = None, **kwargs: Any) -> datetime:
        request = self._receiver._renewing_session(timeout, kwargs)
        await self._receiver._ask(request.name, request)
        assert self.locked_until_utc is not None
        return self.locked_until_utc
