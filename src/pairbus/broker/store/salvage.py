"""Copies what is intact of a damaged store into a new one. The damaged store is read and left as it is.

A table of which some pages cannot be read is walked by ranges of its key: what can be read of a range is taken, the
rest is cut in two and tried again, the large pieces first, until single rows are left or too many tries have failed.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairbus.broker.store import Insert, PutQueue, Remember, box_of, dead_box_of
from pairbus.broker.store.committer import Committer, Counters
from pairbus.broker.store.folder import FOLDER_MODE, CommitFile, FolderLock
from pairbus.broker.store.group import Group
from pairbus.broker.store.records import COLUMNS, counters_crc, messages_of, text_crc
from pairbus.broker.store.schema import (
    FILE_NAME,
    STORE_COUNTER,
    box_table,
    create,
    damaged,
    open_damaged,
    open_for_writing,
    recognise,
)
from pairbus.errors import StoreError

GROUP_ROWS = 500
MAX_FAILURES = 500_000
"Failed tries for one table, about ten seconds of them. What lies behind the last one counts as lost."
MAX_FUTILE_FAILURES = 500
"The same while not one range could be read: then the root of the table is gone, and with it all of it."
LAST_KEY = 2**40
"Where to look when the store no longer says what its highest number is."


@dataclass(slots=True)
class SalvagedQueue:
    queue_id: int
    description: str
    copied: int
    lost: int | None
    "Messages that were there and could not be copied; None when the store no longer says how many there were."


@dataclass(slots=True)
class SalvageReport:
    queues: list[SalvagedQueue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    "One sentence for each thing other than messages that could not be copied as it was."


def salvage(folder: Path, to_folder: Path) -> SalvageReport:
    """Copy every intact message of `folder` into a new store in `to_folder`, which must be new or empty."""
    path = folder / FILE_NAME
    if not path.exists():
        raise StoreError(f"There is no store in {folder}: {path.name} is missing.")
    if to_folder.exists() and any(to_folder.iterdir()):
        raise StoreError(f"{to_folder} is not empty; a salvage needs a new folder.")
    lock = FolderLock(folder)
    try:
        recognise(path, ours=(folder / "commits").exists())
        with_log = path.with_name(path.name + "-wal").exists()
        source = _Source(path)
        try:
            return _copy(source, to_folder)
        finally:
            source.close(with_log=with_log)
    finally:
        lock.release()


class _Source:
    """The damaged database, read as far as it can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_damaged(path)

    def close(self, *, with_log: bool) -> None:
        self._connection.close()
        if not with_log:  # opening made an empty one
            self.path.with_name(self.path.name + "-wal").unlink(missing_ok=True)
        self.path.with_name(self.path.name + "-shm").unlink(missing_ok=True)

    def walk(self, table: str, key: str, columns: str, last_key: int = LAST_KEY) -> Iterator[Any]:
        """Every row that can be read, each once, in no order. A table that is gone has none."""
        sql = f"SELECT {columns} FROM {table} WHERE {key} BETWEEN ? AND ? ORDER BY {key}"
        ranges = deque([(0, last_key)])
        failures, allowed = 0, MAX_FUTILE_FAILURES
        while ranges and failures < allowed:
            first, last = ranges.popleft()
            try:
                for row in self._connection.execute(sql, (first, last)):
                    allowed = MAX_FAILURES
                    if first <= row[0] <= last:  # a damaged page can bring keys that do not belong there
                        yield row
                        first = row[0] + 1
                allowed = MAX_FAILURES
            except sqlite3.Error:
                failures += 1
                if first < last:
                    middle = (first + last) // 2
                    ranges += ((first, middle), (middle + 1, last))

    def counters(self) -> dict[int, Counters]:
        return {
            counter_id: Counters(high, live, dead)
            for counter_id, high, live, dead, crc in self.walk("counters", "id", "id, high, live, dead, crc")
            if all(type(value) is int for value in (high, live, dead))
            and counters_crc(counter_id, high, live, dead) == crc
        }

    def queues(self, notes: list[str]) -> dict[int, str]:
        """Descriptions by queue id. One that does not match its checksum is kept when it is still JSON."""
        found: dict[int, str] = {}
        for queue_id, description, crc in self.walk("queues", "queue_id", "queue_id, description, crc"):
            text = description.decode("utf-8", "replace") if type(description) is bytes else ""
            if text_crc(queue_id, text.encode()) == crc:
                found[queue_id] = text
            elif _is_json(text):
                found[queue_id] = text
                notes.append(f"The description of queue {queue_id} is damaged; it was kept as found: check it.")
            else:
                notes.append(f"The description of queue {queue_id} cannot be read; its messages were not copied.")
        return found

    def remembered(self) -> dict[int, list[tuple[str, int]]]:
        found: dict[int, list[tuple[str, int]]] = {}
        for _, queue_id, until_ms, crc, message_id in self.walk(
            "remembered", "n", "n, queue_id, until_ms, crc, message_id"
        ):
            if type(queue_id) is int and type(until_ms) is int and type(message_id) is bytes:
                if text_crc(queue_id ^ until_ms, message_id) == crc:
                    found.setdefault(queue_id, []).append((message_id.decode(), until_ms))
        return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _copy(source: _Source, to_folder: Path) -> SalvageReport:
    report = SalvageReport()
    counters = source.counters()
    queues = source.queues(report.notes)
    if not queues and STORE_COUNTER not in counters:
        raise damaged(source.path, "neither its queues nor its counters can be read")
    noted = CommitFile(source.path.parent).read()
    if noted is None or STORE_COUNTER not in counters:
        report.notes.append("Whether the last commits are missing cannot be told: their number is damaged.")
    elif noted > counters[STORE_COUNTER].high:
        report.notes.append(f"The last {noted - counters[STORE_COUNTER].high} acknowledged commits are missing.")
    to_folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    lock = FolderLock(to_folder)
    try:
        _fill(source, to_folder, queues, counters, report)
    finally:
        lock.release()
    return report


