"""The files of a spool: the owner of the folder, the tables, creating and opening a spool.

    folder            mode 0700, holds nothing else; `folder/1`, `folder/2` … are spools of other processes
    folder/lock       held while a spool is open; holds the owner's process id
    folder/commits    the number of the last commit (host/commit_file.py), which shows a loss of commits
    folder/reserve    room that is given up when a full disk would prevent the removal of messages, or the opening
    folder/spool.db   SQLite, mode 0600; SQLite gives its -wal and -shm files the same mode

    waiting   one row for each message, numbered in the order of arrival; the payload is the last column, so that a
              query of the other columns skips it. `place` is the path in lower case: paths are case-insensitive.
    refused   messages that their entity refused, and damaged ones, with the reason; they leave only when they are put
              back into `waiting`
    commits   one row: the number of commits
    pair      the pair to which the messages belong: one row, or none in a spool that no pair has claimed yet

Version 1 had no table `pair`; the first pair that opens such a spool claims it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pairbus.errors import (
    SpoolDamaged,
    SpoolError,
    SpoolForeign,
    SpoolFull,
    SpoolInUse,
    SpoolNewer,
)
from pairbus.host.commit_file import COMMITS_NAME
from pairbus.host.folders import make_folder, make_private, open_private, sync_folder, take_room
from pairbus.host.locks import LOCK_NAME, FolderInUse, FolderLock, is_held_here

FILE_NAME = "spool.db"
DRAFT_NAME = "spool.new"
RESERVE_NAME = "reserve"
APPLICATION_ID = 0x50616953  # "PaiS"
VERSION = 2
UNSIGNED_S = 1.0  # wait for a lock that is not signed: its owner may only look to which pair the spool belongs
LOG_PAGES = 256  # pages of the write-ahead log before it is copied into the file: 1 MB
RESERVE_BYTES = 2 << 20  # twice the room that copying the log may need

_COLUMNS = (
    "number INTEGER PRIMARY KEY, place TEXT, path TEXT, message_id TEXT, first_attempt_ms INTEGER, sender TEXT, "
    "counter INTEGER, spooled_ms INTEGER, size INTEGER, crc INTEGER"
)
COLUMN_NAMES = "number, place, path, message_id, first_attempt_ms, sender, counter, spooled_ms, size, crc, payload"
TABLES = {
    "waiting": f"CREATE TABLE waiting ({_COLUMNS}, payload BLOB)",
    "refused": f"CREATE TABLE refused ({_COLUMNS}, payload BLOB, reason TEXT, refused_ms INTEGER)",
    "commits": "CREATE TABLE commits (id INTEGER PRIMARY KEY, count INTEGER)",
    "pair": "CREATE TABLE pair (id INTEGER PRIMARY KEY, name TEXT)",
    "waiting_place": "CREATE INDEX waiting_place ON waiting (place, number, size)",
}

_MAGIC = b"SQLite format 3\0"


def prepare(folder: Path) -> None:
    """Create the folder, or make it private; SpoolForeign when it holds other files."""
    file = folder / FILE_NAME
    if file.exists():
        recognise(file)
    elif folder.exists():
        strangers = [name for name in os.listdir(folder) if name != LOCK_NAME and not _is_ours(name)]
        if strangers:
            raise SpoolForeign(
                f"{folder} holds other files ({strangers[0]}); it was not touched. Give the spool a folder of its own."
            )
    else:
        make_folder(folder)
    for path in (folder, file):
        if path.exists():
            make_private(path)


def own(folder: Path) -> FolderLock:
    """Take the lock of a spool; SpoolInUse when another client has it.

    A client that only looks to which pair the spool belongs does not sign the lock. This function waits for it: if both
    clients skipped the spool, no client might open it again.
    """
    try:
        return FolderLock(folder, patience_s=UNSIGNED_S)
    except FolderInUse as error:
        raise SpoolInUse(
            f"The spool {folder} is in use by another client{error.by}, which forwards its messages. Stop it, or"
            " choose another folder."
        ) from None


def _is_ours(name: str) -> bool:
    return name.startswith((FILE_NAME, DRAFT_NAME, RESERVE_NAME, COMMITS_NAME)) or name.isdecimal()


def hold_reserve(folder: Path) -> None:
    """Reserve the room on the disk, if there is enough."""
    with suppress(OSError):
        take_room(folder / RESERVE_NAME, RESERVE_BYTES)


def give_up_reserve(folder: Path) -> None:
    with suppress(FileNotFoundError):
        (folder / RESERVE_NAME).unlink()


def create(path: Path) -> None:
    """Create an empty spool. The file gets its name when it is complete, so that half a file is never opened."""
    draft = path.with_name(DRAFT_NAME)
    for left in path.parent.glob(f"{DRAFT_NAME}*"):
        left.unlink()
    os.close(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("BEGIN")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            for sql in TABLES.values():
                connection.execute(sql)
            connection.execute("INSERT INTO commits VALUES (1, 0)")
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
    except sqlite3.Error as error:
        raise spool_error(error, path) from error
    draft.rename(path)
    sync_folder(path.parent)


def recognise(path: Path) -> None:
    """Refuse a file that is no spool, or one of a newer version, by its first bytes, before SQLite opens it.

    A spool that this process has open is not read again: closing a second descriptor of a file drops every lock that
    the process holds on it, SQLite's too.
    """
    if is_held_here(path.parent):
        return
    with path.open("rb") as file:
        header = file.read(100)
    application_id = int.from_bytes(header[68:72], "big") if header.startswith(_MAGIC) else 0
    version = int.from_bytes(header[60:64], "big")
    if application_id != APPLICATION_ID:
        raise SpoolForeign(f"{path} is not a Pairbus spool; it was not touched. Choose another folder.")
    if version > VERSION:
        raise SpoolNewer(
            f"{path} was written by a newer version of Pairbus (spool version {version}, this one knows {VERSION}); it"
            " was not touched. Upgrade Pairbus, or choose another folder."
        )
    if version < 1:
        raise damaged(path, f"its version is {version}")


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the owner's connection; the caller holds the spool's lock."""
    with ExitStack() as on_failure:
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            on_failure.callback(connection.close)
            connection.text_factory = _readable_text
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            connection.execute("PRAGMA temp_store = MEMORY")
            check(connection, path)
            _upgrade(connection)
        except sqlite3.Error as error:
            raise spool_error(error, path) from error
        on_failure.pop_all()
    return connection


