"""Deletes the rows of dropped entities, in steps that hold no other commit up.

The drop itself is one small write. The rows stay, but no client sees them: they are deleted step by step, each step
after the commit of the one before, and after a restart the store lists the rows that are still there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.store import Delete, EraseEntity, Forget, IndexRow, SetSessionState, Store
from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker")

STEP_ROWS = 250
STEP_BYTES = 1 << 20
STEP_IDS = 1000

Drain = Callable[[int], list[int]]
"Returns up to so many row numbers of a box that are not deleted yet; none: there are no more."


@dataclass(slots=True)
class Remains:
    """Remains of one dropped entity: rows that are still to be deleted."""

    entity_id: int
    drains: list[tuple[int, Drain]]
    "(box, where its row numbers come from)"
    ends: list[int] = field(default_factory=list)
    "Ends of remembered message ids, ascending."
    row_bytes: int = 0
    "Average size of a row."
    numbers: list[tuple[int, list[int]]] = field(default_factory=list)
    "(box, row numbers) that came from `drains` and are to be deleted first."
    states: list[int] = field(default_factory=list)
    "Rows of session states; taken from the end."
    payloads: Payloads | None = None
    "Payloads as the entity held them; None: those of a subscription, or of an entity whose kind is not known."

    def next_rows(self) -> tuple[int, list[int]] | None:
        """Return the rows of the next step; None: there are no more."""
        count = max(1, min(STEP_ROWS, STEP_BYTES // (self.row_bytes + 1)))
        while not self.numbers and self.drains:
            box, drain = self.drains[0]
            rows = drain(count)
            if rows:
                self.numbers.append((box, rows))
            else:
                self.drains.pop(0)
        if not self.numbers:
            return None
        box, rows = self.numbers.pop()
        if len(rows) > count:
            self.numbers.append((box, rows[count:]))
        return box, rows[:count]


class Sweeper:
    """Sweeper that deletes the rows of dropped entities, one step at a time."""

    def __init__(
        self, store: Store, payloads: Payloads, *, retry_later: Callable[[Callable[[], None]], object]
    ) -> None:
        """Make a sweeper. `retry_later(step)` calls `step` after a pause, when the store failed."""
        self._store = store
        self._payloads = payloads
        self._retry_later = retry_later
        self._remains: deque[Remains] = deque()
        self._is_busy = False
        self._is_stopping = False

    def recover(self, entity_id: int, rows: list[IndexRow], states: list[int]) -> None:
        """Take an entity that was dropped before the start; `rows` and `states`: those that the store lists for it."""
        numbers: dict[int, list[int]] = {}
        for row in rows:
            numbers.setdefault(row.box, []).append(row.n)
            if row.payload and self._payloads.size_of(row.payload) is not None:
                self._payloads.add_sharer(row.payload)
        ends = sorted(until_ms for _, until_ms in self._store.remembered(entity_id))
        size = sum(row.size for row in rows) // (len(rows) + 1)
        self.add(Remains(entity_id, [], ends, size, list(numbers.items()), states))

    def add(self, remains: Remains) -> None:
        """Take an entity whose drop is committed."""
        self._remains.append(remains)
        if not self._is_busy:
            self._is_busy = True
            self._step()

    def stop(self) -> None:
        """Stop, before the store is closed: the rest is left to the next start."""
        self._is_stopping = True

    def _step(self) -> None:
        if self._is_stopping or not self._remains:
            self._is_busy = False
            return
        remains = self._remains[0]
        rows = remains.next_rows()
        delete: Delete | None = None
        if rows is not None:
            try:
                delete = Delete(*rows, self._store.payloads_of(rows[1]))
            except StoreError as error:
                remains.numbers.append(rows)
                self._failed(remains, error)
                return
            self._store.write(delete)
        ends = remains.ends[:STEP_IDS]
        if ends:
            self._store.write(Forget(remains.entity_id, ends[-1]))
        states = remains.states[-STEP_IDS:]
        for n in states:
            self._store.write(SetSessionState(remains.entity_id, n, "", 0, None))
        is_last = rows is None and not ends and not states
        if is_last:
            self._store.write(EraseEntity(remains.entity_id))

        def done(error: StoreError | None) -> None:
            if error is not None:
                if rows is not None:
                    remains.numbers.append(rows)
                self._failed(remains, error)
                return
            if delete is not None:
                (remains.payloads or self._payloads).release(delete.payloads)
            del remains.ends[: len(ends)]
            del remains.states[len(remains.states) - len(states) :]
            if is_last:
                self._remains.popleft()
            self._step()

        self._store.after_commit(done)

    def _failed(self, remains: Remains, error: StoreError) -> None:
        logger.warning("the rows of the deleted entity %d cannot be deleted yet: %s", remains.entity_id, error)
        self._retry_later(self._step)
