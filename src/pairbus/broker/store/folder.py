"""The two small files beside the database: who owns the folder, and how many commits there were.

`lock`     an exclusive flock while a store is open; it holds the owner's process id for the message to the second one.
`commits`  the number of the last commit, written after it and before anyone hears of it, never synced.

SQLite reads its write-ahead log up to the first frame that does not match and silently forgets the rest. So a log that
was cut or hit by a flipped bit loses commits without an error. A process that is killed leaves `commits` in the page
cache: a number there that is higher than the database's own says that commits are missing. After a loss of power it
may be older than the database, which says nothing.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from pairbus.errors import StoreError, StoreInUse

_RECORD = struct.Struct("<8sQI")
_MAGIC = b"pairbus\x01"


class FolderLock:
    """Holds `folder/lock` from construction to `release`."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"Cannot open {path}: {error.strerror}.") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._fd, 20).decode("ascii", "replace").strip()
            os.close(self._fd)
            by = f" (process {owner})" if owner.isdigit() else ""
            raise StoreInUse(
                f"The data folder {folder} is in use by another broker{by}. Stop it, or choose another folder."
            ) from None
        os.truncate(self._fd, 0)
        with suppress(OSError):  # on a full disk the lock holds all the same; only its owner is not named
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """The file stays: removing it would let two owners hold locks on two files of one name."""
        os.truncate(self._fd, 0)
        os.close(self._fd)


class CommitFile:
    """`folder/commits`: the number of the last commit."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "commits"
        self._fd = -1

    def read(self) -> int | None:
        """The number; None when the file is missing or damaged."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) != _RECORD.size:
            return None
        magic, commits, crc = _RECORD.unpack(data)
        if magic != _MAGIC or crc != crc32(data[:-4]):
            return None
        return int(commits)

    def write(self, commits: int) -> None:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._fd, _RECORD.size)
        data = _RECORD.pack(_MAGIC, commits, 0)
        os.pwrite(self._fd, data[:-4] + crc32(data[:-4]).to_bytes(4, "little"), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
