"""The engine of the syphon on Spark: runs its query, and starts it again when it fails, which Spark itself would not
do.

The query has no data that could be lost, so every failure, of the query or of the journal's storage, is answered in the
same way: a pause, a new query. The caller's progress comes from the reports of the tasks. The query's source makes the
rounds (`source`), its tasks have the pumps (`task_pumps`).
"""

from __future__ import annotations

import logging
import math
import os
import re
import tempfile
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pairbus.errors import ConfigError, PairbusError, SparkGone
from pairbus.spark.defaults import is_local_master
from pairbus.spark.driver_side import DriverSide
from pairbus.spark.features import is_gone, register_format, spark_errors
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.journal import Location, TaskReport
from pairbus.spark.syphon_job.looks import check, count_left, find_new
from pairbus.spark.syphon_job.rounds import GrowingPause
from pairbus.spark.syphon_job.source import FORMAT, SyphonSource
from pairbus.syphon import SyphonProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("pairbus.spark")

POLL_S = 1
END_POLL_S = 0.1
# The source waits: for a moment, and in a single drain until there is a next round, or it is certain that there is
# none.
AT_ONCE = "0 seconds"
NEW_QUEUES_S = 60.0  # between two looks for new backlog queues
RESTART_S, RESTART_MAX_S = 1.0, 60.0
FAILURES_MAX = 5  # failures in a row of a single drain, none of which moved a message
RATE_WINDOW_S = 30.0
STOP_S = 15.0
KILL_S = 3.0  # part of it for the query itself


