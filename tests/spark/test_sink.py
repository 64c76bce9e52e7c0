"""The sink: a row is a message, a bad row stops its task before the first one, a repeated task repeats its ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pairbus.amqp.message import BATCH_FORMAT, Message
from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.spark.options import Options
from pairbus.spark.perseverance import persevere
from pairbus.spark.sink import outbox as outbox_module
from pairbus.spark.sink.messages import BadRow
from pairbus.spark.sink.outbox import Outbox, Parcel
from pairbus.spark.sink.writers import SentCounts, send_rows
from pairbus.spark.source.rows import to_columns
from pairbus.transport import ConnectionLost, Refused, TransportError
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.scripted import Reject, Reset, ScriptedThread
from tests.sim.loop import VirtualLoop
from tests.spark.conftest import BROKER_PLACE
from tests.spark.queues import bodies_in, dead_letter, messages_in, options, place_of, put, text_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANYWHERE = {"connectionString": place_of("Endpoint=sb://h;SharedAccessKeyName=k;SharedAccessKey=s")}


def rows(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def an_outbox(entity: str | None = "orders", size: int = 256 * 1024) -> Outbox:
    return Outbox(entity, lambda paths: dict.fromkeys(paths, size), place="partition 0, ", id_prefix="job-0-")


def sealed(outbox: Outbox, *batches: pa.RecordBatch) -> list[Parcel]:
    with outbox:
        for batch in batches:
            outbox.add(batch)
        outbox.seal()
        return list(outbox.parcels())


def inner(parcel: Parcel) -> list[Message]:
    if parcel.message_format == BATCH_FORMAT:
        return [Message.decode(data) for data in Message.decode(parcel.payload).data]
    return [Message.decode(parcel.payload)]


# ── parcels ──


def test_messages_of_one_entity_and_session_share_a_parcel() -> None:
    """A partitioned entity takes no batch of several sessions or keys, and a link leads to one entity."""
    parcels = sealed(
        an_outbox(None),
        rows(
            body=[str(number) for number in range(8)],
            entity=["a", "b", "a", "a", "a", "a", "a", "a"],
            session_id=[None, None, "s", "s", "t", None, None, None],
            partition_key=[None, None, None, None, None, "k", "s", "s"],
        ),
    )
    found = {tuple(int(message.body) for message in inner(parcel)): parcel for parcel in parcels}
    assert set(found) == {(0,), (1,), (2, 3), (4,), (5,), (6, 7)}
    assert [found[(2, 3)].session_id, found[(6, 7)].session_id, found[(1,)].entity] == ["s", None, "b"]


def test_a_batch_says_its_session_or_key_before_its_messages() -> None:
    """A partitioned entity finds the place of the whole batch by it."""
    in_session, keyed = sealed(
        an_outbox(),
        rows(body=["1", "2", "3", "4"], session_id=["s", "s", None, None], partition_key=[None, None, "k", "k"]),
    )
    properties = Message.decode(in_session.payload).properties
    assert properties is not None and properties.group_id == "s"
    assert Message.decode(keyed.payload).annotations == {"x-opt-partition-key": "k"}


@pytest.mark.parametrize("size", [2_000, 5_000, 64 * 1024])
def test_no_parcel_is_larger_than_its_entity_takes(size: int) -> None:
    """Messages of every size up to the limit itself keep their order."""
    dice = Random(size)
    bodies = [bytes(dice.randrange(size - 150)) for _ in range(200)]
    parcels = sealed(an_outbox(size=size), rows(body=bodies))
    assert all(len(parcel.payload) <= size for parcel in parcels)
    assert [message.body for parcel in parcels for message in inner(parcel)] == bodies
    assert len(parcels) < 200, "small messages travel together"


def test_a_row_that_is_too_large_is_named_before_anything_is_sent() -> None:
    """The limit is the entity's own."""
    with pytest.raises(BadRow, match=r"partition 0, row 1, column body: the message has 20\d\d bytes; .* takes 2000"):
        sealed(an_outbox(size=2000), rows(body=[b"", bytes(2000)]))


def test_a_row_without_an_entity_is_named() -> None:
    """The destination is given neither by the column nor by the option."""
    with pytest.raises(BadRow, match="row 1, column entity: null, and option entity is not given"):
        sealed(an_outbox(None), rows(body=["a", "b"], entity=["orders", None]))