def open_for_reading(path: Path, *, is_locked: bool = False) -> sqlite3.Connection:
    """Open a read-only connection; the owner may have the spool open. `is_locked`: the caller has the spool's lock."""
    recognise(path)
    # A file without a log is complete. Nobody writes to it, so SQLite needs no files of its own beside it.
    settings = "&immutable=1" if is_locked and not path.with_name(f"{FILE_NAME}-wal").exists() else ""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{settings}", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise spool_error(error, path) from error
    connection.text_factory = _readable_text
    return connection


@dataclass(frozen=True, slots=True)
class Standing:
    """Messages of one path in a spool."""

    path: str
    waiting: int = 0
    waiting_bytes: int = 0
    oldest_ms: int | None = None
    refused: int = 0
    reasons: tuple[str, ...] = ()
    "Reasons of the refused messages, each once."


def look(folder: Path) -> tuple[str | None, list[Standing]]:
    """Return the pair to which a spool belongs, and its messages by path, the path that waits longest first.

    Changes nothing; the owner may have the spool open.
    """
    path = folder / FILE_NAME
    if not path.exists():
        raise SpoolError(f"There is no spool in {folder}.")
    with closing(open_for_reading(path)) as connection:
        try:
            connection.execute("BEGIN")  # reads both tables at one moment
            query = "SELECT place, path, count(*), sum(size), min(spooled_ms), min(number) FROM waiting GROUP BY place"
            waiting = connection.execute(f"{query} ORDER BY 6").fetchall()
            query = "SELECT place, path, reason, count(*) FROM refused GROUP BY place, reason ORDER BY min(number)"
            refused = connection.execute(query).fetchall()
            pair = claimed_by(connection)
        except sqlite3.Error as error:
            raise spool_error(error, path) from error
    standings = {
        place: Standing(spelled(path, place), count, size, oldest) for place, path, count, size, oldest, _ in waiting
    }
    for place, path, reason, count in refused:
        known = standings.get(place, Standing(spelled(path, place)))
        standings[place] = replace(known, refused=known.refused + count, reasons=(*known.reasons, reason))
    return pair, list(standings.values())


