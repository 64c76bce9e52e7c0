"""Folders and files that only their owner may read, and names that survive a power failure."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger("pairbus.disk")

FOLDER_MODE = 0o700
FILE_MODE = 0o600
CHUNK_BYTES = 1 << 16


def open_private(path: Path, flags: int) -> int:
    """Open a file that only its owner may read; child processes do not inherit the descriptor."""
    fd = os.open(path, flags, FILE_MODE)
    if flags & os.O_CREAT:
        tighten(path)
    return fd


def make_private(path: Path) -> None:
    """Remove all permissions of other users from a file or folder; OSError when another user owns it."""
    current_mode = path.stat().st_mode
    mode = FOLDER_MODE if stat.S_ISDIR(current_mode) else FILE_MODE
    if current_mode & 0o777 != mode:
        path.chmod(mode)


def tighten(path: Path) -> None:
    """Remove all permissions of other users from a file or folder; log a warning when another user owns it."""
    try:
        make_private(path)
    except FileNotFoundError:  # a file that SQLite or another process has just removed
        pass
    except OSError as error:
        logger.warning("%s can be read by other users: its mode cannot be changed: %s", path, error.strerror)


def tighten_folder(folder: Path, is_ours: Callable[[Path], bool]) -> None:
    """Tighten our own files in a folder, and the folder itself unless it has other files too (`--data .`)."""
    try:
        paths = list(folder.iterdir())
    except OSError as error:
        logger.warning("%s may be open to other users: it cannot be read: %s", folder, error.strerror)
        return
    ours = [path for path in paths if is_ours(path)]
    if len(ours) == len(paths):
        tighten(folder)
    for path in ours:
        tighten(path)


def make_folder(folder: Path) -> None:
    """Make a private folder, with its parents where they are missing; the names of all survive a power failure.

    A parent that may be written but not read cannot be made durable: a warning says so.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    for path in missing:
        try:
            sync_folder(path.parent)
        except PermissionError as error:
            logger.warning(
                "%s may be missing after a power failure: its name cannot be synced: %s", path, error.strerror
            )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def take_room(path: Path, size: int) -> None:
    """Reserve `size` bytes of disk space for a file; OSError when there is less."""
    fd = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:  # macOS, Windows
            _fill(fd, size)
    finally:
        os.close(fd)


def _fill(fd: int, size: int) -> None:
    """Append zeros until the file has `size` bytes; existing bytes stay."""
    left = size - os.lseek(fd, 0, os.SEEK_END)
    while left > 0:
        left -= os.write(fd, bytes(min(left, CHUNK_BYTES)))
