"""A query that reads a queue into Parquet, and a Spark of its own for it and for a syphon: for tests that kill them.

python -m tests.spark.stream_query QUEUE FOLDER STREAM SYPHON      STREAM, SYPHON: their options as JSON
prints the process id of its Java, and runs until that is killed
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pairbus.spark import local_session, syphon
from tests.spark.conftest import BROKER_PLACE, TEST_CONF
from tests.spark.processes import java_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter


def start(
    spark: SparkSession, queue: str, folder: Path, *, once: bool, connection: str = BROKER_PLACE, **options: str
) -> StreamingQuery:
    """Read the queue or subscription; `options` are those of the source."""
    out = writer(spark, queue, folder, connection, **options)
    return out.trigger(availableNow=True).start() if once else out.trigger(processingTime="0 seconds").start()


def writer(
    spark: SparkSession, queue: str, folder: Path, connection: str = BROKER_PLACE, **options: str
) -> DataStreamWriter:
    """Make all of a query but its trigger."""
    rows = reader(spark, folder, connection, **options).load(queue)
    out = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return out.option("path", str(folder / "out"))


def reader(spark: SparkSession, folder: Path, connection: str = BROKER_PLACE, **options: str) -> DataStreamReader:
    """Make the reader of a stream; `load` names its entities."""
    return (
        spark.readStream.format("servicebus")
        .option("connectionString", connection)
        .option("stagingLocation", str(folder / "staging"))
        .option("maxMessagesPerBatch", "40")
        .option("idlePollSeconds", "1")
        .options(**options)
    )


def main() -> None:
    queue, folder, stream_options, syphon_options = sys.argv[1:]
    spark = local_session("killed", "local[2,4]", **TEST_CONF)
    print(java_of(spark), flush=True)
    syphon(spark, **json.loads(syphon_options))
    start(spark, queue, Path(folder), once=False, **json.loads(stream_options)).awaitTermination()


if __name__ == "__main__":
    main()
