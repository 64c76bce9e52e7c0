"""The number of the last commit, beside a database.

SQLite reads its write-ahead log up to the first frame that does not match and silently forgets the rest. So a log that
was cut or hit by a flipped bit loses commits without an error. The owner of a database writes the number of each commit
into `folder/commits` after the commit and before the commit is reported, and never syncs the file. When the process is
killed, the number stays in the page cache: a number that is higher than the database's own shows that commits are
missing. After a power failure the number may be lower than the database's own, which means nothing.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from zlib import crc32

from pairbus.host.folders import open_private

COMMITS_NAME = "commits"
_RECORD = struct.Struct("<8sQI")
_MAGIC = b"pairbus\x01"


class CommitFile:
    """The file `folder/commits`: a record of fixed length with a checksum, so that half-written records are noticed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / COMMITS_NAME
        self._fd = -1

    def read(self) -> int | None:
        """Return the number of the last commit; None when the file is missing or damaged."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) != _RECORD.size:
            return None
        if data.isdigit():  # spools wrote digits up to release 0.3
            return int(data)
        magic, commits, crc = _RECORD.unpack(data)
        if magic != _MAGIC or crc != crc32(data[:-4]):
            return None
        return int(commits)

    def write(self, commits: int) -> None:
        """Write the number of a commit; OSError when the disk does not take it."""
        data = _RECORD.pack(_MAGIC, commits, 0)[:-4]
        data += crc32(data).to_bytes(4, "little")
        if self._fd < 0:
            if not self.path.exists():
                self._create(data)
            self._fd = open_private(self.path, os.O_WRONLY | os.O_CREAT)
            os.ftruncate(self._fd, _RECORD.size)
        os.pwrite(self._fd, data, 0)

    def _create(self, data: bytes) -> None:
        """Create the file under its name only when it is complete: an empty file would count as damaged."""
        draft = self.path.with_suffix(".new")
        fd = open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.pwrite(fd, data, 0)
        finally:
            os.close(fd)
        draft.replace(self.path)

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
