"""Writes a ledger. Callers leave their numbers in memory under a lock; one background thread owns the disk.

Laws
* `meter` and `record` do no input or output, never wait for it, and raise nothing because of a disk.
* At most `PENDING_ROWS_MAX` rows wait in memory. Further rows are dropped, but their operations and bytes are added up
  and written as one row when the disk works again: the bill stays whole.
* The files of a folder are bounded by `max_folder_bytes`: the oldest are deleted, and a row has their sums.
* A row is written once: rows that a write left out are written again, the others are not. A child of `fork` starts
  empty.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from os import PathLike
from pathlib import Path

from pairbus.host.forks import call_in_forked_child
from pairbus.ledger.files import Files
from pairbus.ledger.room import Removed
from pairbus.ledger.rows import (
    BILLING_UNIT_BYTES,
    FAILED_SEND,
    LOST_ROWS,
    SETTLED,
    UNREACHED,
    Author,
    Cause,
    MeterKind,
    RemovedFile,
    Row,
    SideName,
    day_of,
    encode,
    event_lines,
    lost_details,
    time_text,
)

log = logging.getLogger(__name__)

PENDING_ROWS_MAX = 100_000  # × about 500 bytes = 50 MB at worst
FILE_BYTES_MAX = 64 * 1024 * 1024
FOLDER_BYTES_MAX = 1024 * 1024 * 1024  # files of all processes: some weeks of a service's operations
FILE_BYTES_LEAST = 4096  # one row with long texts still fits
FILES_OF_ROW_MAX = 20  # removed files that one row names: with the longest names it still has less than 4096 bytes
AT_EXIT_S = 2.0  # time for the last rows when a process ends without `close`

CountKey = tuple[str | None, str, str, str, str, str | None]
"Side, namespace, entity, kind, outcome, cause."
Sums = list[int]
"Operations, billable operations, bytes."
BookLine = tuple[str, bytes]
"Day, which selects the file; line."


class Ledger:
    """Writes events and operations into `folder`, in files of this process alone.

    Any number of threads may call it, and any number of processes may share the folder. The folder is created and the
    thread started when there is something to write. After a fork the child continues in a file of its own.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        client: str,
        clock: Callable[[], float] = time.time,
        max_file_bytes: int = FILE_BYTES_MAX,
        max_folder_bytes: int = FOLDER_BYTES_MAX,
        flush_interval_s: float = 1.0,
    ) -> None:
        if max_file_bytes < FILE_BYTES_LEAST:
            raise ValueError(f"max_file_bytes is {max_file_bytes}; it must be at least {FILE_BYTES_LEAST}")
        if max_folder_bytes < max_file_bytes:
            raise ValueError(f"max_folder_bytes is {max_folder_bytes}; one file has up to {max_file_bytes}")
        if not 0 < flush_interval_s <= 3600:
            raise ValueError(f"flush_interval_s is {flush_interval_s}; it must be more than 0, and 3600 at most")
        if not client or "\0" in os.fspath(folder):
            raise ValueError(f"a ledger needs the name of its client and a folder; not {client!r} and {folder!r}")
        self.folder = Path(folder).absolute()  # a daemon may change its working directory later
        self.client = client
        self._clock = clock
        self._max_file_bytes = max_file_bytes
        self._max_folder_bytes = max_folder_bytes
        self._flush_interval_s = flush_interval_s
        self._closed = False
        self._tallies: dict[CountKey, Tally] = {}
        self._start_empty()
        _ledgers.add(self)

    def _start_empty(self) -> None:
        self._author = Author(self.client, os.getpid(), secrets.token_hex(4))
        self._files = Files(self.folder, self._author, self._max_file_bytes, self._max_folder_bytes)
        self._lock = threading.RLock()  # a signal handler or finalizer may meter in the thread that holds the lock
        self._work = threading.Condition(self._lock)
        self._done = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._second = -1
        self._sums: dict[CountKey, Sums] = {}
        self._queue: list[tuple[float, object]] = []
        "Entries that the writer has not taken yet: the sums of a second, or an event, with its time."
        self._tallied: list[tuple[float, object]] = []
        "The same for tallies: these entries are older than those of the queue, and are written first."
        self._pending_rows = 0
        "Rows in the queue, and rows that the writer has taken and not yet written."
        self._accepted_rows = self._written_rows = self._failed_writes = 0
        self._lost = _Lost()
        self._hurry = self._failing = False
        for tally in self._tallies.values():
            tally.forget()

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        lost = f" lost={self._lost.rows}" if self._lost.rows else ""
        return f"<Ledger {self.folder} client={self.client} waiting={self._pending_rows}{lost}{state}>"

    # ── callers ──

    def meter(
        self,
        side: SideName | None,
        namespace: str,
        entity: str,
        kind: MeterKind,
        size_bytes: int,
        count: int = 1,
        outcome: str = "ok",
        *,
        cause: Cause | None = "application",
        billable: int | None = None,
    ) -> None:
        """Count `count` operations of `size_bytes` bytes altogether.

        They are billed as if all had the same size. When some of several are larger than 64 KB this is not exact: then
        give `billable=billable_operations(sizes)`. `outcome` is `ok` or a short word for the failure. A broker knows
        neither side nor cause, and gives None.
        """
        if outcome == UNREACHED or kind == FAILED_SEND:
            billable = 0
        elif billable is None:
            if size_bytes <= BILLING_UNIT_BYTES:
                billable = count
            else:
                billable = count * -(-size_bytes // (max(count, 1) * BILLING_UNIT_BYTES))
        key = (side, namespace, entity, kind, outcome, cause)
        with self._lock:
            now_s = self._clock()  # under the lock, so that seconds never go back from one thread to another
            second = int(now_s)
            if second != self._second:
                self._begin_second(second)
            if kind == "ping":
                self._enqueue(now_s, {key: [count, billable, size_bytes]}, 1)
                return
            sums = self._sums.get(key)
            if sums is None:
                self._sums[key] = [count, billable, size_bytes]
            else:
                sums[0] += count
                sums[1] += billable
                sums[2] += size_bytes

    def tally(self, side: SideName, namespace: str, entity: str, kind: MeterKind) -> Tally:
        """Return the tally of an entity and kind: a fast way to `meter` frequent, successful operations."""
        key: CountKey = (side, namespace, entity, kind, "ok", "application")
        with self._lock:
            tally = self._tallies.get(key)
            if tally is None:
                tally = self._tallies[key] = Tally(self, key)
            return tally

    def record(self, event: object, at_s: float | None = None) -> None:
        """Write a row for an event, or a row for each of its `message_ids`. Any frozen dataclass is an event.

        `at_s` is in seconds since 1970; the default is the event's own `at_s`, or the clock.
        """
        if at_s is None:
            at_s = getattr(event, "at_s", 0.0) or self._clock()
        with self._lock:
            if (second := int(self._clock())) != self._second:
                self._begin_second(second)
            self._enqueue(at_s, event, len(getattr(event, "message_ids", ())) or 1)

    def flush(self, timeout_s: float) -> bool:
        """Write all rows up to now. Return True when all are in the files, False when the disk fails or is too slow.

        A second that is not over yet gets further rows later; readers add them up.
        """
        with self._lock:
            self._queue_tallies()
            if self._sums:
                self._begin_second(self._second)
            target, failed_before = self._accepted_rows, self._failed_writes
            if self._written_rows < target:
                self._hurry = True
                self._work.notify()
            self._done.wait_for(
                lambda: self._written_rows >= target or self._failed_writes > failed_before, timeout=timeout_s
            )
            return self._written_rows >= target

    def close(self, timeout_s: float) -> bool:
        """Flush, then end the thread. Later calls are ignored. Return the same as `flush`."""
        ends_s = time.monotonic() + timeout_s
        flushed = self.flush(timeout_s)
        with self._lock:
            if self._sums:
                self._begin_second(self._second)
            was_closed, self._closed = self._closed, True
            self._work.notify()
            unwritten_rows = self._pending_rows
        atexit.unregister(self._at_exit)
        if not flushed and not was_closed:
            log.warning("ledger %s closes with %d rows not written", self.folder, unwritten_rows)
        if self._thread is not None:
            self._thread.join(max(0.0, ends_s - time.monotonic()))
        return flushed

    # ── under the lock ──

    def _begin_second(self, second: int) -> None:
        """Queue the sums of the second that is over, and start the thread if it does not run."""
        over_s, self._second = self._second, second
        sums, self._sums = self._sums, {}
        if sums:
            self._enqueue(over_s, sums, len(sums))
        if not self._closed and (self._thread is None or not self._thread.is_alive()):
            self._start_thread()

    def _queue_tallies(self) -> None:
        for tally in self._tallies.values():
            tally.enqueue()

    def _enqueue(self, at_s: float, entry: object, rows: int, queue: list[tuple[float, object]] | None = None) -> None:
        if self._closed:
            return
        before, after = self._pending_rows, self._pending_rows + rows
        if after > PENDING_ROWS_MAX:
            self._lost.add(at_s, entry, rows)
            return
        (self._queue if queue is None else queue).append((at_s, entry))
        self._pending_rows = after
        self._accepted_rows += rows
        if before < PENDING_ROWS_MAX // 2 <= after:
            self._hurry = True
            self._work.notify()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._write_until_closed, name=f"ledger {self.client}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started now; rows wait, and the next second tries again
            log.debug("ledger %s waits: %s", self.folder, error)
            return
        if self._thread is None:
            atexit.register(self._at_exit)
        self._thread = thread

    def _at_exit(self) -> None:
        self.close(AT_EXIT_S)

    # ── the writer's thread ──

    def _write_until_closed(self) -> None:
        files = self._files
        unwritten: list[BookLine] = []
        closed = False
        while not closed:
            with self._lock:
                if not self._hurry and not self._closed:
                    self._work.wait(self._flush_interval_s)
                self._hurry, closed = False, self._closed
                if (second := int(self._clock())) != self._second:
                    self._begin_second(second)
                self._queue_tallies()
                entries, self._tallied, self._queue = self._tallied + self._queue, [], []
            unwritten += (line for at_s, entry in entries for line in self._lines(at_s, entry))
            unwritten = self._write(files, unwritten)
        files.close()

    def _lines(self, at_s: float, entry: object) -> Iterator[BookLine]:
        day = day_of(at_s)
        if not isinstance(entry, dict):
            yield from ((day, line) for line in event_lines(self._author, entry, at_s))
            return
        for (side, namespace, entity, kind, outcome, cause), (count, billable, size_bytes) in entry.items():
            row = self._author.row(
                at_s,
                kind,
                side=side,
                namespace=namespace,
                entity=entity,
                cause=cause,
                outcome=outcome,
                count=count,
                billable_operations=billable,
                bytes=size_bytes,
            )
            yield day, encode(row)

    def _write(self, files: Files, lines: list[BookLine]) -> list[BookLine]:
        """Write lines and, when all were written, the row about lost rows; return the lines that are left."""
        count = len(lines)
        unwritten = _append(files, lines)
        if not unwritten:
            lost = self._lost_lines(files)
            count += len(lost)
            unwritten = _append(files, lost)
        if count:
            self._note_written(count - len(unwritten), files.error)
        return unwritten

    def _note_written(self, written: int, failure: OSError | None) -> None:
        with self._lock:
            self._pending_rows -= written
            self._written_rows += written
            self._failed_writes += failure is not None
            was_failing, self._failing = self._failing, failure is not None
            self._done.notify_all()
        if failure is not None and not was_failing:
            log.warning("ledger %s cannot be written: %s; rows wait in memory", self.folder, failure)
        elif was_failing and failure is None:
            log.warning("ledger %s is written again", self.folder)

    def _lost_lines(self, files: Files) -> list[BookLine]:
        removals, files.removed = files.removed, []
        with self._lock:
            for removed in removals:
                self._lost.add_removed(removed)
            if not self._lost:
                return []
            lost, self._lost = self._lost, _Lost()
            now_s = self._clock()
            rows = lost.as_rows(self._author, now_s)
            self._pending_rows += len(rows)
            self._accepted_rows += len(rows)
        lost_rows = sum(row.rows or 0 for row in rows)
        log.warning(
            "ledger %s lost %d rows since %s, %d files of it", self.folder, lost_rows, lost.since, len(lost.files)
        )
        return [(day_of(now_s), encode(row)) for row in rows]


class Tally:
    """Successful operations of one entity and kind. Each operation is billed as one: none is larger than 64 KB.

        if (now := time.monotonic()) >= tally.until:
            tally.begin_second(now)
        tally.total += tallied(size_bytes, count)

    Between two sends the caches of the processor are lost, so that a call of `meter` costs ten times as much as in a
    loop. An addition costs half a microsecond even then. Callers that add must do so under a lock of their own, or from
    one thread. The writer only reads; bytes and messages are one number, so that it never reads one without the other.
    """

    __slots__ = ("_enqueued", "_key", "_ledger", "_second", "total", "until")

    def __init__(self, ledger: Ledger, key: CountKey) -> None:
        self._ledger = ledger
        self._key = key
        self._second = 0
        self._enqueued = 0
        "Part of `total` that is in the ledger's queue, or left it."
        self.total = 0
        "Sum of all `tallied` numbers since the start; it only grows."
        self.until = float("-inf")
        "End of the second to which the next operation belongs, on the caller's clock."

    def begin_second(self, now: float) -> None:
        """Begin another second: operations that were added before belong to the last one."""
        ledger = self._ledger
        with ledger._lock:
            self.enqueue()
            now_s = ledger._clock()
            self._second = int(now_s)
            self.until = now + self._second + 1 - now_s
            if self._second != ledger._second:
                ledger._begin_second(self._second)

    def enqueue(self) -> None:
        """Queue the operations that were added since the last call. Callers hold the ledger's lock."""
        new = self.total - self._enqueued
        if new:
            self._enqueued += new
            count = new & _COUNT_MAX
            self._ledger._enqueue(
                self._second, {self._key: [count, count, new >> _COUNT_BITS]}, 1, self._ledger._tallied
            )

    def forget(self) -> None:
        """Skip the operations that a parent process will write itself; for a child of `fork`."""
        self._enqueued, self.until = self.total, float("-inf")


_COUNT_BITS = 64
_COUNT_MAX = (1 << _COUNT_BITS) - 1


def tallied(size_bytes: int, count: int) -> int:
    """Return the number to add to `Tally.total` for some operations."""
    return (size_bytes << _COUNT_BITS) + count


class _Lost:
    """Adds up rows that had to be dropped, and files that had to be removed."""

    def __init__(self) -> None:
        self.rows = self.count = self.billable = self.size_bytes = self.settlements = 0
        self.files: dict[str, RemovedFile] = {}
        self.since = ""

    def __bool__(self) -> bool:
        return bool(self.rows or self.files)

    def add(self, at_s: float, entry: object, rows: int) -> None:
        self.since = self.since if self.rows else time_text(at_s)
        self.rows += rows
        if isinstance(entry, dict):
            for (_, _, _, kind, _, _), (count, billable, size_bytes) in entry.items():
                self.count += count
                self.billable += billable
                self.size_bytes += size_bytes
                self.settlements += billable if kind == SETTLED else 0

    def add_removed(self, removed: Removed) -> None:
        self.since = min(filter(None, (self.since, removed.since)), default="")
        self.files |= removed.files

    def as_rows(self, author: Author, at_s: float) -> list[Row]:
        """Return a row for dropped rows and the first files, and one for each further group of files."""
        names = list(self.files)
        rows = []
        for at in range(0, len(names) or 1, FILES_OF_ROW_MAX):
            files = {name: self.files[name] for name in names[at : at + FILES_OF_ROW_MAX]}
            dropped = RemovedFile(0, 0, 0, 0, 0)
            if at == 0:
                dropped = RemovedFile(0, self.rows, self.count, self.billable, self.size_bytes, self.settlements)
            sums = RemovedFile(*map(sum, zip(dropped, *files.values(), strict=True)))
            rows.append(
                author.row(
                    at_s,
                    LOST_ROWS,
                    count=sums.counted,
                    billable_operations=sums.billable_operations,
                    bytes=sums.bytes,
                    rows=sums.rows,
                    since=self.since or time_text(at_s),
                    details=lost_details(files, sums.settlements),
                )
            )
        return rows


_day = itemgetter(0)


def _append(files: Files, lines: list[BookLine]) -> list[BookLine]:
    """Append lines; return those that the disk did not take."""
    lines.sort(key=_day)  # stable: within a day the order stays
    written = 0
    for day, group in groupby(lines, key=_day):
        written += files.append(day, [line for _, line in group])
        if files.error is not None:
            break
    return lines[written:]


_ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _start_empty_in_child() -> None:
    """Drop rows that the parent will write itself, and locks that threads of the parent may hold."""
    for ledger in list(_ledgers):
        ledger._files.close()
        ledger._start_empty()


call_in_forked_child(_start_empty_in_child)
