"""Random kills under a stream, on a folder and on Azure Blob: every message enters Spark exactly once."""

from __future__ import annotations

import os
import threading
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.campaign import campaign
from tests.spark.campaign_world import committed_files
from tests.spark.processes import java_of, kill_source_runners, kill_workers
from tests.spark.queues import bodies_in, put, text_message
from tests.spark.stream_query import start
from tests.spark.test_stream_spark import bodies_of
from tests.storage.azurites import MISSING, WHY_MISSING, Azurite, Door

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROUNDS = int(os.environ.get("PAIRBUS_CAMPAIGN_ROUNDS", "20"))
MESSAGES = int(os.environ.get("PAIRBUS_CAMPAIGN_MESSAGES", "20000"))
SEED = int(os.environ.get("PAIRBUS_CAMPAIGN_SEED", "1"))
RUN_S = 240


@pytest.mark.deep
@pytest.mark.parametrize("storage", ["folder", pytest.param("blob", marks=pytest.mark.node)])
def test_each_message_comes_once_in_every_round_of_kills(storage: str, tmp_path: Path) -> None:
    """Driver with Java, worker, source process and storage server take turns; then something else is killed too. In the
    middle of it the staging location is moved, the list of entities grows, the checkpoint is deleted."""
    if storage == "blob" and MISSING:
        pytest.skip(WHY_MISSING)
    result = campaign(storage, ROUNDS, MESSAGES, SEED, folder=tmp_path)
    assert result.is_exact and result.rounds == ROUNDS, f"seed {SEED}: {result}"


@pytest.mark.deep
@pytest.mark.node
def test_each_message_comes_once_on_blob_when_processes_and_storage_die(
    spark: SparkSession, broker: BrokerProcess, make_queue: MakeQueue, azurite: Azurite, tmp_path: Path
) -> None:
    """A worker, the source process and the storage, each in the middle of the work; tasks are not tried twice here, so
    the query fails, and another one goes on."""
    queue_name = make_queue(lock_duration=timedelta(seconds=5))  # what a dead task had locked must come again soon
    secret = tmp_path / "storage.txt"
    secret.write_text(azurite.connection_string)
    container = azurite.new_container(f"t-{uuid.uuid4().hex[:12]}")
    sent = [b"%05d" % number for number in range(1500)]
    put(broker, queue_name, [text_message(body.decode()) for body in sent])
    with Door(azurite.port) as door:
        options = {
            "stagingLocation": container.replace(f":{azurite.port}/", f":{door.port}/") + "/staging",
            "storageCredential": f"@{secret}",
            "maxMessagesPerBatch": "300",
        }

        def away() -> None:
            door.shut()
            threading.Timer(0.5, door.open).start()

        java = java_of(spark)
        for number, kill in enumerate((lambda: kill_workers(java), lambda: kill_source_runners(java), away)):
            query = start(spark, queue_name, tmp_path, once=False, **options)
            deadline = time.monotonic() + RUN_S
            while len(committed_files(tmp_path / "out")) <= number:
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            kill()
            query.stop()
        assert start(spark, queue_name, tmp_path, once=True, **options).awaitTermination(RUN_S)
    assert bodies_of(spark, tmp_path) == sent
    assert bodies_in(broker, queue_name) == []
