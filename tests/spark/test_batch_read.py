"""Batch reads: a queue is read whole, in parts that are each read once, and left unchanged."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.spark.features import is_remote
from pairbus.spark.options import Options
from pairbus.spark.source import batch_reader
from pairbus.spark.source.batch_reader import PeekReader, SequenceRange, extent, split
from tests.brokers import BrokerProcess
from tests.spark.conftest import BROKER_PLACE
from tests.spark.queues import bodies_in, dead_letter, options, place_of, put, text_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def read_all(reader: PeekReader) -> list[dict[str, Any]]:
    """Read as Spark does: the reader is pickled, and every partition read by a copy."""
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        copy = pickle.loads(pickle.dumps(reader))
        for batch in copy.read(pickle.loads(pickle.dumps(partition))):
            rows += batch.to_pylist()
    return rows


# ── ranges ──


@given(st.integers(0, 1 << 62), st.integers(1, 5000), st.integers(1, 1000))
def test_parts_are_the_whole_and_do_not_overlap(first: int, total: int, parts: int) -> None:
    """A number in two parts would be a row twice, a number in none a row lost."""
    found = split("orders", first, first + total - 1, parts)
    assert len(found) == min(parts, total)
    expected = first
    for part in found:
        assert isinstance(part, SequenceRange) and part.first == expected <= part.last
        expected = part.last + 1
    assert expected == first + total


class Numbers:
    """Stands in for a queue that holds just these numbers."""

    def __init__(self, numbers: set[int]) -> None:
        self.numbers = sorted(numbers)
        self.asked = 0

    async def first_from(self, from_number: int) -> int | None:
        self.asked += 1
        return next((number for number in self.numbers if number >= from_number), None)


@given(st.sets(st.integers(0, 1 << 62), max_size=30), st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_the_ends_are_found_whatever_the_gaps(numbers: set[int], one: int, other: int) -> None:
    """Numbers of a partitioned entity lie far apart."""
    first, last = min(one, other), max(one, other)
    queue = Numbers(numbers)
    inside = [number for number in numbers if first <= number <= last]
    found = asyncio.run(extent(queue, first, last))  # type: ignore[arg-type]
    assert found == ((min(inside), max(inside)) if inside else None)
    assert queue.asked <= 2 * 64


def test_a_million_messages_are_measured_with_few_peeks() -> None:
    """Each peek is an operation that is paid for."""
    queue = Numbers(set(range(5, 1_000_000)))
    assert asyncio.run(extent(queue, 0, (1 << 63) - 1)) == (5, 999_999)  # type: ignore[arg-type]
    assert queue.asked <= 35


# ── the real broker ──


@pytest.mark.parametrize("partitions", ["1", "3"])
def test_every_message_is_read_once_and_stays(
    broker: BrokerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch, partitions: str
) -> None:
    """The read goes over pages and batches of every size."""
    monkeypatch.setattr(batch_reader, "ROWS_PER_BATCH", 300)
    wanted = [f"m{number}" for number in range(700)]
    put(broker, queue_name, [text_message(text) for text in wanted])
    rows = read_all(PeekReader(options(broker, "read", entity=queue_name, partitions=partitions)))
    assert [row["message_id"] for row in rows] == wanted
    assert {row["entity"] for row in rows} == {queue_name}
    assert {row["delivery_count"] for row in rows} == {0}
    assert bodies_in(broker, queue_name) == [text.encode() for text in wanted]


def test_a_range_is_read_with_both_of_its_ends(broker: BrokerProcess, queue_name: str) -> None:
    """The range is like BETWEEN in SQL."""
    put(broker, queue_name, [text_message(f"m{number}") for number in range(1, 11)])
    bounded = options(broker, "read", entity=queue_name, fromSequenceNumber="3", toSequenceNumber="5")
    assert [row["sequence_number"] for row in read_all(PeekReader(bounded))] == [3, 4, 5]


def test_what_arrives_after_planning_is_not_read(broker: BrokerProcess, queue_name: str) -> None:
    """A task that is repeated reads the same range again."""
    put(broker, queue_name, [text_message("early")])
    reader = PeekReader(options(broker, "read", entity=queue_name))
    [partition] = reader.partitions()
    put(broker, queue_name, [text_message("late")])
    assert [batch.column("message_id").to_pylist() for batch in reader.read(partition)] == [["early"]]


def test_the_dead_letter_queue_is_read_with_its_reasons(broker: BrokerProcess, queue_name: str) -> None:
    """A user opens a dead-letter queue for the reasons; the column has the entity to send back to."""
    put(broker, queue_name, [text_message("good"), text_message("bad")])
    dead_letter(broker, queue_name, 1)
    [row] = read_all(PeekReader(options(broker, "read", entity=queue_name, subQueue="deadletter")))
    assert (row["message_id"], row["dead_letter_reason"]) == ("good", "spoiled")
    assert (row["dead_letter_error_description"], row["entity"]) == ("by a test", queue_name)


def test_an_empty_queue_has_no_parts(broker: BrokerProcess, queue_name: str) -> None:
    """Spark then asks for one part of its own, which has no rows."""
    reader = PeekReader(options(broker, "read", entity=queue_name))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_missing_entity_is_named(broker: BrokerProcess) -> None:
    """The error comes while the query is planned."""
    with pytest.raises(EntityNotFound, match="entity 'nowhere' does not exist"):
        PeekReader(options(broker, "read", entity="nowhere")).partitions()


def test_a_wrong_key_is_named_by_its_option(broker: BrokerProcess, queue_name: str) -> None:
    """The error does not show the key."""
    wrong = broker.connection_string(key="d3Jvbmc=")
    reader = PeekReader(Options.parse({"connectionString": place_of(wrong), "entity": queue_name}, "read"))
    with pytest.raises(ConfigError, match=f"option connectionString: .* entity '{queue_name}'") as caught:
        reader.partitions()
    assert "d3Jvbmc=" not in str(caught.value)


def test_a_namespace_that_is_not_there_is_said_at_once() -> None:
    """Planning does not wait for better times: a mistyped host is more likely than an outage."""
    nowhere = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=s;UseDevelopmentEmulator=true"
    with pytest.raises(PairbusError, match=r"entity 'orders' of 127\.0\.0\.1:1: no connection"):
        PeekReader(Options.parse({"connectionString": place_of(nowhere), "entity": "orders"}, "read")).partitions()


def test_a_task_goes_on_after_the_broker_was_restarted(tmp_path: Any) -> None:
    """A peek that is repeated is harmless, so an outage costs a task nothing but time."""
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"], strict=True) as own:
        with own.admin() as admin:
            admin.create_queue("orders")
        put(own, "orders", [text_message(f"m{number}") for number in range(5000)])
        reader = PeekReader(options(own, "read", entity="orders", partitions="1"))
        [partition] = reader.partitions()
        batches = reader.read(partition)
        rows = next(batches).num_rows
        own.restart()
        assert rows + sum(batch.num_rows for batch in batches) == 5000


# ── on Spark ──


def load(spark: SparkSession, queue: str, **given: str) -> DataFrame:
    return spark.read.format("servicebus").option("connectionString", BROKER_PLACE).options(**given).load(queue)


@pytest.mark.spark
def test_spark_reads_a_queue_in_parallel(spark: SparkSession, broker: BrokerProcess, queue_name: str) -> None:
    """The schema of the batches is the one that Spark was told, which it checks itself."""
    put(broker, queue_name, [text_message(f"m{number}") for number in range(600)])
    frame = load(spark, queue_name, partitions="3", includeRaw="true")
    rows = frame.orderBy("sequence_number").collect()
    assert [row.message_id for row in rows] == [f"m{number}" for number in range(600)]
    assert bytes(rows[0].body) == b"m0" and len(rows[0].raw) > len(rows[0].body)
    assert len({row.pid for row in frame.selectExpr("spark_partition_id() AS pid").distinct().collect()}) == 3


@pytest.mark.spark
def test_spark_finds_the_format_without_registration(
    spark: SparkSession, broker: BrokerProcess, queue_name: str
) -> None:
    """A session knows only sources that were registered with it, or that Spark has found by a module's name."""
    put(broker, queue_name, [text_message("m")])
    session = spark if is_remote(spark) else spark.newSession()  # over Connect no session has registered the format
    assert load(session, queue_name).count() == 1


