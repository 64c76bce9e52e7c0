"""The durable local spool: messages that neither namespace took wait here, and are forwarded in order later.

    spool = Spool("/var/spool/orders")
    spool.append([Entry("orders", payload, "id-1", spooled_ms=now_ms)])    # returns after the fsync
    for number, entry in spool.next_batch("orders", 100, 200_000): …       # forward them
    spool.forwarded([number, …])                                           # removed, durably

Laws of this file.
 1. `append` returns when its messages would survive a crash of the machine; it stores all of them, or none and raises.
 2. Messages leave by `forwarded` alone. A message that is refused or damaged is kept, with the reason.
 3. Messages of one path come out in the order in which they went in. Paths are case-insensitive.
 4. One process owns the folder. A forked child has neither the lock nor the connection.

Every method blocks and may be called from any thread; concurrent changes share an fsync.
"""

from __future__ import annotations

import logging
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from zlib import crc32

from pairbus.errors import SpoolError, SpoolFull, SpoolInUse, SpoolOfAnotherPair
from pairbus.host.forks import call_in_forked_child
from pairbus.spool.commits import Ended, SpoolCommits, SpoolWrite
from pairbus.spool.disk_threads import DiskThreads
from pairbus.spool.files import (
    COLUMN_NAMES,
    FILE_NAME,
    claimed_by,
    create,
    give_up_reserve,
    hold_reserve,
    is_left,
    is_same_pair,
    may_lack_room,
    open_for_writing,
    owing_to,
    own,
    prepare,
    spelled,
    spool_error,
)

logger = logging.getLogger("pairbus.spool")

MAX_BYTES = 1 << 30
ROW_BYTES = 128  # bytes of a message on disk beside its payload and texts
SPOOLS_MAX = 1000  # processes that may share one folder, each with a spool of its own within it
DISK_THREADS = 8  # threads of a client: so many concurrent sends can share an fsync
DEPTH_MAX = 16  # levels of numbered folders in which `spools_in` looks for spools
SHRINK_PAGES = 256  # free pages that an empty spool may keep

_INSERT = f"INSERT INTO waiting ({COLUMN_NAMES}) VALUES (?{', ?' * 10})"


@dataclass(frozen=True, slots=True)
class SpoolEntry:
    """A message in the spool."""

    path: str
    "Entity of the primary."
    payload: bytes
    "Encoded AMQP message, as it would have gone to the primary; never a batch."
    message_id: str
    first_attempt_ms: int | None = None
    "Time of the first attempt, if the outcome at the primary is unknown; None: the message is certainly not there."
    sender: str | None = None
    counter: int | None = None
    spooled_ms: int = 0

    @property
    def size(self) -> int:
        """Bytes that count against the spool's limit."""
        return len(self.payload) + len(self.path) + len(self.message_id) + ROW_BYTES

    @property
    def checksum(self) -> int:
        texts = (self.path, self.message_id, self.first_attempt_ms, self.sender, self.counter, self.spooled_ms)
        return crc32("\0".join(map(str, texts)).encode(), crc32(self.payload))


