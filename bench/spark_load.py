"""Work that is measured on Spark, each piece in a process of its own; and the plain SDK doing the same in a loop.

Run as `python -m bench.spark_load JSON`, it does one piece of work and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyarrow import parquet

from bench.load import BODY_SIZE
from bench.procstat import cpu_seconds, descendants, peak_rss_bytes
from pairbus.spark import local_session, register, syphon
from pairbus.spark.session import LIGHT_JAVA
from pairbus.spark.syphon_job.rounds import Quotas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
CONF = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": LIGHT_JAVA}  # as `pairbus syphon` starts it
WAIT_S = 5.0
RECEIVED_AT_ONCE = 500


@dataclass(frozen=True)
class SparkWork:
    kind: str
    "drain, stage, peek, sink, plain-receive, plain-send."
    primary: str
    secondary: str = ""
    queues: list[str] = field(default_factory=list)
    count: int = 0
    budget: float | None = None
    "Messages a second of a drain."
    tasks: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    work = SparkWork(**json.loads(sys.argv[1]))
    os.environ |= {"PAIRBUS_PRIMARY": work.primary, "PAIRBUS_SECONDARY": work.secondary}
    with tempfile.TemporaryDirectory(prefix="pairbus-bench-") as folder:
        if work.kind.startswith("plain"):
            told = PLAIN[work.kind](work, Path(folder))
        else:
            spark = local_session("bench", MASTER, **CONF)
            try:
                register(spark)  # Spark looks for formats once in a session, which is no part of a query
                cpu = sum(map(cpu_seconds, descendants(os.getpid())))
                told = ON_SPARK[work.kind](spark, work, Path(folder))
                told["cpu_seconds"] = sum(map(cpu_seconds, descendants(os.getpid()))) - cpu
                told["peak_mb"] = sum(map(peak_rss_bytes, descendants(os.getpid()))) / 1e6
            finally:
                spark.stop()
    print(json.dumps(told))


# ── Spark ──


def drain(spark: SparkSession, work: SparkWork, folder: Path) -> dict[str, float]:
    """Drain the backlog. The time is from the first batch that came home to the last, as for the shovel."""
    began = time.perf_counter()
    job = syphon(
        spark,
        primary="env:PAIRBUS_PRIMARY",
        secondary="env:PAIRBUS_SECONDARY",
        queues=work.queues,
        journal=folder,
        once=True,
        max_messages_per_second=work.budget,
        quotas=Quotas(tasks=work.tasks),
    )
    job.wait()
    seconds = time.perf_counter() - began
    times = sorted(_moved_at_ms(folder))
    if len(times) != work.count or job.left:
        raise RuntimeError(f"{len(times)} of {work.count} messages were moved, {job.left} are left")
    first = times.count(times[0])
    return {"per_second": (len(times) - first) / (times[-1] - times[0]) * 1e3, "seconds": seconds}


def _moved_at_ms(folder: Path) -> Iterator[int]:
    for file in (folder / "journal").rglob("*.jsonl"):
        with file.open("rb") as lines:
            for line in lines:
                yield json.loads(line)["at_ms"]


def stage(spark: SparkSession, work: SparkWork, folder: Path) -> dict[str, float]:
    """Read a stream: messages are received, staged, completed, and written as Parquet."""
    began = time.perf_counter()
    stream = (
        spark.readStream.format("servicebus")
        .option("connectionString", "env:PAIRBUS_PRIMARY")
        .option("stagingLocation", str(folder / "stages"))
        .load(work.queues[0])
    )
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return _rate(work, time.perf_counter() - began, spark.read.parquet(str(folder / "table")).count())


def peek(spark: SparkSession, work: SparkWork, folder: Path) -> dict[str, float]:
    """Read a batch: messages are peeked, and written as Parquet."""
    began = time.perf_counter()
    frame = spark.read.format("servicebus").option("connectionString", "env:PAIRBUS_PRIMARY").load(work.queues[0])
    frame.write.parquet(str(folder / "table"))
    return _rate(work, time.perf_counter() - began, spark.read.parquet(str(folder / "table")).count())


def sink(spark: SparkSession, work: SparkWork, folder: Path) -> dict[str, float]:
    from pyspark.sql import functions as F

    rows = spark.range(work.count, numPartitions=2).select(
        F.concat(F.lit("message-"), F.col("id")).alias("message_id"), F.lit("x" * BODY_SIZE).alias("body")
    )
    began = time.perf_counter()
    target = rows.write.format("servicebus").option("connectionString", "env:PAIRBUS_PRIMARY")
    target.mode("append").save(work.queues[0])
    return _rate(work, time.perf_counter() - began, work.count)


# ── the plain SDK ──


def plain_receive(work: SparkWork, folder: Path) -> dict[str, float]:
    """Receive messages, write them as Parquet, and complete them one by one: the SDK has no other way."""
    schema = pa.schema([("message_id", pa.string()), ("sequence_number", pa.int64()), ("body", pa.binary())])
    began, count = time.perf_counter(), 0
    with (
        ServiceBusClient.from_connection_string(work.primary) as client,
        client.get_queue_receiver(work.queues[0]) as receiver,
        parquet.ParquetWriter(folder / "table.parquet", schema) as table,
    ):
        while count < work.count:
            messages = receiver.receive_messages(RECEIVED_AT_ONCE, max_wait_time=WAIT_S)
            if not messages:
                raise RuntimeError(f"{count} of {work.count} messages came")
            columns = [
                pa.array([message.message_id for message in messages]),
                pa.array([message.sequence_number for message in messages], pa.int64()),
                pa.array([b"".join(message.body) for message in messages], pa.binary()),
            ]
            table.write_batch(pa.record_batch(columns, schema))
            for message in messages:
                receiver.complete_message(message)
            count += len(messages)
    return _rate(work, time.perf_counter() - began, count)


def plain_send(work: SparkWork, folder: Path) -> dict[str, float]:
    """Send batches that are as large as the link takes."""
    began = time.perf_counter()
    with (
        ServiceBusClient.from_connection_string(work.primary) as client,
        client.get_queue_sender(work.queues[0]) as sender,
    ):
        batch = sender.create_message_batch()
        for number in range(work.count):
            message = ServiceBusMessage("x" * BODY_SIZE, message_id=f"message-{number}")
            try:
                batch.add_message(message)
            except ValueError:
                sender.send_messages(batch)
                batch = sender.create_message_batch()
                batch.add_message(message)
        sender.send_messages(batch)
    return _rate(work, time.perf_counter() - began, work.count)


def _rate(work: SparkWork, seconds: float, count: int) -> dict[str, float]:
    if count != work.count:
        raise RuntimeError(f"{count} rows of {work.count} messages")
    return {"per_second": count / seconds, "seconds": seconds}


ON_SPARK: dict[str, Callable[[SparkSession, SparkWork, Path], dict[str, float]]] = {
    "drain": drain,
    "stage": stage,
    "peek": peek,
    "sink": sink,
}
PLAIN = {"plain-receive": plain_receive, "plain-send": plain_send}


if __name__ == "__main__":
    main()
