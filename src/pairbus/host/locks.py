"""Locks on files: one owner of a folder, and writers that share a file.

Laws of this file.
 1. A lock ends with its process at the latest, however the process ends; no clean-up is needed.
 2. A forked child has none of its parent's locks. It closes the inherited descriptors at once, so that it cannot keep
    a lock alive after the parent's death, and never unlocks them: an unlock counts for all sharers of a descriptor.
 3. A lock file stays. Removing it would let two owners hold locks on two files of one name.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

import portalocker
from portalocker import LockFlags

from pairbus.host.folders import open_private
from pairbus.host.forks import call_in_forked_child

LOCK_NAME = "lock"
LOOK_S = 0.005  # between two attempts to take a lock whose owner has not signed


class FolderInUse(Exception):
    """The lock of a folder is held by another owner."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.by = f" (process {owner})" if owner.isdigit() else ""
        "The owner as the end of an error message; empty when the owner has not signed."


class FolderLock:
    """The lock of a folder, `folder/lock`, held from construction to `release`.

    FolderInUse: another owner has it. OSError: this disk has no locks. An owner that has not signed may hold the lock
    only for a moment, to look at the folder: the constructor waits for it, up to `patience_s`.
    """

    def __init__(self, folder: Path, *, patience_s: float = 0.0) -> None:
        self._folder = folder.resolve()
        self._pid = os.getpid()
        self._fd = open_private(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            self._take(time.monotonic() + patience_s)
            os.truncate(self._fd, 0)
        except BaseException:
            self._close()
            raise
        _held[self._folder] = self

    def _take(self, given_up_at: float) -> None:
        while not _try_lock(self._fd, LockFlags.EXCLUSIVE):
            owner = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip()
            if owner or time.monotonic() >= given_up_at:
                raise FolderInUse(owner)
            time.sleep(LOOK_S)

    def sign(self) -> None:
        """Write the id of this process into the lock file, for the error that another process gets."""
        with suppress(OSError):  # on a full disk the lock is still held; only its owner is not named
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock. A forked child, and a second call, have nothing to release."""
        if self._fd < 0:
            return
        if self._pid == os.getpid():
            del _held[self._folder]
            with suppress(OSError):  # an id that stays is removed by the next owner
                os.truncate(self._fd, 0)
            # Closing is not enough: a process that was forked by other code than Python's may have the descriptor,
            # and with it the lock. Where unlocking fails, closing has to be enough.
            with suppress(OSError, portalocker.LockException):
                portalocker.unlock(self._fd)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


_held: dict[Path, FolderLock] = {}
"Locks of this process by their folders."


def is_held_here(folder: Path) -> bool:
    """Return True when this process holds the lock of the folder."""
    return folder.resolve() in _held


def _forget_in_child() -> None:
    for lock in _held.values():
        lock._close()
    _held.clear()


call_in_forked_child(_forget_in_child)


def hold_shared(fd: int) -> None:
    """Tell other processes that an open file is being written, until it is closed.

    On a disk without shared locks the file has none, and `is_in_use` is True.
    """
    with suppress(OSError, ImportError, portalocker.LockException):  # ImportError: Windows without pywin32
        portalocker.lock(fd, LockFlags.SHARED)


def is_in_use(path: Path) -> bool:
    """Return True when a process may be writing the file, and when the disk has no locks to tell."""
    try:
        fd = os.open(path, os.O_RDWR)
        try:
            # The shared lock comes first: on a disk without shared locks an exclusive one says nothing about writers.
            return not (_try_lock(fd, LockFlags.SHARED) and _try_lock(fd, LockFlags.EXCLUSIVE))
        finally:
            os.close(fd)
    except (OSError, ImportError):
        return True


def _try_lock(fd: int, kind: LockFlags) -> bool:
    """Try to take a lock; False when another owner excludes it, OSError when the disk has no locks."""
    try:
        portalocker.lock(fd, kind | LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked:
        return False
    except portalocker.LockException as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)) from error
    return True
