"""The Spark syphon as a stream source: a tick for each round, and tasks that do the work before they yield its rows.

Callers of the methods. `SyphonReader.latestOffset` and `partitions`: the driver's source runner, a process of its own,
one for each query. `read`: workers, in any number of processes on any host, from a pickled copy without the later state
of the driver's copy. An offset is only a number of rounds: losing a checkpoint is harmless, and a round that Spark
repeats moves the messages that are there by then.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from pairbus.errors import PairbusError
from pairbus.pairing.policy import Kind
from pairbus.spark.connections import Borrowed, run
from pairbus.spark.features import BatchReader, Offset
from pairbus.spark.syphon_job.idle_polls import IdlePolls
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.journal import JournalRow
from pairbus.spark.syphon_job.looks import peek
from pairbus.spark.syphon_job.rounds import Rounds
from pairbus.spark.syphon_job.shares import TaskPlan
from pairbus.spark.syphon_job.task_pumps import drain
from pairbus.transport import Carrier, Refused, TransportError
from pairbus.transport.errors import failure_of

FORMAT = "pairbus-syphon"
SLEEP_S = 0.25
ANSWER_S = 1.0  # after which Spark is told that there is no round: it may want to stop
GATHER_S = 0.1  # after the first arrival, for arrivals in other queues
ROUNDS_KEPT = 100  # rounds whose reports stay readable, for the progress

logger = logging.getLogger("pairbus.spark")

SCHEMA = pa.schema(
    [
        pa.field("outcome", pa.string()),
        pa.field("queue", pa.string()),
        pa.field("queue_created_ms", pa.int64()),
        pa.field("sequence_number", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("destination", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("enqueued_ms", pa.int64()),
        pa.field("first_attempt_ms", pa.int64()),
        pa.field("at_ms", pa.int64()),
        pa.field("attempt", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
assert tuple(SCHEMA.names) == JournalRow._fields
DDL = ", ".join(f"{field.name} {'string' if field.type == pa.string() else 'bigint'}" for field in SCHEMA)


class SyphonSource(DataSource):
    """`format("pairbus-syphon")`. Started by `pairbus.spark.syphon`, which makes its options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: StructType) -> SyphonReader:
        return SyphonReader(SyphonJob.from_options(self.options))


class TaskPartition(InputPartition):
    def __init__(self, plan: TaskPlan) -> None:
        super().__init__(plan.tick)
        self.plan = plan


class _Throttled(Exception):
    """A queue cannot be looked at now, because its namespace asks for a pause."""


