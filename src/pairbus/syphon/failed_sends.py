"""Answers failures of sends: the messages are dead-lettered, or their destination is skipped, or the primary is away.

`decide/dead_letter.py` decides between the first two. A connection that may be silent is replaced, to see whether the
primary or only one entity does not answer. Since when a destination is missing is marked on one message of the queue,
because only the mark tells other processes the time.
"""

from __future__ import annotations

import logging

from pairbus.amqp.types import Timestamp
from pairbus.backlog.aliases import MISSING_SINCE
from pairbus.pairing.policy import Kind
from pairbus.syphon.decide.batch import Item
from pairbus.syphon.decide.dead_letter import Fate
from pairbus.syphon.presence import was_silent
from pairbus.syphon.settle import Settling
from pairbus.syphon.shared import Batch, SyphonState
from pairbus.transport import TransportError
from pairbus.transport.errors import failure_of

logger = logging.getLogger("pairbus.syphon")


class FailedSends:
    """Failed sends of messages of one queue."""

    def __init__(self, shared: SyphonState, queue: str, settling: Settling) -> None:
        self._shared = shared
        self._queue = queue
        self._settling = settling

    async def answer(
        self,
        batch: Batch,
        path: str,
        items: list[Item],
        error: TransportError,
        began: float,
        *,
        at_attach: bool = False,
    ) -> None:
        """Dead-letter or hold messages whose send failed. `at_attach`: no link to the destination could be opened."""
        shared, failure = self._shared, failure_of(error)
        ruling = shared.destinations.failed(path, failure, shared.clock(), at_attach=at_attach)
        if ruling.fate is Fate.DEAD_LETTER:
            places, ids = [item.place for item in items], [item.home.message_id for item in items]
            await self._settling.dead_letter(batch, places, ids, ruling.reason, ruling.description)
            return
        batch.results.errors += 1
        if failure.kind is Kind.BUSY:
            shared.budget.busy(shared.clock(), began)
        # A primary that gives no credit for so long may have a reason; one that does not answer has none.
        is_silent = was_silent(error, shared.primary, shared.settings.send_timeout_s)
        unheard = is_silent and (at_attach or error.outcome_unknown)
        if failure.kind is Kind.COMMUNICATION or unheard:
            shared.primary.forget(path)
            if unheard and shared.delivered_at < began:
                await self._replace_connection()  # no other message was accepted since this one was sent
            if not shared.primary.is_connected:
                shared.presence.lost(path, ruling.reason, shared.clock(), shared.delivered_at)
                if batch.results.over is None:
                    batch.results.over = f"the primary cannot be reached: {ruling.reason}"
                self._settling.hold(batch, items)
                return
        self._settling.skip(batch, path, ruling.reason, await self._mark(batch, path, items))

    async def _replace_connection(self) -> None:
        """Replace a connection that may be silent: when a new one opens, only the entity did not answer."""
        primary = self._shared.primary
        await primary.drop()
        try:
            await primary.connection(primary.connect_timeout_s)
        except TransportError as error:
            logger.debug("%s: a silent primary cannot be reached: %s", self._queue, error)

    # ── since when a destination is missing ──

    def note_marks(self, items: list[Item]) -> None:
        """Read from marked messages since when their destination is missing: another process may have marked them."""
        shared = self._shared
        for item in items:
            now, since_ms = shared.clock(), item.home.missing_since_ms
            assert since_ms is not None
            away_s = max(shared.wall_ms() - since_ms, 0) / 1000
            shared.destinations.marked(self._queue, item.home.path, now - away_s, now)

    async def _mark(self, batch: Batch, path: str, items: list[Item]) -> list[Item]:
        """Mark one message of the queue with the time since when its destination is missing, or remove such a mark.

        That message goes back to its place in the queue and is received again; the others are returned.
        """
        shared = self._shared
        if not (shared.marks and shared.dead_letters):
            return items
        since = shared.destinations.missing_since(path)
        if since is None:
            stale = next((item for item in items if item.home.missing_since_ms is not None), None)
            return items if stale is None else await self._write_mark(batch, stale, None, items)
        if not shared.destinations.needs_mark(self._queue, path):
            return items
        missing_ms = shared.wall_ms() - int((shared.clock() - since) * 1000)
        return await self._write_mark(batch, items[0], Timestamp(missing_ms), items)

    async def _write_mark(self, batch: Batch, marked: Item, value: Timestamp | None, items: list[Item]) -> list[Item]:
        try:
            await batch.link.mark(batch.received[marked.place], {MISSING_SINCE: value})
        except TransportError as error:
            logger.debug("%s: a message could not be marked: %s", self._queue, error)
            return items
        batch.waiting.add(marked.place)
        return [item for item in items if item is not marked]
