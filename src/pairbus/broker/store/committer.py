"""Carries out groups of writes.

Statements come in a few fixed sizes, so that SQLite's prepared ones are found again. Inserts are split into powers of
two; where a row can be repeated or left empty without effect (updates, moves, deletes) the list is padded instead.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pairbus.broker.store import DropQueue, Forget, PutQueue, box_of, dead_box_of
from pairbus.broker.store.folder import CommitFile
from pairbus.broker.store.group import BoxStep, Group, MoveStep, RememberStep, Step
from pairbus.broker.store.records import COLUMNS, counters_crc, text_crc
from pairbus.broker.store.reserve import PLENTY_BYTES, RESERVE_BYTES, Reserve
from pairbus.broker.store.schema import PAGE_BYTES, STORE_COUNTER, box_table, create_box, full, store_error
from pairbus.errors import StoreError, StoreFull

logger = logging.getLogger("pairbus.broker.store")

MAX_ROWS = 256  # of one statement
CHECKPOINT_BYTES = (
    32 * 1024 * 1024
)  # a checkpoint holds commits up for about 70 ms; half of it, and it comes twice as often
PROBE_BYTES = 1 << 20  # a disk with less refuses the next large message
RUN_LENGTH = 32
"From so many neighbouring numbers on a range is worth a statement of its own."


@dataclass(slots=True)
class Counters:
    """What is kept of one queue beside its rows (see schema.py); of the store itself: commits, last queue id, 0."""

    high: int = 0
    live: int = 0
    dead: int = 0


def log_size(path: Path) -> int:
    """Bytes of the write-ahead log of the database at `path`."""
    log_path = path.with_name(path.name + "-wal")
    return log_path.stat().st_size if log_path.exists() else 0


def power_of_two_parts(count: int) -> Iterator[int]:
    """count as a sum of powers of two, the largest first, none above MAX_ROWS."""
    size = MAX_ROWS
    while count:
        while size > count:
            size //= 2
        yield size
        count -= size


def padded_size(count: int) -> int:
    return max(4, 1 << (count - 1).bit_length())


def runs_of(seqs: Collection[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """(long runs of neighbouring numbers, every other number)."""
    ordered = sorted(seqs)
    if ordered[-1] - ordered[0] + 1 == len(ordered):
        return [(ordered[0], ordered[-1])], []
    runs: list[tuple[int, int]] = []
    others: list[int] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end < len(ordered) and ordered[end] == ordered[end - 1] + 1:
            continue
        if end - start >= RUN_LENGTH:
            runs.append((ordered[start], ordered[end - 1]))
        else:
            others += ordered[start:end]
        start = end
    return runs, others


@lru_cache(maxsize=512)
def _insert_sql(table: str, columns: str, width: int, rows: int, verb: str) -> str:
    row = f"({','.join('?' * width)})"
    return f"{verb} INTO {table} ({columns}) VALUES {','.join([row] * rows)}"


@lru_cache(maxsize=512)
def _update_sql(table: str, rows: int) -> str:
    return (
        f"UPDATE {table} SET head = new.column2, head_crc = new.column3 "
        f"FROM (VALUES {','.join(['(?,?,?)'] * rows)}) AS new WHERE seq = new.column1"
    )


@lru_cache(maxsize=512)
def _move_sql(table: str, to_table: str, rows: int) -> str:
    return (
        f"INSERT INTO {to_table} SELECT new.column2, new.column3, new.column4, old.body_crc, old.body "
        f"FROM (VALUES {','.join(['(?,?,?,?)'] * rows)}) AS new CROSS JOIN {table} AS old ON old.seq = new.column1"
    )


@lru_cache(maxsize=512)
def _delete_sql(table: str, rows: int) -> str:
    return f"DELETE FROM {table} WHERE seq IN ({','.join('?' * rows)})"


class Committer:
    """Commits groups on one connection, one after the other."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, counters: dict[int, Counters], commits: CommitFile
    ) -> None:
        self._path = path
        self._connection = connection
        self._counters = counters
        self._commits = commits
        self._reserve = Reserve(path.parent)
        self._reserve.hold()
        self._changed: dict[int, Counters] = {}
        self._dropped: set[int] = set()
        # Estimate of what the write-ahead log holds since the last checkpoint. What a killed process left in it counts:
        # otherwise the log of one that is killed often would only ever grow.
        self._log_bytes = log_size(path)

    def commit(self, group: Group) -> StoreError | None:
        """All of the group, durable, or nothing of it and the reason."""
        if group.takes_room:
            return self._attempt(group) if self._has_room() else full(self._path)
        error = self._attempt(group)
        if isinstance(error, StoreFull):
            if self._reserve.size:
                logger.warning("%s: the disk is full; only settlements and deletions go on", self._path)
            self._reserve.give_up()
            self._checkpoint("PASSIVE")
            error = self._attempt(group)
        return error

    def probe(self) -> StoreError | None:
        """Why a send would fail now; None when there is room for one and a small write, the counters, is durable."""
        if not self._has_room() or (self._reserve.free_bytes() < PROBE_BYTES and not self._has_unused()):
            return full(self._path)
        return self._attempt(Group())

    def _has_room(self) -> bool:
        """Whether something new may be stored (see reserve.py)."""
        return self._reserve.hold() or self._has_unused()

    def _has_unused(self) -> bool:
        """Whether the database has room in it."""
        try:
            [pages] = self._connection.execute("PRAGMA page_count").fetchone()
            [unused] = self._connection.execute("PRAGMA freelist_count").fetchone()
        except sqlite3.Error as error:
            logger.error("%s: cannot ask how much room is left: %s", self._path, error)
            return False
        return bool(unused >= min(pages // 2, RESERVE_BYTES // PAGE_BYTES))

    def _attempt(self, group: Group) -> StoreError | None:
        self._changed = {}
        self._dropped = set()
        try:
            self._connection.execute("BEGIN")
            for step in group.steps:
                self._perform(step)
            self._write_counters()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            logger.error("%s: a group of writes failed: %s", self._path, error)
            return store_error(error, self._path)
        except Exception as error:  # a value that SQLite cannot bind, no memory: the group's senders must hear of it
            self._roll_back()
            logger.exception("%s: a group of writes was wrong", self._path)
            return StoreError(f"{self._path}: {error}")
        for queue_id in self._dropped:
            self._counters.pop(queue_id, None)
        self._counters.update(self._changed)
        try:
            self._commits.write(self._counters[STORE_COUNTER].high)
        except OSError as error:
            logger.warning("%s: cannot note the commit: %s", self._commits.path, error)
        return None

    def checkpoint_if_due(self) -> None:
        if self._log_bytes >= self._log_limit():
            self._checkpoint("PASSIVE")

    def _log_limit(self) -> int:
        """How long the log may become before it is copied (see reserve.py)."""
        if not self._reserve.size:
            return 0
        short = self._reserve.size // 4
        if self._log_bytes < short or self._reserve.free_bytes() >= PLENTY_BYTES:
            return CHECKPOINT_BYTES
        return short

    def close(self) -> None:
        self._checkpoint("TRUNCATE")
        self._connection.close()
        self._commits.close()

    def _checkpoint(self, mode: str) -> None:
        self._log_bytes = 0  # also after a failure: the next try comes when the log has grown as much again
        try:
            self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error as error:  # nothing is lost: the log keeps what was not copied
            logger.warning("%s: the write-ahead log was not copied into the database: %s", self._path, error)

    def _roll_back(self) -> None:
        if not self._connection.in_transaction:
            return
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:  # the next group cannot begin then, fails as well, and rolls back again
            logger.error("%s: a failed group of writes could not be rolled back: %s", self._path, error)

    # ── counters ──

    def _counter(self, counter_id: int) -> Counters:
        """The counters of a queue as this group changes them; the known ones stay until the commit succeeds."""
        changed = self._changed.get(counter_id)
        if changed is None:
            known = self._counters.get(counter_id, Counters())
            if counter_id in self._dropped:
                known = Counters()
            changed = self._changed[counter_id] = Counters(known.high, known.live, known.dead)
        return changed

    def _count(self, box: int, rows: int) -> None:
        counter = self._counter(box // 2)
        if box % 2:
            counter.dead += rows
        else:
            counter.live += rows

    def _write_counters(self) -> None:
        self._counter(STORE_COUNTER).high += 1
        flat: list[Any] = []
        for counter_id, one in self._changed.items():
            crc = counters_crc(counter_id, one.high, one.live, one.dead)
            flat += (counter_id, one.high, one.live, one.dead, crc)
        self._insert("counters", "id, high, live, dead, crc", 5, flat, "INSERT OR REPLACE")
        self._log_bytes += 2 * PAGE_BYTES

    # ── steps ──

    def _perform(self, step: Step) -> None:
        match step:
            case BoxStep():
                self._perform_box(step)
            case MoveStep():
                self._perform_move(step)
            case RememberStep():
                self._insert("remembered", "queue_id, until_ms, crc, message_id", 4, step.rows)
                self._log_bytes += 32 * len(step.rows)
            case Forget():
                self._connection.execute(
                    "DELETE FROM remembered WHERE queue_id = ? AND until_ms <= ?", (step.queue_id, step.until_ms)
                )
            case PutQueue():
                self._put_queue(step)
            case DropQueue():
                self._drop_queue(step.queue_id)

    def _perform_box(self, step: BoxStep) -> None:
        table = box_table(step.box)
        if step.rows:
            self._insert(table, COLUMNS, 5, step.rows)
            self._count(step.box, len(step.rows) // 5)
            counter = self._counter(step.box // 2)
            counter.high = max(counter.high, step.last_seq)
            self._log_bytes += sum(map(len, step.rows[4::5])) + PAGE_BYTES
        if step.updates:
            self._update(table, list(step.updates.values()))
        if step.deletes:
            self._count(step.box, -self._delete(table, step.deletes))

    def _perform_move(self, step: MoveStep) -> None:
        table, to_table = box_table(step.box), box_table(step.to_box)
        rows = list(step.moves.values())
        moved = 0
        for at in range(0, len(rows), MAX_ROWS):
            part = rows[at : at + MAX_ROWS]
            size = padded_size(len(part))
            flat: list[Any] = [column for row in part for column in row]
            flat += [None] * (4 * (size - len(part)))
            moved += self._connection.execute(_move_sql(table, to_table, size), flat).rowcount
        self._delete(table, step.moves)
        self._count(step.box, -moved)
        self._count(step.to_box, moved)
        counter = self._counter(step.to_box // 2)
        counter.high = max(counter.high, *step.targets)
        self._log_bytes += PAGE_BYTES * len(rows)

    def _insert(self, table: str, columns: str, width: int, flat: list[Any], verb: str = "INSERT") -> None:
        at = 0
        for rows in power_of_two_parts(len(flat) // width):
            sql = _insert_sql(table, columns, width, rows, verb)
            self._connection.execute(sql, flat[at : at + rows * width])
            at += rows * width

    def _update(self, table: str, rows: Sequence[tuple[int, bytes, int]]) -> None:
        for at in range(0, len(rows), MAX_ROWS):
            part = list(rows[at : at + MAX_ROWS])
            size = padded_size(len(part))
            part += [part[-1]] * (size - len(part))
            self._connection.execute(_update_sql(table, size), [column for row in part for column in row])
        self._log_bytes += PAGE_BYTES * len(rows)

    def _delete(self, table: str, seqs: Collection[int]) -> int:
        """Returns how many of them there were."""
        runs, others = runs_of(seqs)
        deleted = 0
        for first, last in runs:
            sql = f"DELETE FROM {table} WHERE seq BETWEEN ? AND ?"
            deleted += self._connection.execute(sql, (first, last)).rowcount
        for at in range(0, len(others), MAX_ROWS):
            part = others[at : at + MAX_ROWS]
            size = padded_size(len(part))
            part += [part[-1]] * (size - len(part))
            deleted += self._connection.execute(_delete_sql(table, size), part).rowcount
        self._log_bytes += PAGE_BYTES * (2 * len(runs) + len(others))
        return deleted

    def _put_queue(self, op: PutQueue) -> None:
        description = op.description.encode()
        known = self._connection.execute("SELECT 1 FROM queues WHERE queue_id = ?", (op.queue_id,)).fetchone()
        self._connection.execute(
            "INSERT OR REPLACE INTO queues VALUES (?, ?, ?)",
            (op.queue_id, op.description, text_crc(op.queue_id, description)),
        )
        if known is None:
            for box in (box_of(op.queue_id), dead_box_of(op.queue_id)):
                self._connection.execute(create_box(box))
            self._counter(op.queue_id)
            store = self._counter(STORE_COUNTER)
            store.live = max(store.live, op.queue_id)

    def _drop_queue(self, queue_id: int) -> None:
        for box in (box_of(queue_id), dead_box_of(queue_id)):
            self._connection.execute(f"DROP TABLE IF EXISTS {box_table(box)}")
        self._connection.execute("DELETE FROM queues WHERE queue_id = ?", (queue_id,))
        self._connection.execute("DELETE FROM remembered WHERE queue_id = ?", (queue_id,))
        self._connection.execute("DELETE FROM counters WHERE id = ?", (queue_id,))
        self._changed.pop(queue_id, None)
        self._dropped.add(queue_id)
