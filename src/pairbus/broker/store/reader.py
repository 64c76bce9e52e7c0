"""Reads messages while the store runs. Every row is checked against its checksum; a damaged one is reported, and
never returned. An error that is no damage (of the disk, no memory) may pass: it is raised, and says nothing about rows,
unless it lasts for minutes (see read_failures.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pairbus.broker.store import UNLIMITED, Loaded, states
from pairbus.broker.store.bodies import SharedBodies
from pairbus.broker.store.progress import PacedTelling
from pairbus.broker.store.read_failures import ReadFailures
from pairbus.broker.store.records import (
    COLUMNS,
    HEAD_COLUMNS,
    StoredRow,
    heads_of,
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

    def load(self, box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        if not numbers:
            return Loaded([], [], [])
        ordered = sorted(set(numbers))
        columns, decode = HEAD_COLUMNS, heads_of
        if with_bodies:
            columns, decode = COLUMNS, partial(messages_of, payloads=partial(self._bodies.find, size_max=size_max))
        try:
            messages, bad, rest = decode(box, self._rows(ordered, columns), numbers=ordered, size_max=size_max)
            self._failures.succeeded(ordered[: len(ordered) - len(rest)])
        except READ_ERRORS as error:
            rows, lost, unread = self._rows_one_by_one(ordered, columns, size_max)
            logger.error("%s: %s was read row by row after an error: %s", self._path, box_name(box), error)
            messages, bad, rest = decode(box, rows)
            bad, rest = bad + lost, rest + unread
        self._log_damaged(box, bad)
        return Loaded(messages, sorted(bad), rest)

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
            rows = list(self._rows(sorted(numbers), HEAD_COLUMNS))
        except READ_ERRORS as error:
            raise store_error(error, self._path) from error
        heads = [index_row_of(n, box, head, crc, 0) for n, box, head, crc, _, _ in rows]
        return [row.payload for row in heads if row is not None and row.payload]

    def _rows(self, ordered: list[int], columns: str) -> Iterator[StoredRow]:
        """Return the rows with these numbers, ascending, as SQLite hands them over: one at a time."""
        first, last = ordered[0], ordered[-1]
        if last - first >= 2 * len(ordered):
            return self._rows_far_apart(ordered, columns)
        sql = f"SELECT {columns} FROM messages WHERE n BETWEEN ? AND ? ORDER BY n"
        rows = self._connection.execute(sql, (first, last))
        if last - first + 1 == len(ordered):
            return rows
        wanted = set(ordered)
        return (row for row in rows if row[0] in wanted)

    def _rows_far_apart(self, ordered: list[int], columns: str) -> Iterator[StoredRow]:
        for at in range(0, len(ordered), MAX_ROWS):
            part = ordered[at : at + MAX_ROWS]
            size = padded_size(len(part))
            part += part[-1:] * (size - len(part))
            sql = f"SELECT {columns} FROM messages WHERE n IN ({','.join('?' * size)}) ORDER BY n"
            yield from self._connection.execute(sql, part)

    def _rows_one_by_one(
        self, ordered: list[int], columns: str, size_max: int
    ) -> tuple[list[StoredRow], list[int], list[int]]:
        """Return the rows that can be read, the numbers that are given up, and those that were not reached. StoreError:
        some may be read later."""
        rows: list[StoredRow] = []
        lost: list[int] = []
        passing: StoreError | None = None
        left = size_max
        for place, n in enumerate(ordered):
            if left <= 0:
                return rows, lost, ordered[place:]
            try:
                one = list(self._rows([n], columns))
                left -= sum(map(_size_of, one))
                rows += one
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
        return rows, lost, []

    def _log_damaged(self, box: int, numbers: list[int]) -> None:
        if numbers:
            logger.error("%s: damaged messages of %s: rows %s", self._path, box_name(box), some_of(numbers))


def _size_of(row: StoredRow) -> int:
    return len(row[5]) + len(row[2]) if type(row[5]) is bytes and type(row[2]) is bytes else 0
