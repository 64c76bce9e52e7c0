"""Reads the contents of a store when it is opened. Every row is checked against its checksum; damaged rows are counted
and reported."""

from __future__ import annotations

import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pairbus.broker.store import (
    BOX_KINDS,
    DEAD,
    MAIN,
    TRANSFER,
    IndexRow,
    PayloadRow,
    RecoveredEntity,
    StateRow,
    entity_of,
    states,
)
from pairbus.broker.store.committer import EntityNumbers, Totals
from pairbus.broker.store.progress import PacedTelling
from pairbus.broker.store.records import (
    changes_of,
    counters_crc,
    index_row_of,
    index_rows_of,
    journal_crc,
    text_crc,
)
from pairbus.broker.store.schema import TABLES, damaged, store_error

INDEX_ROWS = 4096  # between two looks at the clock
SHOWN = 10

_BOX_NAMES = {
    MAIN: "entity {}",
    DEAD: "the dead-letter queue of entity {}",
    TRANSFER: "the transfer dead letters of entity {}",
}


def box_name(box: int) -> str:
    return _BOX_NAMES.get(box % BOX_KINDS, "an unknown box of entity {}").format(entity_of(box))


def some_of(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more


class Recovery:
    """Reads the contents of a store, once, on a connection that cannot write."""

    def __init__(self, connection: sqlite3.Connection, path: Path, progress: PacedTelling) -> None:
        self._connection = connection
        self._path = path
        self._progress = progress
        self.damage: list[str] = []
        self.totals = Totals()
        self.dropped: list[int] = []

    def recover(self) -> list[RecoveredEntity]:
        """Return the entities; fills `damage`, `totals` and `dropped`. StoreDamaged when the tables are not ours."""
        try:
            self._check_objects()
            ids = [row[0] for row in self._connection.execute("SELECT id FROM entities")]
            self._read_totals(ids)
            for sql in ("SELECT max(n) FROM messages", "SELECT max(id) FROM payloads"):
                [[last]] = self._connection.execute(sql).fetchall()
                self.totals.last_n = max(self.totals.last_n, last or 0)
            return self._read_entities()
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error

    def _check_objects(self) -> None:
        tables = {
            name.decode("utf-8", "replace"): (sql or b"").decode("utf-8", "replace")
            for name, sql in self._connection.execute("SELECT name, sql FROM sqlite_schema")
        }
        for name, sql in TABLES.items():
            if tables.get(name) != sql:
                raise damaged(self._path, f"the table {name} is not there or not as it was made")

    def _read_totals(self, ids: list[int]) -> None:
        """Read the counters as they were last written, then the changes of each commit since."""
        totals = self.totals
        known = set(ids)
        bad = set()
        for entity_id, high, rows, crc in self._connection.execute("SELECT id, high, rows, crc FROM counters"):
            if type(high) is int and type(rows) is int and counters_crc(entity_id, high, rows) == crc:
                totals.counters[entity_id] = EntityNumbers(high, rows)
            else:
                bad.add(entity_id)
        journal_is_whole = self._read_journal()
        if not journal_is_whole:
            self.damage.append(f"{self._path}: the number of commits is damaged; missing ones cannot be noticed.")
            totals.last_id = max([totals.last_id, *ids])
        if journal_is_whole:
            bad = (bad | (known - totals.counters.keys())) - totals.unfolded
        else:
            bad = known
        self._count_again(sorted(bad & known))
        totals.counters = {entity_id: totals.counters[entity_id] for entity_id in ids}

    def _read_journal(self) -> bool:
        totals, last = self.totals, None
        is_whole = True
        sql = "SELECT number, last_id, last_n, crc, changes FROM journal ORDER BY number"
        for number, last_id, last_n, crc, changes in self._connection.execute(sql):
            try:
                is_intact = journal_crc(number, last_id, last_n, changes) == crc
            except (TypeError, struct.error):
                is_intact = False
            if not is_intact or (last is not None and number != last + 1):
                is_whole = False
                continue
            last = number
            totals.commits, totals.last_id, totals.last_n = number, last_id, last_n
            for entity_id, high, rows in changes_of(changes):
                totals.counters[entity_id] = EntityNumbers(high, rows)
                totals.unfolded.add(entity_id)
        return is_whole and last is not None

    def _count_again(self, ids: list[int]) -> None:
        """Count highest sequence numbers and rows again, from the head of every row."""
        if not ids:
            return
        by_entity: dict[int, EntityNumbers] = {}
        totals = self.totals
        for n, box, head, crc in self._connection.execute("SELECT n, box, head, head_crc FROM messages"):
            if type(box) is int:
                counters = by_entity.get(entity_of(box), EntityNumbers())
                row = index_row_of(n, box, head, crc, 0)
                by_entity[entity_of(box)] = EntityNumbers(max(counters.high, row.seq if row else 0), counters.rows + 1)
        for entity_id in ids:
            totals.counters[entity_id] = by_entity.get(entity_id, EntityNumbers())
            totals.unfolded.add(entity_id)
            self.damage.append(
                f"{self._path}: the counters of entity {entity_id} are damaged; they were counted again, "
                "and sequence numbers of messages that are gone may be given a second time."
            )

    def _read_entities(self) -> list[RecoveredEntity]:
        entities = []
        for entity_id, description, crc in self._connection.execute("SELECT id, description, crc FROM entities"):
            if type(description) is bytes and text_crc(entity_id, description) == crc:
                if description:
                    last_seq = self.totals.counters[entity_id].high
                    entities.append(RecoveredEntity(entity_id, description.decode(), last_seq))
                else:
                    self.dropped.append(entity_id)
            else:
                self.damage.append(
                    f"{self._path}: the description of entity {entity_id} is damaged; its messages are kept but not "
                    "served. `pairbus store salvage` may recover them."
                )
        return entities

    def index(self) -> Iterator[IndexRow]:
        """Yield the rows; at the end, add to `damage` and count the references of payloads."""
        sql = "SELECT n, box, head, head_crc, length(body) FROM messages ORDER BY n"
        total = 0
        counts: Counter[Any] = Counter()
        bad: dict[Any, list[int]] = {}
        shared = self.totals.shared
        try:
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(INDEX_ROWS):
                counts.update([row[1] for row in rows])
                intact, damaged_rows = index_rows_of(rows)
                for n, box in damaged_rows:
                    bad.setdefault(box, []).append(n)
                for row in intact:
                    if row[7]:
                        shared[row[7]] = shared.get(row[7], 0) + 1
                yield from intact
                total += len(rows)
                self._progress.tell(f"recovering {self._path}: {total} messages read")
            self._find_orphans(has_damage=bool(bad))
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
        self._tell_damage(counts, bad)

    def _find_orphans(self, *, has_damage: bool) -> None:
        """Find payloads that no row shares. A row with a damaged head may share any: then they are kept."""
        if not has_damage:
            shared = self.totals.shared
            ids = self._connection.execute("SELECT id FROM payloads")
            self.totals.orphans = [payload for (payload,) in ids if payload not in shared]

    def _tell_damage(self, by_box: Mapping[Any, int], bad: dict[Any, list[int]]) -> None:
        for box, numbers in sorted(bad.items(), key=repr):
            name = box_name(box) if type(box) is int else "an unknown entity"
            self.damage.append(
                f"{self._path}: {len(numbers)} messages of {name} are damaged and not served (rows {some_of(numbers)})."
            )
        counts: dict[int, int] = {}
        strangers = 0
        for box, count in by_box.items():
            if type(box) is int and entity_of(box) in self.totals.counters:
                counts[entity_of(box)] = counts.get(entity_of(box), 0) + count
            else:
                strangers += count - len(bad.get(box, ()))
        if strangers:
            self.damage.append(
                f"{self._path}: {strangers} messages belong to entities that are not there; they are kept but not "
                "served. `pairbus store salvage` tells more."
            )
        for entity_id, counters in sorted(self.totals.counters.items()):
            if counts.get(entity_id, 0) != counters.rows:
                self.damage.append(
                    f"{self._path}: entity {entity_id} should hold {counters.rows} messages, "
                    f"{counts.get(entity_id, 0)} were found."
                )

    def payloads(self) -> Iterator[PayloadRow]:
        try:
            yield from self._connection.execute("SELECT id, topic, length(body) FROM payloads ORDER BY id")
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error

    def remembered(self, entity_id: int) -> list[tuple[str, int]]:
        sql = "SELECT until_ms, crc, message_id FROM remembered WHERE entity_id = ? ORDER BY n"
        latest: dict[str, int] = {}
        bad = 0
        try:
            for until_ms, crc, message_id in self._connection.execute(sql, (entity_id,)):
                if (
                    type(message_id) is bytes
                    and type(until_ms) is int
                    and text_crc(entity_id ^ until_ms, message_id) == crc
                ):
                    text = message_id.decode()
                    latest[text] = max(until_ms, latest.get(text, 0))
                else:
                    bad += 1
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
        if bad:
            self.damage.append(
                f"{self._path}: {bad} message ids that entity {entity_id} remembered are damaged; duplicates of these "
                "messages will not be recognised."
            )
        return list(latest.items())

    def session_states(self) -> Iterator[StateRow]:
        bad: list[int] = []
        try:
            for row in states.rows(self._connection, bad):
                self.totals.last_n = max(self.totals.last_n, row.n)
                yield row
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
        if bad:
            self.damage.append(f"{self._path}: {len(bad)} session states are damaged (rows {some_of(bad)}).")
