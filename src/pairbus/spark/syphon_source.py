"""The Spark syphon as a stream source: a tick for each round, and tasks that do the work before they yield its rows.

Who calls what. `SyphonReader.latestOffset` and `partitions`: the driver's source runner, a process of its own, one for
each query. `read`: workers, in any number of processes on any host, from a pickled copy that knows nothing of what the
driver's copy has seen since. An offset is only a number of rounds: a checkpoint that is lost loses nothing, a round
that Spark repeats moves what is there by then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from pairbus.pairing.redriving import Redriving
from pairbus.pairing.relay import SyphonSettings
from pairbus.spark.connections import Borrowed, Secret, run
from pairbus.spark.features import BatchReader, Offset
from pairbus.spark.journal import Location, Row, read_reports, report_names
from pairbus.spark.lane import Job, Lane, drain
from pairbus.spark.looks import peek
from pairbus.spark.rounds import Quotas, Rounds
from pairbus.transport import Carrier, Refused, TransportError

FORMAT = "pairbus-syphon"
SLEEP_S = 0.25
ROUNDS_KEPT = 100  # whose reports stay readable for whoever shows the progress

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
assert tuple(SCHEMA.names) == Row._fields
DDL = ", ".join(f"{field.name} {'string' if field.type == pa.string() else 'bigint'}" for field in SCHEMA)


def options_of(job: Job, quotas: Quotas, queues: list[tuple[str, int | None]], *, once: bool) -> dict[str, str]:
    """One option, as JSON: what is in it was checked by whoever starts the query."""
    said = {
        "primary": asdict(job.primary),
        "secondary": asdict(job.secondary),
        "location": [str(job.location.root), job.location.credential],
        "run": job.run,
        "settings": {name: getattr(job.settings, name) for name in SyphonSettings.__slots__},
        "ca_file": job.ca_file,
        "ledger": job.ledger,
        "redriving": None if job.redriving is None else asdict(job.redriving),
        "quotas": {name: getattr(quotas, name) for name in Quotas.__slots__},
        "queues": queues,
        "once": once,
    }
    return {"job": json.dumps(said)}


class SyphonSource(DataSource):
    """`format("pairbus-syphon")`. Started by `pairbus.spark.syphon`, which makes its options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: StructType) -> SyphonReader:
        return SyphonReader(json.loads(self.options["job"]))


class LanesPartition(InputPartition):
    def __init__(self, lanes: list[Lane]) -> None:
        super().__init__(lanes[0].tick)
        self.lanes = lanes


class SyphonReader(BatchReader):
    def __init__(self, said: Mapping[str, Any]) -> None:
        self._job = Job(
            Secret(**said["primary"]),
            Secret(**said["secondary"]),
            Location(*said["location"]),
            said["run"],
            SyphonSettings(**said["settings"]),
            said["ca_file"],
            said["ledger"],
            None if said["redriving"] is None else Redriving(**said["redriving"]),
        )
        self._queues: dict[str, int | None] = dict(said["queues"])
        self._once: bool = said["once"]
        self._rounds = Rounds(
            Quotas(**said["quotas"]),
            once=self._once,
            max_messages_per_s=self._job.settings.max_messages_per_second,
        )
        self._waiting: list[str] = list(self._queues)
        "Where something was at the last look."
        self._judged = 0
        "The last round whose reports were read."

    # ── the driver ──

    def initialOffset(self) -> Offset:
        return {"tick": 0}

    def next_offset(self, start: Offset, max_rows: int | None) -> Offset:
        """The next tick when there is something to do and the primary is there; otherwise `start`: Spark waits.

        Of a single drain it returns when there is a next round or none ever.
        """
        tick = start["tick"]
        self._judge(tick)
        while not self._rounds.is_over and not self._job.location.is_asked_to_stop(self._job.run):
            if self._rounds.pause_s(time.monotonic()) > 0:
                if not self._once:
                    break
                time.sleep(SLEEP_S)
                continue
            if self._look():
                return {"tick": tick + 1}
        if self._rounds.is_over:
            self._job.location.end(self._job.run)
        return start

    def tasks(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Once for each round. After a restart Spark repeats an open round without a look: then all queues."""
        if end["tick"] <= start["tick"]:
            return []
        queues = [(queue, self._queues[queue]) for queue in self._waiting]
        return [LanesPartition(lanes) for lanes in self._rounds.tasks(end["tick"], queues, time.monotonic())]

    def commit(self, end: Offset) -> None:
        """Nothing is kept for a repetition."""

    def stop(self) -> None:
        """Connections end with the process."""

    def _judge(self, tick: int) -> None:
        if tick == self._judged:
            return
        self._judged = tick
        location, run = self._job.location, self._job.run
        of_this = [report for _, report in read_reports(location, run, tick=tick)]
        if of_this:  # none: the round was another run's
            self._rounds.ended(of_this, time.monotonic())
        for name in report_names(location, run):
            if int(name.partition("-")[0]) < tick - ROUNDS_KEPT:
                location.forget_report(run, name)

    def _look(self) -> bool:
        """Whether there is something to do. The circuit breaker: no tick, no task, no lock while a side is away."""
        try:
            self._waiting = run(self._find())
        except TransportError as error:
            if self._once:
                raise
            pause_s = self._rounds.unhealthy(time.monotonic())
            logger.warning("no round for %.0f s: %s", pause_s, error)
            return False
        if not self._waiting:
            self._rounds.nothing_there(time.monotonic())
            return False
        self._rounds.something_there(time.monotonic())
        return True

    async def _find(self) -> list[str]:
        """The queues in which there is something. Raises TransportError when either namespace cannot be reached."""
        job, more = self._job, self._rounds.more
        async with Borrowed(job.primary, job.ca_file) as home, Borrowed(job.secondary, job.ca_file) as away:
            await home.connection()
            await away.connection()

            async def holds(queue: str) -> bool:
                return queue in more or await self._peeked(queue, away)

            found = await asyncio.gather(*[holds(queue) for queue in self._queues])
        return [queue for queue, there in zip(self._queues, found, strict=True) if there]

    async def _peeked(self, queue: str, away: Carrier) -> bool:
        try:
            return bool(await peek(self._job, away, queue))
        except Refused as error:
            logger.warning("%s cannot be looked at: %s", queue, error)
            return False

    # ── workers ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """All of the work first, then one batch of rows: nothing is locked while Spark takes its time with them."""
        assert isinstance(partition, LanesPartition)
        context = TaskContext.get()
        where = "0-0" if context is None else f"{context.partitionId()}-{context.attemptNumber()}"
        attempt = f"{self._job.run}-{partition.lanes[0].tick}-{where}-{secrets.token_hex(4)}"
        rows = run(drain(self._job, partition.lanes, attempt))
        if rows:
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
