"""Group commit: concurrent changes of several threads share a transaction, and with it an fsync.

The first thread that finds no leader becomes the leader: it takes all pending changes, commits them and wakes the other
threads. Meanwhile the next group gathers.
"""

from __future__ import annotations

import ctypes
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pairbus.errors import SpoolError
from pairbus.host.commit_file import CommitFile
from pairbus.spool.files import spool_error

SpoolWrite = Callable[[sqlite3.Connection], object]
"Function that makes a change. It may run twice: in a group, and alone when the group failed."
Ended = Callable[[bool], None]
"Function that is told, under the lock, whether the change was committed."


@dataclass(slots=True)
class SpoolChange:
    write: SpoolWrite
    ended: Ended
    is_done: bool = False
    error: SpoolError | None = None


class SpoolCommits:
    """The one connection of a spool, and the order of its changes. `turn` also guards the counts of the spool."""

    def __init__(
        self, file: Path, connection: sqlite3.Connection, recount: Callable[[sqlite3.Connection], None]
    ) -> None:
        self.turn = threading.Condition()
        self._file = file
        self._connection: sqlite3.Connection | None = connection
        self._io = threading.Lock()
        "Lock of the thread that uses the connection."
        self._recount = recount
        "Function that counts the messages in the file again, called under both locks after an interrupted commit."
        self._pending: list[SpoolChange] = []
        self._leading = False
        self._noted = CommitFile(file.parent)
        [self._count] = connection.execute("SELECT count FROM commits").fetchone()
        noted = self._noted.read()
        self.damage = list(_damage(file, self._noted.path, noted, self._count))
        "Sentences about missing commits, or about a damaged commit file."
        self._count = max(self._count, noted or 0)  # continues above both, so that a loss is reported once

    def enqueue(self, write: SpoolWrite, ended: Ended) -> SpoolChange:
        """Add a change to the order. The caller holds `turn`, releases it, and then calls `settle`."""
        self._open_connection()
        change = SpoolChange(write, ended)
        self._pending.append(change)
        return change

    def settle(self, change: SpoolChange) -> None:
        """Wait until the change is committed; raise the error that prevented it."""
        self._lead(lambda: not change.is_done)
        if change.error is not None:
            raise change.error

    def _lead(self, is_needed: Callable[[], bool]) -> bool:
        """Commit all pending changes, when no other thread does; False when it is not needed any more."""
        group: list[SpoolChange] | None = None
        try:
            with self.turn:
                while self._leading and is_needed():
                    self.turn.wait()
                if not is_needed():
                    return False
                group, self._pending = self._pending, []
                self._leading = True
            self._commit(group)
        finally:
            if group is not None:  # also when the thread is interrupted as it leaves `turn`
                self._step_down(group)
        return True

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._io:
            try:
                yield self._open_connection()
            except sqlite3.Error as error:
                raise spool_error(error, self._file) from error

    def close(self) -> None:
        """Close the connection after all pending changes. A later change is an error.

        A change whose thread was interrupted before it could lead is committed here.
        """
        while True:
            while self._lead(lambda: self._leading or bool(self._pending)):
                pass
            with self.turn, self._io:
                if self._leading or self._pending:  # a leader may have its group, but not the connection yet
                    continue
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.close()
                    self._noted.close()
                return

    def abandon(self) -> None:
        """Give the connection up in a forked child: never use it again, and never close it, which would be a use.

        Another thread of the parent may have held SQLite's own locks at the moment of the fork, so the connection must
        outlive even the interpreter, which would close it at exit.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        self.turn, self._io = threading.Condition(), threading.Lock()
        self._pending, self._leading, self._connection = [], False, None
        self._noted.close()

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise SpoolError(f"{self._file}: this spool is not open in this process. Nothing was changed.")
        return self._connection

    def _commit(self, group: list[SpoolChange]) -> None:
        error = self._transaction(group)
        if error is None or len(group) == 1:
            self._end(group, error)
            return
        for change in group:  # one change made the group fail: the others are committed without it
            self._end([change], self._transaction([change]))

    def _transaction(self, changes: list[SpoolChange]) -> SpoolError | None:
        with self._io:
            connection = self._open_connection()
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    for change in changes:
                        change.write(connection)
                    connection.execute("UPDATE commits SET count = ?", (self._count + 1,))
                    connection.execute("COMMIT")
                    self._count += 1
                    with suppress(OSError):  # the number only helps to notice a loss
                        self._noted.write(self._count)
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                return spool_error(error, self._file)
        return None

    def _end(self, changes: list[SpoolChange], error: SpoolError | None) -> None:
        with self.turn:
            for change in changes:
                change.ended(error is None)
                change.error = error
                change.is_done = True

    def _step_down(self, group: list[SpoolChange]) -> None:
        try:
            interrupted = [change for change in group if not change.is_done]
            if interrupted:  # by Ctrl-C, or by a bug, in the leader's thread
                text = f"{self._file}: interrupted; whether this was stored is not known."
                self._end(interrupted, SpoolError(text))
                with self.turn, self.reading() as connection:
                    self._recount(connection)
        finally:
            with self.turn:
                self._leading = False
                self.turn.notify_all()


def _damage(file: Path, noted_in: Path, noted: int | None, count: int) -> Iterator[str]:
    """Compare the number of commits in the database with the one beside it (see host/commit_file.py)."""
    if noted is None and noted_in.exists() and noted_in.stat().st_size:  # release 0.3 made the file before the number
        yield f"{noted_in} is damaged; if commits were lost with it, it cannot be noticed."
    if noted is not None and noted > count:
        yield (
            f"{file}: the last {noted - count} commits are missing; the write-ahead log was cut, damaged or removed."
            " Messages that were stored by them are lost, messages that were removed by them go out again."
        )
