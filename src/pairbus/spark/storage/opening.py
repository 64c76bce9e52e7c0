"""The form of a location chooses the storage: a path is a folder, a URL an object store."""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from pathlib import Path

from pairbus.errors import ConfigError
from pairbus.spark.storage import LargeStorage, Storage
from pairbus.spark.storage.folder import FolderStorage
from pairbus.spark.storage.locations import FORMS, is_url, parse
from pairbus.spark.storage.secret import StorageSecret

PATIENCE_S = 75.0  # for an account that is away for a minute


def open_storage(
    location: str, credential: str | None = None, *, option: str = "storage credential", patience_s: float = PATIENCE_S
) -> LargeStorage:
    """Open a location, without a connection yet. ConfigError when the form of the location or credential is wrong.

    `credential`: `env:NAME`, `@FILE`, `default` or `MODULE:CALLABLE`; without it the environment variable
    PAIRBUS_STORAGE, and where that is not set `default`. `option`: name of the option in errors.
    """
    if is_url(location):
        return _blob(os.getpid(), location, StorageSecret.parse(credential, option), patience_s)
    if not Path(location).is_absolute():
        raise ConfigError(f"{location!r} is neither the absolute path of a folder nor {FORMS}")
    return FolderStorage(Path(location))


@lru_cache(32)
def _blob(process: int, location: str, secret: StorageSecret, patience_s: float) -> LargeStorage:
    """Make one storage for all tasks of a process: they share its connections; a forked child makes its own."""
    parsed = parse(location)
    try:
        from pairbus.spark.storage.blob import BlobStorage
    except ImportError as error:
        raise ConfigError(f"{location}: {error}; pip install 'pairbus[blob]'") from None
    return BlobStorage(parsed, secret, patience_s)


def check_access(storage: Storage) -> None:
    """Make every call of the contract once, so that a missing right is found at the start."""
    key = f"probe/{secrets.token_hex(8)}"
    storage.put_new(key, b"1")
    storage.put(key, b"2")
    storage.list("probe/")
    storage.get(key)
    storage.delete(key)
