"""Streams that read everything that is there and end, on every Spark from 4.0 on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def drain(writer: DataStreamWriter) -> int:
    """Run a stream until its source has nothing more, and return the number of runs.

    `writer` has everything but a trigger: `drain(orders.writeStream.format("parquet").option(…))`. Where Spark asks
    the source whether there is more (4.2 and later), one run with Trigger.AvailableNow reads all of it. Before, a run
    is one batch, and is repeated with the same checkpoint until a run brings nothing. Raises what ended a run.
    """
    from pairbus.spark.features import TELLS_START

    runs = 0
    while True:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        runs += 1
        if TELLS_START or not any(progress.numInputRows for progress in query.recentProgress):
            return runs
