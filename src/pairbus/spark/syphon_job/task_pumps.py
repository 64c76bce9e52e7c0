"""Runs one task of the Spark syphon: its pumps drain one or more queues for a few seconds, with a journal.

A pump waits most of its time, for a send to be committed and for the journal's disk. So a task has several pumps: the
queues, divided by the number of tasks that can run at once.

Receive under lock, send home, journal, complete: all these steps happen before the first row is given to Spark, so that
no lock ever waits for Spark. A lost lock, or a primary or a queue that cannot be reached, ends the task; its messages
stay locked and are received again later.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, cast

from pairbus.ledger import Ledger
from pairbus.ledger.rows import MeterKind
from pairbus.pairing.events import DeadLettered, DestinationSkipped, Event, Stayed
from pairbus.spark.connections import Borrowed
from pairbus.spark.syphon_job.job import SyphonJob, wall_ms
from pairbus.spark.syphon_job.journal import (
    DEAD_LETTERED,
    MOVED,
    Journal,
    JournalRow,
    TaskReport,
    encode_rows,
)
from pairbus.spark.syphon_job.missing import SharedDestinations
from pairbus.spark.syphon_job.shares import BudgetShare, TaskPlan, TaskPump, sharers
from pairbus.syphon.decide.at_home import AtHome, sequence_number_of
from pairbus.syphon.decide.batch import Item, Opened
from pairbus.syphon.presence import Presence
from pairbus.syphon.pump import Pump
from pairbus.syphon.send import Sending
from pairbus.syphon.shared import Batch, SyphonState
from pairbus.transport import Carrier, ReceivedMessage, TransportError

PROBLEMS_MAX = 10
FLUSH_S = 1.0


async def drain(job: SyphonJob, plan: TaskPlan, attempt: str) -> list[JournalRow]:
    """Bring messages home, within the quotas of the plan. OSError when the journal cannot be written, before any
    message is received; ConfigError when a secret or the location is missing on this host."""
    await asyncio.to_thread(job.location.check_shared, job.run)
    async with Borrowed(job.primary, job.ca_file) as primary, Borrowed(job.secondary, job.ca_file) as secondary:
        journal = Journal(job.location.new_record(attempt, time.time()))
        task = _Task(job, plan, attempt, journal)
        try:
            drainings = [_Draining(task, pump, primary, secondary) for pump in plan.pumps]
            await task.run(drainings)
        finally:
            await journal.close()
    if job.ledger is not None:
        await asyncio.to_thread(ledger_of(job.ledger).flush, FLUSH_S)  # Spark ends its workers without notice
    for index, draining in enumerate(drainings):
        await asyncio.to_thread(draining.report().write, job.location, job.run, f"{attempt}-{index}")
    return [row for draining in drainings for row in draining.rows]


class _Task:
    """State that the pumps of a task share: its time, its share of the budget, its journal."""

    def __init__(self, job: SyphonJob, plan: TaskPlan, attempt: str, journal: Journal) -> None:
        self.job = job
        self.plan = plan
        self.attempt = attempt
        self.journal = journal
        self.share = BudgetShare(plan.per_s, plan.tasks, time.monotonic())
        self.stopping = asyncio.Event()
        self.asked_to_stop = False
        self.began_ms = wall_ms()
        self._moved = 0
        self._running: list[_Draining] = []
        self._began = time.monotonic()
        self._ended: dict[str, TaskReport] = {}
        "Reports of other tasks of the round."

    async def run(self, drainings: list[_Draining]) -> None:
        self._running = list(drainings)
        if self._shares:
            await asyncio.to_thread(self.job.location.begin, self.job.run, self.plan.tick, self.plan.number)
            await self._look()
        timer = asyncio.get_running_loop().call_later(self.plan.max_s, self.stopping.set)
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as running:
                for draining in drainings:
                    running.create_task(self._run(draining))
        finally:
            timer.cancel()
            watch.cancel()

    async def _run(self, draining: _Draining) -> None:
        await draining.run()
        self._running.remove(draining)
        for other in self._running:
            other.shared_by(len(self._running))

    def moved(self, count: int) -> None:
        self._moved += count
        if self._moved >= self.plan.max_messages:
            self.stopping.set()

    async def _watch(self) -> None:
        """Look for a stop by the driver, because Spark itself would kill the task in the middle of its work; and for
        other tasks that have ended, whose share of the budget is free."""
        while not self.asked_to_stop:
            await asyncio.sleep(self.job.location.storage.look_s)
            self.asked_to_stop = await self._look()
        self.stopping.set()

    @property
    def _shares(self) -> bool:
        return self.plan.per_s is not None and self.plan.tasks > 1

    async def _look(self) -> bool:
        """Look at the run with as few calls as possible; True when the driver asks for a stop."""
        location, run, plan = self.job.location, self.job.run, self.plan
        if not self._shares:
            return await asyncio.to_thread(location.is_asked_to_stop, run)
        look = await asyncio.to_thread(location.look, run)
        self._ended.update(await asyncio.to_thread(lambda: list(look.read_reports(self._ended, plan.tick))))
        now = time.monotonic()
        running = sharers(plan, look.begun(plan.tick).keys(), self._ended.values(), now - self._began)
        self.share.shared_by(running, now)
        return look.is_asked_to_stop


class _LanesStay:
    """The order of a task, which keeps none: messages of lanes stay, and `met` is called.

    A sender's messages may be in several queues, and those of one queue are moved by task after task: no task knows
    which messages the others hold under their locks.
    """

    def __init__(self, met: Callable[[list[Item]], None]) -> None:
        self._met = met

    def saw(self, queue: str, opened: Opened, batch: Batch) -> list[Item]:
        return opened.lanes

    async def send_in_order(
        self, queue: str, sending: Sending, batch: Batch, items: list[Item], is_over: Callable[[], bool]
    ) -> bool:
        self._met(items)
        sending.settling.stop(batch, "messages of an ordered sender stay: Spark does not keep their order")
        sending.settling.hold(batch, items)
        return False

    def hold(self, batch: Batch, items: list[Item]) -> None:
        """Nothing to note: no later message of a lane is sent."""

    def read_to_end(self, queue: str) -> None:
        """Nothing to note: no other queue waits."""

    def is_awaited(self, queue: str) -> bool:
        return False


class _Draining:
    """One pump of a task, with its rows and its report."""

    def __init__(self, task: _Task, task_pump: TaskPump, primary: Carrier, secondary: Carrier) -> None:
        self.rows: list[JournalRow] = []
        self._task = task
        self._job = job = task.job
        self._task_pump = task_pump
        self._attempt = task.attempt
        self._moved = 0
        self._errors = 0
        self._problems: Counter[str] = Counter()
        self._stopping = asyncio.Event()
        self._names = {"primary": primary.endpoint.authority, "secondary": secondary.endpoint.authority}
        self._ledger = None if job.ledger is None else ledger_of(job.ledger)
        self._shared = SyphonState(
            primary,
            secondary,
            job.settings,
            self._on_event,
            self._meter,
            time.monotonic,
            wall_ms,
            job.new_opener,
            dead_letters=job.redriving is None,
            destinations=_destinations(job, primary),
            budget=task.share,
            presence=Presence(job.settings.retry_interval_s),
            order=_LanesStay(self._met_order),
            at_home=_at_home.setdefault(secondary.endpoint.authority, AtHome()),
            pumps=len(task.plan.pumps),
            may_follow=False,
            marks=False,  # the shared folder remembers missing destinations
            trusts=True,
            before_complete=self._note,
        )
        self._pump = Pump(self._shared, task_pump.queue, self._stopping, job.sub_queue)

    def shared_by(self, pumps: int) -> None:
        """Set how many pumps of the task still share the budget."""
        self._shared.pumps = pumps

    async def run(self) -> None:
        stop_watch = asyncio.create_task(self._stop_with_task())
        try:
            await self._pump.run_once(self._task.plan.wait_s, later=True)
        except TransportError as error:
            self._errors += 1
            self._problems[f"{self._task_pump.queue}: {error}"] += 1
        finally:
            stop_watch.cancel()

    async def _stop_with_task(self) -> None:
        await self._task.stopping.wait()
        self._stopping.set()

    def report(self) -> TaskReport:
        task = self._task
        return TaskReport(
            tick=task.plan.tick,
            queue=self._task_pump.queue,
            moved=self._moved,
            dead_lettered=self._pump.dead_lettered,
            held=self._pump.blocked,
            errors=self._errors + self._pump.errors,
            busy=task.share.was_busy,
            more=task.stopping.is_set() and self._stopping.is_set() and not task.asked_to_stop,
            problems=tuple(problem for problem, _ in self._problems.most_common(PROBLEMS_MAX)),
            task=task.plan.number,
            began_ms=task.began_ms,
            ended_ms=wall_ms(),
        )

    def _met_order(self, items: list[Item]) -> None:
        home = items[0].home
        self._problems[
            f"{self._task_pump.queue} has messages of an ordered sender, for '{home.path}': Spark does not keep their"
            " order, so they stay; `pairbus syphon --engine local` brings them home in order"
        ] += 1
        self._stopping.set()

    async def _note(self, path: str, messages: list[tuple[Item, ReceivedMessage]]) -> None:
        task_pump, now_ms = self._task_pump, wall_ms()
        rows = [
            JournalRow(
                MOVED,
                task_pump.queue,
                task_pump.queue_created_ms,
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
        await self._task.journal.append(encode_rows(rows))
        self.rows += rows
        self._moved += len(rows)
        self._task.moved(len(rows))

    def _on_event(self, event: Event) -> None:
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
        """Note a dead letter. The dead-letter queue has the reason too, in case a crash loses the row."""
        task_pump = self._task_pump
        row = JournalRow(
            DEAD_LETTERED,
            task_pump.queue,
            task_pump.queue_created_ms,
            None,
            event.message_id,
            None,
            None,
            None,
            None,
            wall_ms(),
            self._attempt,
            f"{event.reason}: {event.description}",
        )
        self.rows.append(row)
        self._task.journal.append_soon(encode_rows([row]))

    def _meter(
        self, side: Literal["primary", "secondary"], entity: str, kind: str, count: int, size_bytes: int, outcome: str
    ) -> None:
        if self._ledger is not None:
            meter_kind = cast(MeterKind, kind)
            self._ledger.meter(side, self._names[side], entity, meter_kind, size_bytes, count, outcome, cause="syphon")


# ── kept by a worker from one task to the next ──

_all_destinations: dict[tuple[str, str, float], SharedDestinations] = {}
_ledgers: dict[str, Ledger] = {}
_at_home: dict[str, AtHome] = {}
"Messages that this worker brought home and could not complete, by host of the secondary."


def _destinations(job: SyphonJob, primary: Carrier) -> SharedDestinations:
    grace_s = job.settings.missing_destination_grace_s
    key = (primary.endpoint.authority, str(job.location.root), grace_s)
    destinations = _all_destinations.get(key)
    if destinations is None:
        destinations = _all_destinations[key] = SharedDestinations(grace_s, job.location.storage, time.time)
    destinations.look()
    return destinations


def ledger_of(folder: str) -> Ledger:
    if folder not in _ledgers:
        _ledgers[folder] = Ledger(folder, client="syphon")
    return _ledgers[folder]
