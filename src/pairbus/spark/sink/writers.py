"""The sink, of batches and of streams: rows → messages, at least once.

A task encodes and checks all of its rows, asks every entity for its limits, and only then sends. When it fails midway,
Spark repeats it, with the same message ids where the rows are the same: an entity that detects duplicates keeps one of
each. A Spark that may run a slow task twice at once is refused. `abort` undoes nothing: messages that the service has
accepted are on their way to receivers.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pairbus.errors import ConfigError
from pairbus.spark.connections import run
from pairbus.spark.features import StreamArrowWriter
from pairbus.spark.options import Options
from pairbus.spark.perseverance import persevere
from pairbus.spark.sink.outbox import Outbox, Parcel
from pairbus.transport import Carrier

PARCELS_IN_FLIGHT = 16  # × 1 MiB


@dataclass
class SentCounts(WriterCommitMessage):
    """Counts of the messages that a task has sent."""

    messages: int
    partition: int


class BatchSink(DataSourceArrowWriter):
    """Spark makes this sink for each `save`, on the driver; `write` runs in the tasks, on pickled copies."""

    def __init__(self, options: Options, job: str | None = None) -> None:
        self._options = options
        self._job = job or uuid.uuid4().hex
        "Id of this save, part of the ids of all its messages; another save of the same rows is another job."

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentCounts:
        partition = _context().partitionId()
        return send_rows(iterator, self._options, partition, f"{self._job}-{partition}-")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class StreamSink(StreamArrowWriter):
    """Spark makes this sink for every micro-batch; message ids are made of query and batch, which the task knows."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentCounts:
        context = _context()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        # Without these every attempt would send under other ids, and a repeated micro-batch would be sent twice.
        assert query and batch, f"Spark tells neither query nor batch of this task: {query}, {batch}"
        partition = context.partitionId()
        return send_rows(iterator, self._options, partition, f"{query}-{batch}-{partition}-")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


def _context() -> TaskContext:
    """Return the context of this task. ConfigError when Spark may run the task twice at once: before anything is sent.

    Spark hands the settings of a session to its tasks as local properties.
    """
    context = TaskContext.get()
    assert context is not None, "`write` runs in a task"
    if (context.getLocalProperty("spark.speculation") or "").lower() == "true":
        raise ConfigError(
            "spark.speculation must be false: a task that runs twice at once would send its messages twice"
        )
    return context


def send_rows(rows: Iterator[pa.RecordBatch], options: Options, partition: int, id_prefix: str) -> SentCounts:
    """Check all rows, then send them; returns when the service has accepted all messages."""

    def limits(entities: list[str]) -> dict[str, int]:
        return run(message_sizes(options, entities, options.patience_s))

    with Outbox(options.entity, limits, place=f"partition {partition}, ", id_prefix=id_prefix) as outbox:
        for batch in rows:
            outbox.add(batch)
        outbox.seal()
        if outbox.count:
            run(_send(outbox, options))
        return SentCounts(outbox.count, partition)


async def message_sizes(options: Options, entities: list[str], patience_s: float) -> dict[str, int]:
    """Return the largest message of each entity. An entity that is missing or forbidden is an error that names it."""
    async with options.borrowed() as carrier:
        sizes = {}
        for entity in entities:
            sender = await persevere(partial(carrier.sender, entity), options, entity, patience_s)
            sizes[entity] = sender.max_message_size
        return sizes


async def _send(outbox: Outbox, options: Options) -> None:
    window = asyncio.Semaphore(PARCELS_IN_FLIGHT)
    under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
    async with options.borrowed() as carrier:
        try:
            async with asyncio.TaskGroup() as group:
                for parcel in outbox.parcels():
                    key = None if parcel.session_id is None else (parcel.entity, parcel.session_id)
                    before = None if key is None else under_way.get(key)
                    if before is not None:
                        await before  # a parcel that is sent again must not be overtaken by the next one of its session
                    await window.acquire()
                    task = group.create_task(_deliver(carrier, parcel, options, window))
                    if key is not None:
                        under_way[key] = task
                        task.add_done_callback(partial(_forget, under_way, key))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None


def _forget(under_way: dict[tuple[str, str], asyncio.Task[None]], key: tuple[str, str], task: object) -> None:
    if under_way.get(key) is task:
        del under_way[key]


async def _deliver(carrier: Carrier, parcel: Parcel, options: Options, window: asyncio.Semaphore) -> None:
    async def once() -> None:
        sender = await carrier.sender(parcel.entity)
        await sender.send(parcel.payload, message_format=parcel.message_format, timeout_s=options.timeout_s)

    try:
        await persevere(once, options, parcel.entity, options.patience_s)
    finally:
        window.release()
