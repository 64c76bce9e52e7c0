"""Sessions as a stream: one of them, or all in turn, in their order after any fault; and the limit of bytes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.spark.source import intake
from pairbus.spark.staging.stage_file import StageWriter
from pairbus.transport import Carrier
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, put
from tests.spark.stream_world import new_stream
from tests.spark.test_topics_and_sessions import of_session, rows_of


@pytest.fixture
def queue(make_queue: MakeQueue) -> str:
    return make_queue(requires_session=True)


def bodies(session_id: str, count: int) -> list[bytes]:
    return [f"{session_id}{number}".encode() for number in range(count)]


def fill(broker: BrokerProcess, queue: str, sessions: str, count: int) -> None:
    put(broker, queue, [of_session(session_id, number) for number in range(count) for session_id in sessions])


def long_message(text: str) -> bytes:
    return Message(properties=Properties(message_id=text[:2]), data=[text.encode()]).encode()


def test_one_session_is_read_and_the_others_stay(broker: BrokerProcess, queue: str, tmp_path: Path) -> None:
    """One receiver reads it in its order, with any number of partitions; the run's end does not wait for others."""
    fill(broker, queue, "abc", 5)
    stream = new_stream(broker, queue, tmp_path, session="b", partitions="3", maxMessagesPerBatch="2")
    stream.reader.prepareForTriggerAvailableNow()
    assert len(stream.begin()) == 1
    assert stream.drain() == bodies("b", 5)
    assert sorted(bodies_in(broker, queue)) == sorted(bodies("a", 5) + bodies("c", 5))


def test_a_session_that_another_receiver_has_waits(broker: BrokerProcess, queue: str, tmp_path: Path) -> None:
    """The batch is empty, and the next look finds the session free."""
    fill(broker, queue, "a", 2)
    stream = new_stream(broker, queue, tmp_path, session="a")

    async def while_held() -> list[bytes]:
        async with Carrier(broker.connection_string()) as carrier:
            await carrier.receiver(queue, session="a")
            return await asyncio.to_thread(stream.batch)

    assert asyncio.run(while_held()) == []
    assert stream.drain() == bodies("a", 2)


def test_no_session_is_in_two_partitions_of_a_batch(broker: BrokerProcess, queue: str, tmp_path: Path) -> None:
    """The second task is offered the session that the first has not finished, and leaves it to the next batch.

    Otherwise the later messages could stand in an earlier partition.
    """
    fill(broker, queue, "a", 10)
    stream = new_stream(broker, queue, tmp_path, sessions="true", partitions="2", maxMessagesPerBatch="8")
    seen = []
    while tasks := rows_of(stream):
        seen += [[row["body"] for row in rows] for rows in tasks if rows]
        assert sum(bool(rows) for rows in tasks) == 1, "one partition has all of this batch"
        if sum(map(len, seen)) == 10:
            break
    assert [body for part in seen for body in part] == bodies("a", 10)
    assert bodies_in(broker, queue) == []


@pytest.mark.parametrize("at_once", [True, False])
def test_every_session_keeps_its_order(broker: BrokerProcess, queue: str, tmp_path: Path, at_once: bool) -> None:
    """Tasks that run at the same time, or the last one first; shares that end within sessions; every batch repeated."""
    fill(broker, queue, "abcde", 12)
    stream = new_stream(broker, queue, tmp_path, sessions="true", partitions="3", maxMessagesPerBatch="21")
    seen: dict[str, list[bytes]] = {}
    while partitions := stream.begin():
        with ThreadPoolExecutor(len(partitions) if at_once else 1) as workers:
            list(workers.map(stream.task, reversed(partitions)))
        results = [stream.task(partition) for partition in stream.begin()]
        tasks = [[row for batch in batches for row in batch.to_pylist()] for batches in results]
        sessions = [row for rows in tasks for row in {row["session_id"] for row in rows}]
        assert len(sessions) == len(set(sessions)), "no session in two partitions"
        for row in (row for rows in tasks for row in rows):
            seen.setdefault(row["session_id"], []).append(row["body"])
        stream.end(results)
    assert seen == {session_id: bodies(session_id, 12) for session_id in "abcde"}


def test_a_session_sealed_elsewhere_meanwhile_is_not_sealed(broker: BrokerProcess, queue: str, tmp_path: Path) -> None:
    """A task has received a session and lost its lock, and another partition has received and sealed some of it."""
    fill(broker, queue, "a", 1)
    stream = new_stream(broker, queue, tmp_path, sessions="true", partitions="2")
    staging, shares = stream.book.staging, [partition.share for partition in stream.begin()]  # type: ignore[attr-defined]
    trackers = [intake.SealTracker(staging, share, by_session=True) for share in shares]
    stages = [StageWriter(staging.storage, staging.new_stage(share.batch, share.partition)) for share in shares]
    for number, stage in enumerate(stages):
        stage.add(of_session("a", number), (number, None, None))
        stage.finish()
    assert trackers[1].try_to_seal(stages[1], frozenset("a")) is not None
    with pytest.raises(intake._SessionOvertaken):
        trackers[0].try_to_seal(stages[0], frozenset("ab"))
    assert trackers[0].try_to_seal(stages[0], frozenset("b")) is not None, "other sessions are sealed"


def test_a_task_whose_session_was_overtaken_receives_again(
    broker: BrokerProcess, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task first gives back all its messages, and none is lost."""
    fill(broker, queue, "a", 4)
    stream = new_stream(broker, queue, tmp_path, sessions="true", partitions="1")
    seal, calls = intake.SealTracker.try_to_seal, []

    def overtaken_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise intake._SessionOvertaken("a")
        return seal(*arguments)

    monkeypatch.setattr(intake.SealTracker, "try_to_seal", overtaken_once)
    assert stream.batch() == bodies("a", 4)
    assert len(calls) == 2 and bodies_in(broker, queue) == []


def test_a_batch_has_at_most_so_many_bytes(broker: BrokerProcess, queue_name: str, tmp_path: Path) -> None:
    """Messages of very different sizes come in their order; one that is larger than the limit comes alone."""
    sizes = [100, 2_000, 100, 30_000, 9_000, 200, 8_000, 100, 100, 15_000, 300]
    texts = [f"{number:02d}".ljust(size, "x") for number, size in enumerate(sizes)]
    put(broker, queue_name, [long_message(text) for text in texts])
    stream = new_stream(broker, queue_name, tmp_path, partitions="1", maxBytesPerTrigger="20000")
    seen = []
    while found := stream.batch():
        seen.append(found)
    assert [body for batch in seen for body in batch] == [text.encode() for text in texts]
    assert all(sum(map(len, batch)) < 20_000 for batch in seen if len(batch) > 1)
    assert [texts[3].encode()] in seen
    assert len(seen) <= 5, "micro-batches are not filled"


def test_tasks_share_the_bytes_of_a_batch(broker: BrokerProcess, queue_name: str, tmp_path: Path) -> None:
    """A task gives back at once messages that do not fit: no other task waits for a lock."""
    texts = [f"{number:02d}".ljust(1_000, "x") for number in range(20)]
    put(broker, queue_name, [long_message(text) for text in texts])
    stream = new_stream(broker, queue_name, tmp_path, partitions="3", maxBytesPerBatch="12000")
    sizes = []
    while found := stream.batch():
        sizes.append(len(found))
    assert sizes == [9, 9, 2], "three fit into the 4 000 bytes of each task"
    assert sorted(stream.bodies) == [text.encode() for text in texts]
