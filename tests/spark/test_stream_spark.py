"""Stream reads in a real Spark, topics and sessions with them; `test_kills` has what happens when something dies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient
from pyspark.errors import StreamingQueryException

from pairbus.spark import drain, redrive
from pairbus.spark.features import TELLS_START
from pairbus.transport import Carrier
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.conftest import BROKER_PLACE
from tests.spark.queues import bodies_in, dead_letter, messages_in, put, text_message
from tests.spark.stream_query import reader, start, writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RUN_S = 240  # a Spark starts in 15 s; the rest is for a machine busy with other things


def bodies_of(spark: SparkSession, folder: Path) -> list[bytes]:
    return sorted(bytes(row.body) for row in spark.read.parquet(str(folder / "out")).select("body").collect())


def numbered(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def test_a_drain_reads_everything_on_every_spark(
    spark: SparkSession, broker: BrokerProcess, queue_name: str, tmp_path: Path
) -> None:
    """The drain repeats a run of Spark that is one batch; later messages are for the next drain."""
    everything = numbered(150)
    for begin, end in ((0, 100), (100, 150)):
        put(broker, queue_name, [text_message(body.decode()) for body in everything[begin:end]])
        runs = drain(writer(spark, queue_name, tmp_path))
        assert bodies_of(spark, tmp_path) == everything[:end] and bodies_in(broker, queue_name) == []
        assert runs == 1 if TELLS_START else runs >= 2


def test_a_drain_waits_for_locks_of_a_receiver_that_is_gone(
    spark: SparkSession, broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """A batch that stays empty does not end a drain: the messages are there, and can be received in a moment."""
    queue_name = make_queue(lock_duration=timedelta(seconds=5))
    put(broker, queue_name, [text_message(body.decode()) for body in numbered(10)])
    asyncio.run(lock_all(broker, queue_name, 10))
    drain(writer(spark, queue_name, tmp_path))
    assert bodies_of(spark, tmp_path) == numbered(10) and bodies_in(broker, queue_name) == []


async def lock_all(broker: BrokerProcess, queue: str, count: int) -> None:
    """Receive messages and settle none of them."""
    async with Carrier(broker.connection_string()) as carrier:
        receiver = await carrier.receiver(queue, credit=count)
        held = 0
        while held < count:
            held += len(await receiver.receive(count, 5.0))


@pytest.mark.skipif(not TELLS_START, reason="in this Spark a run with Trigger.AvailableNow is one batch")
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


def test_first_batch_comes_again_when_its_sink_has_failed(
    spark: SparkSession, broker: BrokerProcess, queue_name: str, tmp_path: Path
) -> None:
    """The messages have left the queue by then. Spark stores no offset before the first batch, and asks anew."""
    seen: list[list[bytes]] = []

    def sink(frame: DataFrame, _: int) -> None:
        seen.append(sorted(bytes(row.body) for row in frame.select("body").collect()))
        if len(seen) == 1:
            raise OSError("the sink is away")

    put(broker, queue_name, [text_message(body.decode()) for body in numbered(20)])
    for _ in range(2):
        query = reader(spark, tmp_path).load(queue_name).writeStream.foreachBatch(sink)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        with suppress(StreamingQueryException):
            query.trigger(availableNow=True).start().awaitTermination(RUN_S)
    assert seen[:2] == [numbered(20), numbered(20)]
    assert not any(seen[2:]) and bodies_in(broker, queue_name) == []


def test_an_option_that_is_missing_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Spark wraps the error; the words are in it."""
    reader = spark.readStream.format("servicebus").option("connectionString", BROKER_PLACE)
    with pytest.raises(Exception, match="option entity is required"):
        rows = reader.load().writeStream.format("noop")
        rows.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().processAllAvailable()


@pytest.fixture
def topic(admin: ServiceBusAdministrationClient) -> str:
    """A topic with the subscription `sports`."""
    name = f"news/{uuid.uuid4().hex[:10]}"
    admin.create_topic(name)
    admin.create_subscription(name, "sports")
    return name


def test_topics_and_sessions_are_written_and_read_as_streams(
    spark: SparkSession, broker: BrokerProcess, make_queue: MakeQueue, topic: str, tmp_path: Path
) -> None:
    """The sink fills a topic and a session queue; a subscription and the sessions of the queue are streams again."""
    queue = make_queue(requires_session=True)
    rows = spark.range(0, 80, 1, 2).selectExpr(
        "cast(id DIV 2 AS string) AS body",
        "concat('session ', cast(id DIV 2 % 4 AS string)) AS session_id",
        f"if(id % 2 = 0, '{topic}', '{queue}') AS entity",
    )
    rows.write.format("servicebus").option("connectionString", BROKER_PLACE).mode("append").save()
    sent = sorted((f"session {number % 4}", str(number)) for number in range(40))
    for name, path, options in (
        ("subscription", f"{topic}/Subscriptions/sports", {}),
        ("sessions", queue, {"sessions": "true", "partitions": "2"}),
    ):
        query = start(spark, path, tmp_path / name, once=True, **options)
        assert query.awaitTermination(RUN_S)
        read = spark.read.parquet(str(tmp_path / name / "out")).select("entity", "session_id", "body").collect()
        assert sorted((row.session_id, bytes(row.body).decode()) for row in read) == sent
        assert {row.entity for row in read} == {path}
        assert bodies_in(broker, path) == []


def make_dead_letters(broker: BrokerProcess, topic: str) -> str:
    """The path of a subscription with 30 dead letters, of which no other subscription has any."""
    path = f"{topic}/Subscriptions/sports"
    put(broker, topic, [text_message(body.decode()) for body in numbered(30)])
    dead_letter(broker, path, 30)
    return path


def check_redriven(broker: BrokerProcess, path: str) -> None:
    messages = messages_in(broker, path)
    assert sorted(message.body for message in messages) == numbered(30)
    assert all(message.property("DeadLetterReason") is None for message in messages), (
        "re-driven messages have no dead-letter reason"
    )
    assert bodies_in(broker, f"{path}/$DeadLetterQueue") == []


def test_dead_letters_of_a_subscription_go_back_on_spark(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """Through their topic, each once, as `pairbus redrive --engine spark` does it."""
    path = make_dead_letters(broker, topic)
    job = redrive(spark, path, source=BROKER_PLACE, journal=tmp_path / "journal", duplicate_window=0)
    assert job.wait(RUN_S)
    assert job.progress().moved == 30
    check_redriven(broker, path)


@pytest.mark.deep
def test_the_command_redrives_a_subscription_on_spark(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """The command asks the topic for its duplicate detection, starts its own Spark and ends when all messages are
    back.
    """
    path = make_dead_letters(broker, topic)
    words = ["redrive", path, "--engine", "spark", "--journal", str(tmp_path / "journal"), "--master", "local[2]"]
    done = subprocess.run(
        [sys.executable, "-m", "pairbus", *words, "--connection-string", "env:PAIRBUS_TEST_REDRIVE"],
        env={**os.environ, "PAIRBUS_TEST_REDRIVE": broker.connection_string()},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("moved 30 messages")
    check_redriven(broker, path)
