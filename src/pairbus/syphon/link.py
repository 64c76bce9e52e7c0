"""A receiving link to one queue, and the deliveries on it that are not settled yet.

Law of this file. Every delivery is settled, released, or listed in `unsettled` with the end of its lock, so that
`end` can release all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from pairbus.amqp.link import ranges
from pairbus.ledger.rows import alike
from pairbus.pairing.pace import LOCK_S
from pairbus.syphon.shared import SyphonState
from pairbus.transport import ReceivedMessage, Receiver, TransportError
from pairbus.transport.failures import failure_of

logger = logging.getLogger("pairbus.syphon")

CLOSE_TIMEOUT_S = 0.5  # wait for each of three answers of a peer that may be silent
GIVE_BACK_TIMEOUT_S = 2.0  # wait for the answer to a release, when no message may stay locked
SETTLE_TIMEOUT_S = 10.0


class MeteredLink:
    """A receiver whose operations are metered."""

    def __init__(self, shared: SyphonState, queue: str, receiver: Receiver) -> None:
        self._shared = shared
        self._queue = queue
        self._receiver = receiver
        self.unsettled: dict[int, float] = {}
        "Delivery id → end of its lock, by the shared clock."

    @property
    def over(self) -> TransportError | None:
        return self._receiver.over

    def holds(self, now: float) -> bool:
        """Tell whether a message on this link is still locked."""
        return self.over is None and any(end > now for end in self.unsettled.values())

    # ── receiving ──

    def allow(self, credit: int) -> None:
        self._receiver.credit = credit

    async def receive(self, max_count: int, timeout_s: float, lock_s: float) -> list[ReceivedMessage]:
        """Receive as the receiver does; `lock_s`: probable lock time of the messages."""
        return self._came(await self._receiver.receive(max_count, timeout_s), lock_s)

    def locked(self, messages: Iterable[ReceivedMessage], until: float) -> None:
        """Note the end of locks, calculated from the times in the messages."""
        for message in messages:
            if message.delivery_id in self.unsettled:
                self.unsettled[message.delivery_id] = until

    async def pause(self) -> None:
        """Take the credit back. The flow frame for this is counted with the next receive."""
        await self._receiver.pause(CLOSE_TIMEOUT_S)

    async def rest(self, lock_s: float) -> list[ReceivedMessage]:
        """Return the messages that were fetched ahead; no more will arrive on this link."""
        receiver = self._receiver
        receiver.credit = 0
        await receiver.pause(CLOSE_TIMEOUT_S)
        return self._came(await receiver.receive(receiver.buffered, 0.0) if receiver.buffered else [], lock_s)

    def meter_empty(self) -> None:
        if empty := self._receiver.take_empty():
            self._shared.meter("secondary", self._queue, "empty receive", empty, 0, "ok")

    def _came(self, batch: list[ReceivedMessage], lock_s: float) -> list[ReceivedMessage]:
        self.meter_empty()
        if batch:
            locked_until = self._shared.clock() + lock_s
            self.unsettled.update(dict.fromkeys([message.delivery_id for message in batch], locked_until))
            for count, size_bytes in alike([len(message.payload) for message in batch]):
                self._shared.meter("secondary", self._queue, "receive", count, size_bytes, "ok")
        return batch

    # ── settling ──

    async def complete(self, messages: list[ReceivedMessage]) -> None:
        self._settled(message.delivery_id for message in messages)
        await self._receiver.complete(messages, timeout_s=SETTLE_TIMEOUT_S)

    async def dead_letter(self, messages: list[ReceivedMessage], reason: str, description: str) -> None:
        self._settled(message.delivery_id for message in messages)
        await self._receiver.dead_letter(messages, reason, description, timeout_s=SETTLE_TIMEOUT_S)

    async def mark(self, message: ReceivedMessage, properties: Mapping[str, Any]) -> None:
        """Abandon a message with these application properties."""
        self._settled([message.delivery_id])
        outcome = "ok"
        try:
            await self._receiver.abandon([message], properties=properties, timeout_s=SETTLE_TIMEOUT_S)
        except TransportError as error:
            outcome = failure_of(error).kind.value
            raise
        finally:
            self._shared.meter("secondary", self._queue, "complete", 1, 0, outcome)

    async def give_back(self, messages: list[ReceivedMessage]) -> None:
        """Release messages, as if they had never been delivered."""
        await self._release([message.delivery_id for message in messages], CLOSE_TIMEOUT_S)

    def _settled(self, ids: Iterable[int]) -> None:
        for delivery_id in ids:
            self.unsettled.pop(delivery_id, None)

    async def _release(self, ids: list[int], timeout_s: float) -> None:
        self._settled(ids)
        runs = [self._release_run(range(first, last + 1), timeout_s) for first, last in ranges(sorted(ids))]
        for error in await asyncio.gather(*runs, return_exceptions=True):
            if error is not None:
                raise error

    async def _release_run(self, ids: range, timeout_s: float) -> None:
        outcome = "ok"
        try:
            await self._receiver.release(ids, timeout_s=timeout_s)
        except TransportError as error:
            outcome = failure_of(error).kind.value
            raise
        finally:
            self._shared.meter("secondary", self._queue, "complete", len(ids), 0, outcome)

    # ── ending ──

    async def end(self) -> bool:
        """Release all messages that are locked on this link, and close it. False when they may still be locked."""
        if self.over is not None:
            return not self.unsettled
        try:
            await self.rest(LOCK_S)
            now = self._shared.clock()
            locked = [delivery_id for delivery_id, end in self.unsettled.items() if end > now]
            await self._release(locked, GIVE_BACK_TIMEOUT_S)
        except TransportError as error:
            logger.debug("%s: messages come back when their locks run out: %s", self._queue, error)
            return False
        finally:
            await self.close()
        return True

    async def close(self) -> None:
        await self._receiver.close(CLOSE_TIMEOUT_S)
