"""The durable store: one SQLite file in a folder, one thread that writes, group commit.

The writes of the event loop collect in a group. When the writer is idle, the group is handed over at the end of the
current turn of the loop, so a lone message waits for nothing, or at once when it has become large; while the writer is
busy the next group grows, so under load many messages share one commit. The result of a group comes back in one call.

    folder/messages.db (-wal, -shm)   the database, see schema.py
    folder/commits, folder/lock       see folder.py
    folder/reserve                    see reserve.py
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pairbus.broker.store import (
    UNLIMITED,
    Done,
    Hindrance,
    IndexRow,
    Loaded,
    PayloadRow,
    RecoveredStore,
    StateRow,
    Write,
)
from pairbus.broker.store.backup import Backup, adopt
from pairbus.broker.store.breakage import Breakage
from pairbus.broker.store.commit_times import CommitTimes
from pairbus.broker.store.committer import Committer, Totals
from pairbus.broker.store.folder import is_store_file, own
from pairbus.broker.store.group import CommitGroup
from pairbus.broker.store.migration import clear_remains, migrate
from pairbus.broker.store.progress import PacedTelling
from pairbus.broker.store.reader import StoreReader
from pairbus.broker.store.schema import (
    FILE_NAME,
    VERSION,
    create,
    damaged,
    open_for_writing,
    recognise,
    store_error,
)
from pairbus.broker.store.structure import StructureCheck
from pairbus.broker.store.units import Units
from pairbus.broker.store.writer import WriterThread
from pairbus.errors import StoreError, StoreFull
from pairbus.host.commit_file import CommitFile
from pairbus.host.folders import make_folder, tighten_folder
from pairbus.host.locks import FolderLock


class SqliteStore(Units):
    """Store in a SQLite file; see the contract in `pairbus.broker.store`.

    `loop` is the event loop that owns the store; without it, the one that runs when the first write is made.
    `progress` gets a sentence about once a second while recovery takes longer than a second.
    """

    def __init__(
        self,
        folder: Path,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.hindrance: Hindrance | None = None
        self.commit_times = CommitTimes()
        self._folder = folder
        self._path = folder / FILE_NAME
        self._loop = loop
        self._progress = progress
        self._lock: FolderLock | None = None
        self._structure: StructureCheck | None = None
        self._reader: StoreReader | None = None
        self._committer: Committer | None = None
        self._thread: WriterThread | None = None
        self._group = CommitGroup()
        self._in_flight: CommitGroup | None = None
        self._handing_over = False
        self._closed: StoreError | None = None
        "Error for calls after the end; None: the store is open."
        self._breakage = Breakage(folder)
        self._idle: asyncio.Future[None] | None = None
        self._backup: Backup | None = None
        self._last_n = 0

    # ── opening and closing ──

    def recover(self) -> RecoveredStore:
        """Open the store and read its contents. `index` and `remembered` add their damage to the same list."""
        assert self._reader is None, "recover is called once"
        try:
            make_folder(self._folder)
        except OSError as error:
            raise StoreError(f"Cannot make the data folder {self._folder}: {error.strerror}.") from error
        self._lock = own(self._folder)
        try:
            return self._open()
        except OSError as error:
            self._release()
            raise StoreError(f"Cannot open the store in {self._folder}: {error.strerror}.") from error
        except BaseException:
            self._release()
            raise

    def _open(self) -> RecoveredStore:
        commits = CommitFile(self._folder)
        noted = commits.read()
        known = commits.path.exists()
        if not self._path.exists():
            if known and noted != 0:
                raise damaged(self._path, "the file is missing, although this folder was in use")
            # In this order a crash between the two leaves a folder that is known to be new.
            commits.write(0)
            noted = 0
            create(self._path)
        version = recognise(self._path, ours=known)
        tighten_folder(self._folder, is_store_file)  # not before: a folder of another program is left as it is
        adopt(self._path, commits)
        noted = commits.read()
        progress = PacedTelling(self._progress)
        if version < VERSION:
            migrate(self._path, noted, progress)
        clear_remains(self._folder)
        self._structure = StructureCheck(self._path, self._progress)
        self._reader = StoreReader(self._path, progress)
        recovery = self._reader.recovery
        entities = recovery.recover()
        totals = recovery.totals
        self._last_n = totals.last_n
        last_id = totals.last_id
        recovery.damage += self._lost_commits(commits, noted, totals)
        try:
            connection = open_for_writing(self._path)
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
        self._committer = Committer(self._path, connection, totals, commits, self._structure)
        return RecoveredStore(entities, recovery.damage, last_id, recovery.dropped)

    def _lost_commits(self, commits: CommitFile, noted: int | None, totals: Totals) -> list[str]:
        """Compare the number of commits with the write-ahead log (see host/commit_file.py)."""
        if noted is None:
            state = "damaged" if commits.path.exists() else "missing"
            return [f"{commits.path} is {state}; if commits were lost with it, it cannot be noticed."]
        lost = noted - totals.commits
        totals.commits = max(totals.commits, noted)  # the count goes on above both, so that the same loss is told once
        if lost <= 0:
            return []
        return [
            f"{self._path}: the last {lost} acknowledged commits are missing; the write-ahead log "
            f"{self._path.name}-wal was cut, damaged or removed."
        ]

    async def close(self) -> None:
        if self._structure is not None:
            self._structure.cancel()  # what waits for it was not acknowledged, and fails
        if self._group.steps or self._in_flight is not None or self._group.callbacks:
            self._schedule()
            self._idle = self._running_loop().create_future()
            await self._idle
        self._closed = StoreError(f"The store in {self._folder} is closed.")
        if self._reader is not None and self._structure is not None and self._structure.is_passed:
            self._reader.close()  # first: the last connection to close copies and removes the log, and this one cannot
        if self._thread is not None:
            await self._thread.close()
        elif self._committer is not None:
            self._committer.close()
            self._committer = None
        self._release()

    def _release(self) -> None:
        """Release the files and the lock; harmless when there are none."""
        if self._structure is not None:
            self._structure.cancel()
        if self._reader is not None:
            self._reader.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    # ── writing ──

    def write(self, op: Write) -> None:
        if self._unit is not None:
            self._unit.writes.append(op)
            return
        self._group.add(op)
        if not self._handing_over:
            self._schedule()

    def after_commit(self, done: Done) -> None:
        if self._unit is not None:
            self._unit.callbacks.append(done)
            return
        if self._in_flight is not None and not self._group.needs_commit:
            # All writes so far are in the group that the writer has: its result is the answer.
            self._in_flight.callbacks.append(done)
            return
        self._group.end_unit(done)
        if self._in_flight is None and self._group.is_large and self._breakage.error is None:
            self._hand_over()  # the loop may read more for milliseconds; the writer need not wait for that
        elif not self._handing_over:
            self._schedule()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _schedule(self) -> None:
        """Hand the group over when this turn of the loop ends; a busy writer fetches it itself (`_finished`)."""
        if self._in_flight is None and not self._handing_over:
            self._handing_over = True
            self._running_loop().call_soon(self._hand_over_scheduled)

    def _hand_over_scheduled(self) -> None:
        self._handing_over = False
        if self._in_flight is None:  # otherwise a large group went ahead, and `_finished` fetches the rest
            self._hand_over()

    def _hand_over(self) -> None:
        group, self._group = self._group, CommitGroup()
        error = self._closed or self._breakage.error
        if error is not None or not group.needs_commit:
            self._tell(group, error)
            return
        self._begin(group)

    def _begin(self, group: CommitGroup) -> None:
        self._in_flight = group
        self.commit_times.begin()
        with self._breakage:
            if self.hindrance is None:
                self._writer().commit(group)
            else:
                needs_room = group.takes_room or group.room_check is not None
                self.hindrance(needs_room, partial(self._commit_hindered, group))
            return
        # The writer does not have it: nobody else would tell its callers. Those of the group before it come first.
        self._running_loop().call_soon(self._finished, group, self._breakage.error)

    def _commit_hindered(self, group: CommitGroup, error: StoreError | None) -> None:
        """Commit a group that had to wait, or fail it, or fail only its probes."""
        if isinstance(error, StoreFull) and group.room_check is not None and not group.takes_room:
            group.room_check.error, error = error, None
        if error is not None:
            self._finished(group, error)
        else:
            self._writer().commit(group)

    def _writer(self) -> WriterThread:
        if self._thread is None:
            assert self._committer is not None, "recover comes before the first write"
            self._thread = WriterThread(self._committer, self._running_loop(), self._finished, self._breakage)
        return self._thread

    def _finished(self, group: CommitGroup, error: StoreError | None) -> None:
        self._in_flight = None
        self.commit_times.end(is_durable=error is None)
        with self._breakage:
            rest = group.without_sends(error) if isinstance(error, StoreFull) else None
            if rest is not None:
                self._begin(rest)  # before the next group, and this group's callbacks wait for it: their order stays
                return
        if self._group.needs_commit and self._breakage.error is None:
            with self._breakage:
                self._hand_over()  # before the callbacks, so that the writer works while they run
        if self._group.needs_commit:  # writing has ended: its callers are told after those of this group
            self._schedule()
        self._tell(group, error)

    def _tell(self, group: CommitGroup, error: StoreError | None) -> None:
        for done, result in group.results(error):
            try:
                done(result)
            except Exception as fault:  # one callback's bug must not keep the others from being called; it is reported
                context = {"message": "a callback of the store failed", "exception": fault}
                self._running_loop().call_exception_handler(context)
        is_idle = self._in_flight is None and not self._group.needs_commit
        if self._idle is not None and is_idle and not self._idle.done():
            self._idle.set_result(None)

    def probe(self, done: Done) -> None:
        self._group.probe(done)
        if not self._handing_over:
            self._schedule()

    async def back_up(self, backup: Backup) -> None:
        if self._backup is not None:
            raise StoreError(f"The store in {self._folder} is being backed up already, to {self._backup.draft}.")
        if self._closed is not None:
            raise self._closed
        self._backup = backup
        try:
            await self._writer().back_up(backup)
        finally:
            self._backup = None

    # ── reading ──

    def index(self) -> Iterator[IndexRow]:
        return self._open_reader.recovery.index()

    def payloads(self) -> Iterator[PayloadRow]:
        return self._open_reader.recovery.payloads()

    def remembered(self, entity_id: int) -> list[tuple[str, int]]:
        return self._open_reader.recovery.remembered(entity_id)

    def session_states(self) -> Iterator[StateRow]:
        for row in self._open_reader.recovery.session_states():
            self._last_n = max(self._last_n, row.n)
            yield row

    def load_state(self, n: int) -> bytes | None:
        return self._open_reader.load_state(n)

    def number(self, count: int = 1) -> int:
        first = self._last_n + 1
        self._last_n += count
        return first

    def load(self, box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        return self._open_reader.load(box, numbers, size_max, with_bodies=with_bodies)

    def seq_of(self, box: int, n: int) -> int:
        return self._open_reader.seq_of(box, n)

    def payloads_of(self, numbers: Sequence[int]) -> list[int]:
        return self._open_reader.payloads_of(numbers)

    @property
    def _open_reader(self) -> StoreReader:
        if self._closed is not None:
            raise self._closed
        assert self._reader is not None, "recover comes before the first read"
        return self._reader
