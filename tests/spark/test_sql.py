"""The format in SQL, from other threads, and with the defaults of one machine, in a real Spark."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.conftest import BROKER_PLACE
from tests.spark.queues import bodies_in, dead_letter, put, text_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def options_for(queue: str, **more: str) -> str:
    given = {"entity": queue, "connectionString": BROKER_PLACE} | more
    return ", ".join(f"{name} '{value}'" for name, value in given.items())


def test_views_are_read_and_written(spark: SparkSession, broker: BrokerProcess, make_queue: MakeQueue) -> None:
    """CREATE TEMPORARY VIEW with options, SELECT, INSERT INTO."""
    source, target = make_queue(), make_queue()
    put(broker, source, [text_message("a"), text_message("b")])
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW source USING servicebus OPTIONS ({options_for(source)})")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW target (body BINARY, message_id STRING) USING servicebus"
        f" OPTIONS ({options_for(target)})"
    )
    spark.sql("INSERT INTO target SELECT body, concat('copy of ', message_id) FROM source WHERE message_id = 'b'")
    assert bodies_in(broker, target) == [b"b"]
    [row] = spark.sql("SELECT message_id, entity FROM source WHERE message_id = 'a'").collect()
    assert tuple(row) == ("a", source)


def test_a_table_has_its_options_in_each_query(
    spark: SparkSession, broker: BrokerProcess, make_queue: MakeQueue
) -> None:
    """SELECT … FROM t WITH (…). With options in CREATE TABLE, which Spark would lose, it is refused."""
    queue = make_queue()
    put(broker, queue, [text_message("a"), text_message("b")])
    dead_letter(broker, queue, 1)
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE refused USING servicebus OPTIONS ({options_for(queue)})")
    spark.sql("CREATE TABLE allowed USING servicebus")
    try:
        query = "SELECT message_id FROM allowed WITH ({})"
        assert [row[0] for row in spark.sql(query.format(options_for(queue))).collect()] == ["b"]
        dead = options_for(queue, subQueue="deadletter")
        assert [row[0] for row in spark.sql(query.format(dead)).collect()] == ["a"]
        with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM allowed").collect()
    finally:
        spark.sql("DROP TABLE allowed")


def test_another_thread_names_its_session(spark: SparkSession, broker: BrokerProcess, queue_name: str) -> None:
    """As the page says: after createDataFrame a thread writes like the first one."""
    frame = spark.createDataFrame([("from a thread",)], "body string")
    errors: list[Exception] = []

    def send() -> None:
        try:
            spark.createDataFrame([], "nothing int")
            frame.write.format("servicebus").option("connectionString", BROKER_PLACE).mode("append").save(queue_name)
        except Exception as error:
            errors.append(error)

    thread = Thread(target=send)
    thread.start()
    thread.join(60)
    assert errors == [] and bodies_in(broker, queue_name) == [b"from a thread"]


def test_streams_on_one_machine_need_no_folder(
    spark: SparkSession, broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """Peeked and then received by Spark, two queues at once, with plain properties; the staging has its default."""
    from pairbus.spark import drain

    queues = [make_queue(), make_queue()]
    for queue in queues:
        put(broker, queue, [text_message(f"{queue}-{number}") for number in range(3)])
    expected = sorted((queue, f"{queue}-{number}") for queue in queues for number in range(3))
    reader = spark.readStream.format("servicebus").option("connectionString", BROKER_PLACE)
    reader = reader.option("entity", ",".join(queues)).option("propertiesAs", "string")
    for mode in ("peek", "receive"):
        assert sum(len(bodies_in(broker, queue)) for queue in queues) == 6
        frame = reader.option("mode", mode).load().selectExpr("entity", "message_id", "application_properties")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"{mode}-checkpoint"))
        drain(writer.option("path", str(tmp_path / mode)))
        rows = spark.read.parquet(str(tmp_path / mode))
        assert rows.schema["application_properties"].dataType.simpleString() == "map<string,string>"
        assert sorted((row.entity, row.message_id) for row in rows.collect()) == expected
    assert [body for queue in queues for body in bodies_in(broker, queue)] == []
    assert list((Path(os.environ["XDG_STATE_HOME"]) / "pairbus" / "staging").glob(f"*{queues[0]}*"))
