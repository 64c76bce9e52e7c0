"""The folder of a store: its owner, and the files in it that are the store's.

`lock`     held while a store is open; it holds the owner's process id for the message to the second one.
`commits`  the number of the last commit (host/commit_file.py), by which a loss is noticed.

Bodies are private: folders have mode 0700 and files 0600, whatever the umask and whichever release made them.
"""

from __future__ import annotations

from pathlib import Path

from pairbus.errors import StoreError, StoreInUse
from pairbus.host.locks import LOCK_NAME, FolderInUse, FolderLock


def own(folder: Path) -> FolderLock:
    """Take the lock of a store; StoreInUse when another broker has it."""
    try:
        lock = FolderLock(folder)
    except FolderInUse as error:
        raise StoreInUse(
            f"The data folder {folder} is in use by another broker{error.by}. Stop it, or choose another folder."
        ) from None
    except OSError as error:
        raise StoreError(f"Cannot open {folder / LOCK_NAME}: {error.strerror}.") from error
    lock.sign()
    return lock


def is_store_file(path: Path) -> bool:
    """Return whether a file in the folder of a store is one of the store's."""
    return path.name in ("lock", "reserve") or path.name.startswith(("commits", "messages.db", "messages.new"))


def is_data_file(path: Path) -> bool:
    """Return whether a file or folder in the data folder of a broker is one of the broker's."""
    if path.is_dir():
        return any((path / name).exists() for name in ("lock", "messages.db"))
    return path.name.lstrip(".").startswith(("ca.pem", "server.pem", "server.key", "control.sock"))
