"""The structure of a database file, checked as a whole before anything is written into it.

If two tables claim the same page, the next write could destroy an intact message. Reading is safe without the check:
each row has a checksum. So a large file is checked in a thread while the broker serves it, and the first commit waits.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from pairbus.broker.store.schema import damaged, open_for_reading, store_error
from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker.store")

BACKGROUND_BYTES = 256 << 20  # size of a file from which it is checked in the background; less takes 0.12 s
INTERRUPT_S = 0.02  # an interruption that comes before the check has begun is without effect, so it is repeated


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreDamaged when the structure of the file is damaged."""
    try:
        [[verdict], *_] = connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    if verdict != b"ok":
        raise damaged(path, verdict.decode("utf-8", "replace").replace("\n", " "))


class StructureCheck:
    """Check of one file, made at once where the file is small."""

    def __init__(self, path: Path, say: Callable[[str], None] | None) -> None:
        """Begin. StoreDamaged: the structure of a small file is damaged."""
        self._path = path
        self._error: StoreError | None = None
        self._is_over = Event()
        self._is_cancelled = False
        self._connection = open_for_reading(path, any_thread=True)
        size = path.stat().st_size
        if size < BACKGROUND_BYTES:
            try:
                check(self._connection, path)
            finally:
                self._end()
            return
        if say is not None:
            say(f"{path}: checking {size // 1_000_000} MB in the background; sends and settlements are answered after")
        Thread(target=self._run, name="pairbus-store-check", daemon=True).start()

    @property
    def is_passed(self) -> bool:
        """True when the check has found nothing, so that the file may be written."""
        return self._is_over.is_set() and self._error is None

    def wait(self) -> StoreError | None:
        """Wait for the end of the check and return why nothing may be written; None: the structure is whole."""
        self._is_over.wait()
        return self._error

    def cancel(self) -> None:
        """End a check that is under way: the file is closed, and nothing is written."""
        self._is_cancelled = True
        while not self._is_over.wait(INTERRUPT_S):
            with suppress(sqlite3.ProgrammingError):  # it has just ended
                self._connection.interrupt()

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            check(self._connection, self._path)
        except StoreError as error:
            self._error = error
        except MemoryError:
            self._error = StoreError(f"{self._path}: no memory to check the structure")
        if self._error is None:
            logger.info("%s: the structure is whole, checked in %.1f s", self._path, time.monotonic() - began_s)
        elif self._is_cancelled:
            self._error = StoreError(f"{self._path} was closed before its structure was checked.")
        else:
            logger.critical("%s Messages can be received, but nothing is written.", self._error)
        self._end()

    def _end(self) -> None:
        self._connection.close()
        self._is_over.set()
