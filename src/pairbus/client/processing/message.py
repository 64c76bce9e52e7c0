"""The message that a handler gets: the SDK's received message, which can be settled by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageAlreadySettled

from pairbus.client.processing.decide.copies import shown
from pairbus.client.receiving.settling import Settle, Settlement
from pairbus.sdk.received import delivered_as

if TYPE_CHECKING:
    from pairbus.client.processing.held import HeldMessage
    from pairbus.client.processing.session import AioProcessorSession, ProcessorSession

WAIT_S = 60.0  # for the engine's answer to a handler that settles; the settlement itself is limited to half of it


class _Message(ServiceBusReceivedMessage):
    """The parts of both flavours."""

    _work: HeldMessage

    @property
    def lock_lost(self) -> bool:
        """True: the lock was lost, so the message comes again, perhaps in another process. It cannot be settled."""
        return self._work.is_lost

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1 on, over all copies of the message."""
        return self._work.attempt

    @property
    def first_enqueued_time_utc(self) -> datetime | None:
        """Time when the entity stored the message first, before all attempts."""
        first_ms = self._work.facts.first_enqueued_ms
        return None if first_ms is None else datetime.fromtimestamp(first_ms / 1000, UTC)

    @property
    def locked_until_utc(self) -> datetime | None:
        ends_s = self._work.lock_ends_s
        return super().locked_until_utc if ends_s is None else datetime.fromtimestamp(ends_s, UTC)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_work", None)
        return state

    def _settling(self, said: Settlement) -> Any:
        """Return the coroutine that settles this message, for the engine's loop."""
        work = self._work
        if work.is_settled:
            raise MessageAlreadySettled()
        work.is_settled = True
        return work.feed.settle_for_handler(work, said)

    @property
    def _engine_loop(self) -> asyncio.AbstractEventLoop:
        return self._work.feed.loop


class ProcessorMessage(_Message):
    """A message in a handler of a processor for threads."""

    @property
    def session(self) -> ProcessorSession | None:
        """The session of the message; None on an entity without sessions."""
        session: ProcessorSession | None = self._work.feed.session
        return session

    def complete(self) -> None:
        """Complete the message; returns after the service's answer, and raises the errors of the SDK."""
        self._settle(Settlement(Settle.COMPLETE))

    def abandon(self, properties: Mapping[str, Any] | None = None) -> None:
        """Give the message back, counted as a delivery. `properties` change application properties."""
        self._settle(Settlement(Settle.ABANDON, properties=properties))

    def defer(self) -> None:
        """Defer the message: from now on it is received only by its sequence number."""
        self._settle(Settlement(Settle.DEFER))

    def dead_letter(self, reason: str | None = None, description: str | None = None) -> None:
        """Dead-letter the message."""
        self._settle(Settlement(Settle.DEAD_LETTER, reason, description))

    def _settle(self, said: Settlement) -> None:
        asyncio.run_coroutine_threadsafe(self._settling(said), self._engine_loop).result(WAIT_S)


class AioProcessorMessage(_Message):
    """A message in a handler of a processor for asyncio."""

    @property
    def session(self) -> AioProcessorSession | None:
        """The session of the message; None on an entity without sessions."""
        session: AioProcessorSession | None = self._work.feed.session
        return session

    async def complete(self) -> None:
        """Complete the message; returns after the service's answer, and raises the errors of the SDK."""
        await self._settle(Settlement(Settle.COMPLETE))

    async def abandon(self, properties: Mapping[str, Any] | None = None) -> None:
        """Give the message back, counted as a delivery. `properties` change application properties."""
        await self._settle(Settlement(Settle.ABANDON, properties=properties))

    async def defer(self) -> None:
        """Defer the message: from now on it is received only by its sequence number."""
        await self._settle(Settlement(Settle.DEFER))

    async def dead_letter(self, reason: str | None = None, description: str | None = None) -> None:
        """Dead-letter the message."""
        await self._settle(Settlement(Settle.DEAD_LETTER, reason, description))

    async def _settle(self, said: Settlement) -> None:
        settled = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._settling(said), self._engine_loop))
        settled.add_done_callback(_heard)
        async with asyncio.timeout(WAIT_S):
            await asyncio.shield(settled)


def _heard(settled: asyncio.Future[Any]) -> None:
    """Retrieve the exception also when the handler was cancelled and does not wait any more: asyncio would complain."""
    if not settled.cancelled():
        settled.exception()


def new_message(kind: type[Any], work: HeldMessage) -> Any:
    """Return the message of a work. Any exception means that it cannot be read."""
    incoming = work.incoming
    payload = shown(work.payload)
    message = delivered_as(kind, payload, incoming.mode, incoming.locked.place, incoming.tag, work.feed)
    message._work = work
    return message
