"""Streams that read all messages that are there and end, on every Spark from 4.0 on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


PAUSE_S = 5.0  # before a run for messages that were seen and not received: another receiver has locked them


def drain(writer: DataStreamWriter) -> int:
    """Run a stream until its source has no more messages, and return the number of runs.

    `writer` is complete but for a trigger: `drain(orders.writeStream.format("parquet").option(…))`. Where Spark asks
    the source whether there is more (4.2 and later), one run with Trigger.AvailableNow reads all of it. In earlier
    versions a run is one batch, and is repeated with the same checkpoint until the source has no batch. Batches that
    stay empty, because other receivers have locked the messages, are repeated for about a minute. Raises the error that
    ended a run.
    """
    from pairbus.spark.features import TELLS_START
    from pairbus.spark.source.stream_driver import EMPTY_ROUNDS_MAX

    runs = empty_runs = 0
    while True:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        runs += 1
        if TELLS_START:
            return runs
        progress = query.recentProgress
        if any(each.numInputRows for each in progress):
            empty_runs = 0
            continue
        empty_runs += 1
        has_batch = any(source.startOffset != source.endOffset for each in progress for source in each.sources)
        if not has_batch or empty_runs == EMPTY_ROUNDS_MAX:
            return runs
        time.sleep(PAUSE_S)
