"""One task of the Spark syphon: pumps of the syphon on one or more queues, for a few seconds, with a journal.

A pump waits most of its time, for a send to be committed and for the journal's disk. So a task has as many of them as
there are queues for each task that can run at once.

Receive under lock, send home, journal, complete: all of it happens before the first row is given to Spark, so that no
lock ever waits for what Spark does next. A lost lock, a primary or a queue that cannot be reached end the task; what it
held stays locked and comes again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from pairbus.ledger import Ledger
from pairbus.ledger.rows import MeterKind
from pairbus.pairing.at_home import AtHome, sequence_number_of
from pairbus.pairing.events import DeadLettered, DestinationSkipped, Event, Stayed
from pairbus.pairing.pace import Budget
from pairbus.pairing.reader import Reader
from pairbus.pairing.redriving import Redriving
from pairbus.pairing.relay import Item, SyphonSettings, Tide
from pairbus.spark.connections import Borrowed, Secret
from pairbus.spark.journal import (
    DEAD_LETTERED,
    MOVED,
    Journal,
    Location,
    Report,
    Row,
    encode_rows,
)
from pairbus.spark.missing import SharedDestinations
from pairbus.syphon.loads import AHEAD
from pairbus.syphon.presence import Presence
from pairbus.syphon.pump import Pump
from pairbus.syphon.shared import Opener, Shared
from pairbus.transport import Carrier, Received, TransportError

PROBLEMS_MAX = 10
FLUSH_S = 1.0
LOCK_MIN_S = 5.0  # of a queue at Service Bus


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a query have in common. Pickled: it holds no secret, only where they stand."""

    primary: Secret
    secondary: Secret
    location: Location
    run: str
    settings: SyphonSettings
    ca_file: str | None = None
    ledger: str | None = None
    "Folder of a ledger for every operation."
    redriving: Redriving | None = None
    "The queues are those whose dead letters go where this says; None: they are backlog queues."

    @property
    def sub_queue(self) -> Literal["dead-letter"] | None:
        return None if self.redriving is None else "dead-letter"

    def new_opener(self) -> Opener:
        return Reader().unwrap if self.redriving is None else self.redriving.opener(_wall_ms)


@dataclass(frozen=True, slots=True)
class Lane:
    """What one pump is to do."""

    tick: int
    queue: str
    number: int
    "Of several that share a queue."
    queue_created_ms: int | None
    max_messages: int
    max_s: float
    wait_s: float
    "For the first message, and for the next one."
    per_s: float | None = None
    "Its share of the budget."


async def drain(job: Job, lanes: Sequence[Lane], attempt: str) -> list[Row]:
    """Bring home what there is, within the quotas of the lanes. OSError when the journal cannot be written, before
    anything is received; ConfigError when a secret or the location is missing on this host."""
    await asyncio.to_thread(job.location.check_shared, job.run)
    async with Borrowed(job.primary, job.ca_file) as home, Borrowed(job.secondary, job.ca_file) as away:
        journal = Journal(job.location.new_record(attempt, time.time()))
        try:
            drainings = [_Draining(job, lane, attempt, home, away, journal) for lane in lanes]
            async with asyncio.TaskGroup() as running:
                for draining in drainings:
                    running.create_task(draining.run())
        finally:
            await journal.close()
    if job.ledger is not None:
        await asyncio.to_thread(_ledger(job.ledger).flush, FLUSH_S)  # Spark ends its workers without a word
    for index, draining in enumerate(drainings):
        await asyncio.to_thread(draining.report().write, job.location, job.run, f"{attempt}-{index}")
    return [row for draining in drainings for row in draining.rows]


class _Share(Budget):
    """A pump's part of the budget. It begins empty: many short tasks must not each begin with a burst."""

    def __init__(self, per_s: float | None) -> None:
        super().__init__(per_s)
        self.was_busy = False
        self._tokens = 0.0

    def busy(self, now: float, asked_at: float = float("inf")) -> None:
        self.was_busy = True
        super().busy(now, asked_at)


