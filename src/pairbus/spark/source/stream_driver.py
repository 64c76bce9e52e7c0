"""The driver's part of a stream: when there is a next batch, its contents, and the result of the last one.

| what happened                                   | the next look at the queue | with Trigger.AvailableNow        |
| ----------------------------------------------- | -------------------------- | -------------------------------- |
| the batch brought something                     | at once                    | at once                          |
| the look found nothing                          | after `idlePollSeconds`    | over                             |
| the look found something, the batch received    | after `idlePollSeconds`    | the same; over after             |
| nothing: somebody has locked it                 |                            | EMPTY_ROUNDS_MAX times in a row  |
| sealed messages wait, or a batch has a plan     | none: it is the next batch | the same                         |
| Spark ran no task of the batch                  | at once, SKIPPED_MAX times | at once; over after SKIPPED_MAX  |
|                                                 | in a row                   |                                  |
"""

from __future__ import annotations

import enum
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

from pairbus.errors import ConfigError
from pairbus.host.folders import FOLDER_MODE
from pairbus.host.locks import FolderInUse, FolderLock
from pairbus.spark.features import Offset
from pairbus.spark.options import Options
from pairbus.spark.source.entities import LOCATION
from pairbus.spark.source.stream_look import PARTITIONED, FirstMessage, QueueView
from pairbus.spark.staging.log import Staging
from pairbus.spark.staging.stage_book import BatchPlan, StageBook
from pairbus.spark.staging.stage_file import read_identities

SLICE_S = 1.0  # the query can be stopped between two calls, hence no call sleeps for longer
EMPTY_ROUNDS_MAX = 15  # × 5 s of idlePollSeconds: more than the lock of 60 s that a dead worker may have left
SKIPPED_MAX = 10_000  # a file sink that has kept its output skips as many batches as it has already
BACKLOG_EVERY_S = 60.0
RESOLVE_EVERY_S = 60.0
HANDOVER_S = 5.0  # until the process of a query that was just stopped has ended

logger = logging.getLogger("pairbus.spark")


class Next(enum.Enum):
    """Answer to the question whether there is a next batch."""

    THERE = "there"
    NONE = "none"
    NOT_YET = "not yet"
    "The next look at the queue is not due yet."


