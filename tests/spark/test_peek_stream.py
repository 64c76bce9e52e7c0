"""Streams that remove nothing, against a real broker, as Spark drives them and without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.errors import ConfigError, EntityNotFound
from pairbus.spark.source import peek_stream, stream_look
from pairbus.spark.source.rows import ENQUEUED_TIME, SEQUENCE_NUMBER
from pairbus.spark.staging import stage_file
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, put, text_message
from tests.spark.stream_world import Stream
from tests.spark.test_topics_and_sessions import of_session


@pytest.fixture
def peeked(broker: BrokerProcess, queue_name: str, tmp_path: Path) -> Any:
    def make(**given: str) -> Stream:
        return Stream(broker, queue_name, tmp_path / "never made", mode="peek", partitions="2", **given)

    return make


def numbers(first: int, last: int) -> list[bytes]:
    return [f"{number:03d}".encode() for number in range(first, last + 1)]


def send(stream: Stream, first: int, last: int) -> None:
    stream.send(*[body.decode() for body in numbers(first, last)])


def next_of(stream: Stream) -> int:
    """Return the next sequence number in the offset of a stream of one entity."""
    assert stream.committed is not None
    return int(stream.committed[stream.entity]["next"])


def test_nothing_is_removed_and_no_folder_is_needed(peeked: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """Each message enters once, in the order of its number, and stays in the queue; offsets are sequence numbers."""
    stream = peeked(stagingLocation="")
    send(stream, 1, 30)
    assert stream.batch() == numbers(1, 30)
    assert next_of(stream) == 31
    assert stream.batch() == [], "nothing new"
    send(stream, 31, 33)
    assert stream.batch() == numbers(31, 33)
    assert bodies_in(broker, stream.entity) == numbers(1, 33)
    assert list(tmp_path.iterdir()) == []


def test_a_repeated_batch_lacks_only_what_others_took(peeked: Any, broker: BrokerProcess, tmp_path: Path) -> None:
    """The offsets stay; messages that arrive later are of the next batch."""
    stream = peeked()
    send(stream, 1, 6)
    first = stream.begin()
    assert [
        body for one in first for batch in stream.task(one) for body in batch.column("body").to_pylist()
    ] == numbers(1, 6)
    others = Stream(broker, stream.entity, tmp_path / "others", partitions="1", maxMessagesPerBatch="2")
    assert others.batch() == numbers(1, 2)
    send(stream, 7, 8)
    stream.restart()
    assert stream.batch() == numbers(3, 6)
    assert stream.batch() == numbers(7, 8)


def test_a_batch_keeps_to_its_limits(peeked: Any) -> None:
    """Messages and bytes; one message enters however large it is. Numbers that are gone cost no empty batch."""
    stream = peeked(maxMessagesPerTrigger="4")
    send(stream, 1, 10)
    assert [stream.batch(), stream.batch(), stream.batch()] == [numbers(1, 4), numbers(5, 8), numbers(9, 10)]
    whole = peeked(includeRaw="true")
    [size] = {len(raw) for one in whole.begin() for batch in whole.task(one) for raw in batch.column("raw").to_pylist()}
    stream = peeked(maxBytesPerTrigger=str(4 * size - 1))
    assert [stream.batch() for _ in range(4)] == [numbers(1, 3), numbers(4, 6), numbers(7, 9), numbers(10, 10)]
    assert [peeked(maxBytesPerTrigger="1").batch() for _ in range(2)] == [numbers(1, 1)] * 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, numbers(1, 7)),
        ({"startingOffsets": "earliest"}, numbers(1, 7)),
        ({"startingOffsets": "latest"}, numbers(6, 7)),
        ({"startingSequenceNumber": "4"}, numbers(4, 7)),
    ],
)
def test_a_new_checkpoint_begins_where_it_is_told(peeked: Any, given: dict[str, str], expected: list[bytes]) -> None:
    """`latest` is the end of the queue when the query starts; a restart goes on where the checkpoint is."""
    stream = peeked(**given)
    send(stream, 1, 5)
    stream.begin()
    send(stream, 6, 7)
    assert stream.drain() == expected


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_first_batch_that_was_interrupted_is_repeated(start: str, peeked: Any) -> None:
    """Spark asks for the first offset anew, which is the end of the queue by then with `latest`."""
    stream = peeked(startingOffsets=start)
    send(stream, 1, 5)
    stream.begin()
    send(stream, 6, 7)
    stream.open = None
    assert stream.begin()
    send(stream, 8, 9)
    stream.restart()
    begun = numbers(6, 7) if start == "latest" else numbers(1, 7)
    assert [stream.batch(), stream.batch(), stream.batch()] == [begun, numbers(8, 9), []]


def test_batch_brings_nothing_of_entities_that_it_leaves_out(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """Also when it is the first one, and is repeated."""
    one, two = make_queue(), make_queue()
    stream = Stream(broker, f"{one},{two}", tmp_path, mode="peek", startingOffsets="latest")
    assert stream.begin() == []
    put(broker, one, [text_message("a")])
    assert stream.begin()
    put(broker, two, [text_message("b")])
    stream.restart()
    assert stream.batch() == [b"a"]
    assert [stream.batch(), stream.batch()] == [[b"b"], []]


def test_starting_offsets_name_a_number_for_each_entity(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """An entity that they do not name begins with its first message; another entity is an error."""
    one, two = make_queue(), make_queue()
    for queue in (one, two):
        put(broker, queue, [text_message(f"{queue}-{number}") for number in range(1, 4)])
    given = {"mode": "peek", "startingOffsets": f'{{"{one}": 3}}'}
    stream = Stream(broker, f"{one}, {two}", tmp_path, **given)
    expected = [f"{one}-3", *[f"{two}-{number}" for number in range(1, 4)]]
    assert sorted(stream.drain()) == sorted(text.encode() for text in expected)
    with pytest.raises(ConfigError, match="option startingOffsets names"):
        Stream(broker, two, tmp_path, **given)


def test_available_now_ends_with_what_was_there(peeked: Any) -> None:
    """Messages that arrive during the run are left to the next one."""
    stream = peeked(maxMessagesPerBatch="2")
    send(stream, 1, 5)
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.batch() == numbers(1, 2)
    send(stream, 6, 9)
    assert stream.drain() == numbers(1, 5)


def test_one_session_can_be_peeked(broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path) -> None:
    """Messages of other sessions are not read, with any numbers."""
    queue = make_queue(requires_session=True)
    put(broker, queue, [of_session(session_id, number) for number in range(3) for session_id in "ab"])
    stream = Stream(broker, queue, tmp_path, mode="peek", session="b")
    assert stream.drain() == [b"b0", b"b1", b"b2"]
    assert len(bodies_in(broker, queue)) == 6


def test_wrong_entities_are_told_at_the_start(
    peeked: Any, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors before the first batch: a missing entity, numbers without an order, a checkpoint of another stream."""
    with pytest.raises(EntityNotFound):
        Stream(broker, "not-there", tmp_path, mode="peek").begin()
    stream = peeked()
    send(stream, 1, 1)
    with pytest.raises(ConfigError, match="checkpointLocation of its own"):
        stream.reader.next_offset({"batch": 3}, None)
    monkeypatch.setattr(peek_stream, "PARTITIONED", 1)
    with pytest.raises(ConfigError, match="is partitioned"):
        stream.begin()