class SyphonReader(BatchReader):
    def __init__(self, job: SyphonJob) -> None:
        self._job = job
        self._rounds = Rounds(job.quotas, once=job.once, max_messages_per_s=job.settings.max_messages_per_second)
        self._waiting: list[str] = list(job.queues)
        "Queues that had messages at the last look."
        self._judged = 0
        "Last round whose reports were read."
        self._idle_polls: IdlePolls | None = None
        self._stop_seen = False
        self._stop_look_at = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without links: workers get none."""
        return {**self.__dict__, "_idle_polls": None}

    # ── the driver ──

    def initialOffset(self) -> Offset:
        return {"tick": 0}

    def next_offset(self, start: Offset, max_rows: int | None) -> Offset:
        """Return the next tick when there are messages to move and the primary is reachable; otherwise `start`: Spark
        waits.

        In a single drain it waits until there is a next round, or it is certain that there is none.
        """
        tick = start["tick"]
        self._judge(tick)
        is_next = self._look_until_over() if self._job.once else self._await_arrival()
        return {"tick": tick + 1} if is_next else start

    def _look_until_over(self) -> bool:
        """Return whether a single drain has another round."""
        while not self._rounds.is_over and not self._is_asked_to_stop():
            if self._rounds.pause_s(time.monotonic()) > 0:
                time.sleep(SLEEP_S)
            elif self._look():
                return True
        if self._rounds.is_over:
            self._job.location.end(self._job.run)
        return False

    def _await_arrival(self) -> bool:
        """Return whether there is a round now; waits a moment for it."""
        if self._idle_polls is None:
            self._idle_polls = IdlePolls(self._job)
        rounds, idle_polls = self._rounds, self._idle_polls
        deadline = time.monotonic() + ANSWER_S
        idle_polls.keep(self._job.queues.keys() - rounds.more)
        while not self._is_asked_to_stop():
            left_s = max(deadline - time.monotonic(), 0.0)
            if (pause_s := rounds.pause_s(time.monotonic())) > 0:
                time.sleep(min(pause_s, left_s))
            elif rounds.more or idle_polls.arrived(left_s):
                if not rounds.more:
                    time.sleep(GATHER_S)
                arrivals = rounds.more | idle_polls.arrived(0.0)
                if self._begin(arrivals):
                    idle_polls.forget(arrivals)
                    return True
            if not left_s:
                break
        return False

    def _begin(self, arrivals: AbstractSet[str]) -> bool:
        """Return whether a round over these queues may begin. Circuit breaker: no tick while home is unreachable."""
        try:
            run(self._reach_primary())
        except TransportError as error:
            self._warn(error)
            return False
        self._waiting = [queue for queue in self._job.queues if queue in arrivals]
        self._rounds.something_there(time.monotonic())
        return True

    def _is_asked_to_stop(self) -> bool:
        """Return whether the driver asks for a stop. Reads the storage rarely: an idle syphon asks for ever."""
        location, now = self._job.location, time.monotonic()
        if not self._stop_seen and now >= self._stop_look_at:
            self._stop_look_at = now + location.storage.look_s
            self._stop_seen = location.is_asked_to_stop(self._job.run)
        return self._stop_seen

    def tasks(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the tasks, once for each round. A round that Spark repeats after a restart gets all queues."""
        if end["tick"] <= start["tick"]:
            return []
        queues = [(queue, self._job.queues[queue]) for queue in self._waiting]
        return [TaskPartition(plan) for plan in self._rounds.tasks(end["tick"], queues, time.monotonic())]

    def commit(self, end: Offset) -> None:
        """Do nothing: no data is kept for a repetition."""

    def stop(self) -> None:
        """End the polls; connections end with the process."""
        if self._idle_polls is not None:
            self._idle_polls.end()

    def _judge(self, tick: int) -> None:
        if tick == self._judged:
            return
        self._judged = tick
        look = self._job.location.look(self._job.run)
        of_this = [report for _, report in look.read_reports(tick=tick)]
        if of_this:  # none: the round was one of another run
            self._rounds.ended(of_this, time.monotonic())
        old = [name for name in look.reports if int(name.partition("-")[0]) < tick - ROUNDS_KEPT]
        for name in (*old, *look.begun(tick).values()):
            self._job.location.forget(self._job.run, name)

    def _look(self) -> bool:
        """Return whether a single drain finds messages to move."""
        try:
            self._waiting = run(self._find())
        except _Throttled:
            self._rounds.throttled(time.monotonic())
            return False
        if not self._waiting:
            self._rounds.nothing_there(time.monotonic())
            return False
        self._rounds.something_there(time.monotonic())
        return True

    def _warn(self, error: TransportError) -> None:
        pause_s = self._rounds.unhealthy(time.monotonic())
        logger.warning("no round for %.0f s: %s", pause_s, error)

    async def _reach_primary(self) -> None:
        async with Borrowed(self._job.primary, self._job.ca_file) as primary:
            await primary.connection()

    async def _find(self) -> list[str]:
        """Return the queues that have messages. Raises TransportError when one of the namespaces cannot be reached.

        PairbusError when no queue is known to have messages, and one of them refuses to say: a single drain that took
        that queue for an empty one would be over.
        """
        job, more = self._job, self._rounds.more
        refused: list[Exception] = []
        async with Borrowed(job.primary, job.ca_file) as primary, Borrowed(job.secondary, job.ca_file) as secondary:
            await primary.connection()
            await secondary.connection()

            async def holds(queue: str) -> bool:
                return queue in more or await self._peeked(queue, secondary, refused)

            answers = await asyncio.gather(*[holds(queue) for queue in self._job.queues])
        if refused and not any(answers):
            raise next((error for error in refused if not isinstance(error, _Throttled)), refused[0])
        return [queue for queue, has_messages in zip(self._job.queues, answers, strict=True) if has_messages]

    async def _peeked(self, queue: str, secondary: Carrier, refused: list[Exception]) -> bool:
        """Return whether the queue has messages. A refusal is added to `refused`, unless there is no such queue."""
        try:
            return bool(await peek(self._job, secondary, queue))
        except Refused as error:
            text = f"{queue} cannot be looked at: {error}"
            logger.warning("%s", text)
            kind = failure_of(error).kind
            if kind is not Kind.NOT_FOUND:
                refused.append(_Throttled(text) if kind is Kind.BUSY else PairbusError(text))
            return False

    # ── workers ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Do all the work, then yield one batch of rows: no message is locked while Spark takes its time with them."""
        assert isinstance(partition, TaskPartition)
        context = TaskContext.get()
        task = "0-0" if context is None else f"{context.partitionId()}-{context.attemptNumber()}"
        attempt = f"{self._job.run}-{partition.plan.tick}-{task}-{secrets.token_hex(4)}"
        rows = run(drain(self._job, partition.plan, attempt))
        if rows:
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
