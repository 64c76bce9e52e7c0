"""A receiving link to one queue, and the deliveries on it that are not settled yet.

Law of this file. Every delivery is settled, released, or listed in `unsettled` with the end of its lock, so that
`end` can release all of them. One whose settlement got no answer is listed again. One whose settlement was refused is
settled on this link and still locked: it is in `_refused`, and its lock token releases it. Only a message that is at
home and could not be completed is in neither: released, it might be sent a second time by another syphon at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any
from uuid import UUID

from pairbus.amqp.link import ranges
from pairbus.ledger.rows import billing_groups
from pairbus.syphon.decide.pace import LOCK_S
from pairbus.syphon.shared import SyphonState
from pairbus.transport import ReceivedMessage, Receiver, Refused, TransportError
from pairbus.transport.errors import failure_of

logger = logging.getLogger("pairbus.syphon")

ANSWER_TIMEOUT_S = 2.0  # wait for the answer to a drain or a release: the peer may be far away, or silent
CLOSE_TIMEOUT_S = 0.5  # wait for the answer to a detach, on which nothing depends
SETTLE_TIMEOUT_S = 10.0
CLOCK_SLACK_S = 5.0  # a lock that ended by our clock may last so much longer by that of the queue
GUID_BYTES = 16  # of a tag that is a lock token
LOCK_LOST = "com.microsoft:message-lock-lost"


class MeteredLink:
    """A receiver whose operations are metered."""

    def __init__(self, shared: SyphonState, queue: str, receiver: Receiver) -> None:
        self._shared = shared
        self._queue = queue
        self._receiver = receiver
        self.unsettled: dict[int, float] = {}
        "Delivery id → end of its lock, by the shared clock."
        self._refused: dict[UUID, float] = {}
        "Lock token → end of the lock, of messages whose settlement was refused."

    @property
    def over(self) -> TransportError | None:
        return self._receiver.over

    def holds(self, now: float) -> bool:
        """Tell whether a message on this link is still locked."""
        return self.over is None and any(end > now for end in chain(self.unsettled.values(), self._refused.values()))

    # ── receiving ──

    def allow(self, credit: int) -> None:
        self._receiver.credit = credit

    async def receive(self, max_count: int, timeout_s: float, lock_s: float) -> list[ReceivedMessage]:
        """Receive as the receiver does; `lock_s`: probable lock time of the messages."""
        return self._note_received(await self._receiver.receive(max_count, timeout_s), lock_s)

    def locked(self, messages: Iterable[ReceivedMessage], until: float) -> None:
        """Note the end of locks, calculated from the times in the messages."""
        for message in messages:
            if message.delivery_id in self.unsettled:
                self.unsettled[message.delivery_id] = until

    async def pause(self) -> None:
        """Take the credit back. The flow frame for this is counted with the next receive."""
        await self._receiver.pause(ANSWER_TIMEOUT_S)

    async def rest(self, lock_s: float) -> list[ReceivedMessage]:
        """Return the messages that were fetched ahead; no more will arrive on this link."""
        receiver = self._receiver
        receiver.credit = 0
        await receiver.pause(ANSWER_TIMEOUT_S)
        return self._note_received(await receiver.receive(receiver.buffered, 0.0) if receiver.buffered else [], lock_s)

    def meter_empty(self) -> None:
        if empty := self._receiver.take_empty():
            self._shared.meter("secondary", self._queue, "empty receive", empty, 0, "ok")

    def _note_received(self, received: list[ReceivedMessage], lock_s: float) -> list[ReceivedMessage]:
        self.meter_empty()
        if received:
            locked_until = self._shared.clock() + lock_s
            self.unsettled.update(dict.fromkeys([message.delivery_id for message in received], locked_until))
            for count, size_bytes in billing_groups([len(message.payload) for message in received]):
                self._shared.meter("secondary", self._queue, "receive", count, size_bytes, "ok")
        return received

    # ── settling ──

    async def complete(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self.unsettled.pop(message.delivery_id, None)
        await self._receiver.complete(messages, timeout_s=SETTLE_TIMEOUT_S)

    async def dead_letter(self, messages: list[ReceivedMessage], reason: str, description: str) -> None:
        with self._settling(messages):
            await self._receiver.dead_letter(messages, reason, description, timeout_s=SETTLE_TIMEOUT_S)

    async def mark(self, message: ReceivedMessage, properties: Mapping[str, Any]) -> None:
        """Abandon a message with these application properties."""
        outcome = "ok"
        try:
            with self._settling([message]):
                await self._receiver.abandon([message], properties=properties, timeout_s=SETTLE_TIMEOUT_S)
        except TransportError as error:
            outcome = failure_of(error).kind.value
            raise
        finally:
            self._shared.meter("secondary", self._queue, "complete", 1, 0, outcome)

    async def give_back(self, messages: list[ReceivedMessage]) -> None:
        """Release messages, as if they had never been delivered."""
        await self._release([message.delivery_id for message in messages])

    @contextmanager
    def _settling(self, messages: list[ReceivedMessage]) -> Iterator[None]:
        taken_off = self._off_list(message.delivery_id for message in messages)
        try:
            yield
        except Refused as error:
            if error.condition != LOCK_LOST:
                refused = error.delivery_ids or tuple(taken_off)
                tokens = {
                    message.delivery_id: message.lock_token for message in messages if len(message.tag) == GUID_BYTES
                }
                self._refused |= {tokens[i]: end for i, end in taken_off.items() if i in refused and i in tokens}
            raise
        except BaseException:
            self.unsettled |= taken_off
            raise

    def _off_list(self, ids: Iterable[int]) -> dict[int, float]:
        return {delivery_id: self.unsettled.pop(delivery_id) for delivery_id in ids if delivery_id in self.unsettled}

    async def _release(self, ids: list[int]) -> None:
        runs = [self._release_run(range(first, last + 1)) for first, last in ranges(sorted(ids))]
        for error in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(error, Refused) and error.condition == LOCK_LOST:
                continue  # the messages are back already
            if error is not None:
                raise error

    async def _release_run(self, ids: range) -> None:
        outcome, taken_off = "ok", self._off_list(ids)
        try:
            await self._receiver.release(ids, timeout_s=ANSWER_TIMEOUT_S)
        except BaseException as error:
            if not isinstance(error, Refused):
                self.unsettled |= taken_off
            if isinstance(error, TransportError):
                outcome = failure_of(error).kind.value
            raise
        finally:
            self._shared.meter("secondary", self._queue, "complete", len(ids), 0, outcome)

    # ── ending ──

    async def end(self) -> bool:
        """Release all messages that are locked on this link, and close it. False when they may still be locked.

        A call that was cancelled left the link open, and may be repeated.
        """
        if self.over is not None:
            return not (self.unsettled or self._refused)
        try:
            await self.rest(LOCK_S)
            sooner = self._shared.clock() - CLOCK_SLACK_S
            await self._release([delivery_id for delivery_id, end in self.unsettled.items() if end > sooner])
            await self._release_refused([token for token, end in self._refused.items() if end > sooner])
        except TransportError as error:
            logger.debug("%s: messages come back when their locks run out: %s", self._queue, error)
            await self.close()
            return False
        await self.close()
        return True

    async def _release_refused(self, tokens: list[UUID]) -> None:
        if tokens:
            management = await self._shared.secondary.management(self._queue, ANSWER_TIMEOUT_S)
            await management.update_disposition("abandoned", tokens, timeout_s=ANSWER_TIMEOUT_S)
            self._refused.clear()
            self._shared.meter("secondary", self._queue, "complete", len(tokens), 0, "ok")

    async def close(self) -> None:
        await self._receiver.close(CLOSE_TIMEOUT_S)
