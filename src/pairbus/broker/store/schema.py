"""The database file: its tables, how it is created and opened, and how it is recognised.

    entities    one row for each queue, topic and subscription: its description; of a dropped one, whose rows are still
                to be deleted, an empty text
    counters    one row for each entity: the highest sequence number ever, and how many rows it has, so that rows that
                vanish are missed
    journal     one row for each of the last commits: its number, the highest entity id and the highest row number ever,
                and the counters that it changed. Now and again these are written into `counters` and only the last
                commit stays: however many entities a commit touches, it writes one row here
    remembered  message ids for duplicate detection, appended; of several rows for an id the latest time counts
    messages    every message of the namespace; the body stands last, so that a scan of the heads skips it
    payloads    bodies that several messages share
    states      the states of sessions, see states.py

Every row carries a checksum. A new entity makes no table, only rows. `AUTOINCREMENT` and keys on
message ids are left out on purpose: appending at the end of a table touches one page, whatever entities the rows belong
to; inserting at random places touches one page for each row.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from pairbus.broker.store.records import journal_crc
from pairbus.errors import StoreDamaged, StoreError, StoreForeign, StoreFull, StoreNewer
from pairbus.host.folders import open_private, sync_folder

FILE_NAME = "messages.db"
APPLICATION_ID = 0x50616972  # "Pair"
VERSION = 2
OLDEST_VERSION = 1  # oldest version that can be migrated
PAGE_BYTES = 16_384
"""Page size. With 1 KB messages an insert costs the writer a quarter less than with pages of 4096. Still larger pages
gain little more, and every commit writes at least two of them."""

TABLES = {
    "entities": "CREATE TABLE entities (id INTEGER PRIMARY KEY, description TEXT, crc INTEGER)",
    "counters": "CREATE TABLE counters (id INTEGER PRIMARY KEY, high INTEGER, rows INTEGER, crc INTEGER)",
    "journal": (
        "CREATE TABLE journal (number INTEGER PRIMARY KEY, last_id INTEGER, last_n INTEGER, crc INTEGER, changes BLOB)"
    ),
    "remembered": (
        "CREATE TABLE remembered (n INTEGER PRIMARY KEY, entity_id INTEGER, until_ms INTEGER, crc INTEGER, "
        "message_id TEXT)"
    ),
    "remembered_until": "CREATE INDEX remembered_until ON remembered (entity_id, until_ms)",
    "messages": (
        "CREATE TABLE messages (n INTEGER PRIMARY KEY, box INTEGER, head BLOB, head_crc INTEGER, body_crc INTEGER, "
        "body BLOB)"
    ),
    "payloads": "CREATE TABLE payloads (id INTEGER PRIMARY KEY, topic INTEGER, crc INTEGER, body BLOB)",
    "states": (
        "CREATE TABLE states (n INTEGER PRIMARY KEY, entity_id INTEGER, updated_ms INTEGER, session_id TEXT, "
        "head_crc INTEGER, state_crc INTEGER, state BLOB)"
    ),
}

_MAGIC = b"SQLite format 3\0"


def create(path: Path) -> None:
    """Create a new, empty database. It gets its name when it is complete, so that a half-made one is never found."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    os.close(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL))  # SQLite gives its other files the same mode
    connection = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("BEGIN")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        for sql in TABLES.values():
            connection.execute(sql)
        connection.execute("INSERT INTO journal VALUES (0, 0, 0, ?, x'')", (journal_crc(0, 0, 0, b""),))
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    finally:
        connection.close()
    draft.rename(path)
    sync_folder(path.parent)


def recognise(path: Path, *, ours: bool) -> int:
    """Refuse a file that is not a store, or a newer one, from its first bytes; otherwise return its version.

    `ours` says that the folder has the other marks of a store: then an unknown header is damage, not a foreign file.
    """
    with path.open("rb") as file:
        header = file.read(100)
    sqlite = len(header) == 100 and header.startswith(_MAGIC)
    application_id = int.from_bytes(header[68:72], "big")
    version = int.from_bytes(header[60:64], "big")
    if not sqlite or application_id != APPLICATION_ID:
        if ours:
            raise damaged(path, "its header is damaged")
        raise StoreForeign(f"{path} is not a Pairbus store; it was not touched. Choose another data folder.")
    if version > VERSION:
        raise StoreNewer(
            f"{path} was written by a newer version of Pairbus (store version {version}, this one knows {VERSION}); "
            "it was not touched. Upgrade Pairbus, or choose another data folder."
        )
    if version < OLDEST_VERSION:
        raise damaged(path, f"its version is {version}")
    return version


def open_for_reading(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    """Open a connection that cannot write, not even the checkpoint that closing a database otherwise makes."""
    connection = _connect_read_only(path, any_thread=any_thread)
    try:
        connection.execute("PRAGMA cache_size = -2048")
    except sqlite3.Error as error:
        connection.close()
        raise store_error(error, path) from error
    return connection


def close_without_traces(connection: sqlite3.Connection, path: Path, *, with_log: bool) -> None:
    """Close a connection that only read a store without an owner; `with_log`: the store had a log before."""
    connection.close()
    if not with_log:  # opening made an empty one
        path.with_name(path.name + "-wal").unlink(missing_ok=True)
    path.with_name(path.name + "-shm").unlink(missing_ok=True)


def open_damaged(path: Path) -> sqlite3.Connection:
    """Open a damaged file for reading as much as possible.

    With `writable_schema` SQLite ignores that the file is shorter than it should be, and after a first statement that
    fails on a damaged list of tables it goes on with those that it understood.
    """
    connection = _connect_read_only(path)
    connection.execute("PRAGMA writable_schema = ON")
    with suppress(sqlite3.Error):
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    return connection


def _connect_read_only(path: Path, *, any_thread: bool = False) -> sqlite3.Connection:
    uri = path.resolve().as_uri() + "?mode=ro"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=not any_thread, cached_statements=64
    )
    connection.text_factory = bytes  # damaged text must be found by its checksum, not by the decoder
    return connection


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the writer's connection, on the owner's thread; from then on only the writer's thread uses it."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=128)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # the writer makes it after it has told of the commit
        connection.execute("PRAGMA secure_delete = OFF")  # a freed page need not be written again
        connection.execute("PRAGMA cache_size = -4096")
        connection.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def damaged(path: Path, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged: {what}. Nothing was changed. Copy what is intact into a new folder with "
        f"`pairbus store salvage {path.parent} --to NEWFOLDER` and start with that one."
    )


def full(path: Path) -> StoreFull:
    return StoreFull(
        f"No space left for {path}. What was acknowledged is safe and can be received and settled; free some space and "
        "send again."
    )


READ_ERRORS = (sqlite3.Error, MemoryError)  # the sqlite3 module raises MemoryError for SQLITE_NOMEM


def store_error(error: sqlite3.Error | MemoryError, path: Path) -> StoreError:
    """Convert an error of SQLite. The only place that knows SQLite's errors."""
    # Errors of the sqlite3 module itself (a closed connection, a bad binding) carry no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return full(path)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(error))
    return StoreError(f"{path}: {str(error) or 'out of memory'}")


def raise_unless_damaged(error: sqlite3.Error | MemoryError, path: Path) -> None:
    """Do nothing when a read has met damage. Any other error may pass, so no row is given up: raise a StoreError."""
    translated = store_error(error, path)
    if not isinstance(translated, StoreDamaged):
        raise translated from error