class StreamDriver:
    """Decides for the driver. Made at the first call of Spark's source runner: the checks of a start happen here."""

    def __init__(
        self, options: Options, staging: Staging, patience_s: float = 0.0, offset: Offset | None = None
    ) -> None:
        """Make the part of one entity. `patience_s`: for how long to try again while the service is away. `offset`: one
        of the checkpoint; None: it is new."""
        self._options = options
        self._view = QueueView(options)
        self._view.first(patience_s)  # is the entity there, may we? Before the folder is taken from another query
        self._lock = _locked_default(options)
        if offset is not None:
            staging.check_offset(offset.get(LOCATION))  # before another query is stopped, to which the location belongs
        # Remains of one session cannot be judged by looking at another one.
        place = options.read_path if options.session is None else f"{options.read_path}, session {options.session}"
        self.book = StageBook(staging, f"{options.host}/{place}", options.stage_retention_s)
        self._once = False
        self._last_number: int | None = None
        "Last message that was there at the start, with Trigger.AvailableNow. None: no limit."
        self._max_messages = options.max_messages_per_batch
        self._parts = options.partitions
        self._max_bytes = options.max_bytes_per_batch
        self._announced = -1
        "Batch planned here, for whose tasks Spark has not asked yet."
        self._judged = -1
        self._nothing_after = -1
        "Batch after which no plan and no sealed messages exist: only the queue can have more."
        self._empty_rounds = 0
        self._skipped = 0
        "Batches in a row of which Spark has run no task."
        self._look_at = float("-inf")
        self._resolve_at = float("-inf")
        self._first: FirstMessage | None = None
        self._backlog: tuple[float, int | None] = (float("-inf"), None)

    def prepare_for_available_now(self) -> None:
        self._once = True
        extent = self._view.extent()
        last = -1 if extent is None else extent[1]
        self._last_number = last if last < PARTITIONED else None

    # ── batches ──

    def allot(self, max_messages: int, parts: int, max_bytes: int | None) -> None:
        """Set the limits of the next batch: messages, tasks, bytes."""
        self._max_messages, self._parts, self._max_bytes = max_messages, parts, max_bytes

    def next_batch(self, start: int, max_messages: int) -> int:
        """Return `start` + 1 when there is a next batch; `start` when there is none, for now."""
        self._max_messages = max_messages
        state = self.look(start)
        if state is Next.NOT_YET and self._may_look():
            state = self.look(start)
        if state is not Next.THERE:
            return start
        self.announce(start + 1)
        return start + 1

    def look(self, start: int) -> Next:
        """Tell whether there is a batch after `start`; ask the queue if that is due."""
        if start == self._nothing_after and self.wait_s > 0:
            return Next.NOT_YET  # without a call to the storage: Spark asks many times in a second
        book = self.book
        book.staging.check_owner(book.owner)
        self._judge(start)
        if book.has_plan(start + 1) or (book.has_abandoned(start + 1) and self._skipped < SKIPPED_MAX):
            return Next.THERE
        if self._once and (self._empty_rounds >= EMPTY_ROUNDS_MAX or self._skipped >= SKIPPED_MAX):
            return Next.NONE
        self._nothing_after = start
        if self.wait_s > 0:
            return Next.NOT_YET
        self._resolve()
        self._first = self._view.first(self._options.patience_s)
        self._look_at = time.monotonic() + self._options.idle_poll_s
        if book.has_abandoned(start + 1):
            return Next.THERE
        return Next.NONE if self._first is None or self._is_later(self._first) else Next.THERE

    def postpone(self) -> None:
        """Look again at once: the batch that was found is left out for now."""
        self._look_at = float("-inf")

    @property
    def wait_s(self) -> float:
        """Seconds until the next look is due."""
        return max(self._look_at - time.monotonic(), 0.0)

    def _judge(self, batch: int) -> None:
        """Note what `batch` brought, which is committed."""
        if batch == self._judged:
            return
        is_of_another_process, self._judged = self._judged < 0, batch
        book = self.book
        book.refresh()
        has_run, received = book.has_sealed(batch), book.received(batch)
        has_taken = book.commit(batch)
        if received or has_taken or is_of_another_process or (has_run and self._first is None):
            self._empty_rounds, self._skipped, self._look_at = 0, 0, float("-inf")
        elif has_run:
            self._empty_rounds += 1
        else:
            self._skipped += 1
            if self._skipped < SKIPPED_MAX:
                self._look_at = float("-inf")

    def _may_look(self) -> bool:
        """Wait for the next look. A look is a billed operation, and Spark asks many times in a second."""
        wait_s = self.wait_s
        time.sleep(wait_s if self._once else min(wait_s, SLICE_S))
        return wait_s <= SLICE_S or self._once

    def _is_later(self, message: FirstMessage) -> bool:
        return self._last_number is not None and message.sequence_number > self._last_number

    def announce(self, batch: int) -> None:
        """Plan a batch before Spark gets its offset: so the location knows every batch that a checkpoint can name, also
        those that Spark skips without asking for their tasks."""
        if self._plan(batch).is_new:
            self._announced = batch

    def plan(self, batch: int) -> BatchPlan:
        """Return the plan of a batch whose tasks Spark asks for."""
        plan = self._plan(batch)
        is_new = plan.is_new or batch == self._announced
        self._announced = -1
        return replace(plan, is_new=is_new)

    def _plan(self, batch: int) -> BatchPlan:
        """Plan a batch. Spark begins with a batch only after it has committed the one before."""
        self.book.staging.check_owner(self.book.owner)
        self.commit(batch - 1)
        max_messages = self._max_messages
        # One session has one receiver at a time.
        parts = 1 if self._options.session is not None else min(self._parts, max_messages)
        shares = [max_messages // parts + (part < max_messages % parts) for part in range(parts)]
        return self.book.plan(batch, shares)

    def max_bytes(self, parts: int) -> int | None:
        """Return how many bytes each of so many tasks may receive."""
        return None if self._max_bytes is None else max(self._max_bytes // parts, 1)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def commit(self, batch: int) -> None:
        if batch > self.book.committed:
            self._judge(batch)

    # ── messages still in the queue ──

    def _resolve(self) -> None:
        """Check unconfirmed seals after a crash: are messages of them still in the queue?"""
        book = self.book
        now = time.monotonic()
        if not book.unconfirmed or now < self._resolve_at:
            return
        self._resolve_at = now + RESOLVE_EVERY_S
        for number in sorted(book.unconfirmed):
            seal = book.staging.entry(number)
            if seal is None:
                book.unconfirmed.discard(number)
                continue
            if not seal.rows:  # messages of its stage, if there are any, are in an earlier seal
                book.staging.confirm(number)
                continue
            identities = read_identities(book.staging.storage, seal.stage)
            if self._view.gone(identities) == identities:
                book.staging.confirm(number)
        book.refresh()
        if book.unconfirmed:
            logger.info("%d stages have messages that are still in the queue", len(book.unconfirmed))

    def backlog(self) -> dict[str, int | None]:
        """Return the backlog for the progress of a query; reads the queue once a minute, and not while it is empty."""
        waiting: int | None = 0
        if self._first is not None:
            at, waiting = self._backlog
            if time.monotonic() - at >= BACKLOG_EVERY_S:
                waiting = self._count()
                self._backlog = (time.monotonic(), waiting)
        oldest_ms = None if self._first is None else self._first.enqueued_ms
        return {"batch": max(self._judged, 0), "oldestEnqueuedMs": oldest_ms, "waitingAtMost": waiting}

    def _count(self) -> int | None:
        extent = self._view.extent()
        if extent is None:
            return 0
        return None if extent[1] >= PARTITIONED else extent[1] - extent[0] + 1


def staging_of(options: Options) -> Staging:
    if options.staging_location is None:
        raise ConfigError("option stagingLocation is required to read a stream")
    return Staging(options.staging_location, options.storage_credential, options.patience_s)


def _locked_default(options: Options) -> FolderLock | None:
    """Lock a folder that the user has not named: two queries of one entity on this machine would share it."""
    if not options.staging_is_default or options.staging_location is None:
        return None
    folder = Path(options.staging_location)
    given_up_at = time.monotonic() + HANDOVER_S
    try:
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        while True:
            try:
                lock = FolderLock(folder)
                lock.sign()
                break
            except FolderInUse as error:
                if time.monotonic() > given_up_at:
                    raise ConfigError(
                        f"option stagingLocation: another query of {options.read_path} on this machine{error.by} uses"
                        f" {folder}, which is the default for both: give one of them a folder of its own"
                    ) from None
            time.sleep(0.1)
    except OSError as error:
        raise ConfigError(f"option stagingLocation: its default {folder} cannot be used: {error}") from None
    # A source runner has no logging of its own; its standard error is the driver's.
    print(f"pairbus: stagingLocation of {options.read_path} is {folder}", file=sys.stderr, flush=True)
    return lock
