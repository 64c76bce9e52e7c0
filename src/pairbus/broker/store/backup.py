"""Backup: a copy of a store in one file, made while commits go on.

The thread that commits copies some pages, carries out the groups that wait, and copies some more, all on one
connection: then SQLite's backup API writes each page again that a commit changes after it was copied. So the copy is
the store as it was after one commit, the last one before the last page. A connection of its own could only copy by
holding the write-ahead log back until it is done, and the log would grow all the time.

The copy has no log: its header says so (`journal_mode = DELETE`), where a store in use always has one. By that a start
knows a backup, and that no commit can be missing from it (`adopt`).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import monotonic
from typing import NamedTuple

from pairbus.broker.store.folder import own
from pairbus.broker.store.schema import (
    FILE_NAME,
    PAGE_BYTES,
    READ_ERRORS,
    VERSION,
    close_without_traces,
    open_for_reading,
    recognise,
    store_error,
)
from pairbus.errors import StoreError, StoreFull
from pairbus.host.commit_file import CommitFile
from pairbus.host.folders import open_private

STEP_PAGES = 64  # 1 MB, some milliseconds
COMMITS_SHARE = 3  # after a step commits get three times as long as the step took
PAUSE_LEAST_S = 0.0005
_WITHOUT_LOG = b"\x01\x01"
"Bytes 18 and 19 of a database that has no write-ahead log."
_LOG_AT = slice(18, 20)


class Contents(NamedTuple):
    """Numbers by which a copy is compared with its store."""

    commits: int
    "Number of the last commit."
    messages: int


class Backup:
    """One copy that is being made, into the empty file `draft`.

    `copy` is called once, on the thread that writes; the other methods by its owner.
    """

    def __init__(self, draft: Path) -> None:
        self.draft = draft
        self.size = 0
        "Bytes of the store after the last step; 0: copying has not begun."
        self.copied = 0
        self.contents: Contents | None = None
        "Contents of the copy once it has every page."
        self._given_up = Event()
        _check_draft(draft)
        self._fd = open_private(draft, os.O_RDWR)

    def copy(
        self, source: sqlite3.Connection, contents: Callable[[], Contents], commit_for: Callable[[float], bool]
    ) -> None:
        """Copy every page. `commit_for` commits what waits, for so many seconds; False: the store is being closed.

        StoreError: the copy is incomplete, and nothing of the store has changed.
        """
        target = sqlite3.connect(self.draft, isolation_level=None)  # opens no file yet
        began = monotonic()

        def step(_status: int, remaining: int, pages: int) -> None:
            nonlocal began
            self.size, self.copied = pages * PAGE_BYTES, (pages - remaining) * PAGE_BYTES
            pause_s = max((monotonic() - began) * COMMITS_SHARE, PAUSE_LEAST_S)
            self._check_room()
            if remaining and (self._given_up.is_set() or not commit_for(pause_s)):
                raise StoreError(f"{self.draft}: the backup was given up before it was complete.")
            began = monotonic()

        try:
            # A draft that fails is thrown away, so it needs neither a journal nor syncs; `sync` makes it durable.
            target.execute("PRAGMA journal_mode = OFF").fetchall()
            target.execute("PRAGMA synchronous = OFF")
            target.execute("PRAGMA cache_size = -1024")
            source.backup(target, pages=STEP_PAGES, progress=step, sleep=0.01)
            self.contents = contents()
            target.execute("PRAGMA journal_mode = DELETE").fetchall()
        except READ_ERRORS as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise StoreFull(f"No space left for the backup {self.draft}; the store is as it was.") from error
            raise StoreError(f"The backup to {self.draft} failed: {str(error) or 'out of memory'}.") from error
        finally:
            target.close()

    def _check_room(self) -> None:
        """Give up before the disk is full: the store may be on the same one, and sends would be refused."""
        missing, free = self.size - self.copied, shutil.disk_usage(self.draft.parent).free
        if free < missing:
            raise StoreFull(
                f"No space left for a backup in {self.draft.parent}: {missing // 1000} KB more are needed and"
                f" {free // 1000} KB are free. The store is as it was."
            )

    def sync(self) -> None:
        """Make durable what was copied so far. Called now and again, so that the last call is short."""
        os.fsync(self._fd)

    def give_up(self) -> None:
        """Have `copy` end after its next step."""
        self._given_up.set()

    def close(self, *, keep: bool) -> None:
        """Release the draft, and remove it unless it is to be kept."""
        os.close(self._fd)
        if not keep:
            remove_draft(self.draft)


def remove_draft(draft: Path) -> None:
    """Remove a draft, with the files that SQLite has beside it for a moment."""
    for end in ("", "-wal", "-shm", "-journal"):
        draft.with_name(draft.name + end).unlink(missing_ok=True)


def _check_draft(draft: Path) -> None:
    """Check that this is an empty file: no other file is ever written over."""
    try:
        found = draft.lstat()
    except OSError as error:
        raise StoreError(f"{draft}: cannot be written by the broker: {error.strerror}.") from error
    if not stat.S_ISREG(found.st_mode) or found.st_size:
        raise StoreError(f"{draft}: a backup is written into an empty file, which this is not.")


def back_up_stopped(folder: Path, draft: Path, told: Callable[[Backup], None]) -> tuple[Contents, int]:
    """Copy the store of a broker that is not running; return what was copied, and how many commits the store misses.

    `told` is called after each step. The store is left as it is. StoreInUse: a broker has it.
    """
    path = folder / FILE_NAME
    if not path.exists():
        raise StoreError(f"There is no store in {folder}: {path.name} is missing.")
    lock = own(folder)
    try:
        noted = CommitFile(folder).read()
        if recognise(path, ours=noted is not None) < VERSION:
            raise StoreError(f"{path} was written by release 0.3: start a broker with it, which migrates it, first.")
        with_log = path.with_name(path.name + "-wal").exists()
        source = open_for_reading(path)
        try:
            contents = _copy_stopped(source, draft, told)
        except READ_ERRORS as error:
            raise store_error(error, path) from error
        finally:
            close_without_traces(source, path, with_log=with_log)
    finally:
        lock.release()
    return contents, max(0, (noted or 0) - contents.commits)


def _copy_stopped(source: sqlite3.Connection, draft: Path, told: Callable[[Backup], None]) -> Contents:
    def contents() -> Contents:
        [[commits]] = source.execute("SELECT max(number) FROM journal").fetchall()
        [[messages]] = source.execute("SELECT count(*) FROM messages").fetchall()
        return Contents(commits or 0, messages)

    def go_on(_pause_s: float) -> bool:
        told(backup)
        return True

    backup = Backup(draft)
    is_durable = False
    try:
        backup.copy(source, contents, go_on)
        backup.sync()
        is_durable = True
    finally:
        backup.close(keep=is_durable)
    assert backup.contents is not None
    return backup.contents


def adopt(path: Path, commits: CommitFile) -> None:
    """Make a store of a backup: note its number of commits, then give it a log. A store that has one is left alone.

    StoreError: the log of another store is beside it, which SQLite would take for the log of this one.
    """
    with path.open("rb") as file:
        if file.read(_LOG_AT.stop)[_LOG_AT] != _WITHOUT_LOG:
            return
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise StoreError(
            f"{path} is a backup, and {log.name} beside it belongs to another store. Nothing was changed. Start with a"
            f" new folder that has the backup alone, as {FILE_NAME}."
        )
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        if not commits.path.exists():
            [[number]] = connection.execute("SELECT max(number) FROM journal").fetchall()
            commits.write(number or 0)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    finally:
        connection.close()
