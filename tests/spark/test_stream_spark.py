"""Stream reads in a real Spark: a run to the end, and a query whose JVM is killed in the middle of a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.conftest import BROKER_PLACE
from tests.spark.queues import bodies_in, put, text_message
from tests.spark.stream_query import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RUN_S = 240  # a Spark starts in 15 s; the rest is for a machine busy with other things
BATCHES_BEFORE_KILL = 2


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


@pytest.mark.deep
def test_every_message_is_in_the_table_once_after_the_jvm_was_killed(
    spark: SparkSession, broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """SIGKILL in the middle of a batch; another Spark goes on from the checkpoint."""
    queue = make_queue(lock_duration=timedelta(seconds=5))
    sent = numbered(240)
    put(broker, queue, [text_message(body.decode()) for body in sent])
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.stream_query", queue, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        jvm = int(child.stdout.readline())
        _await_seal_of(tmp_path / "staging", BATCHES_BEFORE_KILL, child)
        os.kill(jvm, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    left = len(bodies_in(broker, queue))
    assert left, "it was killed in the middle"
    query = start(spark, queue, tmp_path, once=True)
    assert query.awaitTermination(RUN_S)
    assert bodies_of(spark, tmp_path) == sent
    assert bodies_in(broker, queue) == []


def _await_seal_of(staging: Path, batch: int, child: subprocess.Popen[str]) -> None:
    """As soon as a task of the batch has sealed, which is before Spark has its rows."""
    deadline = time.monotonic() + RUN_S
    log = staging / "log"
    while not log.exists() or not any(
        f'"batch":{batch},"kind":"seal"' in path.read_text() for path in log.glob("[0-9]*.json")
    ):
        assert child.poll() is None, f"the query has ended with {child.returncode}"
        assert time.monotonic() < deadline, f"no batch {batch} within {RUN_S} s"
        time.sleep(0.005)
