"""Several entities in one query, named or by pattern: batch reads and streams, against a real broker, without Spark."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.errors import ConfigError
from pairbus.spark.source import entities
from pairbus.spark.source.batch_reader import PeekReader
from pairbus.spark.source.listing import matches
from pairbus.transport import ConnectionLost
from pairbus.transport.links.management import Management
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, options, put, text_message
from tests.spark.stream_world import Stream


@pytest.fixture
def two_queues(make_queue: MakeQueue) -> tuple[str, str]:
    return make_queue(), make_queue()


def fill(broker: BrokerProcess, queue: str, *texts: str) -> None:
    put(broker, queue, [text_message(text) for text in texts])


def batches_of(stream: Stream) -> dict[str, int]:
    return {entity: offset["batch"] for entity, offset in (stream.committed or {}).items()}


def rows_of(stream: Stream) -> list[tuple[str, bytes]]:
    """Return entity and body of the rows of one micro-batch."""
    results = [stream.task(partition) for partition in stream.begin()]
    stream.end(results)
    return sorted((row["entity"], row["body"]) for batches in results for batch in batches for row in batch.to_pylist())


def test_rows_tell_their_entity(broker: BrokerProcess, two_queues: tuple[str, str], tmp_path: Path) -> None:
    """A batch read and a stream give the same rows; each entity has an offset of its own."""
    one, two = two_queues
    fill(broker, one, "a", "b")
    fill(broker, two, "c")
    expected = sorted([(one, b"a"), (one, b"b"), (two, b"c")])
    reader = PeekReader(options(broker, "read", entities=f"{one},{two}"))
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted((row["entity"], row["body"]) for row in found) == expected
    stream = Stream(broker, f"{one},{two}", tmp_path / "staging")
    assert rows_of(stream) == expected
    assert batches_of(stream) == {one: 1, two: 1}
    fill(broker, two, "d")
    assert rows_of(stream) == [(two, b"d")]
    assert batches_of(stream) == {one: 1, two: 2}, "only entities with messages have a new offset"
    assert bodies_in(broker, one) == bodies_in(broker, two) == []


def test_equal_messages_of_two_subscriptions_both_enter(
    broker: BrokerProcess, admin: ServiceBusAdministrationClient, tmp_path: Path
) -> None:
    """Copies have one number, time and id, and would pass for redeliveries of each other in a common location."""
    topic = f"news-{uuid.uuid4().hex[:8]}"
    admin.create_topic(topic)
    paths = [f"{topic}/Subscriptions/{name}" for name in ("left", "right")]
    for path in paths:
        admin.create_subscription(topic, path.rpartition("/")[2])
    fill(broker, topic, "a", "b")
    stream = Stream(broker, ",".join(paths), tmp_path / "staging")
    assert rows_of(stream) == sorted((path, body) for path in paths for body in (b"a", b"b"))


def test_a_repeated_batch_of_several_is_identical(
    broker: BrokerProcess, two_queues: tuple[str, str], tmp_path: Path
) -> None:
    """The batch is identical also after a restart, and when messages have arrived in the meantime."""
    one, two = two_queues
    fill(broker, one, "a")
    fill(broker, two, "b")
    stream = Stream(broker, f"{one},{two}", tmp_path / "staging")
    first = [stream.task(partition) for partition in stream.begin()]
    fill(broker, one, "later")
    stream.restart()
    assert [stream.task(partition) for partition in stream.begin()] == first
    assert sorted(stream.end(first)) == [b"a", b"b"]
    assert stream.drain()[2:] == [b"later"]


def test_first_batch_of_several_is_repeated_after_a_crash(
    broker: BrokerProcess, two_queues: tuple[str, str], tmp_path: Path
) -> None:
    """It may have messages of all entities, or of one: the other enters with the next batch."""
    one, two = two_queues
    for folder, filled in (("both", (one, two)), ("first", (one,))):
        stream = Stream(broker, f"{one},{two}", tmp_path / folder)
        for queue in filled:
            fill(broker, queue, f"{queue} of {folder}")
        rows = [stream.task(partition) for partition in stream.begin()]
        assert bodies_in(broker, one) == bodies_in(broker, two) == []
        fill(broker, two, "later")
        for _ in range(2):
            stream.restart()
            assert [stream.task(partition) for partition in stream.begin()] == rows
        assert sorted(stream.end(rows)) == sorted(f"{queue} of {folder}".encode() for queue in filled)
        assert stream.drain()[len(filled) :] == [b"later"]
        assert batches_of(stream) == {one: 1, two: len(filled)}
        stream.restart()
        assert stream.batch() == []


def test_entities_share_the_limits_of_a_batch(broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path) -> None:
    """Every entity has its turn, also when a batch has fewer messages than there are entities."""
    queues = [make_queue() for _ in range(3)]
    for queue in queues:
        fill(broker, queue, *[f"{queue}-{number}" for number in range(3)])
    stream = Stream(broker, ",".join(queues), tmp_path / "four", maxMessagesPerBatch="4", partitions="8")
    assert len(rows_of(stream)) == 3, "one message of each queue: four cannot be divided evenly among three"
    patient = {"idlePollSeconds": "900"}
    stream = Stream(broker, ",".join(queues), tmp_path / "one", maxMessagesPerBatch="1", partitions="8", **patient)
    seen = [rows_of(stream)[0][0] for _ in range(6)]
    assert {queue: seen.count(queue) for queue in queues} == dict.fromkeys(queues, 2), (
        "each queue has its turn without a new look"
    )


def test_available_now_reads_all_entities(broker: BrokerProcess, two_queues: tuple[str, str], tmp_path: Path) -> None:
    """The run ends when no entity has any more messages, and not before."""
    one, two = two_queues
    fill(broker, one, *[f"a{number}" for number in range(5)])
    fill(broker, two, "b")
    stream = Stream(broker, f"{one},{two}", tmp_path / "staging", maxMessagesPerBatch="2")
    stream.reader.prepareForTriggerAvailableNow()
    assert sorted(stream.drain()) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"b"]


def test_a_pattern_follows_entities_that_come_and_go(
    broker: BrokerProcess, admin: ServiceBusAdministrationClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues and subscriptions. A restart goes on with all of them."""
    prefix = f"p{uuid.uuid4().hex[:8]}"
    admin.create_queue(f"{prefix}-orders")
    admin.create_topic(f"{prefix}-news")
    admin.create_subscription(f"{prefix}-news", "all")
    subscription = f"{prefix}-news/Subscriptions/all"
    fill(broker, f"{prefix}-orders", "a")
    fill(broker, f"{prefix}-news", "b")
    monkeypatch.setattr(entities, "LIST_EVERY_S", 0.0)
    streams = [
        Stream(broker, "", tmp_path / mode, entityPattern=f"{prefix}-*", mode=mode) for mode in ("peek", "receive")
    ]
    for stream in streams:
        assert rows_of(stream) == [(subscription, b"b"), (f"{prefix}-orders", b"a")]
    admin.create_queue(f"{prefix}-late")
    fill(broker, f"{prefix}-late", "c")
    for stream in streams:
        assert stream.drain()[2:] == [b"c"]
        stream.restart()
        assert stream.batch() == []
    admin.delete_queue(f"{prefix}-orders")
    fill(broker, f"{prefix}-late", "d")
    for stream in streams:
        assert stream.drain()[3:] == [b"d"]


