"""Reading messages while the store runs. Every row is checked against its checksum; a damaged one is reported, and
never returned. An error that is no damage (of the disk, no memory) may pass: it is raised, and says nothing about rows,
unless it lasts for minutes (see read_failures.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from pairbus.broker.store import (
    StoredMessage,
    states,
)
from pairbus.broker.store.bodies import SharedBodies
from pairbus.broker.store.progress import PacedTelling
from pairbus.broker.store.read_failures import ReadFailures
from pairbus.broker.store.records import (
    COLUMNS,
    StoredRow,
    index_row_of,
    messages_of,
)
from pairbus.broker.store.recovery import Recovery, box_name, some_of
from pairbus.broker.store.schema import READ_ERRORS, open_for_reading, raise_unless_damaged, store_error
from pairbus.broker.store.statements import MAX_ROWS, padded_size
from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker.store")


class StoreReader:
    """One connection that cannot write, used on the owner's thread."""

    def __init__(self, path: Path, progress: PacedTelling) -> None:
        self._path = path
        self._connection = open_for_reading(path)
        self._failures = ReadFailures(self._connection, path, "row")
        self._bodies = SharedBodies(self._connection, path)
        self.recovery = Recovery(self._connection, path, progress)

    def close(self) -> None:
        self._connection.close()

    def load_state(self, n: int) -> bytes | None:
        try:
            return states.load(self._connection, n)
        except READ_ERRORS as error:
            raise store_error(error, self._path) from error

    def load(self, box: int, numbers: Sequence[int]) -> tuple[list[StoredMessage], list[int]]:
        if not numbers:
            return [], []
        ordered = sorted(set(numbers))
        bad: list[int] = []
        try:
            rows = self._rows(ordered)
            self._failures.succeeded(ordered)
        except READ_ERRORS as error:
            rows, bad = self._rows_one_by_one(ordered)
            logger.error("%s: %s was read row by row after an error: %s", self._path, box_name(box), error)
        if ordered[-1] - ordered[0] + 1 != len(ordered):  # a range may include other numbers
            wanted = set(ordered)
            rows = [row for row in rows if row[0] in wanted]
        messages, altered = messages_of(box, [row for row in rows if row[1] == box], self._bodies.find)
        bad += altered
        self._log_damaged(box, bad)
        return messages, sorted(bad)

    def seq_of(self, box: int, n: int) -> int:
        try:
            read = self._connection.execute("SELECT head, head_crc FROM messages WHERE n = ?", (n,))
            for head, crc in read:
                row = index_row_of(n, box, head, crc, 0)
                return 0 if row is None else row.seq
        except READ_ERRORS as error:
            raise_unless_damaged(error, self._path)
            logger.error("%s: %s cannot be read: %s", self._path, box_name(box), error)
        return 0

    def payloads_of(self, numbers: Sequence[int]) -> list[int]:
        if not numbers:
            return []
        try:
            rows = self._rows(sorted(numbers), "n, box, head, head_crc, 0, x''")
        except READ_ERRORS as error:
            raise store_error(error, self._path) from error
        wanted = set(numbers)
        found = [index_row_of(n, box, head, crc, 0) for n, box, head, crc, _, _ in rows if n in wanted]
        return [row.payload for row in found if row is not None and row.payload]

    def _rows(self, ordered: list[int], columns: str = COLUMNS) -> list[StoredRow]:
        """Return the rows with these numbers, and perhaps some between them, ascending."""
        first, last = ordered[0], ordered[-1]
        if last - first < 2 * len(ordered):
            sql = f"SELECT {columns} FROM messages WHERE n BETWEEN ? AND ? ORDER BY n"
            return self._connection.execute(sql, (first, last)).fetchall()
        rows: list[StoredRow] = []
        for at in range(0, len(ordered), MAX_ROWS):
            part = ordered[at : at + MAX_ROWS]
            size = padded_size(len(part))
            part += part[-1:] * (size - len(part))
            sql = f"SELECT {columns} FROM messages WHERE n IN ({','.join('?' * size)}) ORDER BY n"
            rows += self._connection.execute(sql, part).fetchall()
        return rows

    def _rows_one_by_one(self, ordered: list[int]) -> tuple[list[StoredRow], list[int]]:
        """Return the rows that can be read, and the numbers that are given up. StoreError: some may be read later."""
        rows: list[StoredRow] = []
        lost: list[int] = []
        passing: StoreError | None = None
        for n in ordered:
            try:
                rows += self._rows([n])
                self._failures.succeeded([n])
            except READ_ERRORS as error:
                if self._failures.is_lost(n, error):
                    lost.append(n)
                    continue
                passing = store_error(error, self._path)
                if not lost:  # the disk may be away: each further try would cost the event loop time
                    break
        if passing is not None:
            raise passing
        return rows, lost

    def _log_damaged(self, box: int, numbers: list[int]) -> None:
        if numbers:
            logger.error("%s: damaged messages of %s: rows %s", self._path, box_name(box), some_of(numbers))