def _fill(
    source: _Source, to_folder: Path, queues: dict[int, str], counters: dict[int, Counters], report: SalvageReport
) -> None:
    path = to_folder / FILE_NAME
    create(path)
    # The new store counts its own commits and messages; what was the highest number must stay so.
    start = {queue_id: Counters(high=counters[queue_id].high) for queue_id in queues if queue_id in counters}
    start[STORE_COUNTER] = Counters(live=max([*queues, counters.get(STORE_COUNTER, Counters()).live], default=0))
    committer = Committer(path, open_for_writing(path), start, CommitFile(to_folder))
    try:
        for queue_id, description in sorted(queues.items()):
            report.queues.append(_copy_queue(source, committer, queue_id, description, counters, report.notes))
        for queue_id, ids in source.remembered().items():
            if queue_id in queues:
                _commit(committer, Remember(queue_id, ids))
    finally:
        committer.close()


def _copy_queue(
    source: _Source,
    committer: Committer,
    queue_id: int,
    description: str,
    counters: dict[int, Counters],
    notes: list[str],
) -> SalvagedQueue:
    _commit(committer, PutQueue(queue_id, description))
    known = counters.get(queue_id)
    copied = 0
    for box in (box_of(queue_id), dead_box_of(queue_id)):
        rows: list[Any] = []
        for row in source.walk(box_table(box), "seq", COLUMNS, LAST_KEY if known is None else known.high):
            rows.append(row)
            if len(rows) == GROUP_ROWS:
                copied += _insert(committer, box, rows)
                rows = []
        copied += _insert(committer, box, rows)
    if known is None:
        notes.append(f"The counters of queue {queue_id} are damaged; sequence numbers may be given a second time.")
        return SalvagedQueue(queue_id, description, copied, None)
    return SalvagedQueue(queue_id, description, copied, max(0, known.live + known.dead - copied))


def _insert(committer: Committer, box: int, rows: list[Any]) -> int:
    messages, _ = messages_of(box, rows)
    _commit(committer, Insert(box, messages))
    return len(messages)


def _commit(committer: Committer, op: Insert | PutQueue | Remember) -> None:
    group = Group()
    group.add(op)
    error = committer.commit(group)
    if error is not None:
        raise error