@pytest.mark.spark
def test_a_schema_that_leaves_columns_out_is_enough(
    spark: SparkSession, broker: BrokerProcess, queue_name: str
) -> None:
    """Columns that the query does not need are not carried to the JVM."""
    put(broker, queue_name, [text_message("m")])
    short = spark.read.format("servicebus").option("connectionString", BROKER_PLACE)
    frame = short.schema("sequence_number bigint, body binary").load(queue_name)
    assert [tuple(row) for row in frame.collect()] == [(1, b"m")]


@pytest.mark.spark
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_filters_are_right_whether_spark_pushes_them_or_not(
    spark: SparkSession, broker: BrokerProcess, queue_name: str, enabled: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same frame serves several queries: by default no filter of one stays for the next."""
    put(broker, queue_name, [text_message(f"m{number}") for number in range(1, 101)])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        frame = load(spark, queue_name)
        assert frame.where("sequence_number > 90").count() == 10
        assert frame.where("enqueued_time < timestamp'2000-01-01 00:00:00'").count() == 0
        assert frame.count() == 100
        pushed = load(spark, queue_name, pushFilters="true").where(
            "sequence_number > 90 AND enqueued_time > timestamp'2000-01-01 00:00:00' AND message_id <> 'm95'"
        )
        assert pushed.count() == 9
        pushed.explain(True)
        plan = capsys.readouterr().out
        pushes = enabled == "true" and hasattr(DataSourceReader, "pushFilters")  # Spark 4.0 has no pushFilters
        assert ("> 90" in plan.split("== Physical Plan ==")[1]) != pushes, plan
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("given_options", "text"),
    [
        ({"entity": "nowhere"}, "EntityNotFound: entity 'nowhere' does not exist"),
        ({"entity": "orders", "partitons": "2"}, "option partitons is not known to format servicebus; did you mean"),
        ({"entity": "orders", "connectionString": "env:NOT_SET"}, "env:NOT_SET on host .*NOT_SET is not set"),
    ],
)
def test_a_wrong_option_ends_the_query_before_any_task(
    spark: SparkSession, given_options: dict[str, str], text: str
) -> None:
    """The text of ours stands in Spark's error."""
    reader = spark.read.format("servicebus").options(**({"connectionString": BROKER_PLACE} | given_options))
    with pytest.raises(Exception, match=text):
        reader.load().count()
