"""Run of `pairbus syphon` and `pairbus redrive`, in this process or on Spark: signals, counts, metrics, the ledger."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from azure.core.exceptions import AzureError

from pairbus.cli.pipeline.backlogs import Backlogs, ask_duplicate_window, carrier_of, counts
from pairbus.cli.pipeline.left import NOTHING_LEFT, Left, look
from pairbus.cli.pipeline.syphon_metrics import SyphonMetrics
from pairbus.cli.pipeline.telling import QueueTally, SyphonTelling, many
from pairbus.cli.standard import STOPPING
from pairbus.client.sides import Side
from pairbus.errors import ConfigError, PairbusError, SparkGone
from pairbus.ledger import Ledger
from pairbus.ledger.rows import MeterKind
from pairbus.pairing.events import Event
from pairbus.pairing.rotation import queue_index, queue_path
from pairbus.syphon import Syphon, SyphonProgress, SyphonSettings, redrive
from pairbus.syphon.control import SyphonControl
from pairbus.syphon.decide.redriving import DEAD_LETTERS, entity_of_dead_letters, queue_of_dead_letters
from pairbus.syphon.decide.settings import POLL_S
from pairbus.transport import Carrier
from pairbus.transport.tasks import Tasks

if TYPE_CHECKING:
    from pairbus.cli.pipeline.spark_start import SparkStart
    from pairbus.spark.syphon_job.supervisor import SparkSyphon

LINE_S = 1.0  # between two progress lines on a terminal
LOG_S = 30.0  # between two progress lines elsewhere
FIRST_LINE_S = 1.0  # before the first progress line elsewhere
COUNT_S = 5.0  # between two counts of waiting messages, while some are moved or held back; elsewhere LOG_S
IDLE_COUNT_S = POLL_S  # between two counts while no messages are moved or held back: each count is billed
COUNT_LOOK_S = 1.0  # between two checks whether a count is due
STOP_S = 15.0  # for messages on their way when the command is told to end
SPARK_LAG_S = 20.0  # within which tasks of Spark report the messages that they moved: they last ten seconds
LOOK_S = 10.0  # for a look at the messages that are left
STOPPED_LOOK_S = 1.0  # for that look when the command is told to end
SPARK_LOOK_S = 0.5  # between two looks at a job on Spark
COMPACT_S = 3600.0  # between two compactions of its journal

T = TypeVar("T")


class Pumping:
    """One run of either command."""

    def __init__(
        self,
        primary: Side,
        secondary: Side,
        settings: SyphonSettings,
        ledger: Path | None,
        spark: SparkStart | None = None,
        *,
        verbose: bool = False,
        metrics: str | None = None,
    ) -> None:
        """Prepare a run. `metrics`: PORT or HOST:PORT of the page of metrics. ConfigError when it is neither."""
        self._primary = primary
        self._secondary = secondary
        self._settings = settings
        self._ledger = None if ledger is None or spark is not None else Ledger(ledger, client="syphon")
        self._spark = spark
        self._telling = SyphonTelling(primary.name, secondary.name, verbose=verbose)
        self._tally = QueueTally(0.0 if spark is None else SPARK_LAG_S)
        self._server = None if spark is None else spark.server
        self._backlogs = Backlogs(secondary, self._warn, self._meter_list)
        if self._server is not None:
            self._backlogs = self._server.backlogs(secondary, self._warn)
        self._syphon: Syphon | SparkSyphon | None = None
        "Engine; None until it is made, which takes Spark some seconds."
        self._drained: list[str] = []
        self._stop = asyncio.Event()
        self._metrics = None if metrics is None else SyphonMetrics(metrics, secondary.name, self._look)

    async def syphon(self, primary_name: str, count: int | None, *, once: bool) -> bool:
        """Drain the backlog queues of a primary; True when messages that were asked for had to stay."""
        listed: list[Any] | None = None
        if count is None:
            queues, listed = await self._backlogs.find(primary_name, once=once)
        else:
            queues = dict.fromkeys(queue_path(primary_name, index) for index in range(count))
        self._mind_signals()
        self._telling.line(
            f"{self._secondary.name} -> {self._primary.name}: {many(len(queues), 'backlog queue')} of {primary_name}"
        )

        def make(primary: Carrier, secondary: Carrier) -> Syphon | SparkSyphon:
            if self._spark is not None:
                return self._spark.syphon(queues, once=once, primary_name=primary_name if count is None else None)
            return Syphon(
                primary, secondary, list(queues), settings=self._settings, publish=self._heard, meter=self._meter
            )

        counted = None if listed is None else (primary_name, listed)
        return await self._run(make, list(queues), once=once, counted=counted, primary_name=primary_name)

    async def redrive(
        self, queue: str, to: str | None, *, once: bool, duplicate_window_s: float | None, new_ids: bool
    ) -> bool:
        """Send dead letters again; True when messages that were asked for had to stay."""
        queue, window_s = queue_of_dead_letters(queue), duplicate_window_s
        if window_s is None:
            path = to or entity_of_dead_letters(queue)
            if self._server is not None:
                window_s = await self._server.duplicate_window(self._primary, path, self._warn, new_ids=new_ids)
            else:
                window_s = await ask_duplicate_window(
                    self._primary, path, self._warn, self._meter_primary, new_ids=new_ids
                )
        self._mind_signals()

        def make(primary: Carrier, secondary: Carrier) -> Syphon | SparkSyphon:
            if self._spark is not None:
                return self._spark.redrive(queue, to, once=once, duplicate_window_s=window_s, new_ids=new_ids)
            return redrive(
                secondary,
                queue,
                target=to,
                destination=primary,
                settings=self._settings,
                publish=self._heard,
                meter=self._meter,
                duplicate_window_s=window_s,
                new_ids=new_ids,
            )

        return await self._run(make, [queue + DEAD_LETTERS], once=once, counted=None)

    async def _run(
        self,
        make: Callable[[Carrier, Carrier], Syphon | SparkSyphon],
        drained: list[str],
        *,
        once: bool,
        counted: tuple[str, list[Any]] | None,
        primary_name: str | None = None,
    ) -> bool:
        """Run a syphon to its end. `counted`: name of the primary, and the listed queues; None where counts are not
        available.

        With `primary_name` it is the syphon of a pair, which `pairbus status` can see.
        """
        self._drained = drained
        if counted is not None:
            self._telling.counts = True
            total = counts(counted[1], drained)
            self._telling.counted = self._tally.counted(*total, self._progress(), time.monotonic())
        await self._serve_metrics()
        loop = asyncio.get_running_loop()
        control = None if primary_name is None else self._open_control(loop, primary_name)
        primary, secondary = carrier_of(self._primary), carrier_of(self._secondary)
        work = asyncio.create_task(self._work(partial(make, primary, secondary), once=once))
        stopping = asyncio.create_task(self._stop.wait())
        beside = Tasks()
        beside.start(self._show(), "the lines of progress")
        if counted is not None:
            beside.start(self._count(counted[0], once=once), "counting the messages in the queues")
        failure: PairbusError | None = None
        try:
            await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set() and isinstance(self._syphon, Syphon):
                await self._syphon.stop(STOP_S)
            try:
                await work
            except (ConfigError, SparkGone):
                raise
            except PairbusError as error:  # the summary tells how far it came
                failure = error
            except asyncio.CancelledError:
                if not self._stop.is_set():
                    raise
            left = await self._left(secondary, once=once)
        finally:
            beside.cancel()
            for task in (work, stopping):
                task.cancel()
            await asyncio.gather(work, stopping, beside.ended(), return_exceptions=True)
            await asyncio.gather(primary.close(), secondary.close(), return_exceptions=True)
            if control is not None:
                control.close()
            await self._end_records()
        done = self._progress()
        if failure is not None and not (done.moved or done.dead_lettered or done.blocked):
            raise failure  # "moved 0 messages" would look like success
        stayed = self._telling.summary(self._progress(), left, once=once, stopped=self._stop.is_set())
        if failure is not None:
            raise failure
        return stayed

    async def _work(self, make: Callable[[], Syphon | SparkSyphon], *, once: bool) -> None:
        """Make the syphon, and follow it to its end."""
        self._syphon = syphon = make() if self._spark is None else await self._unless_stopped(make)
        if isinstance(syphon, Syphon):
            await (syphon.run_once() if once else syphon.run())
        elif syphon is not None:
            await self._follow(syphon)

    async def _follow(self, syphon: SparkSyphon) -> None:
        """Report the problems of a job on Spark, make its tables every hour and at its end, and stop it in time."""
        assert self._spark is not None
        compact_at = time.monotonic() + COMPACT_S
        has_ended = False
        try:
            while not has_ended and not self._stop.is_set():
                has_ended = await asyncio.to_thread(syphon.wait, SPARK_LOOK_S)
                self._telling.problems(syphon.problems)
                if has_ended or time.monotonic() >= compact_at:
                    await self._compact(partial(self._spark.compact, syphon.spark))
                    compact_at = time.monotonic() + COMPACT_S
            if not has_ended:
                await asyncio.to_thread(syphon.stop, STOP_S)
                await asyncio.to_thread(syphon.wait, 0.0)
                self._telling.problems(syphon.problems)
        except SparkGone:
            if not self._stop.is_set():  # otherwise Java was told to end, too
                raise

    async def _compact(self, compact: Callable[[], None]) -> None:
        """Make the tables of a job on Spark. A failure is told, and nothing else: messages go home without tables."""
        try:
            await self._unless_stopped(compact)
        except (PairbusError, OSError) as error:
            self._warn(f"the tables were not made; the next run makes them: {error}")

    async def _unless_stopped(self, work: Callable[[], T]) -> T | None:
        """Do the work in a thread that does not keep the process alive: a slow start of Java must not delay its end."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(call: Callable[..., None], result: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(call, result)

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                tell(done.set_exception, error)
                if not isinstance(error, Exception):
                    raise
            else:
                tell(done.set_result, result)

        threading.Thread(target=run, daemon=True).start()
        stop = asyncio.create_task(self._stop.wait())
        try:
            waits: list[asyncio.Future[Any]] = [done, stop]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
        return done.result() if done.done() else None

    def _mind_signals(self) -> None:
        """Let Ctrl-C and SIGTERM stop the run from now on: until here they end the process, and nothing has begun."""
        for number in STOPPING:
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def _serve_metrics(self) -> None:
        """Open the port of the page of metrics, if it is wanted, and print its URL."""
        if self._metrics is not None:
            await self._metrics.port.open()
            self._telling.line(f"metrics: {self._metrics.port.url}")

    async def _end_records(self) -> None:
        if self._metrics is not None:
            await self._metrics.port.close()
        if self._ledger is not None:
            self._ledger.close(2.0)

    def _open_control(self, loop: asyncio.AbstractEventLoop, primary_name: str) -> SyphonControl | None:
        """Open a control socket; a syphon goes on without one."""
        names = {"primary": self._primary.name, "secondary": self._secondary.name, "primary_name": primary_name}
        try:
            return SyphonControl(loop, self._progress, names)
        except ConfigError as error:
            self._warn(f"{error}; `pairbus status` will not show this syphon")
            return None

    # ── messages in the queues ──

    async def _left(self, secondary: Carrier, *, once: bool) -> Left:
        """Look for messages that are left: some may be locked by a process that is gone, or out of the pump's reach."""
        now, stopped = self._progress(), self._stop.is_set()
        if self._spark is not None:  # Spark has looked by itself, if it came to its end
            return Left(now.blocked, is_all=not stopped and self._is_counted)
        if not once and not (now.blocked or now.uncompleted or now.is_away):
            return NOTHING_LEFT

        def meter(path: str, size_bytes: int) -> None:
            self._meter("secondary", path, "peek", 1, size_bytes, "ok")

        left = await look(secondary, self._drained, meter, STOPPED_LOOK_S if stopped else LOOK_S)
        known = now.blocked + now.uncompleted
        return left if left.is_all or left.messages > known else Left(known, is_all=False)

    @property
    def _is_counted(self) -> bool:
        """True when a job on Spark has counted the messages that a single drain left."""
        syphon = self._syphon
        return syphon is not None and not isinstance(syphon, Syphon) and syphon.left is not None

    async def _count(self, primary_name: str, *, once: bool) -> None:
        """Count waiting messages now and then. While no message is moved or held back, counts are rare: an idle syphon
        costs its long polls, and little more."""
        telling, seen, looked_at = self._telling, _doings(self._progress()), time.monotonic()
        while True:
            await asyncio.sleep(COUNT_LOOK_S)
            now, progress = time.monotonic(), self._progress()
            doings = _doings(progress)
            busy_s = COUNT_S if sys.stderr.isatty() else LOG_S
            is_busy = doings != seen or progress.blocked or progress.is_away
            if now - looked_at < (busy_s if is_busy else IDLE_COUNT_S):
                continue
            seen, looked_at = doings, now
            try:
                queues = await asyncio.to_thread(self._backlogs.queues, self._drained)
            except (AzureError, OSError):
                telling.counted = None  # shown as unknown until the next look
                continue
            if not once:
                self._adopt(primary_name, [queue.name for queue in queues])
            telling.counted = self._tally.counted(*counts(queues, self._drained), progress, now)

    def _adopt(self, primary_name: str, queues: list[str]) -> None:
        """Drain backlog queues, too, that were created since the last look."""
        new = [path for path in queues if path not in self._drained and queue_index(primary_name, path) is not None]
        if new and self._syphon is not None:
            self._drained += new
            self._syphon.adopt(new)
            self._telling.line(f"new backlog queues: {', '.join(new)}")

    # ── telling ──

    def _progress(self) -> SyphonProgress:
        syphon = self._syphon
        if syphon is None:
            return SyphonProgress(queues=len(self._drained), moved=0, per_s=0.0, blocked=0, dead_lettered=0, errors=0)
        now = syphon.progress()
        if isinstance(syphon, Syphon) or syphon.left is None:
            return now
        return replace(now, blocked=syphon.left)

    async def _show(self) -> None:
        terminal = sys.stderr.isatty()
        last = ""
        if not terminal:  # a run that fails at once tells its error, and not that it moved 0 messages
            await asyncio.sleep(FIRST_LINE_S)
        while True:
            now = self._progress()
            line = self._telling.progress(now)
            if terminal:
                self._telling.live(line)
            elif line != last and not now.is_away:  # while the primary is away each failed try is reported
                self._telling.line(line)
            last = line
            await asyncio.sleep(LINE_S if terminal else LOG_S)

    def _warn(self, text: str) -> None:
        self._telling.line(text, "WARNING")

    def _look(self) -> tuple[SyphonProgress, int | None]:
        """Return the progress, and how many messages wait; None: not known."""
        now, counted = self._progress(), self._telling.counted
        return now, None if counted is None else counted.waiting(now)

    def _heard(self, event: Event) -> None:
        if self._metrics is not None:
            self._metrics.heard(event)
        if self._ledger is not None:
            self._ledger.record(event, time.time())
        self._telling.heard(event, self._progress)

    def _meter(
        self,
        side: Literal["primary", "secondary"],
        entity: str,
        kind: str,
        count: int,
        size_bytes: int,
        outcome: str,
    ) -> None:
        if self._ledger is not None:
            name = (self._primary if side == "primary" else self._secondary).name.lower()
            known = cast(MeterKind, kind)
            self._ledger.meter(side, name, entity, known, size_bytes, count, outcome, cause="syphon")

    def _meter_primary(self, entity: str, count: int, outcome: str) -> None:
        self._meter("primary", entity, "management", count, 0, outcome)

    def _meter_list(self, entity: str, count: int, outcome: str) -> None:
        self._meter("secondary", entity, "management", count, 0, outcome)


def _doings(now: SyphonProgress) -> tuple[int, int, int]:
    return now.moved, now.dead_lettered, now.errors