def test_the_option_goes_before_the_column() -> None:
    """A user who reads `orders` and saves to `archive` means `archive`; the rows still say `orders`."""
    [parcel] = sealed(an_outbox("archive"), rows(body=["a"], entity=["orders"]))
    assert parcel.entity == "archive"


def test_a_large_partition_waits_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, with any size of a partition; when many batches are open, some are closed."""
    monkeypatch.setattr(outbox_module, "MEMORY_BYTES_MAX", 10_000)
    monkeypatch.setattr(outbox_module, "OPEN_BYTES_MAX", 5_000)
    batches = [rows(body=[bytes(500)] * 20, session_id=[f"s{n}" for n in range(20)]) for _ in range(5)]
    box = an_outbox()
    for batch in batches:
        box.add(batch)
    box.seal()
    assert box._file._rolled  # type: ignore[attr-defined]
    assert box._filling_size == 0
    found = [(parcel.session_id, parcel.count) for parcel in box.parcels()]
    assert sum(count for _, count in found) == 100 == box.count
    assert len(found) > 20
    box.__exit__(None, None, None)


# ── patience ──


def in_virtual_time(
    answers: Iterator[BaseException | str], patience_s: float, busy_s: str = "300"
) -> tuple[Any, float]:
    """Return the result and the time that it took, on a clock that jumps."""
    given = Options.parse(ANYWHERE | {"entity": "orders", "patienceSeconds": busy_s}, "write")

    async def call() -> str:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    loop = VirtualLoop(Random(0))
    try:
        try:
            result: Any = loop.run_until_complete(persevere(call, given, "orders", patience_s))
        except PairbusError as error:
            result = error
        return result, loop.time()
    finally:
        loop.close()


BUSY = Refused("com.microsoft:server-busy", "slow down")


def test_server_busy_waits_ten_seconds_each_time() -> None:
    """The service asks every throttled client to wait that long."""
    assert in_virtual_time(iter([BUSY, BUSY, "done"]), 300.0) == ("done", 20.0)


def test_a_lost_connection_is_tried_again_soon_and_then_less_often() -> None:
    """Pauses double up to ten seconds."""
    lost = [ConnectionLost("gone") for _ in range(7)]
    result, took_s = in_virtual_time(iter([*lost, "done"]), 300.0)
    assert (result, took_s) == ("done", 0.5 + 1 + 2 + 4 + 8 + 10 + 10)


def test_patience_ends_with_the_last_error() -> None:
    """The last error names the entity; Spark then decides whether the task is repeated."""
    error, took_s = in_virtual_time(iter(lambda: BUSY, None), 300.0, busy_s="35")
    assert isinstance(error, TransportError) and "entity 'orders'" in str(error) and "server-busy" in str(error)
    assert took_s == 30.0


@pytest.mark.parametrize(
    ("condition", "kind", "text"),
    [
        ("amqp:not-found", EntityNotFound, "entity 'orders' does not exist in h:5671"),
        (
            "amqp:unauthorized-access",
            ConfigError,
            "option connectionString: h:5671 refuses its key for entity 'orders'",
        ),
        ("com.microsoft:entity-disabled", ConfigError, "entity 'orders' of h:5671 is disabled"),
        ("amqp:link:message-size-exceeded", TransportError, "entity 'orders' of h:5671: amqp:link:message-size"),
    ],
)
def test_what_will_not_pass_is_said_at_once(condition: str, kind: type[Exception], text: str) -> None:
    """The error is in words of the user's options."""
    error, took_s = in_virtual_time(iter([Refused(condition, "no")]), 300.0)
    assert type(error) is kind and text in str(error) and took_s == 0.0


# ── sending ──


def send(given: Options, *batches: pa.RecordBatch, prefix: str = "job-0-") -> SentCounts:
    return send_rows(iter(batches), given, 0, prefix)


