"""The durable local spool: what neither namespace took waits here, and is forwarded in order when one of them is back.

    spool = Spool("/var/spool/orders")
    spool.append([Entry("orders", payload, "id-1", spooled_ms=now_ms)])    # returns after the fsync
    for number, entry in spool.next_batch("orders", 100, 200_000): …       # forward them
    spool.forwarded([number, …])                                           # removed, durably

Laws of this file.
 1. `append` returns when its messages would survive a crash of the machine; all of them, or none and an error.
 2. Messages leave by `forwarded` alone. What cannot be forwarded, or is damaged, is set aside with a reason and kept.
 3. Messages of one path come out in the order in which they went in. Paths compare without case.
 4. One process owns the folder. A forked child has lost the spool: it holds neither the lock nor the connection.

Every method blocks and may be called from any thread; changes that are asked for at the same time share an fsync.
"""

from __future__ import annotations

import logging
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from pairbus.errors import SpoolError, SpoolFull, SpoolInUse, SpoolOfAnotherPair
from pairbus.process.forks import call_in_forked_child
from pairbus.spool.commits import Commits, Ended, Write
from pairbus.spool.files import (
    COLUMN_NAMES,
    FILE_NAME,
    claimed_by,
    create,
    give_up_reserve,
    hold_reserve,
    open_for_writing,
    owing_to,
    own,
    prepare,
    spool_error,
)
from pairbus.spool.threads import DiskThreads

logger = logging.getLogger("pairbus.spool")

MAX_BYTES = 1 << 30
ROW_BYTES = 128  # what a message costs on disk beside its payload and texts
SPOOLS_MAX = 1000  # processes that share one folder by having spools of their own within it
DISK_THREADS = 8  # of a client: the sends of so many tasks share an fsync
DEPTH_MAX = 16  # numbered folders within each other in which a spool is looked for
SHRINK_PAGES = 256  # free pages that an empty spool may keep

_INSERT = f"INSERT INTO waiting ({COLUMN_NAMES}) VALUES (?{', ?' * 10})"


@dataclass(frozen=True, slots=True)
class Entry:
    """One message on its way."""

    path: str
    "Entity of the primary."
    payload: bytes
    "One encoded AMQP message, as it would have gone to the primary; never a batch."
    message_id: str
    first_attempt_ms: int | None = None
    "When it was first tried, if the outcome at the primary is unknown; None: it is certainly not there."
    sender: str | None = None
    counter: int | None = None
    spooled_ms: int = 0

    @property
    def size(self) -> int:
        """What it counts against the spool's limit."""
        return len(self.payload) + len(self.path) + len(self.message_id) + ROW_BYTES

    @property
    def checksum(self) -> int:
        texts = (self.path, self.message_id, self.first_attempt_ms, self.sender, self.counter, self.spooled_ms)
        return crc32("\0".join(map(str, texts)).encode(), crc32(self.payload))