class SparkSyphon:
    """A syphon on Spark, in a thread of its own. Made by `pairbus.spark.syphon` and `pairbus.spark.redrive`."""

    def __init__(
        self,
        spark: SparkSession,
        job: SyphonJob,
        *,
        checkpoint: str | os.PathLike[str] | None,
        primary_name: str | None = None,
    ) -> None:
        """Make a syphon. With `primary_name`, backlog queues that are created later are drained too."""
        self.spark = spark
        self.problems: Counter[str] = Counter()
        "Reasons why messages stayed and queries failed, and how often each was told."
        self.restarts = 0
        self.left: int | None = None
        "Messages that a finished single drain left in the queues, including locked ones; None: not known."
        self._driver = DriverSide(spark)
        self._job = job
        self._checkpoint = checkpoint
        self._primary_name = None if job.once else primary_name
        self._adopted: list[str] = []
        "Queues that the present query does not know."
        self._is_prepared = False
        "True when the location of the journal was written once."
        self._moved = self._dead_lettered = self._errors = 0
        self._blocked: dict[int, int] = {}
        "Blocked messages of the last round, by its tick."
        self._samples: deque[tuple[float, int]] = deque()
        self._stopping = threading.Event()
        self._stop_at = float("inf")
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="spark syphon", daemon=True)

    def __repr__(self) -> str:
        now = self.progress()
        return f"<SparkSyphon {now.queues} queues moved={now.moved} restarts={self.restarts}>"

    def start(self) -> SparkSyphon:
        """Begin. ConfigError for errors that waiting does not heal, before any message is touched."""
        spark, driver = self.spark, self._driver
        if spark.conf.get("spark.speculation", "false") == "true":
            raise ConfigError(
                "spark.speculation must be false: a task that runs twice at once would move messages twice"
            )
        if not self._job.queues:
            raise ConfigError("there are no queues to drain")
        self._job.to_options()  # finds a setting of a wrong type
        driver.call(_check, self._job, list(self._job.queues))
        quotas = self._job.quotas
        if quotas.tasks is None:
            self._job = replace(self._job, quotas=replace(quotas, tasks=_slots(spark, driver)))
        self._checkpoint = self._checkpoint or _new_checkpoint(spark, driver, self._job.location)
        self._thread.start()
        return self

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether the syphon has ended, by `stop` or as a finished single drain. Raises the error that ended
        it."""
        ended = self._over.wait(timeout_s)
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Start no more rounds, let tasks finish their messages, and end. A query that is late is killed."""
        self._stop_at = time.monotonic() + timeout_s
        self._stopping.set()
        if self._thread.is_alive():
            self._over.wait(timeout_s + KILL_S)

    def adopt(self, queues: Iterable[str]) -> None:
        """Drain these queues, too: the query is restarted with them, after its round."""
        self._adopted = self._adopted + [queue for queue in queues if queue not in self._job.queues]

    def progress(self) -> SyphonProgress:
        return SyphonProgress(
            queues=len(self._job.queues),
            moved=self._moved,
            per_s=self._rate(),
            blocked=sum(self._blocked.values()),
            dead_lettered=self._dead_lettered,
            errors=self._errors,
        )

    # ── the thread ──

    def _run(self) -> None:
        try:
            self._supervise()
            if self._job.once and not self._stopping.is_set():
                self.left = self._driver.call(count_left, self._job, list(self._job.queues))
        except BaseException as error:
            self._failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._over.set()

    def _supervise(self) -> None:
        register_format(self.spark, SyphonSource)
        pause = GrowingPause(RESTART_S, RESTART_MAX_S)
        failures = 0
        while not self._stopping.is_set():
            adopted: dict[str, int | None] = dict.fromkeys(self._adopted)
            self._adopted = []
            self._job = job = replace(self._job, run=uuid.uuid4().hex[:12], queues=self._job.queues | adopted)
            moved_before = self._moved
            try:
                self._prepare(job)
                self._follow(job)
                if not self._adopted:
                    return
            except _answered() as error:
                if is_gone(error):
                    raise SparkGone(f"the Java process of Spark has ended: {line_of(error)}") from None
                if self._moved > moved_before:
                    failures = 0
                    pause.reset()
                failures += 1
                self.restarts += 1
                self._errors += 1
                self.problems[line_of(error)] += 1
                if self._job.once and failures >= FAILURES_MAX:
                    raise PairbusError(f"the query failed {failures} times: {line_of(error)}") from None
                pause_s = pause.next()
                logger.warning("the query failed and is started again in %.0f s: %s", pause_s, line_of(error))
                self._stopping.wait(pause_s)

    def _prepare(self, job: SyphonJob) -> None:
        """Prepare the journal's location. ConfigError when it was never written; later OSError, which may pass."""
        try:
            self._driver.call(job.location.prepare, job.run)
        except OSError as error:
            if self._is_prepared:
                raise
            raise ConfigError(f"the journal location {job.location.root} cannot be written: {error}") from None
        self._is_prepared = True

    def _follow(self, job: SyphonJob) -> None:
        """Follow one query to its end. No query is left running when this fails: nobody would know of it."""
        pause_s = max(POLL_S, math.ceil(self._driver.call(look_s_of, job.location)))
        query = self._start_query(job)
        report_names: set[str] = set()
        try:
            self._attend(job, query, report_names, pause_s)
        except Exception as error:
            if not (self._driver.is_elsewhere and is_gone(error)):  # a server that is gone would be asked for minutes
                try:
                    query.stop()
                finally:
                    self._hear(job, report_names)
            raise
        self._hear(job, report_names)

    def _attend(self, job: SyphonJob, query: StreamingQuery, report_names: set[str], pause_s: int) -> None:
        """Listen to a query until it has ended. A query that is to end is ended here."""
        looks_at = time.monotonic() + NEW_QUEUES_S
        while not query.awaitTermination(pause_s):
            has_ended = self._hear(job, report_names)
            if time.monotonic() >= looks_at:
                self._look_for_queues()
                looks_at = time.monotonic() + NEW_QUEUES_S
            if self._stopping.is_set() or self._adopted or has_ended:
                self._end(job, query)
                return

    def _look_for_queues(self) -> None:
        if self._primary_name is None:
            return
        new = self._driver.call(find_new, self._job, self._primary_name, list(self._job.queues))
        if new:
            logger.warning("new backlog queues: %s", ", ".join(new))
            self.adopt(new)

    def _start_query(self, job: SyphonJob) -> StreamingQuery:
        stream = self.spark.readStream.format(FORMAT).options(**job.to_options()).load()
        # The rows end here: the journal has them all, and the rows that Spark gets lack those that a kill has lost.
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(self._checkpoint))
        # Not AvailableNow for a single drain: Spark 4.0 and 4.1 would end it after one round.
        return writer.trigger(processingTime=AT_ONCE).start()

    def _end(self, job: SyphonJob, query: StreamingQuery) -> None:
        self._driver.call(job.location.ask_to_stop, job.run)
        # A stop has its deadline; a query that is restarted waits for its round.
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < self._stop_at - KILL_S:
            time.sleep(END_POLL_S)
        query.stop()

    def _hear(self, job: SyphonJob, report_names: set[str]) -> bool:
        """Take in the new reports; True when the query has said that it is over."""
        reports, has_ended = self._driver.call(look_at_reports, job.location, job.run, report_names)
        for name, report in reports:
            report_names.add(name)
            self._moved += report.moved
            self._dead_lettered += report.dead_lettered
            self._errors += report.errors
            self.problems.update(report.problems)
            held = self._blocked.get(report.tick, 0) + report.held
            self._blocked = {report.tick: held}
        return has_ended

    def _rate(self) -> float:
        now = time.monotonic()
        while self._samples and now - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()
        then, moved_then = self._samples[0] if self._samples else (now, self._moved)
        self._samples.append((now, self._moved))
        return (self._moved - moved_then) / (now - then) if now > then else 0.0


