"""The length of the write-ahead log, measured, and when the log is copied into the database.

An estimate by the writes was up to fifteen times too low: a run of deletes touches every page of the run, and a row
that moves, or gets a longer head, is written again with its body. SQLite keeps the true number of pages in its index
of the log, a file that all connections share by memory (https://sqlite.org/walformat.html, section 2.1). Reading it
costs no system call.

The log is a ring that begins again when all of it is copied and no reader uses it, which the first write after the copy
finds out. If it was not so, the log is still long after that write, and is copied again.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
import struct
from pathlib import Path

from pairbus.broker.store.schema import PAGE_BYTES

CHECKPOINT_BYTES = (
    32 * 1024 * 1024
)  # a checkpoint holds commits up for about 70 ms; with half the size it comes twice as often
FILE_BYTES_MAX = CHECKPOINT_BYTES * 3 // 2  # a file that one large group made longer is cut to this
RETRY_BYTES = 4 << 20  # growth after which a copy that failed is tried again
FRAME_BYTES = PAGE_BYTES + 24

_HEADER = struct.Struct("=16xI")
"Pages in the log: the fifth number of the index, in the machine's byte order."


class WriteAheadLog:
    """The log of one open database. Its owner closes this after its connections.

    Before that no file of the database may be closed in this process: the system would take that for the end of all
    locks of SQLite on the file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA journal_size_limit = {FILE_BYTES_MAX}").fetchall()
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # makes the index, where it is not there
        self._index_fd = os.open(path.with_name(path.name + "-shm"), os.O_RDONLY)
        self._index = mmap.mmap(self._index_fd, _HEADER.size, access=mmap.ACCESS_READ)
        self._due_at = CHECKPOINT_BYTES

    def size(self) -> int:
        """Return the bytes of the log that the next reader of the database would look at."""
        [pages] = _HEADER.unpack_from(self._index)
        return int(pages) * FRAME_BYTES

    def is_due(self) -> bool:
        return self.size() >= self._due_at

    def copied(self, *, is_whole: bool) -> None:
        """Note a copy; one that failed is not tried again after every commit."""
        self._due_at = CHECKPOINT_BYTES if is_whole else max(CHECKPOINT_BYTES, self.size() + RETRY_BYTES)

    def close(self) -> None:
        self._index.close()
        os.close(self._index_fd)