class _Draining:
    """One lane."""

    def __init__(self, job: Job, lane: Lane, attempt: str, home: Carrier, away: Carrier, journal: Journal) -> None:
        self.rows: list[Row] = []
        self._job = job
        self._lane = lane
        self._attempt = attempt
        self._moved = 0
        self._errors = 0
        self._problems: Counter[str] = Counter()
        self._stopping = asyncio.Event()
        self._asked_to_stop = False
        self._names = {"primary": home.endpoint.authority, "secondary": away.endpoint.authority}
        self._ledger = None if job.ledger is None else _ledger(job.ledger)
        self._journal = journal
        self._share = _Share(lane.per_s)
        shared = Shared(
            home,
            away,
            replace(job.settings, batch_max=_batch_max(job.settings.batch_max, lane.per_s)),
            self._heard,
            self._meter,
            time.monotonic,
            _wall_ms,
            job.new_opener,
            dead_letters=job.redriving is None,
            destinations=_destinations(job, home),
            budget=self._share,
            tide=Tide([lane.queue]),
            presence=Presence(job.settings.retry_interval_s),
            at_home=_at_home.setdefault(away.endpoint.authority, AtHome()),
            may_follow=False,  # a task is shorter than a lock; order is kept within a round
            marks=False,  # the shared folder remembers what is missing
            trusts=True,
            before_complete=self._note,
        )
        self._pump = Pump(shared, lane.queue, self._stopping, job.sub_queue)

    async def run(self) -> None:
        timer = asyncio.get_running_loop().call_later(self._lane.max_s, self._stopping.set)
        watch = asyncio.create_task(self._watch())
        try:
            await self._pump.run_once(self._lane.wait_s, later=True)
        except TransportError as error:
            self._errors += 1
            self._problems[f"{self._lane.queue}: {error}"] += 1
        finally:
            timer.cancel()
            watch.cancel()

    def report(self) -> Report:
        return Report(
            tick=self._lane.tick,
            queue=self._lane.queue,
            moved=self._moved,
            dead_lettered=self._pump.dead_lettered,
            held=self._pump.blocked,
            errors=self._errors + self._pump.errors,
            busy=self._share.was_busy,
            more=self._stopping.is_set() and not self._asked_to_stop,
            problems=tuple(problem for problem, _ in self._problems.most_common(PROBLEMS_MAX)),
        )

    async def _watch(self) -> None:
        """A stop on its way from the driver: a task that Spark ends itself is killed in the middle of its work."""
        while True:
            await asyncio.sleep(self._job.location.storage.look_s)
            if await asyncio.to_thread(self._job.location.is_asked_to_stop, self._job.run):
                self._asked_to_stop = True
                self._stopping.set()
                return

    async def _note(self, path: str, messages: list[tuple[Item, Received]]) -> None:
        lane, now_ms = self._lane, _wall_ms()
        rows = [
            Row(
                MOVED,
                lane.queue,
                lane.queue_created_ms,
                sequence_number_of(received.payload),
                home.message_id,
                path,
                len(payload),
                home.enqueued_ms,
                home.first_attempt_ms,
                now_ms,
                self._attempt,
                None,
            )
            for (_, home, payload), received in messages
        ]
        await self._journal.append(encode_rows(rows))
        self.rows += rows
        self._moved += len(rows)
        if self._moved >= lane.max_messages:
            self._stopping.set()

    def _heard(self, event: Event) -> None:
        if self._ledger is not None:
            self._ledger.record(event, time.time())
        if isinstance(event, DestinationSkipped):
            self._problems[f"{event.path}: {event.reason}"] += 1
        elif isinstance(event, Stayed):
            self._problems[str(event)] += 1
        elif isinstance(event, DeadLettered):
            self._problems[str(event)] += 1
            self._note_dead_letter(event)

    def _note_dead_letter(self, event: DeadLettered) -> None:
        """The dead-letter queue has it, with the reason: a row that a crash loses here is not the only trace."""
        lane = self._lane
        row = Row(
            DEAD_LETTERED,
            lane.queue,
            lane.queue_created_ms,
            None,
            event.message_id,
            None,
            None,
            None,
            None,
            _wall_ms(),
            self._attempt,
            f"{event.reason}: {event.description}",
        )
        self.rows.append(row)
        self._journal.append_soon(encode_rows([row]))

    def _meter(
        self, side: Literal["primary", "secondary"], entity: str, kind: str, count: int, size_bytes: int, outcome: str
    ) -> None:
        if self._ledger is not None:
            known = cast(MeterKind, kind)
            self._ledger.meter(side, self._names[side], entity, known, size_bytes, count, outcome, cause="syphon")


def _batch_max(most: int, per_s: float | None) -> int:
    """All batches that a pump has in hand must go within half of the shortest lock: a task has not the time to learn
    how long it is, and one that begins with too many would hold them all back, and so would the next."""
    return most if per_s is None else max(1, min(most, int(per_s * LOCK_MIN_S / 2 / (AHEAD + 2))))


# ── what a worker keeps from one task to the next ──

_all_destinations: dict[tuple[str, str, float], SharedDestinations] = {}
_ledgers: dict[str, Ledger] = {}
_at_home: dict[str, AtHome] = {}
"Host of a secondary → messages that this worker brought home and could not complete."


def _destinations(job: Job, home: Carrier) -> SharedDestinations:
    grace_s = job.settings.missing_destination_grace_s
    key = (home.endpoint.authority, str(job.location.root), grace_s)
    known = _all_destinations.get(key)
    if known is None:
        known = _all_destinations[key] = SharedDestinations(grace_s, job.location.storage, time.time)
    known.look()
    return known


def _ledger(folder: str) -> Ledger:
    if folder not in _ledgers:
        _ledgers[folder] = Ledger(folder, client="syphon")
    return _ledgers[folder]


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
