"""Reading a store: what it holds when it is opened, and messages while it runs. Every row is checked against its
checksum; a damaged one is counted, told about, and never returned."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pairbus.broker.store import IndexRow, RecoveredQueue, StoredMessage, box_of, dead_box_of
from pairbus.broker.store.committer import MAX_ROWS, Counters, padded_size
from pairbus.broker.store.records import COLUMNS, Row, counters_crc, index_row_of, messages_of, text_crc
from pairbus.broker.store.schema import (
    STORE_COUNTER,
    box_table,
    damaged,
    expected_objects,
    is_missing_table,
    open_for_reading,
    store_error,
)

logger = logging.getLogger("pairbus.broker.store")

INDEX_ROWS = 4096  # between two looks at the clock
SHOWN_SEQS = 10
LARGE_FILE_BYTES = 512 * 1024 * 1024
"A file of this size takes a noticeable time to check, during which no progress can be told: it is announced before."


class Progress:
    """Lets a sentence through about once a second, and none in the first second."""

    def __init__(self, say: Callable[[str], None] | None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock_s = clock_s
        self._next_s = clock_s() + 1

    def tell(self, sentence: str, *, at_once: bool = False) -> None:
        if self._say is not None and (at_once or self._clock_s() >= self._next_s):
            self._next_s = self._clock_s() + 1
            self._say(sentence)


def box_name(box: int) -> str:
    return f"the dead-letter queue of queue {box // 2}" if box % 2 else f"queue {box // 2}"


def some_of(seqs: Sequence[int]) -> str:
    more = f" and {len(seqs) - SHOWN_SEQS} more" if len(seqs) > SHOWN_SEQS else ""
    return ", ".join(map(str, seqs[:SHOWN_SEQS])) + more


class Reader:
    """One connection that cannot write, used on the owner's thread."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self.damage: list[str] = []
        self.counters: dict[int, Counters] = {}
        self._connection = open_for_reading(path)

    def close(self) -> None:
        self._connection.close()

    # ── opening ──

    def recover(self) -> list[RecoveredQueue]:
        """The queues; fills `damage` and `counters`. Raises StoreDamaged when writing on would do more harm.

        The structure is checked as a whole first: a page that two tables believe to own would let the next write
        destroy an intact message. It costs half a second for a million messages.
        """
        try:
            size = self._path.stat().st_size
            sentence = f"recovering {self._path}: checking {size // 1_000_000} MB"
            self._progress.tell(sentence, at_once=size >= LARGE_FILE_BYTES)
            [[verdict], *_] = self._connection.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != b"ok":
                raise damaged(self._path, verdict.decode("utf-8", "replace").replace("\n", " "))
            queue_ids = [row[0] for row in self._connection.execute("SELECT queue_id FROM queues")]
            self._check_objects(queue_ids)
            self._read_counters(queue_ids)
            return self._read_queues()
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error

    def _check_objects(self, queue_ids: list[int]) -> None:
        found = {
            name.decode("utf-8", "replace"): (sql or b"").decode("utf-8", "replace")
            for name, sql in self._connection.execute("SELECT name, sql FROM sqlite_schema")
        }
        for name, sql in expected_objects(queue_ids).items():
            if found.get(name) != sql:
                raise damaged(self._path, f"the table {name} is not there or not as it was made")

    def _read_counters(self, queue_ids: list[int]) -> None:
        rows = {row[0]: row[1:] for row in self._connection.execute("SELECT id, high, live, dead, crc FROM counters")}
        for counter_id in (STORE_COUNTER, *queue_ids):
            values = rows.get(counter_id, (None,) * 4)
            if all(type(value) is int for value in values) and counters_crc(counter_id, *values[:3]) == values[3]:
                self.counters[counter_id] = Counters(*values[:3])
            elif counter_id == STORE_COUNTER:
                self.counters[counter_id] = Counters(live=max(queue_ids, default=0))
                self.damage.append(f"{self._path}: the number of commits is damaged; missing ones cannot be noticed.")
            else:
                self.counters[counter_id] = self._counted(counter_id)
                self.damage.append(
                    f"{self._path}: the counters of queue {counter_id} are damaged; they were counted again, "
                    "and sequence numbers of messages that are gone may be given a second time."
                )

    def _counted(self, queue_id: int) -> Counters:
        live, last = self._count_and_last(box_of(queue_id))
        dead, dead_last = self._count_and_last(dead_box_of(queue_id))
        return Counters(max(last, dead_last), live, dead)

    def _count_and_last(self, box: int) -> tuple[int, int]:
        [(count, last)] = self._connection.execute(f"SELECT count(*), max(seq) FROM {box_table(box)}").fetchall()
        return count, last or 0

    def _read_queues(self) -> list[RecoveredQueue]:
        queues = []
        for queue_id, description, crc in self._connection.execute("SELECT queue_id, description, crc FROM queues"):
            if type(description) is bytes and text_crc(queue_id, description) == crc:
                queues.append(RecoveredQueue(queue_id, description.decode(), self.counters[queue_id].high))
            else:
                self.damage.append(
                    f"{self._path}: the description of queue {queue_id} is damaged; its messages are kept but not "
                    "served. `pairbus store salvage` may recover them."
                )
        return queues

    def index(self, box: int) -> Iterator[IndexRow]:
        """Adds to `damage` what it finds, when it comes to the end."""
        sql = f"SELECT seq, head, head_crc, length(body) FROM {box_table(box)} ORDER BY seq"
        found = 0
        bad: list[int] = []
        try:
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(INDEX_ROWS):
                for seq, head, crc, body_size in rows:
                    row = index_row_of(box, seq, head, crc, body_size)
                    if row is None:
                        bad.append(seq)
                    else:
                        yield row
                found += len(rows)
                self._progress.tell(f"recovering {self._path}: {found} messages of {box_name(box)} read")
        except sqlite3.Error as error:
            if is_missing_table(error):
                return
            raise store_error(error, self._path) from error
        if bad:
            self.damage.append(
                f"{self._path}: {len(bad)} messages of {box_name(box)} are damaged and not served "
                f"(sequence numbers {some_of(bad)})."
            )
        counter = self.counters[box // 2]
        expected = counter.dead if box % 2 else counter.live
        if found != expected:
            self.damage.append(f"{self._path}: {box_name(box)} should hold {expected} messages, {found} were found.")

    def remembered(self, queue_id: int) -> list[tuple[str, int]]:
        sql = "SELECT until_ms, crc, message_id FROM remembered WHERE queue_id = ? ORDER BY n"
        latest: dict[str, int] = {}
        bad = 0
        try:
            for until_ms, crc, message_id in self._connection.execute(sql, (queue_id,)):
                if (
                    type(message_id) is bytes
                    and type(until_ms) is int
                    and text_crc(queue_id ^ until_ms, message_id) == crc
                ):
                    text = message_id.decode()
                    latest[text] = max(until_ms, latest.get(text, 0))
                else:
                    bad += 1
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
        if bad:
            self.damage.append(
                f"{self._path}: {bad} message ids that queue {queue_id} remembered are damaged; duplicates of these "
                "messages will not be recognised."
            )
        return list(latest.items())

    # ── running ──

    def load(self, box: int, seqs: Sequence[int]) -> tuple[list[StoredMessage], list[int]]:
        if not seqs:
            return [], []
        wanted = set(seqs)
        ordered = sorted(wanted)
        try:
            rows = self._rows(box, ordered)
            bad: list[int] = []
        except sqlite3.Error as error:
            if is_missing_table(error):
                return [], []
            logger.error("%s: %s cannot be read: %s; trying one by one", self._path, box_name(box), error)
            rows, bad = self._rows_one_by_one(box, ordered)
        if ordered[-1] - ordered[0] + 1 != len(ordered):  # a range may have brought neighbours along
            rows = [row for row in rows if row[0] in wanted]
        messages, altered = messages_of(box, rows)
        bad += altered
        self._log_damaged(box, bad)
        return messages, sorted(bad)

    def scan(self, box: int, from_seq: int, limit: int) -> list[StoredMessage]:
        sql = f"SELECT {COLUMNS} FROM {box_table(box)} WHERE seq >= ? ORDER BY seq LIMIT ?"
        messages: list[StoredMessage] = []
        while len(messages) < limit:  # again when damaged ones left room
            missing = limit - len(messages)
            try:
                rows = self._connection.execute(sql, (from_seq, missing)).fetchall()
            except sqlite3.Error as error:
                if not is_missing_table(error):
                    logger.error("%s: %s cannot be read to its end: %s", self._path, box_name(box), error)
                break
            intact, bad = messages_of(box, rows)
            self._log_damaged(box, bad)
            messages += intact
            if len(rows) < missing:
                break
            from_seq = rows[-1][0] + 1
        return messages

    def _rows(self, box: int, ordered: list[int]) -> list[Row]:
        """The rows of a box with these numbers, and perhaps some between them, ascending."""
        table = box_table(box)
        first, last = ordered[0], ordered[-1]
        if last - first < 2 * len(ordered):
            sql = f"SELECT {COLUMNS} FROM {table} WHERE seq BETWEEN ? AND ? ORDER BY seq"
            return self._connection.execute(sql, (first, last)).fetchall()
        rows: list[Row] = []
        for at in range(0, len(ordered), MAX_ROWS):
            part = ordered[at : at + MAX_ROWS]
            size = padded_size(len(part))
            part += part[-1:] * (size - len(part))
            sql = f"SELECT {COLUMNS} FROM {table} WHERE seq IN ({','.join('?' * size)}) ORDER BY seq"
            rows += self._connection.execute(sql, part).fetchall()
        return rows

    def _rows_one_by_one(self, box: int, ordered: list[int]) -> tuple[list[Row], list[int]]:
        rows: list[Row] = []
        unreadable: list[int] = []
        for seq in ordered:
            try:
                rows += self._rows(box, [seq])
            except sqlite3.Error:
                unreadable.append(seq)
        return rows, unreadable

    def _log_damaged(self, box: int, seqs: list[int]) -> None:
        if seqs:
            logger.error("%s: damaged messages of %s: sequence numbers %s", self._path, box_name(box), some_of(seqs))