def test_progress_tells_the_end_of_the_queue(peeked: Any) -> None:
    """Connectors with numbers as offsets do so: the difference to the offset is the backlog."""
    stream = peeked(maxMessagesPerBatch="2")
    send(stream, 1, 5)
    stream.batch()
    assert (next_of(stream), stream.reader.reportLatestOffset()) == (3, {stream.entity: 6})


def recreate(admin: ServiceBusAdministrationClient, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete the queue and create it again; no look back has to wait."""
    admin.delete_queue(queue)
    admin.create_queue(queue)
    monkeypatch.setattr(peek_stream, "LOOK_BACK_S", 0.0)


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("restarts", [True, False])
def test_recreated_queue_is_read_from_its_first_message(
    count: int, restarts: bool, peeked: Any, admin: ServiceBusAdministrationClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers begin with 1 again: below the offset for long, or soon above it."""
    stream = peeked()
    send(stream, 1, 5)
    assert stream.batch() == numbers(1, 5)
    recreate(admin, stream.entity, monkeypatch)
    send(stream, 11, 10 + count)
    if restarts:
        stream.restart()
    partitions = stream.begin()
    assert stream.end([stream.task(partition) for partition in partitions]) == numbers(11, 10 + count)
    assert stream.batch() == []
    send(stream, 31, 32)
    assert stream.batch() == numbers(31, 32)


def test_messages_that_stay_are_not_a_new_queue(peeked: Any) -> None:
    """Everything that was read is still there, below the offset; a scheduled message arrives in the future."""
    stream = peeked(maxMessagesPerBatch="3")
    for first in (1, 4, 7):
        send(stream, first, first + 2)
        assert stream.batch() == numbers(first, first + 2)
        stream.restart()
    assert stream.batch() == []


def set_clock_back(from_number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages from this number on have arrived an hour earlier than they did: the service's clock was set."""

    def annotations_of(payload: bytes) -> Any:
        annotations, rest = stage_file.annotations_of(payload)
        if annotations[SEQUENCE_NUMBER] >= from_number:
            annotations = {**annotations, ENQUEUED_TIME: annotations[ENQUEUED_TIME] - 3_600_000}
        return annotations, rest

    monkeypatch.setattr(peek_stream, "annotations_of", annotations_of)
    monkeypatch.setattr(stream_look, "annotations_of", annotations_of)
    monkeypatch.setattr(peek_stream, "LOOK_BACK_S", 0.0)


@pytest.mark.parametrize("first_batch", [3, 5])
def test_clock_that_was_set_back_does_not_renew_a_queue(
    first_batch: int, peeked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was set after the third message: between two batches, or within one."""
    set_clock_back(4, monkeypatch)
    stream = peeked()
    send(stream, 1, first_batch)
    assert stream.batch() == numbers(1, first_batch)
    send(stream, first_batch + 1, 7)
    assert stream.batch() == numbers(first_batch + 1, 7)
    assert [stream.batch(), stream.batch()] == [[], []]
    assert stream.committed is not None and stream.committed[stream.entity]["queue"] == 0


def test_queue_is_read_again_at_most_once_after_a_clock_was_set_back(
    peeked: Any, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another receiver has taken the message that would have told."""
    set_clock_back(4, monkeypatch)
    stream = peeked()
    send(stream, 1, 5)
    assert stream.batch() == numbers(1, 5)
    take(broker, stream.entity, 5)
    assert stream.batch() == numbers(1, 4)
    take(broker, stream.entity, 4)
    assert [stream.batch(), stream.batch()] == [[], []]
    send(stream, 6, 7)
    assert [stream.batch(), stream.batch()] == [numbers(6, 7), []]


def take(broker: BrokerProcess, queue: str, number: int) -> None:
    """Receive and complete one message; all others stay."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string()) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        found = receiver.receive_messages(max_message_count=number, max_wait_time=10)
        while len(found) < number and found[-1].sequence_number != number:
            found += receiver.receive_messages(max_message_count=number - len(found), max_wait_time=10)
        for message in found:
            if message.sequence_number == number:
                receiver.complete_message(message)
            else:
                receiver.abandon_message(message)


def test_offset_of_an_earlier_release_goes_on(peeked: Any) -> None:
    """It is the next number alone."""
    stream = peeked()
    send(stream, 1, 5)
    stream.committed = {stream.entity: 4}
    assert stream.batch() == numbers(4, 5)
    stream.committed, stream.open = {stream.entity: 2}, {stream.entity: 4}
    stream.restart()
    assert stream.batch() == numbers(2, 3)
