"""Step 4, settle: completes messages that are at home, dead-letters those that never will be, leaves the others locked.

Laws of this file.
 1. A message is completed only after its destination has accepted it. If completing fails the message is remembered,
    and only completed when it is received again. A crash in between may store a duplicate; a message is never lost.
 2. Messages that wait stay locked until their locks run out, the primary as a whole is away, or the pump ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager

from pairbus import telemetry
from pairbus.backlog.envelope import Spoiled
from pairbus.ledger.rows import billing_groups
from pairbus.pairing.events import DeadLettered, DestinationSkipped, MaybeDuplicated, Moved, Stayed
from pairbus.pairing.policy import Kind
from pairbus.syphon.decide.at_home import HomeIdentity
from pairbus.syphon.decide.batch import Item, identity_of
from pairbus.syphon.decide.destinations import key_of
from pairbus.syphon.metered_link import LOCK_LOST
from pairbus.syphon.shared import Batch, Held, SyphonState
from pairbus.transport import Refused, TransportError
from pairbus.transport.errors import failure_of

logger = logging.getLogger("pairbus.syphon")


class Settling:
    """Settles the messages of one queue."""

    def __init__(self, shared: SyphonState, queue: str) -> None:
        self._shared = shared
        self._queue = queue
        self.is_proven = shared.trusts
        "True when the queue has stored its last completion."

    # ── completing ──

    async def complete_accepted(self, batch: Batch, path: str, items: list[Item]) -> None:
        """Complete messages that their destination has just accepted."""
        shared = self._shared
        shared.delivered_at = shared.clock()
        shared.destinations.delivered(path)
        batch.results.delivered += len(items)
        meter_send(shared, path, items, "ok")
        self._report_late(batch, path, items)
        if await self._note_before_complete(batch, path, items):
            self._publish_moved(path, await self._complete(batch, items))

    async def complete_known(self, batch: Batch, items: list[Item]) -> None:
        """Complete messages that were received again although their destination has them."""
        completed = await self._complete(batch, items)
        for path in {item.home.path for item in completed}:
            self._publish_moved(path, [item for item in completed if item.home.path == path])
        self._shared.at_home.forget(self._queue, self._identities(batch, completed))

    def note_unanswered(self, batch: Batch, items: list[Item], began: float) -> None:
        """Note messages that were sent without an answer: their destination may have them."""
        shared = self._shared
        sent_ms = shared.wall_ms() - int((shared.clock() - began) * 1000)
        shared.maybe_at_home.note(self._queue, self._identities(batch, items), sent_ms)

    def _report_late(self, batch: Batch, path: str, items: list[Item]) -> None:
        """Report messages that a destination may have twice: it no longer remembers their first attempt."""
        shared, now_ms = self._shared, self._shared.wall_ms()
        window_ms, may_be_at_home = shared.settings.duplicate_detection_window_s * 1000, len(shared.maybe_at_home) > 0
        for item in items:
            first_ms = item.home.first_attempt_ms
            if first_ms is None and may_be_at_home:
                first_ms = shared.maybe_at_home.take(self._queue, identity_of(item, batch.received[item.place]))
            if first_ms is not None and now_ms - first_ms > window_ms:
                away_s = (now_ms - first_ms) / 1000
                shared.publish(MaybeDuplicated.late(path, item.home.message_id or "", away_s))

    async def _note_before_complete(self, batch: Batch, path: str, items: list[Item]) -> bool:
        if self._shared.before_complete is None:
            return True
        try:
            await self._shared.before_complete(path, list(zip(items, batch.at(items), strict=True)))
        except OSError as error:
            self.stop(batch, f"messages that are at home could not be noted, and will come again: {error}")
            return False
        return True

    async def _complete(self, batch: Batch, items: list[Item]) -> list[Item]:
        """Complete messages; return those that are gone from the queue. The others are remembered, and come again."""
        try:
            with self._span(batch, "complete", [item.place for item in items]):
                await batch.link.complete(batch.at(items))
        except TransportError as error:
            return self._not_completed(batch, items, error)
        self.is_proven = True
        self._meter_settled(len(items), "ok")
        return items

    def _not_completed(self, batch: Batch, items: list[Item], error: TransportError) -> list[Item]:
        refused = set(error.delivery_ids) if isinstance(error, Refused) and error.delivery_ids else None
        completed = [item for item in items if refused is not None and item.place not in refused]
        left = [item for item in items if refused is None or item.place in refused]
        self._shared.at_home.remember(self._queue, self._identities(batch, left))
        lock_lost = isinstance(error, Refused) and error.condition == LOCK_LOST
        if not (lock_lost and (completed or len(items) == 1)):
            batch.results.uncompleted += len(left)
            batch.results.uncompleted_because = str(error)
            self.is_proven = False
        self.stop(batch, f"messages that are at home could not be completed: {error}", error)
        self._meter_settled(len(left), failure_of(error).kind.value)
        self._meter_settled(len(completed), "ok")
        return completed

    def _publish_moved(self, path: str, items: list[Item]) -> None:
        if items:
            ids = tuple([home.message_id or "" for _, home, _ in items])
            self._shared.publish(Moved(path, self._queue, len(ids), ids))

    def _identities(self, batch: Batch, items: list[Item]) -> list[HomeIdentity]:
        return [identity_of(item, batch.received[item.place]) for item in items]

    # ── dead-lettering ──

    async def dead_letter_spoiled(self, batch: Batch, spoiled: list[tuple[int, Spoiled]]) -> None:
        """Dead-letter messages that cannot go home, whatever the state of their destination."""
        groups: dict[tuple[str, str], list[tuple[int, Spoiled]]] = {}
        for place, one in spoiled:
            groups.setdefault((one.reason, one.description), []).append((place, one))
        for why, group in groups.items():
            await self.dead_letter(batch, [place for place, _ in group], [one.message_id for _, one in group], *why)

    async def dead_letter(
        self, batch: Batch, places: list[int], ids: Iterable[str | None], reason: str, description: str
    ) -> None:
        """Dead-letter messages; a message of a dead-letter queue stays there."""
        shared = self._shared
        if not shared.dead_letters:
            batch.results.errors += len(places)
            self.hold_places(batch, places)
            names = tuple([message_id or "" for message_id in ids])
            shared.publish(Stayed(self._queue, len(places), names, reason, description))
            return
        try:
            with self._span(batch, "dead_letter", places):
                await batch.link.dead_letter([batch.received[place] for place in places], reason, description)
        except TransportError as error:
            self.stop(batch, f"a message could not be dead-lettered, and will come again: {error}", error)
            self._meter_settled(len(places), failure_of(error).kind.value)
            return
        self.is_proven = True
        self._meter_settled(len(places), "ok")
        batch.results.dead_lettered += len(places)
        for message_id in ids:
            shared.publish(DeadLettered(self._queue, message_id or "", reason, description))

    # ── leaving messages locked ──

    def hold(self, batch: Batch, items: list[Item]) -> None:
        """Leave messages locked: they wait for their destination."""
        self.hold_places(batch, [item.place for item in items])
        batch.waiting.update([item.place for item in items])

    def hold_places(self, batch: Batch, places: list[int]) -> None:
        batch.results.held.append(Held(len(places), batch.locks_end))
        batch.results.held_on_link += len(places)

    def skip(self, batch: Batch, path: str, reason: str, items: list[Item]) -> None:
        """Hold messages, and those of the same destination that follow in this pass."""
        if key_of(path) not in batch.results.skipped:
            batch.results.skipped[key_of(path)] = reason
            self._shared.publish(DestinationSkipped(path, self._queue, reason))
        self.hold(batch, items)

    def stop(self, batch: Batch, reason: str, error: TransportError | None = None) -> None:
        """Let the pass send no more messages. `error`: an error of the secondary."""
        results = batch.results
        if error is not None and failure_of(error).kind is Kind.BUSY:
            results.busy = True
        if results.over is None:
            results.over = reason
            results.errors += 1
            logger.warning("%s: %s", self._queue, reason)

    # ── counting ──

    def _meter_settled(self, count: int, outcome: str) -> None:
        if count:
            self._shared.meter("secondary", self._queue, "complete", count, 0, outcome)

    def _span(self, batch: Batch, disposition: str, places: list[int]) -> AbstractContextManager[object]:
        """Return the span of a settlement in the backlog queue, with links to its messages."""
        facts: dict[str, telemetry.Attribute] = {
            telemetry.TYPE: "settle",
            telemetry.DESTINATION: self._queue,
            telemetry.DISPOSITION: disposition,
            telemetry.BATCH: len(places),
        }
        return telemetry.span(disposition, facts, (batch.received[place].payload for place in places))


def meter_send(shared: SyphonState, path: str, items: list[Item], outcome: str) -> None:
    for count, size_bytes in billing_groups([len(item.payload) for item in items]):
        shared.meter("primary", path, "send", count, size_bytes, outcome)
