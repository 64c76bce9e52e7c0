"""Stream reads in a real Spark; `test_kills` has what happens when something of it dies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.brokers import BrokerProcess
from tests.spark.conftest import BROKER_PLACE
from tests.spark.queues import bodies_in, put, text_message
from tests.spark.stream_query import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RUN_S = 240  # a Spark starts in 15 s; the rest is for a machine busy with other things


def bodies_of(spark: SparkSession, folder: Path) -> list[bytes]:
    return sorted(bytes(row.body) for row in spark.read.parquet(str(folder / "out")).select("body").collect())


def numbered(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def test_a_run_reads_what_is_there_into_parquet_and_ends(
    spark: SparkSession, broker: BrokerProcess, queue_name: str, tmp_path: Path
) -> None:
    """Trigger.AvailableNow, in batches of the size that was said; the progress shows what waits."""
    sent = numbered(100)
    put(broker, queue_name, [text_message(body.decode()) for body in sent])
    query = start(spark, queue_name, tmp_path, once=True)
    assert query.awaitTermination(RUN_S)
    assert bodies_of(spark, tmp_path) == sent
    assert bodies_in(broker, queue_name) == []
    rows = [progress.numInputRows for progress in query.recentProgress]
    assert sum(rows) == 100 and max(rows) <= 40
    assert any("waitingAtMost" in (progress.sources[0].latestOffset or "") for progress in query.recentProgress)


def test_an_option_that_is_missing_is_named(spark: SparkSession, queue_name: str, tmp_path: Path) -> None:
    """Spark wraps the error; the words are in it."""
    reader = spark.readStream.format("servicebus").option("connectionString", BROKER_PLACE)
    with pytest.raises(Exception, match="option stagingLocation is required"):
        rows = reader.load(queue_name).writeStream.format("noop")
        rows.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().processAllAvailable()
