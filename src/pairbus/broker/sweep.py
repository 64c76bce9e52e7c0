"""Deleting what a dropped entity left behind, in steps that hold no other commit up.

The drop itself is one small write. What it leaves are rows that nobody sees: they go step by step, each step after the
commit of the one before, and after a restart the store lists what is still there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pairbus.broker.payloads import Payloads
from pairbus.broker.store import Delete, EraseEntity, Forget, IndexRow, SetSessionState, Store
from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker")

STEP_ROWS = 500
STEP_BYTES = 2 << 20
STEP_IDS = 1000


@dataclass(slots=True)
class Remains:
    """What is left of one dropped entity."""

    entity_id: int
    numbers: list[tuple[int, int]]
    "(box, row number); taken from the end."
    ends: list[int]
    "Ends of remembered message ids, ascending."
    states: list[int]
    "Rows of session states; taken from the end."
    row_bytes: int
    "Average size of a row."


class Sweeper:
    """Deletes the rows of dropped entities, one step at a time."""

    def __init__(
        self, store: Store, payloads: Payloads, *, retry_later: Callable[[Callable[[], None]], object]
    ) -> None:
        """`retry_later(step)` calls `step` after a pause: the store failed."""
        self._store = store
        self._payloads = payloads
        self._retry_later = retry_later
        self._remains: deque[Remains] = deque()
        self._is_busy = False
        self._is_stopping = False

    def recover(self, entity_id: int, rows: list[IndexRow], states: list[int]) -> None:
        """An entity that was dropped before the start; `rows` and `states`: those that the store lists for it."""
        numbers: dict[int, list[int]] = {}
        for row in rows:
            numbers.setdefault(row.box, []).append(row.n)
            if row.payload and self._payloads.size_of(row.payload) is not None:
                self._payloads.hold(row.payload)
        ends = sorted(until_ms for _, until_ms in self._store.remembered(entity_id))
        self.add(entity_id, numbers, ends, sum(row.size for row in rows), states)

    def add(
        self,
        entity_id: int,
        numbers: dict[int, list[int]],
        ends: list[int],
        size_bytes: int = 0,
        states: Sequence[int] = (),
    ) -> None:
        """The drop of the entity is committed; `numbers`: the rows of each of its boxes."""
        pairs = sorted(((box, n) for box, each in numbers.items() for n in each), key=lambda pair: -pair[1])
        self._remains.append(Remains(entity_id, pairs, ends, list(states), size_bytes // (len(pairs) + 1)))
        if not self._is_busy:
            self._is_busy = True
            self._step()

    def stop(self) -> None:
        """Before the store is closed: the rest is left to the next start."""
        self._is_stopping = True

    def _step(self) -> None:
        if self._is_stopping or not self._remains:
            self._is_busy = False
            return
        remains = self._remains[0]
        count = max(1, min(STEP_ROWS, STEP_BYTES // (remains.row_bytes + 1)))
        part = remains.numbers[-count:]
        try:
            deletes = self._deletes(part)
        except StoreError as error:
            self._failed(remains, error)
            return
        for delete in deletes:
            self._store.write(delete)
        ends = remains.ends[:STEP_IDS]
        if ends:
            self._store.write(Forget(remains.entity_id, ends[-1]))
        states = remains.states[-STEP_IDS:]
        for n in states:
            self._store.write(SetSessionState(remains.entity_id, n, "", 0, None))
        is_last = (len(part), len(ends), len(states)) == (
            len(remains.numbers),
            len(remains.ends),
            len(remains.states),
        )
        if is_last:
            self._store.write(EraseEntity(remains.entity_id))

        def done(error: StoreError | None) -> None:
            if error is not None:
                self._failed(remains, error)
                return
            for delete in deletes:
                for payload in delete.payloads:
                    self._payloads.release(payload)
            del remains.numbers[len(remains.numbers) - len(part) :]
            del remains.ends[: len(ends)]
            del remains.states[len(remains.states) - len(states) :]
            if is_last:
                self._remains.popleft()
            self._step()

        self._store.after_commit(done)

    def _deletes(self, part: list[tuple[int, int]]) -> list[Delete]:
        by_box: dict[int, list[int]] = {}
        for box, n in part:
            by_box.setdefault(box, []).append(n)
        return [Delete(box, numbers, self._store.payloads_of(numbers)) for box, numbers in by_box.items()]

    def _failed(self, remains: Remains, error: StoreError) -> None:
        logger.warning("the rows of the deleted entity %d cannot be deleted yet: %s", remains.entity_id, error)
        self._retry_later(self._step)
