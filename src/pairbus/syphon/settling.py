"""Settling messages in their backlog queue: completing, dead-lettering, marking."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import AbstractContextManager

from pairbus import telemetry
from pairbus.amqp.types import Timestamp
from pairbus.backlog.aliases import MISSING_SINCE
from pairbus.backlog.envelope import Spoiled
from pairbus.pairing.events import DeadLettered, DestinationSkipped, MaybeDuplicated, Moved, Stayed
from pairbus.pairing.policy import Kind
from pairbus.syphon.decide.at_home import HomeIdentity, sequence_number_of
from pairbus.syphon.decide.relay import Item, key_of
from pairbus.syphon.link import LOCK_LOST, MeteredLink
from pairbus.syphon.sending import meter_send
from pairbus.syphon.shared import Pass, SyphonState, Trust
from pairbus.transport import ReceivedMessage, Refused, TransportError
from pairbus.transport.failures import failure_of

logger = logging.getLogger("pairbus.syphon")


class Settling:
    """Received messages and the link on which they are settled."""

    def __init__(
        self,
        shared: SyphonState,
        queue: str,
        received: list[ReceivedMessage],
        link: MeteredLink,
        this: Pass,
        trust: Trust,
    ) -> None:
        self._shared = shared
        self._queue = queue
        self._received = {message.delivery_id: message for message in received}
        self._link = link
        self._pass = this
        self._trust = trust

    def _at(self, places: Iterable[int]) -> list[ReceivedMessage]:
        return [self._received[place] for place in places]

    def _span(self, disposition: str, places: list[int]) -> AbstractContextManager[object]:
        """Return the span of a settlement in the backlog queue, with links to its messages."""
        facts: dict[str, telemetry.Attribute] = {
            telemetry.TYPE: "settle",
            telemetry.DESTINATION: self._queue,
            telemetry.DISPOSITION: disposition,
            telemetry.BATCH: len(places),
        }
        return telemetry.span(disposition, facts, (self._received[place].payload for place in places))

    def hold(self, items: list[Item]) -> None:
        raise NotImplementedError

    def keep(self, places: list[int]) -> None:
        raise NotImplementedError

    # ── completing ──

    async def accepted(self, path: str, items: list[Item]) -> None:
        """Complete messages that their destination has just accepted."""
        shared, now_ms = self._shared, self._shared.wall_ms()
        shared.delivered_at = shared.clock()
        shared.destinations.delivered(path)
        self._pass.delivered += len(items)
        meter_send(shared, path, items, "ok")
        window_ms = shared.settings.duplicate_detection_window_s * 1000
        for item in items:
            home, first_ms = item.home, item.home.first_attempt_ms
            if home.counter is not None:
                shared.lanes.gone(home)
            if shared.maybe_at_home and first_ms is None:
                first_ms = shared.maybe_at_home.take(self._queue, self._identity(item))
            if first_ms is not None and now_ms - first_ms > window_ms:
                away_s = (now_ms - first_ms) / 1000
                shared.publish(MaybeDuplicated.late(path, home.message_id or "", away_s))
        if await self._noted(path, items):
            self._moved(path, await self._complete(items))

    def unanswered(self, items: list[Item], began: float) -> None:
        """Note messages that were sent without an answer: their destination may have them."""
        shared = self._shared
        sent_ms = shared.wall_ms() - int((shared.clock() - began) * 1000)
        shared.maybe_at_home.note(self._queue, map(self._identity, items), sent_ms)

    async def complete_known(self, items: list[Item]) -> None:
        """Complete messages that were received again although their destination has them."""
        gone = await self._complete(items)
        for path in {item.home.path for item in gone}:
            self._moved(path, [item for item in gone if item.home.path == path])
        self._shared.at_home.forget(self._queue, map(self._identity, gone))

    def _moved(self, path: str, items: list[Item]) -> None:
        if items:
            ids = tuple([home.message_id or "" for _, home, _ in items])
            self._shared.publish(Moved(path, self._queue, len(ids), ids))

    async def _noted(self, path: str, items: list[Item]) -> bool:
        if self._shared.before_complete is None:
            return True
        try:
            await self._shared.before_complete(path, [(item, self._received[item.place]) for item in items])
        except OSError as error:
            self.stop(f"messages that are at home could not be noted, and will come again: {error}")
            return False
        return True

    async def _complete(self, items: list[Item]) -> list[Item]:
        """Complete messages; return those that are gone from the queue. The others are remembered, and come again."""
        try:
            with self._span("complete", [item.place for item in items]):
                await self._link.complete(self._at(item.place for item in items))
        except TransportError as error:
            return self._not_completed(items, error)
        self._trust.proven = True
        self._meter_settled(len(items), "ok")
        return items

    def _not_completed(self, items: list[Item], error: TransportError) -> list[Item]:
        kept = set(error.delivery_ids) if isinstance(error, Refused) and error.delivery_ids else None
        gone = [item for item in items if kept is not None and item.place not in kept]
        left = [item for item in items if kept is None or item.place in kept]
        self._shared.at_home.remember(self._queue, map(self._identity, left))
        lock_lost = isinstance(error, Refused) and error.condition == LOCK_LOST
        if not (lock_lost and (gone or len(items) == 1)):
            self._pass.uncompleted += len(left)
            self._pass.uncompleted_because = str(error)
            self._trust.proven = False
        self.stop(f"messages that are at home could not be completed: {error}", error)
        self._meter_settled(len(left), failure_of(error).kind.value)
        self._meter_settled(len(gone), "ok")
        return gone

    def _identity(self, item: Item) -> HomeIdentity:
        number = sequence_number_of(self._received[item.place].payload)
        return number, item.home.message_id, item.home.enqueued_ms

    # ── dead-lettering ──

    async def dead_letter_spoiled(self, spoiled: list[tuple[int, Spoiled]]) -> None:
        """Dead-letter messages that cannot go home, whatever the state of their destination."""
        groups: dict[tuple[str, str], list[tuple[int, Spoiled]]] = {}
        for place, one in spoiled:
            if one.home is not None:
                self._shared.lanes.gone(one.home)  # messages of its lane need not wait for it
            groups.setdefault((one.reason, one.description), []).append((place, one))
        for why, group in groups.items():
            await self.dead_letter([place for place, _ in group], [one.message_id for _, one in group], *why)

    async def dead_letter(self, places: list[int], ids: Iterable[str | None], reason: str, description: str) -> None:
        """Dead-letter messages; a message of a dead-letter queue stays there."""
        shared = self._shared
        if not shared.dead_letters:
            self._pass.errors += len(places)
            self.keep(places)
            named = tuple([message_id or "" for message_id in ids])
            shared.publish(Stayed(self._queue, len(places), named, reason, description))
            return
        try:
            with self._span("dead_letter", places):
                await self._link.dead_letter(self._at(places), reason, description)
        except TransportError as error:
            self.stop(f"a message could not be dead-lettered, and will come again: {error}", error)
            self._meter_settled(len(places), failure_of(error).kind.value)
            return
        self._trust.proven = True
        self._meter_settled(len(places), "ok")
        self._pass.dead_lettered += len(places)
        for message_id in ids:
            shared.publish(DeadLettered(self._queue, message_id or "", reason, description))

    def _meter_settled(self, count: int, outcome: str) -> None:
        if count:
            self._shared.meter("secondary", self._queue, "complete", count, 0, outcome)

    # ── skipped destinations ──

    def _skip(self, path: str, reason: str, items: list[Item]) -> None:
        if key_of(path) not in self._pass.skipped:
            self._pass.skipped[key_of(path)] = reason
            self._shared.publish(DestinationSkipped(path, self._queue, reason))
        self.hold(items)

    def _read_marks(self, items: list[Item]) -> None:
        """Read from marked messages since when their destination is missing: another process may have marked them."""
        shared = self._shared
        for item in items:
            if item.home.missing_since_ms is not None:
                now = shared.clock()
                away_s = max(shared.wall_ms() - item.home.missing_since_ms, 0) / 1000
                shared.destinations.marked(self._queue, item.home.path, now - away_s, now)

    async def _mark(self, path: str, items: list[Item]) -> list[Item]:
        """Mark one message of the queue with the time since when its destination is missing, or remove such a mark.

        That message goes back to its place in the queue and is received again; the others are returned. Only the mark
        tells other processes the time.
        """
        shared = self._shared
        if not (shared.marks and shared.dead_letters):
            return items
        since = shared.destinations.missing_since(path)
        if since is None:
            stale = next((item for item in items if item.home.missing_since_ms is not None), None)
            return items if stale is None else await self._write_mark(stale, None, items)
        if not shared.destinations.needs_mark(self._queue, path):
            return items
        missing_ms = shared.wall_ms() - int((shared.clock() - since) * 1000)
        return await self._write_mark(items[0], Timestamp(missing_ms), items)

    async def _write_mark(self, marked: Item, value: Timestamp | None, items: list[Item]) -> list[Item]:
        try:
            await self._link.mark(self._received[marked.place], {MISSING_SINCE: value})
        except TransportError as error:
            logger.debug("%s: a message could not be marked: %s", self._queue, error)
            return items
        return [item for item in items if item.place != marked.place]

    # ── ending the pass ──

    def stop(self, reason: str, error: TransportError | None = None) -> None:
        """Let the pass send no more messages. `error`: an error of the secondary."""
        if error is not None and failure_of(error).kind is Kind.BUSY:
            self._pass.busy = True
        if self._pass.over is None:
            self._pass.over = reason
            self._pass.errors += 1
            logger.warning("%s: %s", self._queue, reason)
