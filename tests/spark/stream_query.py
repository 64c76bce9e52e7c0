"""A query that reads a queue into Parquet, for a test that kills it.

python -m tests.spark.stream_query QUEUE FOLDER      prints the process id of its JVM, runs until it is killed
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.spark import local_session
from tests.spark.conftest import BROKER_PLACE, TEST_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def start(spark: SparkSession, queue: str, folder: Path, *, once: bool) -> StreamingQuery:
    rows = (
        spark.readStream.format("servicebus")
        .option("connectionString", BROKER_PLACE)
        .option("stagingLocation", str(folder / "staging"))
        .option("maxMessagesPerBatch", "40")
        .option("idlePollSeconds", "1")
        .load(queue)
    )
    out = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    trigger = out.trigger(availableNow=True) if once else out.trigger(processingTime="0 seconds")
    return trigger.start(str(folder / "out"))


def main() -> None:
    queue, folder = sys.argv[1:]
    spark = local_session("killed", "local[2,4]", **TEST_CONF)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    print(gateway.proc.pid, flush=True)
    start(spark, queue, Path(folder), once=False).awaitTermination()


if __name__ == "__main__":
    main()