def test_rows_arrive_as_messages_with_everything_in_them(broker: BrokerProcess, queue_name: str) -> None:
    """Types of properties included."""
    typed = pa.array(
        [[("attempt", {"type": "int", "value": "2"})]],
        pa.map_(pa.string(), pa.struct([("type", pa.string()), ("value", pa.string())])),
    )
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"x"]), pa.array(["id-1"]), pa.array(["late"]), pa.array(["s"]), pa.array([60_000]), typed],
        names=["body", "message_id", "subject", "session_id", "time_to_live_ms", "application_properties"],
    )
    assert send(options(broker, "write", entity=queue_name), batch) == SentCounts(1, 0)
    [message] = messages_in(broker, queue_name)
    assert message.properties is not None and message.header is not None
    assert (message.properties.message_id, message.properties.subject, message.properties.group_id) == (
        "id-1",
        "late",
        "s",
    )
    assert (message.body, message.header.ttl) == (b"x", 60_000)
    assert message.application_properties == {"attempt": 2}
    assert type((message.application_properties or {})["attempt"]).__name__ == "Int"


def test_a_bad_row_leaves_nothing_behind(broker: BrokerProcess, queue_name: str) -> None:
    """Although thousands of good ones, in batches of their own, came before it."""
    good = rows(body=["x"] * 3000, time_to_live_ms=[1000] * 3000)
    bad = rows(body=["x", "x"], time_to_live_ms=[1000, -1])
    with pytest.raises(BadRow, match="partition 0, row 3001, column time_to_live_ms"):
        send(options(broker, "write", entity=queue_name), good, bad)
    assert messages_in(broker, queue_name) == []


def test_a_missing_entity_among_several_leaves_nothing_behind(broker: BrokerProcess, queue_name: str) -> None:
    """All entities are asked before the first message goes."""
    batch = rows(body=["a", "b"], entity=[queue_name, "nowhere"])
    with pytest.raises(EntityNotFound, match="entity 'nowhere' does not exist"):
        send(options(broker, "write"), batch)
    assert messages_in(broker, queue_name) == []


def test_rows_are_spread_over_their_entities(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    """The column decides; the order of the rows is kept."""
    queues = [make_queue() for _ in range(3)]
    batch = rows(body=[str(number) for number in range(300)], entity=[queues[number % 3] for number in range(300)])
    assert send(options(broker, "write"), batch).messages == 300
    for offset, queue in enumerate(queues):
        assert [int(body) for body in bodies_in(broker, queue)] == list(range(offset, 300, 3))


def test_a_repeated_task_is_harmless_where_duplicates_are_detected(
    broker: BrokerProcess, make_queue: MakeQueue
) -> None:
    """The same rows in the same place have the same ids."""
    detecting = make_queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(minutes=10)
    )
    batch = rows(body=[str(number) for number in range(500)])
    given = options(broker, "write", entity=detecting)
    for _ in range(2):
        assert send(given, batch).messages == 500
    assert len(messages_in(broker, detecting)) == 500
    send(given, batch, prefix="another-job-0-")
    assert len(messages_in(broker, detecting)) == 1000


def test_what_was_read_can_be_written_back(broker: BrokerProcess, queue_name: str) -> None:
    """A re-drive: rows of the dead-letter queue name their entity and keep their ids."""
    put(broker, queue_name, [text_message("a"), text_message("b")])
    dead_letter(broker, queue_name, 2)
    dead = [message.encode() for message in messages_in(broker, f"{queue_name}/$DeadLetterQueue")]
    send(options(broker, "write"), to_columns(dead, queue_name, include_raw=True))
    assert bodies_in(broker, queue_name) == [b"a", b"b"]


def test_a_connection_that_breaks_under_a_task_is_opened_again() -> None:
    """Every message arrives; those in flight may arrive twice, with the same id."""
    with ScriptedThread() as endpoint:
        endpoint.on("transfer", Reset(), path="orders", times=2)
        given = Options.parse({"connectionString": place_of(endpoint.connection_string), "entity": "orders"}, "write")
        batch = rows(body=[str(number) for number in range(50)], session_id=[f"s{number}" for number in range(50)])
        assert send(given, batch).messages == 50
        stored = [Message.decode(payload) for payload in endpoint.stored("orders")]
    assert {int(message.body) for message in stored} == set(range(50))


def test_messages_of_a_session_keep_their_order_when_one_is_sent_again() -> None:
    """A parcel that is refused for the moment is not overtaken by the next one of its session."""
    with ScriptedThread(max_message_size=2000) as endpoint:
        endpoint.on("transfer", Reject("amqp:internal-error"), path="orders", times=1)
        given = Options.parse({"connectionString": place_of(endpoint.connection_string), "entity": "orders"}, "write")
        send(given, rows(body=[f"{number:<900}" for number in range(12)], session_id=["s"] * 12))
        bodies = [int(Message.decode(payload).body) for payload in endpoint.stored("orders")]
    assert bodies == list(range(12))


