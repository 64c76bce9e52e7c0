"""The trip of a batch home: messages are sent to their destinations and completed when these have accepted them, or
dead-lettered when these never will; otherwise they stay locked.

Laws of this file.
 1. A message is completed only after its destination has accepted it. If completing fails the message is remembered,
    and only completed when it is received again. A crash in between may store a duplicate; a message is never lost.
 2. Until a queue has stored a completion, one message at a time goes to each destination.
 3. Messages that wait stay locked until their locks run out, the primary as a whole is away, or the pump ends.
"""

from __future__ import annotations

import asyncio
import logging

from pairbus import telemetry
from pairbus.errors import ConfigError
from pairbus.pairing.policy import MESSAGE_FAULTS, Kind
from pairbus.syphon.decide.relay import Chunk, Fate, Item, key_of, rounds
from pairbus.syphon.link import MeteredLink
from pairbus.syphon.presence import was_silent
from pairbus.syphon.sending import send_at_once
from pairbus.syphon.settling import Settling
from pairbus.syphon.shared import Held, Pass, SyphonState, Trust
from pairbus.transport import ReceivedMessage, Sender, TransportError
from pairbus.transport.failures import failure_of

logger = logging.getLogger("pairbus.syphon")


class Turn:
    """The turn of a batch at one destination: batches are sent in the order of the queue, pipelined or not."""

    __slots__ = ("_before", "_sent")

    def __init__(self, before: Turn | None) -> None:
        self._before = before
        self._sent = asyncio.get_running_loop().create_future()

    async def come(self) -> None:
        if self._before is not None:
            await asyncio.wait([self._before._sent])
            self._before = None

    @property
    def is_over(self) -> bool:
        return self._sent.done()

    def over(self) -> None:
        """Let the next batch begin: all messages of this one that could be sent at once are sent."""
        if not self._sent.done():
            self._sent.set_result(None)