class Spool:
    """An open spool, which owns its folder. SpoolInUse, SpoolForeign, SpoolNewer or SpoolDamaged when it cannot open.

    With `pair` the spool is claimed: its messages belong to that pair from now on. SpoolOfAnotherPair when it holds
    messages of another pair. A pair is named by the first part of its backlog paths.
    """

    def __init__(self, folder: Path | str, *, pair: str | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = Path(folder).absolute()
        self.max_bytes = max_bytes
        self.pair: str | None = None
        "Pair to which the messages belong; None: no pair has claimed the spool."
        self.on_append: Callable[[], None] | None = None
        "Function that is called after every append, in the thread that appended."
        self.damage: list[str] = []
        "Sentences about damage that was found since the spool was opened; each is logged too."
        self._file = self.folder / FILE_NAME
        self._places: dict[str, int] = {}
        "Path in lower case → number of waiting messages."
        self._waiting = self._refused = self._bytes = self._last = 0
        self._reserved = 0
        "Bytes of appends under way: a concurrent append must not use the same room."
        self._over = ""
        "Reason why the spool can no longer be used."
        try:
            prepare(self.folder)
            self._lock = own(self.folder)
            try:
                if pair is not None:
                    _demand(self.folder, _owing_to(self.folder), pair)
                self._lock.sign()
                self._commits = self._open()
                try:
                    self._claim(pair)
                except BaseException:
                    self._commits.close()
                    raise
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise SpoolError(f"The spool {self.folder} cannot be opened: {error.strerror}.") from error
        _open_spools.add(self)

    def _open(self) -> SpoolCommits:
        """Open the file, with the room of the reserve if the disk is full."""
        try:
            commits = self._open_file()
        except SpoolError as error:
            if not may_lack_room(error):
                raise
            give_up_reserve(self.folder)
            commits = self._open_file()
        hold_reserve(self.folder)
        for sentence in commits.damage:
            self._found_damage(sentence)
        return commits

    def _open_file(self) -> SpoolCommits:
        if not self._file.exists():
            create(self._file)
        connection = open_for_writing(self._file)
        try:
            self._count(connection)
            self.pair = claimed_by(connection)
            return SpoolCommits(self._file, connection, self._count)
        except sqlite3.Error as error:
            connection.close()
            raise spool_error(error, self._file) from error
        except OSError:
            connection.close()
            raise

    def _claim(self, pair: str | None) -> None:
        if pair is not None and pair != self.pair:
            self.demand(pair)
            row = "INSERT OR REPLACE INTO pair VALUES (1, ?)"
            self._change(lambda connection: connection.execute(row, (pair,)), lambda committed: None)
            self.pair = pair

    def demand(self, pair: str) -> None:
        """Raise SpoolOfAnotherPair when the spool holds messages of another pair."""
        if self.pair is not None and (self._waiting or self._refused):
            _demand(self.folder, self.pair, pair)

    def _found_damage(self, sentence: str) -> None:
        self.damage.append(sentence)
        logger.error("%s", sentence)

    def _count(self, connection: sqlite3.Connection) -> None:
        """Count the messages in the file."""
        rows = connection.execute("SELECT place, count(*), sum(size) FROM waiting GROUP BY place").fetchall()
        query = "SELECT count(*), ifnull(sum(size), 0), ifnull(max(number), 0) FROM refused"
        refused, refused_bytes, refused_last = connection.execute(query).fetchone()
        [last] = connection.execute("SELECT ifnull(max(number), 0) FROM waiting").fetchone()
        self._places = {place: count for place, count, _ in rows}
        self._waiting = sum(self._places.values())
        self._refused = refused
        self._bytes = refused_bytes + sum(size for _, _, size in rows)
        self._last = max(self._last, last, refused_last)

    def __repr__(self) -> str:
        state = self._over or f"{self._waiting} waiting for {len(self._places)} paths, {self._refused} refused"
        return f"<Spool {self.folder} {state}, {self._bytes} of {self.max_bytes} bytes>"

    def close(self) -> None:
        """Release the folder; messages stay. A forked child, and a second call, have nothing to release."""
        if not self._over:
            self._over = "closed"
            _open_spools.discard(self)
            self._commits.close()
            self._lock.release()

    # ── counts, from memory ──

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def refused(self) -> int:
        return self._refused

    @property
    def stored_bytes(self) -> int:
        """Size of all messages, refused ones included; `max_bytes` limits it."""
        return self._bytes

    def has(self, path: str) -> bool:
        """Return True when messages of this path wait: later ones must queue behind them."""
        return self._waiting > 0 and path.lower() in self._places

    # ── messages in ──

    def append(self, entries: Sequence[SpoolEntry]) -> int:
        """Store all entries durably, or none and raise; return the number of messages that wait now."""
        if not entries:
            return self._waiting
        size = sum(entry.size for entry in entries)
        with self._commits.turn:
            if self._bytes + self._reserved + size > self.max_bytes:
                raise SpoolFull(
                    f"The spool {self.folder} holds {self._bytes} of at most {self.max_bytes} bytes, and {size} more"
                    " do not fit. Earlier messages are safe; these were not stored."
                )
            self._reserved += size
            rows = [_row(number, entry) for number, entry in enumerate(entries, self._last + 1)]
            self._last += len(rows)

            def ended(committed: bool) -> None:
                self._reserved -= size
                if committed:
                    self._bytes += size
                    self._arrived([entry.path.lower() for entry in entries])

            change = self._commits.enqueue(lambda connection: connection.executemany(_INSERT, rows), ended)
        self._commits.settle(change)
        if self.on_append is not None:
            self.on_append()
        return self._waiting

    def _arrived(self, places: list[str]) -> None:
        self._waiting += len(places)
        for place in places:
            self._places[place] = self._places.get(place, 0) + 1

    # ── messages out ──

    def paths(self) -> list[str]:
        """Return the paths with waiting messages, sorted by the oldest message of each."""
        query = "SELECT number, place, path FROM waiting WHERE place = ? ORDER BY number LIMIT 1"
        with self._commits.reading() as connection:
            oldest = [connection.execute(query, (place,)).fetchone() for place in list(self._places)]
        return [spelled(path, place) for _, place, path in sorted(row for row in oldest if row is not None)]

    def next_batch(self, path: str, max_count: int, max_bytes: int) -> list[tuple[int, SpoolEntry]]:
        """Return the oldest messages of the path with their numbers; at least one when the path has any.

        A message whose checksum is wrong is refused and skipped.
        """
        while True:
            batch, damaged = self._read(path.lower(), max_count, max_bytes)
            if damaged:
                self.refuse([(number, "damaged: the checksum is wrong") for number in damaged], refused_ms=None)
                self._found_damage(f"{self.folder}: {len(damaged)} damaged messages for {path} are refused")
            if batch or not damaged:
                return batch

    def forwarded(self, numbers: Sequence[int]) -> None:
        """Remove messages that a namespace has accepted. Unknown numbers are ignored."""
        self._remove(numbers, keep=False, copy=lambda connection: None)
        if not self._waiting and not self._refused:
            with suppress(SpoolError):  # the messages are removed nevertheless
                self._shrink()

    def refuse(self, reasons: Sequence[tuple[int, str]], *, refused_ms: int | None) -> None:
        """Set each message aside with its reason; it stays in the spool, and no message waits for it."""
        copy = f"INSERT INTO refused SELECT {COLUMN_NAMES}, ?, ? FROM waiting WHERE number = ?"
        rows = [(reason, refused_ms, number) for number, reason in reasons]
        numbers = [number for number, _ in reasons]
        self._remove(numbers, keep=True, copy=lambda connection: connection.executemany(copy, rows))

    def retry_refused(self) -> int:
        """Put every refused message back into its old place in the order; return how many there were."""
        moved: list[str] = []

        def write(connection: sqlite3.Connection) -> None:
            moved[:] = [place for [place] in connection.execute("SELECT place FROM refused")]
            connection.execute(f"INSERT INTO waiting SELECT {COLUMN_NAMES} FROM refused")
            connection.execute("DELETE FROM refused")

        def ended(committed: bool) -> None:
            if committed:
                self._refused -= len(moved)
                self._arrived(moved)

        self._change(write, ended)
        return len(moved)

    def attempted(self, batch: Sequence[tuple[int, SpoolEntry]], at_ms: int) -> None:
        """Note that the outcome of sending these messages is unknown. The time of an earlier note stays."""
        rows = [
            (at_ms, replace(entry, first_attempt_ms=at_ms).checksum, number)
            for number, entry in batch
            if entry.first_attempt_ms is None
        ]
        update = "UPDATE waiting SET first_attempt_ms = ?, crc = ? WHERE number = ? AND first_attempt_ms IS NULL"
        self._change(lambda connection: connection.executemany(update, rows), lambda committed: None)

    def _remove(self, numbers: Sequence[int], *, keep: bool, copy: Callable[[sqlite3.Connection], object]) -> None:
        """Remove messages from `waiting`; with `keep` they count as refused from now on."""
        gone: list[tuple[str, int]] = []

        def write(connection: sqlite3.Connection) -> None:
            query = "SELECT place, size FROM waiting WHERE number = ?"
            rows = [connection.execute(query, (number,)).fetchone() for number in set(numbers)]
            gone[:] = [row for row in rows if row is not None]
            copy(connection)
            connection.executemany("DELETE FROM waiting WHERE number = ?", [(number,) for number in numbers])

        def ended(committed: bool) -> None:
            for place, size in gone if committed else ():
                self._waiting -= 1
                self._places[place] -= 1
                if not self._places[place]:
                    del self._places[place]
                if keep:
                    self._refused += 1
                else:
                    self._bytes -= size

        self._change(write, ended)

    def _read(self, place: str, max_count: int, max_bytes: int) -> tuple[list[tuple[int, SpoolEntry]], list[int]]:
        batch: list[tuple[int, SpoolEntry]] = []
        damaged: list[int] = []
        query = f"SELECT {COLUMN_NAMES} FROM waiting WHERE place = ? ORDER BY number LIMIT ?"
        with self._commits.reading() as connection:
            for number, _, path, message_id, attempt, sender, counter, spooled, _, crc, payload in connection.execute(
                query, (place, max_count)
            ):
                if not isinstance(payload, bytes):
                    damaged.append(number)
                    continue
                entry = SpoolEntry(path, payload, message_id, attempt, sender, counter, spooled)
                if entry.checksum != crc:
                    damaged.append(number)
                    continue
                max_bytes -= len(payload)
                if batch and max_bytes < 0:
                    break
                batch.append((number, entry))
        return batch, damaged

    def _shrink(self) -> None:
        """Give disk space of an empty spool back, unless the file is small already, for as long as it stays empty.

        The steps are small, so that they do not delay a concurrent append, and so that their log fits the reserve: a
        full disk has no other room.
        """
        while not self._waiting:
            with self._commits.reading() as connection:
                if connection.execute("PRAGMA freelist_count").fetchone()[0] <= SHRINK_PAGES:
                    break
                give_up_reserve(self.folder)
                connection.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")  # `execute` ends after one page
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        hold_reserve(self.folder)

    def _change(self, write: SpoolWrite, ended: Ended) -> None:
        """Commit a change that adds no message, also on a full disk.

        A removal needs room in the log, too. Without it forwarded messages would stay, and would be sent again.
        """
        try:
            self._commit(write, ended)
        except SpoolFull:
            with self._commits.reading() as connection:
                give_up_reserve(self.folder)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._commit(write, ended)
            hold_reserve(self.folder)

    def _commit(self, write: SpoolWrite, ended: Ended) -> None:
        with self._commits.turn:
            change = self._commits.enqueue(write, ended)
        self._commits.settle(change)

    # ── fork ──

    @property
    def is_inherited(self) -> bool:
        """True in a child that was forked after the spool was opened: the parent owns it, `open_free` opens another."""
        return self._over == _INHERITED

    def _forked(self) -> None:
        """Give the spool up in a forked child."""
        self._over = _INHERITED
        self.on_append = None
        self._places = {}
        self._waiting = self._refused = self._bytes = self._reserved = 0
        self._commits.abandon()


_INHERITED = "the parent's: this process was forked after it was opened"
_open_spools: weakref.WeakSet[Spool] = weakref.WeakSet()


def _after_fork() -> None:
    for spool in list(_open_spools):
        spool._forked()
    _open_spools.clear()


call_in_forked_child(_after_fork)


def open_free(folder: Path | str, *, pair: str | None = None, max_bytes: int = MAX_BYTES) -> Spool:
    """Open a spool in a folder that several processes share: the folder itself, or one of `folder/1`, `folder/2` …

    Spools that are open, or hold messages of another pair, are skipped. The first one in which messages wait is taken;
    if there is none, the first one. So messages that a process left behind are adopted by the next process of its pair.
    One client forwards one spool: a warning names each further spool with messages that no process has open.
    """
    folder = Path(folder).absolute()
    names = ("", *map(str, range(1, SPOOLS_MAX)))
    open_spool = partial(Spool, pair=pair, max_bytes=max_bytes)
    unusable: list[SpoolError] = []
    left = iter(_left_in(folder, pair, unusable))
    spool = _open_first(left, open_spool, unusable) or _open_first((folder / name for name in names), open_spool)
    if spool is None:
        raise SpoolInUse(
            f"The spool {folder} and {SPOOLS_MAX - 1} spools within it are in use, or hold messages of other pairs."
            " Choose another folder."
        )
    for error in unusable:
        logger.warning("%s", error)
    for path in left:
        logger.warning(
            "%s holds messages, and no process has it open. The next client that starts takes it over;"
            " `pairbus spool drain %s` forwards them now",
            path,
            path,
        )
    return spool


def _left_in(folder: Path, pair: str | None, unusable: list[SpoolError]) -> list[Path]:
    """Return the spools that no process has open, and in which messages of the pair wait; changes nothing."""
    left: list[Path] = []
    try:
        folders = _spools_in(folder, 1)
    except OSError:  # opening the folder raises a better error
        return left
    for path in folders:
        if path == folder or int(path.name) < SPOOLS_MAX:
            try:
                if is_left(path, pair):
                    left.append(path)
            except SpoolInUse:
                continue
            except SpoolError as error:
                unusable.append(error)
    return left


def _open_first(
    folders: Iterable[Path], open_spool: Callable[[Path], Spool], unusable: list[SpoolError] | None = None
) -> Spool | None:
    """Open the first spool that is free. One that cannot be opened is skipped only if `unusable` takes its error."""
    for folder in folders:
        try:
            return open_spool(folder)
        except (SpoolInUse, SpoolOfAnotherPair):
            continue
        except SpoolError as error:
            if unusable is None:
                raise
            unusable.append(error)
    return None


def _owing_to(folder: Path) -> str | None:
    with suppress(SpoolError):  # opening the spool raises a better error
        return owing_to(folder)
    return None


def _demand(folder: Path, owner: str | None, pair: str) -> None:
    if not is_same_pair(owner, pair):
        raise SpoolOfAnotherPair(
            f"The spool {folder} holds messages of the pair {owner}, not of {pair}. It was not touched."
        )


def disk_threads() -> Executor:
    """Make threads that wait for a disk, for an event loop. No thread starts before there is work."""
    return DiskThreads(DISK_THREADS)


def spools_in(folder: Path | str) -> list[Path]:
    """Return the folders that hold a spool: the folder itself, and numbered ones within it. Links are not followed.

    Pairbus makes no spool within a numbered folder, but a user may have moved one there: it must be found, too.
    """
    return _spools_in(Path(folder).absolute(), DEPTH_MAX)


def _spools_in(folder: Path, depth: int) -> list[Path]:
    spools = [folder] if (folder / FILE_NAME).exists() else []
    within = [path for path in folder.glob("*") if path.name.isdecimal() and path.is_dir() and not path.is_symlink()]
    for path in sorted(within, key=lambda path: int(path.name)) if depth else ():
        spools += _spools_in(path, depth - 1)
    return spools


def _row(number: int, entry: SpoolEntry) -> tuple[object, ...]:
    texts = (entry.path.lower(), entry.path, entry.message_id, entry.first_attempt_ms, entry.sender, entry.counter)
    return (number, *texts, entry.spooled_ms, entry.size, entry.checksum, entry.payload)
