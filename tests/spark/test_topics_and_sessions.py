"""Source and sink with real topics, subscriptions and sessions; as Spark drives them, without Spark."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.amqp.message import Message, Properties
from pairbus.errors import PairbusError
from pairbus.spark.sink.writers import send_rows
from pairbus.spark.source import intake
from pairbus.spark.source.batch_reader import PeekReader
from pairbus.transport import Carrier
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, dead_letter, messages_in, options, put, text_message
from tests.spark.stream_world import Stream, new_stream


@pytest.fixture
def topic(admin: ServiceBusAdministrationClient) -> str:
    """A topic with the subscriptions `sports`, and `cases`, which has sessions."""
    name = f"news/{uuid.uuid4().hex[:10]}"
    admin.create_topic(name)
    admin.create_subscription(name, "sports")
    admin.create_subscription(name, "cases", requires_session=True)
    return name


def of_session(session_id: str, number: int) -> bytes:
    text = f"{session_id}{number}"
    return Message(properties=Properties(message_id=text, group_id=session_id), data=[text.encode()]).encode()


def rows_of(stream: Stream) -> list[list[dict[str, Any]]]:
    """The rows of one micro-batch, by task."""
    results = [stream.task(partition) for partition in stream.begin()]
    stream.end(results)
    return [[row for batch in batches for row in batch.to_pylist()] for batches in results]


def test_a_subscription_and_its_dead_letters_are_streams_of_their_own(
    broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """Rows have the path as given, so that they differ from those of the topic's other subscriptions."""
    path = f"{topic}/Subscriptions/sports"
    put(broker, topic, [text_message(text) for text in ("a", "b", "c")])
    dead_letter(broker, path, 1)
    [rows] = rows_of(new_stream(broker, path, tmp_path, partitions="1"))
    assert [(row["entity"], row["body"]) for row in rows] == [(path, b"b"), (path, b"c")]
    dead = new_stream(broker, path, tmp_path, partitions="1", subQueue="deadletter")
    [[row]] = rows_of(dead)
    assert (row["entity"], row["body"], row["dead_letter_reason"]) == (path, b"a", "spoiled")
    assert bodies_in(broker, path) == bodies_in(broker, f"{path}/$DeadLetterQueue") == []


@pytest.mark.parametrize("name", ["sports", "cases"])
def test_a_batch_read_peeks_a_subscription(broker: BrokerProcess, topic: str, name: str) -> None:
    """The subscription may have sessions: a peek accepts none, and neither locks nor removes messages."""
    path = f"{topic}/Subscriptions/{name}"
    put(broker, topic, [of_session(session_id, 0) for session_id in "abc"])
    reader = PeekReader(options(broker, "read", entity=path, partitions="1"))
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [(row["entity"], row["session_id"], row["body"]) for row in rows] == [
        (path, "a", b"a0"),
        (path, "b", b"b0"),
        (path, "c", b"c0"),
    ]
    assert bodies_in(broker, path) == [b"a0", b"b0", b"c0"]


@pytest.mark.parametrize("kind", ["queue", "subscription"])
def test_sessions_are_read_one_after_another(
    broker: BrokerProcess, make_queue: MakeQueue, topic: str, kind: str, tmp_path: Path
) -> None:
    """Each message comes once, those of a session in one task and in their order; the entity is empty at the end."""
    write, read = (topic, f"{topic}/Subscriptions/cases")
    if kind == "queue":
        write = read = make_queue(requires_session=True)
    put(broker, write, [of_session(session_id, number) for number in range(4) for session_id in "abcde"])
    stream = new_stream(broker, read, tmp_path, partitions="2", sessions="true")
    tasks = rows_of(stream)
    sessions = [{row["session_id"] for row in rows} for rows in tasks]
    assert not sessions[0] & sessions[1], "no session in two tasks"
    for rows in tasks:
        for session_id in {row["session_id"] for row in rows}:
            bodies = [row["body"] for row in rows if row["session_id"] == session_id]
            assert bodies == [f"{session_id}{number}".encode() for number in range(4)]
    assert len(stream.bodies) == 20 and bodies_in(broker, read) == []
    assert stream.drain() == stream.bodies