def _answered() -> tuple[type[Exception], ...]:
    """Return the errors that are answered by a new query: those of Spark, and those of the journal's storage."""
    return (*spark_errors(), OSError)


def _check(job: SyphonJob, queues: list[str]) -> None:
    """Raise ConfigError for errors that waiting does not heal; called where the driver is."""
    for secret in (job.primary, job.secondary):
        secret.endpoint()
        secret.token_credential()
    check(job, queues)


def _new_checkpoint(spark: SparkSession, driver: DriverSide, location: Location) -> str:
    """Return where Spark notes its ticks. The checkpoint has no other content: losing it is harmless."""
    if location.folder is not None:
        return str(location.folder / "checkpoint")
    if driver.is_elsewhere or not is_local_master(spark.conf.get("spark.master", None)):
        raise ConfigError(
            f"checkpoint: with a journal in {location.root} a cluster, or a Spark Connect server, needs a checkpoint of"
            " its own, where its Spark can write"
        )
    return tempfile.mkdtemp(prefix="pairbus-checkpoint-")


def _cores() -> int:
    """Return the cores of this host; called where the driver is."""
    return os.cpu_count() or 1


def _slots(spark: SparkSession, driver: DriverSide) -> int | None:
    """Return how many tasks run at once, if Spark says it; None: the rounds will show it."""
    conf = spark.conf
    master = conf.get("spark.master", None)
    if master is not None and is_local_master(master):
        match = re.match(r"local(?:\[(\d+|\*))?", master)
        slots = match[1] if match is not None else None
        return driver.call(_cores) if slots == "*" else int(slots or 1)
    executors, cores = conf.get("spark.executor.instances", None), conf.get("spark.executor.cores", None)
    if executors and cores:
        return int(executors) * int(cores) // int(conf.get("spark.task.cpus", None) or 1) or None
    most = conf.get("spark.cores.max", None)
    return int(most) if most else None


def look_at_reports(location: Location, run: str, report_names: set[str]) -> tuple[list[tuple[str, TaskReport]], bool]:
    """Return the new reports, and whether a single drain is over; called where the driver is."""
    look = location.look(run)
    return list(look.read_reports(without=report_names)), look.has_ended


def look_s_of(location: Location) -> float:
    """Return the pause between two looks at the storage; called where the driver is, which has its package."""
    return location.storage.look_s


def line_of(error: BaseException) -> str:
    """Return the line of an error that tells the cause: Spark wraps it in tracebacks of three processes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error: " in line or "Refused: " in line or "Lost: " in line]
    return (telling or lines or [type(error).__name__])[-1 if telling else 0][:300]
