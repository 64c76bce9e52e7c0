"""Stream reads: each message enters Spark exactly once, although a queue gives a completed message only once.

A task receives under lock into a file of the staging location, seals it, completes the messages, and only then yields
rows; a repeated task yields the rows of the same file. `staging/log.py` has the laws of that folder, `intake.py` the
work of a task, `stream_driver.py` decides when there is a next batch.

Callers of the methods. `read`: tasks, in any process on any host, from a pickled copy without the driver's state. All
other methods: the source runner of the query, a process beside the driver. An offset is the number of a batch, and the
id of the staging location that has it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from pairbus.errors import ConfigError
from pairbus.spark.connections import run
from pairbus.spark.features import BatchReader, Offset
from pairbus.spark.options import Options
from pairbus.spark.source.batch_reader import rows_of
from pairbus.spark.source.entities import LOCATION, ONE_ENTITY
from pairbus.spark.source.intake import TaskShare, take_in
from pairbus.spark.source.stream_driver import StreamDriver, staging_of
from pairbus.spark.staging.log import LogEntry, Owner
from pairbus.spark.staging.stage_file import read_payloads


class SharePartition(InputPartition):
    """A task that receives."""

    def __init__(self, share: TaskShare) -> None:
        super().__init__((share.batch, share.partition))
        self.share = share


class AdoptedPartition(InputPartition):
    """A task that reads messages of an earlier batch: Spark has given it up, or committed it without reading them."""

    def __init__(self, owner: Owner, batch: int, number: int) -> None:
        super().__init__(number)
        self.owner = owner
        self.batch = batch
        self.number = number


class StagedStreamReader(BatchReader):
    """Reader made in several processes for each query; only one takes the staging location, at its first call."""

    def __init__(self, options: Options, column_names: Sequence[str] | None = None) -> None:
        self._options = options
        self._column_names = None if column_names is None else list(column_names)
        self._staging = staging_of(options)
        self._driver: StreamDriver | None = None
        self._once = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    # ── the driver ──

    def on_driver(self, patience_s: float = 0.0, offset: Offset | None = None) -> StreamDriver:
        """Return the driver's part; it is made, with the checks of a start, at the first call.

        `patience_s`: for how long these checks are tried again while the service is away. `offset`: one of the
        checkpoint, which has to belong to the staging location.
        """
        if offset is not None:
            _check_offset(offset)
        if self._driver is None:
            self._driver = StreamDriver(self._options, self._staging, patience_s, offset)
            if self._once:
                self._driver.prepare_for_available_now()
        if offset is not None:
            self._driver.book.check_offset(offset["batch"], offset.get(LOCATION))
        return self._driver

    @property
    def is_on_driver(self) -> bool:
        return self._driver is not None

    def initialOffset(self) -> Offset:
        """Return the offset of a new checkpoint; called twice. Messages that another checkpoint has left behind enter
        with the first batch."""
        return self.offset_of(self.on_driver().book.first_offset())

    def offset_of(self, batch: int) -> Offset:
        """Return the offset after a batch, which names the staging location."""
        return {"batch": batch, LOCATION: self.on_driver().book.identity.id}

    def max_rows(self) -> int:
        return self._options.max_messages_per_batch

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the call. The location is taken later, when the offset of the checkpoint is known."""
        self._once = True
        if self._driver is not None:
            self._driver.prepare_for_available_now()

    def next_offset(self, start: Offset, max_rows: int | None) -> Offset:
        most = self.max_rows() if max_rows is None else min(max_rows, self.max_rows())
        batch = self.on_driver(offset=start).next_batch(start["batch"], most)
        return start if batch == start["batch"] else self.offset_of(batch)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the backlog, shown in the progress of the query as `latestOffset` of this source."""
        return self.on_driver().backlog()

    def tasks(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the tasks; for a batch that a crash has interrupted it is the plan of that time."""
        partitions: list[InputPartition] = []
        driver = self.on_driver(offset=start)
        driver.book.check_id(end.get(LOCATION, start.get(LOCATION)))
        # Spark does not store the first offset: it asks for it anew for the tasks of the very first batch, and whenever
        # it repeats it. That batch has been planned by then, and lies before the new start. Equal offsets are no batch.
        before = end["batch"] - 1 if end["batch"] < start["batch"] else start["batch"]
        for batch in range(before + 1, end["batch"] + 1):
            partitions += self._tasks_of(batch)
        return partitions

    def _tasks_of(self, batch: int) -> list[InputPartition]:
        driver = self.on_driver()
        plan = driver.plan(batch)
        book = driver.book
        book.refresh()
        unsure = tuple(sorted(book.unconfirmed))
        max_bytes = driver.max_bytes(len(plan.shares) or 1)
        adopted: list[InputPartition] = [AdoptedPartition(book.owner, batch, number) for number in plan.adopted]
        return adopted + [
            SharePartition(
                TaskShare(
                    book.owner,
                    batch,
                    part,
                    max_messages,
                    plan.head,
                    unsure,
                    max_bytes,
                    planned_s=time.time(),
                    is_fresh=plan.is_new,
                )
            )
            for part, max_messages in enumerate(plan.shares)
        ]

    def commit(self, end: Offset) -> None:
        """Note a commit, which may come late or never: `latestOffset` and `partitions` learn the same."""
        self.on_driver(offset=end).commit(end["batch"])

    def stop(self) -> None:
        """Do nothing: connections end with the process, and the next query takes the staging location."""
        if self._driver is not None:
            self._driver.close()

    # ── tasks ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Do all the work, then yield the rows: no message is locked while Spark takes its time with the rows."""
        seal: LogEntry | None
        if isinstance(partition, AdoptedPartition):
            self._staging.check_visible(partition.owner)
            batch, seal = partition.batch, self._staging.entry(partition.number)
        elif isinstance(partition, SharePartition):
            self._staging.check_visible(partition.share.owner)
            batch, seal = partition.share.batch, run(self._take_in(partition.share))
        else:
            return  # Spark asks for one empty partition when there are none
        if seal is not None and seal.rows:
            yield from self._rows(seal)
            self._staging.note_read(batch, seal.number)  # not when Spark stops reading before the end

    async def _take_in(self, share: TaskShare) -> LogEntry | None:
        if _is_repetition():
            share = replace(share, is_fresh=False)
        async with self._options.borrowed() as carrier:
            return await take_in(self._options, self._staging, share, carrier)

    def _rows(self, seal: LogEntry) -> Iterator[pa.RecordBatch]:
        options = self._options
        assert options.entity is not None
        try:
            for payloads in read_payloads(self._staging.storage, seal.stage, frozenset(seal.without)):
                yield rows_of(payloads, options, options.entity, self._column_names)
        except FileNotFoundError:
            raise ConfigError(
                f"option stagingLocation: the stage of batch {seal.batch}, which was committed, is not in"
                f" {self._staging.location} any more: the checkpoint is older than what stageRetentionSeconds has kept"
            ) from None


def _is_repetition() -> bool:
    """Tell whether Spark runs this task again after an attempt that failed."""
    task = TaskContext.get()
    return task is not None and task.attemptNumber() > 0


def _check_offset(offset: Offset) -> None:
    if not isinstance(offset.get(ONE_ENTITY), int):
        raise ConfigError(
            "the checkpoint belongs to a stream of several entities, or of mode=peek, and a stream that receives from"
            " one entity counts otherwise: give this query a checkpointLocation of its own"
        )