def spelled(path: object, place: str) -> str:
    """Return the path of a row as its sender spelled it; in lower case, `place`, if the path is damaged."""
    return path if isinstance(path, str) and path.lower() == place else place


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Check the structure of a spool before the first change; single rows are checked when they are read."""
    tables = dict(connection.execute("SELECT name, sql FROM sqlite_schema").fetchall())
    if _version(connection) == 1:
        tables.setdefault("pair", TABLES["pair"])
    if tables != TABLES:
        raise damaged(path, "its list of tables is not that of a spool")
    if connection.execute("SELECT count FROM commits").fetchone() is None:
        raise damaged(path, "the number of its commits is missing")
    [verdict] = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise damaged(path, " ".join(str(verdict).split()))


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _upgrade(connection: sqlite3.Connection) -> None:
    """Add the table that version 1 lacks; messages stay as they are."""
    if _version(connection) < VERSION:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(TABLES["pair"])
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # `recognise` does not read the log


def claimed_by(connection: sqlite3.Connection) -> str | None:
    """Return the pair that has claimed the spool; None when no pair has."""
    row = None if _version(connection) == 1 else connection.execute("SELECT name FROM pair").fetchone()
    return None if row is None else str(row[0])


def owing_to(folder: Path) -> str | None:
    """Return the pair whose messages a spool has, None when empty. The caller has the lock. Changes nothing."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    with closing(open_for_reading(path, is_locked=True)) as connection:
        try:
            query = "SELECT EXISTS (SELECT 1 FROM waiting) OR EXISTS (SELECT 1 FROM refused)"
            return claimed_by(connection) if connection.execute(query).fetchone()[0] else None
        except sqlite3.Error as error:
            raise spool_error(error, path) from error


def is_left(folder: Path, pair: str | None) -> bool:
    """Return True when messages of the pair, or of no known pair, wait in a spool. SpoolInUse when it is open.

    Changes nothing. Holds the lock for a moment: in a forked child SQLite must not open the spool of the parent.
    """
    path = folder / FILE_NAME
    try:
        recognise(path)
        lock = own(folder)
        try:
            with closing(open_for_reading(path, is_locked=True)) as connection:
                [is_waiting] = connection.execute("SELECT EXISTS (SELECT 1 FROM waiting)").fetchone()
                owner = claimed_by(connection)
        finally:
            lock.release()
    except OSError as error:
        raise SpoolError(f"The spool {folder} cannot be opened: {error.strerror}.") from error
    except sqlite3.Error as error:
        raise spool_error(error, path) from error
    return bool(is_waiting) and is_same_pair(owner, pair)


def is_same_pair(owner: str | None, pair: str | None) -> bool:
    """Return True unless both pairs are known and differ."""
    return owner is None or pair is None or owner.lower() == pair.lower()  # paths of queues are case-insensitive


def damaged(path: Path, what: str) -> SpoolDamaged:
    return SpoolDamaged(
        f"{path} is damaged: {what}. Nothing was changed; intact messages are still in it: keep a copy of the folder,"
        " and start with a new one."
    )


def spool_error(error: sqlite3.Error, path: Path) -> SpoolError:
    """Translate an error of SQLite; only this function and the next one know them."""
    code = _code(error)
    if code == sqlite3.SQLITE_FULL:
        return SpoolFull(f"No space left for {path}. Earlier messages are safe; this change was not stored.")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(error))
    return SpoolError(f"{path}: {error}. Earlier messages are safe; this change was not stored.")


def may_lack_room(error: SpoolError) -> bool:
    """Return True when the disk may be full. SQLite reports an I/O error when it has no room for its -shm file."""
    codes = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
    return isinstance(error.__cause__, sqlite3.Error) and _code(error.__cause__) in codes


def _code(error: sqlite3.Error) -> int:
    # Errors of the sqlite3 module itself (a closed connection, a bad binding) carry no code.
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _readable_text(text: bytes) -> str:
    return text.decode("utf-8", "replace")  # damaged text must be found by its checksum, not by the decoder
