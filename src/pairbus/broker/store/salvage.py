"""Salvage: copies the intact rows of a damaged store into a new one. The damaged store is read and left as it is.

A table with unreadable pages is read by ranges of its key: the readable rows of a range are taken, the rest is cut in
two and tried again, the large pieces first, until single rows are left or too many tries have failed.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from pairbus.broker.store import (
    Insert,
    InsertPayload,
    PutEntity,
    Remember,
    SetSessionState,
    entity_of,
    states,
)
from pairbus.broker.store.committer import Committer, EntityNumbers, Totals
from pairbus.broker.store.folder import own
from pairbus.broker.store.records import (
    COLUMNS,
    StoredRow,
    changes_of,
    counters_crc,
    journal_crc,
    messages_of,
    payload_crc,
    text_crc,
)
from pairbus.broker.store.schema import (
    FILE_NAME,
    VERSION,
    close_without_traces,
    create,
    damaged,
    open_damaged,
    open_for_writing,
    recognise,
)
from pairbus.errors import StoreError
from pairbus.host.commit_file import CommitFile
from pairbus.host.folders import FOLDER_MODE

GROUP_ROWS = 500
MAX_FAILURES = 500_000
"Failed tries for one table, about ten seconds of them. Rows behind the last one count as lost."
MAX_FUTILE_FAILURES = 500
"Failed tries while no range could be read: then the root of the table is gone, and the whole table with it."
LAST_KEY = 2**40
"Highest key to look for when the store no longer says what its highest number is."


@dataclass(slots=True)
class SalvagedEntity:
    entity_id: int
    description: str
    copied: int
    lost: int | None
    "Messages that were there and could not be copied; None when the store no longer says how many there were."


@dataclass(slots=True)
class SalvageReport:
    entities: list[SalvagedEntity] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    "One sentence for each item other than a message that could not be copied unchanged."


def salvage(folder: Path, to_folder: Path) -> SalvageReport:
    """Copy every intact message of `folder` into a new store in `to_folder`, which must be new or empty."""
    path = folder / FILE_NAME
    if not path.exists():
        raise StoreError(f"There is no store in {folder}: {path.name} is missing.")
    if to_folder.exists() and any(to_folder.iterdir()):
        raise StoreError(f"{to_folder} is not empty; a salvage needs a new folder.")
    lock = own(folder)
    try:
        if recognise(path, ours=(folder / "commits").exists()) < VERSION:
            raise StoreError(
                f"{path} was written by release 0.3: salvage it with that release, then start this one with the copy."
            )
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
        close_without_traces(self._connection, self.path, with_log=with_log)

    def walk(self, table: str, key: str, columns: str, last_key: int = LAST_KEY) -> Iterator[Any]:
        """Yield every row that can be read, each once, in no order. A table that is gone has none."""
        sql = f"SELECT {columns} FROM {table} WHERE {key} BETWEEN ? AND ? ORDER BY {key}"
        ranges = deque([(0, last_key)])
        failures, allowed = 0, MAX_FUTILE_FAILURES
        while ranges and failures < allowed:
            first, last = ranges.popleft()
            try:
                for row in self._connection.execute(sql, (first, last)):
                    allowed = MAX_FAILURES
                    if first <= row[0] <= last:  # a damaged page can contain keys that do not belong there
                        yield row
                        first = row[0] + 1
                allowed = MAX_FAILURES
            except sqlite3.Error:
                failures += 1
                if first < last:
                    middle = (first + last) // 2
                    ranges += ((first, middle), (middle + 1, last))

    def totals(self) -> tuple[Totals, bool]:
        """Return (the numbers that are known of the store beside its rows, whether the last commits are known)."""
        totals = Totals()
        for entity_id, high, rows, crc in self.walk("counters", "id", "id, high, rows, crc"):
            if type(high) is int and type(rows) is int and counters_crc(entity_id, high, rows) == crc:
                totals.counters[entity_id] = EntityNumbers(high, rows)
        is_known = False
        journal = self.walk("journal", "number", "number, last_id, last_n, crc, changes")
        for number, last_id, last_n, crc, changes in sorted(journal, key=lambda row: row[0]):
            try:
                if journal_crc(number, last_id, last_n, changes) != crc:
                    continue
            except (TypeError, struct.error):
                continue
            is_known = True
            totals.commits, totals.last_id, totals.last_n = number, last_id, last_n
            totals.counters |= {entity_id: EntityNumbers(high, rows) for entity_id, high, rows in changes_of(changes)}
        return totals, is_known

    def entities(self, notes: list[str]) -> dict[int, str]:
        """Return descriptions by entity id. One that does not match its checksum is kept when it is still JSON."""
        descriptions: dict[int, str] = {}
        for entity_id, description, crc in self.walk("entities", "id", "id, description, crc"):
            text = description.decode("utf-8", "replace") if type(description) is bytes else ""
            if text_crc(entity_id, text.encode()) == crc:
                if text:  # an empty text: it was deleted
                    descriptions[entity_id] = text
            elif _is_json(text):
                descriptions[entity_id] = text
                notes.append(f"The description of entity {entity_id} is damaged; it was kept as found: check it.")
            else:
                notes.append(f"The description of entity {entity_id} cannot be read; its messages were not copied.")
        return descriptions

    def payloads(self, last_key: int) -> Iterator[InsertPayload]:
        for payload, topic_id, crc, body in self.walk("payloads", "id", "id, topic, crc, body", last_key):
            if type(topic_id) is int and type(body) is bytes and payload_crc(payload, topic_id, body) == crc:
                yield InsertPayload(payload, topic_id, body)

    def remembered(self) -> dict[int, list[tuple[str, int]]]:
        ids: dict[int, list[tuple[str, int]]] = {}
        for _, entity_id, until_ms, crc, message_id in self.walk(
            "remembered", "n", "n, entity_id, until_ms, crc, message_id"
        ):
            if type(entity_id) is int and type(until_ms) is int and type(message_id) is bytes:
                if text_crc(entity_id ^ until_ms, message_id) == crc:
                    ids.setdefault(entity_id, []).append((message_id.decode(), until_ms))
        return ids

    def states(self, last_key: int) -> Iterator[SetSessionState]:
        columns = f"{states.HEAD_COLUMNS}, state_crc, state"
        for n, entity_id, updated_ms, session_id, crc, state_crc, state in self.walk("states", "n", columns, last_key):
            row = states.row_of(n, entity_id, updated_ms, session_id, crc, 0)
            if row is not None and type(state) is bytes and crc32(state) == state_crc:
                yield SetSessionState(row.entity_id, row.n, row.session_id, row.updated_ms, state)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _copy(source: _Source, to_folder: Path) -> SalvageReport:
    report = SalvageReport()
    totals, is_known = source.totals()
    entities = source.entities(report.notes)
    if not entities and not is_known:
        raise damaged(source.path, "neither its entities nor its counters can be read")
    noted = CommitFile(source.path.parent).read()
    if noted is None or not is_known:
        report.notes.append("Whether the last commits are missing cannot be told: their number is damaged.")
    elif noted > totals.commits:
        report.notes.append(f"The last {noted - totals.commits} acknowledged commits are missing.")
    to_folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    lock = own(to_folder)
    try:
        _fill(source, to_folder, entities, totals, LAST_KEY if not is_known else totals.last_n, report)
    finally:
        lock.release()
    return report


def _fill(
    source: _Source, to_folder: Path, entities: dict[int, str], known: Totals, last_key: int, report: SalvageReport
) -> None:
    path = to_folder / FILE_NAME
    create(path)
    # The new store counts its own commits and messages; the highest numbers must stay the highest.
    totals = Totals(last_id=max([*entities, known.last_id], default=0), last_n=known.last_n)
    totals.counters = {
        entity_id: EntityNumbers(high=known.counters[entity_id].high)
        for entity_id in entities
        if entity_id in known.counters
    }
    committer = Committer(path, open_for_writing(path), totals, CommitFile(to_folder))
    try:
        committer.commit_all(*[PutEntity(entity_id, text) for entity_id, text in sorted(entities.items())])
        copied = _copy_rows(source, committer, entities, last_key)
        for entity_id, ids in source.remembered().items():
            if entity_id in entities:
                committer.commit_all(Remember(entity_id, ids))
        for op in source.states(last_key):
            if op.entity_id in entities:
                committer.commit_all(op)
    finally:
        committer.close()
    for entity_id, description in sorted(entities.items()):
        count, counters = copied.get(entity_id, 0), known.counters.get(entity_id)
        lost = None if counters is None else max(0, counters.rows - count)
        report.entities.append(SalvagedEntity(entity_id, description, count, lost))
        if counters is None:
            report.notes.append(
                f"The counters of entity {entity_id} are damaged; sequence numbers may be given a second time."
            )


def _copy_rows(source: _Source, committer: Committer, entities: dict[int, str], last_key: int) -> dict[int, int]:
    """Copy the rows and return how many messages of each entity were copied."""
    payloads: dict[int, bytes] = {}
    for op in source.payloads(last_key):
        committer.commit_all(op)
        payloads[op.payload] = b""
    copied: dict[int, int] = {}
    rows: list[StoredRow] = []
    for row in source.walk("messages", "n", COLUMNS, last_key):
        rows.append(row)
        if len(rows) == GROUP_ROWS:
            _insert(committer, rows, entities, payloads, copied)
            rows = []
    _insert(committer, rows, entities, payloads, copied)
    return copied


def _insert(
    committer: Committer,
    rows: list[StoredRow],
    entities: dict[int, str],
    payloads: dict[int, bytes],
    copied: dict[int, int],
) -> None:
    by_box: dict[int, list[StoredRow]] = {}
    for row in rows:
        if type(row[1]) is int and entity_of(row[1]) in entities:
            by_box.setdefault(row[1], []).append(row)
    ops = []
    for box, each in by_box.items():
        messages, _, _ = messages_of(box, each, lambda _: (payloads, frozenset()))
        ops.append(Insert(box, messages))
        copied[entity_of(box)] = copied.get(entity_of(box), 0) + len(messages)
    committer.commit_all(*ops)
