"""The files of one process: created once, appended to, never rewritten. Only the writer's thread calls this module.

A file holds rows of one day (UTC), so that a day can be compacted or deleted as a whole. After a failed write the file
is not used again, because it may end in half a line; the next row starts a new file. So only the last line of a file
can be torn.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from pairbus.host.folders import FILE_MODE, FOLDER_MODE
from pairbus.host.locks import hold_shared
from pairbus.ledger.room import SUFFIX, Removed, make_room
from pairbus.ledger.rows import Author

WRITE_BYTES_MAX = 1 << 20  # bytes of one write, so that a slow disk makes progress that can be counted


class Files:
    def __init__(self, folder: Path, author: Author, max_file_bytes: int, max_folder_bytes: int) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._max_folder_bytes = max_folder_bytes
        safe_client = re.sub(r"[^A-Za-z0-9._-]+", "-", author.client)[:64]
        self._tail = f"{safe_client}-{author.pid}-{author.run}"
        self._numbers = count()
        self._fd = -1
        self._path = folder
        self._day = ""
        self._size = 0
        self.error: OSError | None = None
        "Error that stopped the last append early."
        self.removed: list[Removed] = []
        "Files that were deleted to keep the folder within its bound, until the writer has written a row about them."

    def append(self, day: str, lines: Sequence[bytes]) -> int:
        """Write lines of one day. Return how many are whole on the disk; when some are not, `error` has the reason."""
        self.error = None
        written = 0
        try:
            self._close_if_moved()
            while written < len(lines) and self.error is None:
                self._make_room(day, len(lines[written]))
                chunk = self._chunk(lines, written)
                written += chunk.count(b"\n", 0, self._write(chunk))
        except OSError as error:
            self.error = error
        if self.error is not None:
            self._abandon()
        return written

    def close(self) -> None:
        if self._fd >= 0:
            # A network disk may report only now that it lost rows; it does not tell which.
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _abandon(self) -> None:
        """Stop using the file; delete it when it is empty, because a full disk would collect many empty files."""
        is_empty = self._fd >= 0 and self._size == 0
        self.close()
        if is_empty:
            with suppress(OSError):
                self._path.unlink()

    def _close_if_moved(self) -> None:
        """Close a file that was deleted or moved away; the next row starts a new file."""
        if self._fd < 0:
            return
        try:
            at_path = os.stat(self._path)
        except FileNotFoundError:
            self.close()
            return
        opened = os.fstat(self._fd)
        if (at_path.st_dev, at_path.st_ino) != (opened.st_dev, opened.st_ino):
            self.close()

    def _make_room(self, day: str, line_bytes: int) -> None:
        full = self._size > 0 and self._size + line_bytes > self._max_file_bytes
        if self._fd >= 0 and day == self._day and not full:
            return
        self.close()
        self._folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        path = self._folder / f"{day}-{self._tail}-{next(self._numbers)}{SUFFIX}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, FILE_MODE)
        self._path, self._day, self._size = path, day, 0
        hold_shared(self._fd)
        removed = make_room(self._folder, self._max_folder_bytes, self._tail, path)
        if removed.files:
            self.removed.append(removed)

    def _chunk(self, lines: Sequence[bytes], start: int) -> bytes:
        room = min(WRITE_BYTES_MAX, self._max_file_bytes - self._size)
        end, size = start + 1, len(lines[start])
        while end < len(lines) and size + len(lines[end]) <= room:
            size += len(lines[end])
            end += 1
        return b"".join(lines[start:end])

    def _write(self, data: bytes) -> int:
        """Write bytes; return how many the disk took, because a full disk often takes a part."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self.error = error
        self._size += written
        return written