@pytest.fixture
def pattern_stream(
    broker: BrokerProcess, admin: ServiceBusAdministrationClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Stream:
    """A stream of a pattern that has read the first message of the one queue `PREFIX-orders`."""
    prefix = f"p{uuid.uuid4().hex[:8]}"
    admin.create_queue(f"{prefix}-orders")
    fill(broker, f"{prefix}-orders", "a")
    monkeypatch.setattr(entities, "LIST_EVERY_S", 0.0)
    stream = Stream(broker, "", tmp_path, entityPattern=f"{prefix}-*")
    assert rows_of(stream) == [(f"{prefix}-orders", b"a")]
    return stream


def test_a_new_entity_has_the_patience_of_a_running_query(
    broker: BrokerProcess,
    admin: ServiceBusAdministrationClient,
    pattern_stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query that runs for weeks must not end because the service blinks while a queue is seen for the first time."""
    (orders,) = pattern_stream.committed or {}
    late = orders.replace("-orders", "-late")
    admin.create_queue(late)
    fill(broker, late, "b")
    peek, failures = Management.peek, [ConnectionLost("the service blinks")]

    async def blinks(management: Management, from_sequence: int, count: int) -> list[bytes]:
        if failures:
            raise failures.pop()
        return await peek(management, from_sequence, count)

    monkeypatch.setattr(Management, "peek", blinks)
    assert rows_of(pattern_stream) == [(late, b"b")]
    assert failures == []


def test_an_entity_that_is_deleted_as_soon_as_it_is_listed_is_left_out(
    broker: BrokerProcess, pattern_stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short-lived queues may match the pattern too; the others are read on."""
    (orders,) = pattern_stream.committed or {}
    deleted = orders.replace("-orders", "-deleted")
    monkeypatch.setattr(entities, "entities_of", lambda options: (deleted, orders))
    fill(broker, orders, "b")
    assert rows_of(pattern_stream) == [(orders, b"b")]


def test_what_a_pattern_needs_is_told(
    broker: BrokerProcess, admin: ServiceBusAdministrationClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Manage claim, and at least one match."""
    with pytest.raises(ConfigError, match=r"no queue and no subscription of .* matches 'nothing-like-it'"):
        Stream(broker, "", tmp_path, entityPattern="nothing-like-it").begin()
    broken = broker.connection_string().replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    monkeypatch.setenv("PAIRBUS_TEST_BROKEN", broken)
    given = {"connectionString": "env:PAIRBUS_TEST_BROKEN"}
    with pytest.raises(ConfigError, match="needs the Manage claim"):
        Stream(broker, "", tmp_path, entityPattern="orders-*", **given).begin()


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("orders-1", "orders-*", True),
        ("Orders-1", "orders-*", True),
        ("news/Subscriptions/all", "news/*", True),
        ("my-orders-1", "orders-*", False),
        ("orders-1", "orders-[23]", False),
    ],
)
def test_patterns_are_those_of_file_names(path: str, pattern: str, expected: bool) -> None:
    """The whole path must match; entities have no case."""
    assert matches(path, pattern) is expected


def test_checkpoints_of_one_and_of_several_are_not_mixed(
    broker: BrokerProcess, two_queues: tuple[str, str], tmp_path: Path
) -> None:
    """Offsets of the two count differently: an error says so, and nothing is received."""
    one, two = two_queues
    fill(broker, one, "a")
    with pytest.raises(ConfigError, match="checkpointLocation of its own"):
        Stream(broker, f"{one},{two}", tmp_path / "several").reader.next_offset({"batch": 1}, None)
    single = Stream(broker, one, tmp_path / "one").reader
    with pytest.raises(ConfigError, match="checkpointLocation of its own"):
        single.next_offset({one: 1, two: 1}, None)
    with pytest.raises(ConfigError, match="checkpointLocation of its own"):
        single.tasks({one: 1}, {one: 2})
    assert bodies_in(broker, one) == [b"a"]