class Spool:
    """The owner of a folder. Raises SpoolInUse, SpoolForeign, SpoolNewer or SpoolDamaged when it cannot be opened.

    With `pair` it is claimed: what is in it belongs to that pair from now on, unless it holds messages of another one,
    which is SpoolOfAnotherPair. A pair is named by the first part of its backlog paths.
    """

    def __init__(self, folder: Path | str, *, pair: str | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.folder = Path(folder).absolute()
        self.max_bytes = max_bytes
        self.pair: str | None = None
        "Whose messages these are; None: nobody has claimed them."
        self.on_append: Callable[[], None] | None = None
        "Called after every append, from the thread that appended."
        self.damage: list[str] = []
        "A sentence for each thing that was found damaged since the spool was opened; each is logged too."
        self._file = self.folder / FILE_NAME
        self._places: dict[str, int] = {}
        "Path in lower case → messages waiting."
        self._waiting = self._refused = self._bytes = self._last = 0
        self._reserved = 0
        "Bytes of appends under way: whoever comes meanwhile must not count on the room."
        self._over = ""
        "Why the spool can no longer be used."
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

    def _open(self) -> Commits:
        if not self._file.exists():
            create(self._file)
        connection = open_for_writing(self._file)
        try:
            self._count(connection)
            self.pair = claimed_by(connection)
            commits = Commits(self._file, connection, self._count)
        except sqlite3.Error as error:
            connection.close()
            raise spool_error(error, self._file) from error
        except OSError:
            connection.close()
            raise
        hold_reserve(self.folder)
        for sentence in commits.damage:
            self._found_damage(sentence)
        return commits

    def _claim(self, pair: str | None) -> None:
        if pair is not None and pair != self.pair:
            self.demand(pair)
            row = "INSERT OR REPLACE INTO pair VALUES (1, ?)"
            self._change(lambda connection: connection.execute(row, (pair,)), lambda committed: None)
            self.pair = pair

    def demand(self, pair: str) -> None:
        """Raise SpoolOfAnotherPair if there is a message in it that belongs to another one."""
        if self.pair is not None and (self._waiting or self._refused):
            _demand(self.folder, self.pair, pair)

    def _found_damage(self, sentence: str) -> None:
        self.damage.append(sentence)
        logger.error("%s", sentence)

    def _count(self, connection: sqlite3.Connection) -> None:
        """Learn from the file what is in it."""
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
        """Release the folder; messages stay. In a forked child, and a second time, there is nothing to release."""
        if not self._over:
            self._over = "closed"
            _open_spools.discard(self)
            self._commits.close()
            self._lock.release()

    # ── what is in it, from memory ──

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def refused(self) -> int:
        return self._refused

    @property
    def stored_bytes(self) -> int:
        """Of the messages in it, refused ones included; what `max_bytes` limits."""
        return self._bytes

    def has(self, path: str) -> bool:
        """Whether messages of this path wait: later ones must queue behind them."""
        return self._waiting > 0 and path.lower() in self._places

    # ── messages in ──

    def append(self, entries: Sequence[Entry]) -> int:
        """Store all of them durably, or none and raise; the number of messages that wait now."""
        if not entries:
            return self._waiting
        size = sum(entry.size for entry in entries)
        with self._commits.turn:
            if self._bytes + self._reserved + size > self.max_bytes:
                raise SpoolFull(
                    f"The spool {self.folder} holds {self._bytes} of at most {self.max_bytes} bytes, and {size} more"
                    " do not fit. What was spooled before is safe; this was not stored."
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
        """Paths with waiting messages, the one whose oldest message is oldest first."""
        query = "SELECT number, path FROM waiting WHERE place = ? ORDER BY number LIMIT 1"
        with self._commits.reading() as connection:
            oldest = [connection.execute(query, (place,)).fetchone() for place in list(self._places)]
        return [path for _, path in sorted(row for row in oldest if row is not None)]

    def next_batch(self, path: str, max_count: int, max_bytes: int) -> list[tuple[int, Entry]]:
        """The oldest messages of the path with their numbers; at least one when there is one.

        A message whose checksum is wrong is set aside as refused, and what lies behind it comes instead.
        """
        while True:
            batch, damaged = self._read(path.lower(), max_count, max_bytes)
            if damaged:
                self.refuse([(number, "damaged: the checksum is wrong") for number in damaged], refused_ms=None)
                self._found_damage(f"{self.folder}: {len(damaged)} damaged messages for {path} are set aside")
            if batch or not damaged:
                return batch

    def forwarded(self, numbers: Sequence[int]) -> None:
        """Remove messages that a namespace has accepted. Numbers that are not there are passed over."""
        self._remove(numbers, keep=False, copy=lambda connection: None)
        if not self._waiting and not self._refused:
            with suppress(SpoolError):  # they are removed all the same
                self._shrink()

    def refuse(self, reasons: Sequence[tuple[int, str]], *, refused_ms: int | None) -> None:
        """Set messages aside, each with the reason; they stay in the spool, and nothing waits behind them."""
        copy = f"INSERT INTO refused SELECT {COLUMN_NAMES}, ?, ? FROM waiting WHERE number = ?"
        rows = [(reason, refused_ms, number) for number, reason in reasons]
        numbers = [number for number, _ in reasons]
        self._remove(numbers, keep=True, copy=lambda connection: connection.executemany(copy, rows))

    def retry_refused(self) -> int:
        """Put every refused message back where it stood; how many there were."""
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

    def attempted(self, batch: Sequence[tuple[int, Entry]], at_ms: int) -> None:
        """Note that the outcome of sending these is unknown. An earlier note stands."""
        rows = [
            (at_ms, replace(entry, first_attempt_ms=at_ms).checksum, number)
            for number, entry in batch
            if entry.first_attempt_ms is None
        ]
        update = "UPDATE waiting SET first_attempt_ms = ?, crc = ? WHERE number = ? AND first_attempt_ms IS NULL"
        self._change(lambda connection: connection.executemany(update, rows), lambda committed: None)

    def _remove(self, numbers: Sequence[int], *, keep: bool, copy: Callable[[sqlite3.Connection], object]) -> None:
        """Out of `waiting`; with `keep` they count on, as refused."""
        gone: list[tuple[str, int]] = []

        def write(connection: sqlite3.Connection) -> None:
            query = "SELECT place, size FROM waiting WHERE number = ?"
            found = [connection.execute(query, (number,)).fetchone() for number in set(numbers)]
            gone[:] = [row for row in found if row is not None]
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

    def _read(self, place: str, max_count: int, max_bytes: int) -> tuple[list[tuple[int, Entry]], list[int]]:
        batch: list[tuple[int, Entry]] = []
        damaged: list[int] = []
        query = f"SELECT {COLUMN_NAMES} FROM waiting WHERE place = ? ORDER BY number LIMIT ?"
        with self._commits.reading() as connection:
            for number, _, path, message_id, attempt, sender, counter, spooled, _, crc, payload in connection.execute(
                query, (place, max_count)
            ):
                if not isinstance(payload, bytes):
                    damaged.append(number)
                    continue
                entry = Entry(path, payload, message_id, attempt, sender, counter, spooled)
                if entry.checksum != crc:
                    damaged.append(number)
                    continue
                max_bytes -= len(payload)
                if batch and max_bytes < 0:
                    break
                batch.append((number, entry))
        return batch, damaged

    def _shrink(self) -> None:
        """An empty spool gives the disk back, unless it is small already, for as long as it stays empty.

        In steps that nobody notices who appends meanwhile, and whose log fits the reserve: on a full disk there is no
        other room.
        """
        while not self._waiting:
            with self._commits.reading() as connection:
                if connection.execute("PRAGMA freelist_count").fetchone()[0] <= SHRINK_PAGES:
                    break
                give_up_reserve(self.folder)
                connection.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")  # `execute` ends after one page
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        hold_reserve(self.folder)

    def _change(self, write: Write, ended: Ended) -> None:
        """Whatever is not an append: it adds nothing, so a full disk must not keep it from happening.

        A removal needs room in the log, too. Without it what is forwarded would never leave, and would go out again.
        """
        try:
            self._commit(write, ended)
        except SpoolFull:
            with self._commits.reading() as connection:
                give_up_reserve(self.folder)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._commit(write, ended)
            hold_reserve(self.folder)

    def _commit(self, write: Write, ended: Ended) -> None:
        with self._commits.turn:
            change = self._commits.enqueue(write, ended)
        self._commits.settle(change)

    # ── fork ──

    @property
    def is_inherited(self) -> bool:
        """This process was forked after the spool was opened: the parent has it, `open_free` gives one of our own."""
        return self._over == _INHERITED

    def _forked(self) -> None:
        """In the child."""
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
    """The spool of a folder that several processes share: the folder itself, or the first of `folder/1`, `folder/2` …
    that nobody has open, and that holds no messages of another pair. What a process that died left in one of them, the
    next one of its pair adopts."""
    folder = Path(folder).absolute()
    for name in ("", *map(str, range(1, SPOOLS_MAX))):
        try:
            return Spool(folder / name, pair=pair, max_bytes=max_bytes)
        except (SpoolInUse, SpoolOfAnotherPair):
            continue
    raise SpoolInUse(
        f"The spool {folder} and {SPOOLS_MAX - 1} spools within it are in use, or hold messages of other pairs. Choose"
        " another folder."
    )


def _owing_to(folder: Path) -> str | None:
    with suppress(SpoolError):  # whatever is wrong with it, opening it says so in better words
        return owing_to(folder)
    return None


def _demand(folder: Path, owner: str | None, pair: str) -> None:
    if owner is not None and owner.lower() != pair.lower():  # as the paths of queues compare
        raise SpoolOfAnotherPair(
            f"The spool {folder} holds messages of the pair {owner}, not of {pair}. It was not touched."
        )


def disk_threads() -> Executor:
    """For those who must not wait for a disk themselves. None of them starts before there is work."""
    return DiskThreads(DISK_THREADS)


def spools_in(folder: Path | str) -> list[Path]:
    """The folder and the numbered ones within it, at any depth, as far as they hold a spool. Links are not followed.

    Nobody makes one within a numbered one, but it may be there, and what is in it must be found.
    """
    return _spools_in(Path(folder).absolute(), DEPTH_MAX)


def _spools_in(folder: Path, depth: int) -> list[Path]:
    found = [folder] if (folder / FILE_NAME).exists() else []
    within = [path for path in folder.glob("*") if path.name.isdecimal() and path.is_dir() and not path.is_symlink()]
    for path in sorted(within, key=lambda path: int(path.name)) if depth else ():
        found += _spools_in(path, depth - 1)
    return found


def _row(number: int, entry: Entry) -> tuple[object, ...]:
    texts = (entry.path.lower(), entry.path, entry.message_id, entry.first_attempt_ms, entry.sender, entry.counter)
    return (number, *texts, entry.spooled_ms, entry.size, entry.checksum, entry.payload)
