"""Rows that cannot be read although they are not known to be damaged: a bad sector of the disk, for instance.

Such an error may pass, so the row and all rows that were asked for with it wait, in their order, and are read again. A
row that cannot be read for minutes, while another row can, is given up like a damaged one: otherwise one bad sector
would hold up all intact messages behind it. It is not deleted, and served after a restart if it can be read by then.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from pairbus.broker.store.schema import READ_ERRORS, store_error
from pairbus.errors import StoreDamaged

logger = logging.getLogger("pairbus.broker.store")

LASTING_S = 600.0  # failures for as long as this are no passing trouble
SILENCE_MAX_S = 60.0  # after a longer time without a try the failures are counted anew; receivers try once a second


class ReadFailures:
    """Failures to read the rows of one table, by row; `kind` is the word for such a row."""

    def __init__(self, connection: sqlite3.Connection, path: Path, kind: str) -> None:
        self._connection = connection
        self._path = path
        self._kind = kind
        self._times: dict[int, tuple[float, float]] = {}
        "First and last failure of each row that cannot be read: few, because reading ends at a new one."

    def succeeded(self, numbers: Iterable[int]) -> None:
        """Forget the failures of rows that were read."""
        if self._times:
            for n in numbers:
                self._times.pop(n, None)

    def is_lost(self, n: int, error: sqlite3.Error | MemoryError) -> bool:
        """Note an error of reading this row alone, and return whether it is given up; False: it is tried again."""
        if isinstance(store_error(error, self._path), StoreDamaged):
            return True
        now = monotonic()
        first, last = self._times.get(n, (now, now))
        if now - last > SILENCE_MAX_S:
            first = now
        self._times[n] = first, now
        if now - first < LASTING_S or not self._can_read_newest():
            return False
        text = "%s: the %s %d could not be read for %.0f s and is left out until the next start: %s"
        logger.error(text, self._path, self._kind, n, now - first, error)
        return True

    def _can_read_newest(self) -> bool:
        """Return whether the newest message can be read."""
        try:
            self._connection.execute("SELECT head, body FROM messages ORDER BY n DESC LIMIT 1").fetchall()
        except READ_ERRORS:
            return False
        return True