def test_share_that_ends_within_a_session_leaves_the_rest(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """The session is free again when the task ends, and goes on where it was."""
    queue = make_queue(requires_session=True)
    put(broker, queue, [of_session("a", number) for number in range(5)] + [of_session("b", 0)])
    stream = new_stream(broker, queue, tmp_path, partitions="1", sessions="true", maxMessagesPerBatch="3")
    assert stream.batch() == [b"a0", b"a1", b"a2"]
    assert sorted(stream.batch()) == [b"a3", b"a4", b"b0"]
    assert bodies_in(broker, queue) == []


def test_task_that_dies_after_its_seal_repeats_no_session_message(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed and not completed: the messages come again with their session, are recognised and completed then."""
    queue = make_queue(requires_session=True)
    put(broker, queue, [of_session(session_id, number) for number in range(3) for session_id in "ab"])
    stream = new_stream(broker, queue, tmp_path, partitions="1", sessions="true")

    async def dies(self: object) -> bool:
        raise PairbusError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(intake._Intake, "complete", dies)
        [partition] = stream.begin()
        with pytest.raises(PairbusError, match="killed"):
            stream.task(partition)
    stream.restart()
    assert sorted(stream.batch()) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
    put(broker, queue, [of_session("a", 3)])
    assert sorted(stream.drain()) == [b"a0", b"a1", b"a2", b"a3", b"b0", b"b1", b"b2"]
    assert bodies_in(broker, queue) == []


def test_a_queue_with_sessions_is_refused_without_the_option(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """The service's own words say why; nothing is received."""
    queue = make_queue(requires_session=True)
    put(broker, queue, [of_session("a", 0)])
    stream = new_stream(broker, queue, tmp_path, partitions="1")
    [partition] = stream.begin()
    with pytest.raises(PairbusError, match="sessions"):
        stream.task(partition)
    assert bodies_in(broker, queue) == [b"a0"]


def test_the_sink_writes_to_a_topic_and_to_sessions(broker: BrokerProcess, make_queue: MakeQueue, topic: str) -> None:
    """The column session_id becomes the session; its rows keep their order there."""
    queue = make_queue(requires_session=True)
    columns = {"body": ["0", "1", "2", "3"], "session_id": ["s", "t", "s", "t"]}
    for entity in (topic, queue):
        batch = pa.RecordBatch.from_pydict(columns | {"entity": [entity] * 4})
        send_rows(iter([batch]), options(broker, "write"), 0, "job-0-")
    path = f"{topic}/Subscriptions/sports"
    found = [(message.properties.group_id, message.body) for message in messages_in(broker, path) if message.properties]
    assert sorted(found) == [("s", b"0"), ("s", b"2"), ("t", b"1"), ("t", b"3")]

    async def of(entity: str, session_id: str) -> list[bytes]:
        async with Carrier(broker.connection_string()) as carrier:
            receiver = await carrier.receiver(entity, session=session_id)
            got: list[bytes] = []
            while len(got) < 2:
                got += [Message.decode(each.payload).body for each in await receiver.receive(2, 5.0)]
            return got

    for entity in (queue, f"{topic}/Subscriptions/cases"):
        assert [asyncio.run(of(entity, session_id)) for session_id in "st"] == [[b"0", b"2"], [b"1", b"3"]]


def test_the_sink_names_a_row_without_session_of_a_session_queue(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    """The refusal reaches the user with the entity's name, and nothing was stored."""
    queue = make_queue(requires_session=True)
    batch = pa.RecordBatch.from_pydict({"body": ["x"]})
    with pytest.raises(PairbusError, match=r"(?i)session"):
        send_rows(iter([batch]), options(broker, "write", entity=queue), 0, "job-0-")
    assert bodies_in(broker, queue) == []
