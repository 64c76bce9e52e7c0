"""Commits groups of writes, one after the other; `execute("COMMIT")` in `_try_commit` makes a group durable."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pairbus.broker.store import DropEntity, EraseEntity, Forget, PutEntity, SetSessionState, Write, states
from pairbus.broker.store.backup import Backup, Contents
from pairbus.broker.store.group import CommitGroup, CommitStep, RememberStep, RowStep
from pairbus.broker.store.log import WriteAheadLog
from pairbus.broker.store.records import (
    COLUMN_COUNT,
    COLUMNS,
    counters_crc,
    journal_crc,
    pack_changes,
    text_crc,
)
from pairbus.broker.store.reserve import PLENTY_BYTES, RESERVE_BYTES, Reserve
from pairbus.broker.store.schema import PAGE_BYTES, full, store_error
from pairbus.broker.store.statements import (
    MAX_ROWS,
    delete_sql,
    insert_sql,
    move_sql,
    padded_size,
    power_of_two_parts,
    runs_of,
    update_sql,
)
from pairbus.broker.store.structure import StructureCheck
from pairbus.errors import StoreError, StoreFull
from pairbus.host.commit_file import CommitFile

logger = logging.getLogger("pairbus.broker.store")

PROBE_BYTES = 1 << 20  # a disk with less room refuses the next large message


FOLD_COMMITS = 256
"Number of commits in the journal after which the counters are written to their own table."
ORPHANS_MAX = 200  # payloads that no row shares, deleted with one commit


class EntityNumbers(NamedTuple):
    """Numbers of one entity that are kept beside its rows."""

    high: int = 0
    "Highest sequence number ever."
    rows: int = 0


@dataclass(slots=True)
class Totals:
    """Numbers of the whole store, and of its entities, that are kept beside the rows."""

    commits: int = 0
    last_id: int = 0
    "Highest entity id ever."
    last_n: int = 0
    "Highest number of a row or payload ever."
    counters: dict[int, EntityNumbers] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)
    "Number of rows that share a payload, by payload."
    orphans: list[int] = field(default_factory=list)
    "Payloads that no row shares."
    unfolded: set[int] = field(default_factory=set)
    "Entities whose counters are newer in the journal than in their own table."


class Committer:
    """Commits groups on the one connection that writes. Runs in the thread of `writer.py`."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        totals: Totals,
        commits: CommitFile,
        structure: StructureCheck | None = None,
    ) -> None:
        """Make it. `structure`: the check that the first commit waits for; None: the file is new."""
        self._path = path
        self._structure = structure
        self._connection = connection
        self._totals = totals
        self._commits = commits
        self._reserve = Reserve(path.parent)
        self._reserve.take()
        self._changed: dict[int, EntityNumbers | None] = {}
        "Counters as the group in hand changes them; None: erased."
        self._sharing: dict[int, int] = {}
        self._last_id = self._last_n = 0
        self._fold_at = totals.commits + 1  # the numbers of lost commits leave a gap, which must soon be closed
        self._log = WriteAheadLog(path, connection)
        self._ask_at_bytes = 0
        "Size of the log at which free disk space is checked again: checking after each commit would cost 5 % of it."

    def copy_into(self, backup: Backup, commit_for: Callable[[float], bool]) -> None:
        """Copy the store; between two steps `commit_for` commits groups on the same connection (see backup.py)."""
        backup.copy(self._connection, self._contents, commit_for)

    def _contents(self) -> Contents:
        return Contents(self._totals.commits, sum(numbers.rows for numbers in self._totals.counters.values()))

    def commit(self, group: CommitGroup) -> StoreError | None:
        """Commit the whole group durably, or none of it and return the reason; answer its probes.

        An empty group is committed too: it writes the numbers of the store. Probes alone commit where there is room.
        """
        if self._structure is not None and (damage := self._structure.wait()) is not None:
            return damage
        is_probe = group.room_check is not None and not group.steps
        error = None if is_probe else self._commit_writes(group)
        if error is None and group.room_check is not None:
            group.room_check.error = group.room_check.error or self._probe(group)
        return error

    def _commit_writes(self, group: CommitGroup) -> StoreError | None:
        if group.takes_room:
            return self._try_commit(group) if self._has_room() else full(self._path)
        error = self._try_commit(group)
        if isinstance(error, StoreFull):
            if self._reserve.size:
                logger.warning("%s: the disk is full; only settlements and deletions go on", self._path)
            self._reserve.give_up()
            self._checkpoint("PASSIVE")
            error = self._try_commit(group)
        return self._commit_parts(group, error) if isinstance(error, StoreFull) else error

    def _commit_parts(self, group: CommitGroup, error: StoreFull) -> StoreError | None:
        """Commit those units of a group for which there is room; the error is that of the last one that failed."""
        parts = deque(group.halves())
        last_failure: StoreError | None = None if parts and group.settles_only else error
        while parts:
            part = parts.popleft()
            self._checkpoint("PASSIVE")  # the log begins again at its start, which takes no new room
            failure = self._try_commit(part)
            halves = part.halves() if isinstance(failure, StoreFull) else []
            if halves:
                parts.extendleft(reversed(halves))
            else:
                group.note_part(part, failure)
                last_failure = failure or last_failure
        return last_failure

    def _probe(self, group: CommitGroup) -> StoreError | None:
        """Return why a send would fail now; None when there is room for one and a write became durable."""
        if not self._has_room() or (self._reserve.free_bytes() < PROBE_BYTES and not self._has_unused()):
            return full(self._path)
        return None if group.steps else self._try_commit(group)

    def _has_room(self) -> bool:
        """Return whether new data may be stored (see reserve.py)."""
        return self._reserve.take() or self._has_unused()

    def _has_unused(self) -> bool:
        """Return whether the database has unused room in it."""
        try:
            [pages] = self._connection.execute("PRAGMA page_count").fetchone()
            [unused] = self._connection.execute("PRAGMA freelist_count").fetchone()
        except sqlite3.Error as error:
            logger.error("%s: cannot ask how much room is left: %s", self._path, error)
            return False
        return bool(unused >= min(pages // 2, RESERVE_BYTES // PAGE_BYTES))

    def _try_commit(self, group: CommitGroup) -> StoreError | None:
        totals = self._totals
        self._changed, self._sharing = {}, {}
        self._last_id, self._last_n = totals.last_id, totals.last_n
        orphans = totals.orphans[:ORPHANS_MAX]
        number = totals.commits + 1
        is_committing = False
        try:
            self._connection.execute("BEGIN")
            for step in group.steps:
                self._perform(step)
            gone = [payload for payload, rows in self._sharing.items() if rows <= 0]
            self._delete("payloads", "id", gone + orphans)
            self._write_journal(number)
            is_committing = True
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            logger.error("%s: a group of writes failed: %s", self._path, error)
            failure = store_error(error, self._path)
            if is_committing and group.steps and not isinstance(failure, StoreFull):
                self._overwrite()
            return failure
        except Exception as error:  # a value that SQLite cannot bind, no memory: the group's senders must be told
            self._roll_back()
            logger.exception("%s: a group of writes was wrong", self._path)
            if is_committing and group.steps:
                self._overwrite()
            return StoreError(f"{self._path}: {error}")
        group.is_durable = True
        self._note_committed(number, gone, len(orphans))
        try:
            self._commits.write(number)
        except OSError as error:
            logger.warning("%s: cannot note the commit: %s", self._commits.path, error)
        return None

    def _overwrite(self) -> None:
        """Commit an empty group in the place of one whose COMMIT failed.

        When the sync of the log fails, the whole group is in the log already, with the mark of a commit, and a start
        after a kill would take it for committed. The next commit is written over it. The checksum of each frame of the
        log includes those before it, so no frame of the old group that is left behind the new one counts. When the
        empty group fails as well, its frames are in the log instead, unless the disk took no write at all; on a full
        disk the mark, which is written last, is missing.
        """
        if self._try_commit(CommitGroup()) is not None:
            logger.error("%s: the next start may find the group of writes that failed", self._path)

    def _note_committed(self, number: int, gone: list[int], orphans: int) -> None:
        totals = self._totals
        totals.commits, totals.last_id, totals.last_n = number, self._last_id, self._last_n
        for entity_id, counters in self._changed.items():
            if counters is None:
                totals.counters.pop(entity_id, None)
            else:
                totals.counters[entity_id] = counters
        totals.shared.update(self._sharing)
        for payload in gone:
            del totals.shared[payload]
        del totals.orphans[:orphans]
        totals.unfolded.update(self._changed)

    def commit_all(self, *writes: Write) -> None:
        """Commit writes of a store that nobody else uses, as one group. StoreError: none of them was committed."""
        group = CommitGroup()
        for write in writes:
            group.add(write)
        error = self.commit(group)
        if error is not None:
            raise error
        self.tidy_up_if_due()

    @property
    def _may_copy(self) -> bool:
        return self._structure is None or self._structure.is_passed

    def tidy_up_if_due(self) -> None:
        """Fold the journal and copy the log back, when due: called between two groups, when no commit waits."""
        if not self._may_copy:
            return
        if self._totals.commits >= self._fold_at:
            self._fold()
        if self._log.is_due() or self._is_log_long_for_the_disk():
            self._checkpoint("PASSIVE")

    def _is_log_long_for_the_disk(self) -> bool:
        """Return whether a disk with little room needs a shorter log (see reserve.py)."""
        if not self._reserve.size:
            return True
        short, size = self._reserve.size // 4, self._log.size()
        if size < short:
            self._ask_at_bytes = 0  # it has begun again
        if size < max(short, self._ask_at_bytes):
            return False
        self._ask_at_bytes = size + short
        return self._reserve.free_bytes() < PLENTY_BYTES

    def close(self) -> None:
        if self._may_copy:
            self._checkpoint("TRUNCATE")
        self._connection.close()
        self._log.close()
        self._commits.close()

    def _checkpoint(self, mode: str) -> None:
        is_whole = False
        try:
            [[is_busy, pages, copied]] = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            is_whole = not is_busy and pages == copied
        except sqlite3.Error as error:  # no loss: the log keeps the pages that were not copied
            logger.warning("%s: the write-ahead log was not copied into the database: %s", self._path, error)
        self._log.copied(is_whole=is_whole)
        self._ask_at_bytes = 0 if is_whole else self._log.size() + self._reserve.size // 4

    def _roll_back(self) -> None:
        if not self._connection.in_transaction:
            return
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:  # the next group cannot begin then, fails as well, and rolls back again
            logger.error("%s: a failed group of writes could not be rolled back: %s", self._path, error)

    # ── counters ──

    def _counter(self, entity_id: int) -> EntityNumbers:
        """Return the counters of an entity as this group changes them; the old ones stay until the commit succeeds."""
        if entity_id in self._changed:
            return self._changed[entity_id] or EntityNumbers()
        return self._totals.counters.get(entity_id, EntityNumbers())

    def _write_journal(self, number: int) -> None:
        """Write one row for the commit, however many entities it changed."""
        changes = pack_changes(
            (entity_id, *counters) for entity_id, counters in self._changed.items() if counters is not None
        )
        crc = journal_crc(number, self._last_id, self._last_n, changes)
        sql = "INSERT INTO journal (number, last_id, last_n, crc, changes) VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(sql, (number, self._last_id, self._last_n, crc, changes))

    def _fold(self) -> None:
        """Write the counters of the journal to their own table. Only the last commit stays in the journal."""
        totals = self._totals
        flat: list[Any] = []
        for entity_id in sorted(totals.unfolded & totals.counters.keys()):
            counters = totals.counters[entity_id]
            flat += (entity_id, *counters, counters_crc(entity_id, *counters))
        self._fold_at = totals.commits + FOLD_COMMITS  # also after a failure
        try:
            self._connection.execute("BEGIN")
            self._insert("counters", "id, high, rows, crc", 4, flat, "INSERT OR REPLACE")
            self._connection.execute("DELETE FROM journal WHERE number < ?", (totals.commits,))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:  # no loss: the journal keeps the counters that were not folded
            self._roll_back()
            logger.warning("%s: the journal of counters was not put together: %s", self._path, error)
            return
        totals.unfolded = set()

    # ── steps ──

    def _perform(self, step: CommitStep) -> None:
        match step:
            case RowStep():
                self._perform_rows(step)
            case RememberStep():
                self._insert("remembered", "entity_id, until_ms, crc, message_id", 4, step.rows)
            case Forget():
                self._connection.execute(
                    "DELETE FROM remembered WHERE entity_id = ? AND until_ms <= ?", (step.entity_id, step.until_ms)
                )
            case SetSessionState():
                states.carry_out(self._connection, step)
                self._last_n = max(self._last_n, step.n)
            case PutEntity():
                self._put_entity(step)
            case DropEntity():
                self._drop_entity(step.entity_id)
            case EraseEntity():
                self._erase_entity(step.entity_id)

    def _perform_rows(self, step: RowStep) -> None:
        if step.payloads:
            self._insert("payloads", "id, topic, crc, body", 4, step.payloads)
        if step.rows:
            self._insert("messages", COLUMNS, COLUMN_COUNT, step.rows)
        if step.moves:
            self._move(list(step.moves.values()))
        if step.updates:
            self._update(list(step.updates.values()))
        if step.deletes:
            self._delete("messages", "n", step.deletes)
        for entity_id, rows in step.counts.items():
            known = self._counter(entity_id)
            high = max(known.high, step.highs.get(entity_id, 0))
            self._changed[entity_id] = EntityNumbers(high, known.rows + rows)
        for payload, rows in step.shared.items():
            self._sharing[payload] = self._sharing.get(payload, self._totals.shared.get(payload, 0)) + rows
        self._last_n = max(self._last_n, step.last_n)

    def _move(self, rows: list[tuple[int, int, int, bytes, int]]) -> None:
        for at in range(0, len(rows), MAX_ROWS):
            part = rows[at : at + MAX_ROWS]
            size = padded_size(len(part))
            flat: list[Any] = [column for row in part for column in row]
            flat += [None] * (5 * (size - len(part)))
            self._connection.execute(move_sql(size), flat)
        self._delete("messages", "n", [row[0] for row in rows])

    def _insert(self, table: str, columns: str, width: int, flat: list[Any], verb: str = "INSERT") -> None:
        at = 0
        for rows in power_of_two_parts(len(flat) // width):
            sql = insert_sql(table, columns, width, rows, verb)
            self._connection.execute(sql, flat[at : at + rows * width])
            at += rows * width

    def _update(self, rows: list[tuple[int, int, bytes, int]]) -> None:
        for at in range(0, len(rows), MAX_ROWS):
            part = rows[at : at + MAX_ROWS]
            size = padded_size(len(part))
            part += [part[-1]] * (size - len(part))
            self._connection.execute(update_sql(size), [column for row in part for column in row])

    def _delete(self, table: str, key: str, numbers: Collection[int]) -> None:
        if not numbers:
            return
        runs, others = runs_of(numbers)
        for first, last in runs:
            self._connection.execute(f"DELETE FROM {table} WHERE {key} BETWEEN ? AND ?", (first, last))
        for at in range(0, len(others), MAX_ROWS):
            part = others[at : at + MAX_ROWS]
            size = padded_size(len(part))
            part += [part[-1]] * (size - len(part))
            self._connection.execute(delete_sql(table, key, size), part)

    def _put_entity(self, op: PutEntity) -> None:
        self._describe(op.entity_id, op.description)
        self._changed[op.entity_id] = self._counter(op.entity_id)
        self._last_id = max(self._last_id, op.entity_id)

    def _drop_entity(self, entity_id: int) -> None:
        """Drop the entity, and mark its rows for deletion."""
        self._describe(entity_id, "")

    def _describe(self, entity_id: int, description: str) -> None:
        self._connection.execute(
            "INSERT OR REPLACE INTO entities VALUES (?, ?, ?)",
            (entity_id, description, text_crc(entity_id, description.encode())),
        )

    def _erase_entity(self, entity_id: int) -> None:
        self._connection.execute("DELETE FROM entities WHERE id = ?", (entity_id,))
        self._connection.execute("DELETE FROM counters WHERE id = ?", (entity_id,))
        self._connection.execute("DELETE FROM remembered WHERE entity_id = ?", (entity_id,))
        self._changed[entity_id] = None
