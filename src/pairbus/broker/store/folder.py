"""The folder of a store and the small files beside its database: who owns it, and how many commits there were.

`lock`     an exclusive flock while a store is open; it holds the owner's process id for the message to the second one.
`commits`  the number of the last commit, written after it and before anyone hears of it, never synced.

Bodies are nobody else's business: folders have mode 0700 and files 0600, whatever the umask and whichever release
made them.

SQLite reads its write-ahead log up to the first frame that does not match and silently forgets the rest. So a log that
was cut or hit by a flipped bit loses commits without an error. A process that is killed leaves `commits` in the page
cache: a number there that is higher than the database's own says that commits are missing. After a loss of power it
may be older than the database, which says nothing.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from pairbus.errors import StoreError, StoreInUse

logger = logging.getLogger("pairbus.broker.store")

FOLDER_MODE = 0o700
FILE_MODE = 0o600

_RECORD = struct.Struct("<8sQI")
_MAGIC = b"pairbus\x01"


def open_private(path: Path, flags: int) -> int:
    """Open a file that only its owner may read."""
    fd = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
    if flags & os.O_CREAT:
        tighten(path)
    return fd


def tighten(path: Path) -> None:
    """Take everybody else's permissions from a file or folder; where the owner is another user, say so and go on."""
    mode = FOLDER_MODE if path.is_dir() else FILE_MODE
    try:
        if path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
    except FileNotFoundError:  # a file that SQLite or another broker has just removed
        pass
    except OSError as error:
        logger.warning("%s can be read by other users: its mode cannot be changed: %s", path, error.strerror)


def tighten_folder(folder: Path, is_ours: Callable[[Path], bool]) -> None:
    """Tighten what is ours in a folder, and the folder itself unless others keep files in it (`--data .`)."""
    try:
        found = list(folder.iterdir())
    except OSError as error:
        logger.warning("%s may be open to other users: it cannot be read: %s", folder, error.strerror)
        return
    ours = [path for path in found if is_ours(path)]
    if len(ours) == len(found):
        tighten(folder)
    for path in ours:
        tighten(path)


def is_store_file(path: Path) -> bool:
    """Whether a file in the folder of a store is one of the store's."""
    return path.name in ("lock", "commits", "reserve") or path.name.startswith(("messages.db", "messages.new"))


def is_data_file(path: Path) -> bool:
    """Whether a file or folder in the data folder of a broker is one of the broker's."""
    if path.is_dir():
        return any((path / name).exists() for name in ("lock", "messages.db"))
    return path.name.lstrip(".").startswith(("ca.pem", "server.pem", "server.key"))


class FolderLock:
    """Holds `folder/lock` from construction to `release`."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        try:
            self._fd = open_private(path, os.O_RDWR | os.O_CREAT)
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
            self._fd = open_private(self.path, os.O_WRONLY | os.O_CREAT)
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