def test_a_refusal_ends_the_task_and_what_was_under_way() -> None:
    """The user sees the error of the first send, not those of the others that it ended."""
    with ScriptedThread() as endpoint:
        endpoint.on("transfer", Reject("com.microsoft:entity-disabled"), path="orders")
        given = Options.parse({"connectionString": place_of(endpoint.connection_string), "entity": "orders"}, "write")
        with pytest.raises(ConfigError, match=r"entity 'orders' of .* is disabled"):
            send(given, rows(body=["x"] * 30, session_id=[f"s{number}" for number in range(30)]))


def test_tasks_of_a_worker_share_one_connection() -> None:
    """200 partitions were 400 handshakes for each micro-batch: one to ask for the limits, and one to send."""
    with ScriptedThread() as endpoint:
        given = Options.parse({"connectionString": place_of(endpoint.connection_string), "entity": "orders"}, "write")
        with ThreadPoolExecutor(4) as tasks:
            counts = [tasks.submit(send_rows, iter([rows(body=["x"])]), given, part, f"{part}-") for part in range(20)]
        assert sum(count.result().messages for count in counts) == len(endpoint.stored("orders")) == 20
        assert [step.step for step in endpoint.steps].count("open") == 1


# ── on Spark ──


@pytest.mark.spark
def test_spark_writes_a_frame(spark: SparkSession, broker: BrokerProcess, queue_name: str) -> None:
    """Two tasks, each with ids of its own; the maps of Spark are the sink's."""
    frame = spark.range(0, 200, 1, 2).selectExpr(
        "cast(id AS string) AS body",
        "map('n', named_struct('type', 'long', 'value', cast(id AS string))) AS application_properties",
    )
    sink = frame.write.format("servicebus").option("connectionString", BROKER_PLACE).mode("append")
    sink.save(queue_name)
    messages = messages_in(broker, queue_name)
    assert {int(message.body) for message in messages} == set(range(200))
    assert all(message.property("n") == int(message.body) for message in messages)
    assert len({message.properties.message_id for message in messages if message.properties}) == 200


@pytest.mark.spark
def test_streamed_ids_are_made_of_query_batch_and_place(
    spark: SparkSession, broker: BrokerProcess, queue_name: str, tmp_path: Path
) -> None:
    """A batch that is repeated after a restart repeats its ids."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
    query = (
        numbers.selectExpr("cast(value AS string) AS body")
        .writeStream.format("servicebus")
        .option("connectionString", BROKER_PLACE)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(once=True)
        .start(queue_name)
    )
    assert query.awaitTermination(120)
    ids = [message.properties.message_id for message in messages_in(broker, queue_name) if message.properties]
    assert len(ids) == 20
    assert all(re.fullmatch(rf"{query.id}-0-0-\d+-[0-9a-f]{{16}}", message_id) for message_id in ids)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("columns", "given", "mode", "text"),
    [
        (
            "'x' AS bdy",
            {"entity": "orders"},
            "append",
            "column bdy is not known to format servicebus; did you mean body?",
        ),
        ("'x' AS body", {}, "append", "option entity is required where the rows have no column entity"),
        ("'x' AS body", {"entity": "nowhere"}, "append", "entity 'nowhere' does not exist"),
        ("'x' AS body", {"entity": "orders"}, "overwrite", "mode overwrite"),
        ("'x' AS body, -1 AS time_to_live_ms", {}, "append", "row 0, column time_to_live_ms: -1 is not within"),
    ],
)
def test_what_cannot_be_written_is_named(
    spark: SparkSession, queue_name: str, columns: str, given: dict[str, str], mode: str, text: str
) -> None:
    """Spark's own error names it, and no message is sent."""
    if "time_to_live_ms" in columns:
        given = {"entity": queue_name}
    frame = spark.range(1).selectExpr(*columns.split(", "))
    sink = frame.write.format("servicebus").options(connectionString=BROKER_PLACE, **given).mode(mode)
    with pytest.raises(Exception, match=re.escape(text)):
        sink.save()