class Trip(Settling):
    """A batch under way, with the link on which it is settled; places of messages are their delivery ids.

    `locks_end` is the time, by the shared clock, until which they are certainly still locked.
    """

    def __init__(  # noqa: PLR0917 - each is a setting of its own
        self,
        shared: SyphonState,
        queue: str,
        received: list[ReceivedMessage],
        link: MeteredLink,
        this: Pass,
        locks_end: float,
        trust: Trust,
    ) -> None:
        super().__init__(shared, queue, received, link, this, trust)
        self._locks_end = locks_end

    def joined_by(self, other: Trip) -> bool:
        """Add the messages of another trip; False, without adding any, when it has another link or pass."""
        if other._link is not self._link or other._pass is not self._pass:
            return False
        self._received |= other._received
        self._locks_end = min(self._locks_end, other._locks_end)
        return True

    def received_on(self, link: MeteredLink, items: list[Item]) -> list[ReceivedMessage]:
        """Return the messages as they were received; empty when they were received on another link."""
        return self._at(item.place for item in items) if link is self._link else []

    async def bring(self, items: list[Item], turn: Turn) -> None:
        """Bring all messages of the batch that have this one destination."""
        self._read_marks(items)
        while items and not self._trust.proven and self._pass.over is None:
            await self._bring(items[:1], None)
            items = items[1:]
        if items:
            await self._bring(items, turn)

    async def _bring(self, items: list[Item], turn: Turn | None) -> None:
        shared, path = self._shared, items[0].home.path
        now = shared.clock()
        if self._pass.over is not None or shared.presence.is_away:
            self.hold(items)
            return
        reason = self._pass.skipped.get(key_of(path)) or shared.destinations.closed_because(path, now)
        if reason is not None:
            self._skip(path, reason, items)
            return
        ready = await self._ready(items, now)
        if not ready:
            return
        try:
            sender = await shared.primary.sender(path, shared.settings.send_timeout_s)
        except TransportError as error:
            await self._failed(path, ready, error, now, at_attach=True)
            return
        except ConfigError as error:  # the connection string is for another entity
            self._pass.errors += 1
            self._skip(path, str(error), ready)
            return
        await self._send(sender, path, ready, turn, in_batches=shared.destinations.takes_batches(path))

    async def _ready(self, items: list[Item], now: float) -> list[Item]:
        """Return the messages that may go now, after the budget's wait; the others are held."""
        shared = self._shared
        ready = shared.lanes.ready(items, now)
        if len(ready) < len(items):
            going = {item.place for item in ready}
            self.hold([item for item in items if item.place not in going])
        if not ready:
            return []
        wait_s = shared.budget.take(len(ready), now)
        if wait_s:
            await asyncio.sleep(wait_s)
        if (late := self._too_late) is not None:
            self.stop(late)
            self.hold(ready)
            return []
        return ready

    # ── sending ──

    async def _send(self, sender: Sender, path: str, items: list[Item], turn: Turn | None, *, in_batches: bool) -> bool:
        """Send round after round. True when every message was accepted."""
        all_accepted = True
        left = rounds(items, sender.max_message_size, in_batches=in_batches)
        while left:
            chunks, began = left.pop(0), self._shared.clock()
            last = turn.over if turn is not None and not left else None
            facts = {telemetry.TYPE: "send", telemetry.DESTINATION: path, telemetry.QUEUE: self._queue}
            with telemetry.span("move", facts, (item.payload for chunk in chunks for item in chunk)) as span:
                errors, unsent = await send_at_once(
                    self._shared, sender, chunks, self._locks_end, lambda: self._too_late, last
                )
                for error in errors:
                    if error is not None:
                        telemetry.failed(span, str(error), error)
            sent = list(zip(chunks, errors, strict=False))
            accepted = [item for chunk, error in sent if error is None for item in chunk]
            if accepted:
                await self.accepted(path, accepted)
            for chunk, error in sent:
                if error is not None:
                    all_accepted = await self._chunk_failed(sender, path, chunk, error, began, turn) and all_accepted
            if unsent is not None:
                rest = [item for chunk in chunks[len(sent) :] for item in chunk]
                await self._not_sent(sender, path, rest, unsent, began)
                all_accepted = False
            if key_of(path) in self._pass.skipped or self._pass.over is not None:
                self.hold([item for later in left for chunk in later for item in chunk])
                return False
        return all_accepted

    async def _not_sent(
        self, sender: Sender, path: str, items: list[Item], error: TransportError | str, began: float
    ) -> None:
        if isinstance(error, str):
            self.stop(error)
            self.hold(items)
            return
        await self._failed(path, items, error, began)
        if error.silence is not None and not sender.in_flight:
            self._shared.primary.forget(path)  # the next attach tells whether the peer is there at all

    async def _chunk_failed(
        self, sender: Sender, path: str, chunk: Chunk, error: TransportError, began: float, turn: Turn | None
    ) -> bool:
        failure = failure_of(error)
        if error.outcome_unknown:
            self.unanswered(chunk, began)
        if len(chunk) == 1 or failure.kind not in MESSAGE_FAULTS:
            await self._failed(path, chunk, error, began)
            return False
        all_accepted = await self._send(sender, path, chunk, turn, in_batches=False)
        if all_accepted and failure.kind is not Kind.TOO_LARGE:  # smaller batches may be accepted
            self._shared.destinations.refuses_batches(path)
        return False

    # ── failures ──

    async def _failed(
        self, path: str, items: list[Item], error: TransportError, began: float, *, at_attach: bool = False
    ) -> None:
        shared, failure = self._shared, failure_of(error)
        ruling = shared.destinations.failed(path, failure, shared.clock(), at_attach=at_attach)
        if ruling.fate is Fate.DEAD_LETTER:
            for item in items:
                shared.lanes.gone(item.home)
            places, ids = [item.place for item in items], [item.home.message_id for item in items]
            await self.dead_letter(places, ids, ruling.reason, ruling.description)
            return
        self._pass.errors += 1
        if failure.kind is Kind.BUSY:
            shared.budget.busy(shared.clock(), began)
        # A primary that gives no credit for so long may have a reason; one that does not answer has none.
        is_silent = was_silent(error, shared.primary, shared.settings.send_timeout_s)
        unheard = is_silent and (at_attach or error.outcome_unknown)
        if failure.kind is Kind.COMMUNICATION or unheard:
            shared.primary.forget(path)
            if unheard and shared.delivered_at < began:
                await self._drop_silent()  # no other message was accepted since this one was sent
            if not shared.primary.is_connected:
                self._primary_lost(path, ruling.reason)
                self.hold(items)
                return
        left = await self._mark(path, items)
        if len(left) < len(items):
            self._wait_in_lanes([item for item in items if item not in left])
        self._skip(path, ruling.reason, left)

    async def _drop_silent(self) -> None:
        """Replace a connection that may be silent: when a new one opens, only the entity did not answer."""
        primary = self._shared.primary
        await primary.drop()
        try:
            await primary.connection(primary.connect_timeout_s)
        except TransportError as error:
            logger.debug("%s: a silent primary cannot be reached: %s", self._queue, error)

    def _primary_lost(self, path: str, reason: str) -> None:
        shared = self._shared
        shared.presence.lost(path, reason, shared.clock(), shared.delivered_at)
        if self._pass.over is None:
            self._pass.over = f"the primary cannot be reached: {reason}"

    # ── waiting ──

    def hold(self, items: list[Item]) -> None:
        """Leave messages locked."""
        self.keep([item.place for item in items])
        self._wait_in_lanes(items)

    def _wait_in_lanes(self, items: list[Item]) -> None:
        now = self._shared.clock()
        for item in items:
            self._shared.lanes.waits(item.home, self._locks_end, now)

    def keep(self, places: list[int]) -> None:
        self._pass.held.append(Held(len(places), self._locks_end))
        self._pass.held_on_link += len(places)

    @property
    def _too_late(self) -> str | None:
        """Return the reason why no more messages of this trip may be sent; None when they may."""
        if self._link.over is not None:
            return "the link was lost before its messages were sent, and they will come again"
        if self._shared.clock() >= self._locks_end:
            return "the locks of messages ran out before they were sent"
        return None
