"""Tasks that are killed at every point of their work: every message enters Spark exactly once."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pairbus.spark.source import intake
from pairbus.spark.staging.stage_file import StageWriter
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in
from tests.spark.stream_child import POINTS
from tests.spark.stream_world import Stream, new_stream

pytestmark = pytest.mark.slow  # locks of a killed process last 5 s, the shortest that a queue can have

SENT = [f"{number:03d}" for number in range(40)]
ALL_POINTS = [*POINTS, "when the first rows are given"]
DEAD_S = 90.0
UNLOCKED_S = 60.0
SEALED_AT = 2  # index of the first of ALL_POINTS at which a seal exists


@pytest.fixture(scope="module")
def streams(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stream]]:
    """Streams, one for each point where its first task was killed. All wait at once for their locks to run out."""
    folder = tmp_path_factory.mktemp("streams")
    found: dict[str, Stream] = {}
    children = []
    with broker.admin() as admin:
        for number, point in enumerate(ALL_POINTS):
            admin.create_queue(f"crash-{number}", lock_duration=timedelta(seconds=5))
            stream = found[point] = new_stream(broker, f"crash-{number}", folder, maxMessagesPerBatch="20")
            stream.send(*SENT)
            file = folder / f"{number}.pickle"
            file.write_bytes(pickle.dumps((stream.reader, stream.begin()[0])))
            children.append(subprocess.Popen([sys.executable, "-m", "tests.spark.stream_child", str(file), point]))
    try:
        for child in children:
            assert child.wait(DEAD_S) == -9
        yield found
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("point", ALL_POINTS)
def test_each_message_comes_once_whenever_a_task_is_killed(
    point: str, streams: dict[str, Stream], broker: BrokerProcess
) -> None:
    """The driver is gone too: a new one repeats the open batch, then goes on until the queue is empty."""
    stream = streams[point]
    stream.restart()
    partitions = stream.begin()
    sealed = stream.book.received(1)
    assert sealed == (10 if ALL_POINTS.index(point) >= SEALED_AT else 0)
    first = stream.task(partitions[0])
    if sealed:
        assert [batch.to_pylist() for batch in stream.task(partitions[0])] == [batch.to_pylist() for batch in first]
    stream.end([first, stream.task(partitions[1])])
    deadline = time.monotonic() + UNLOCKED_S
    while len(stream.bodies) < len(SENT) or bodies_in(broker, stream.entity):
        assert time.monotonic() < deadline, f"{len(stream.bodies)} of {len(SENT)} messages came, some are in the queue"
        stream.batch()
    assert sorted(stream.bodies) == [text.encode() for text in SENT]


def test_a_new_checkpoint_gets_what_the_lost_one_had_sealed(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path
) -> None:
    """Completed in the queue, never committed by Spark: the files are all that is left of these messages."""
    queue = make_queue()
    stream = new_stream(broker, queue, tmp_path, maxMessagesPerBatch="4")
    stream.send("a", "b", "c", "d", "e")
    for partition in stream.begin():
        stream.task(partition)
    again = Stream(broker, queue, stream.location)
    assert sorted(again.drain()) == [b"a", b"b", b"c", b"d", b"e"]
    assert bodies_in(broker, queue) == []


def test_task_whose_locks_expire_leaves_messages_to_other_tasks(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock shorter than the work: the other task of the batch gets the messages, seals and completes them. The slow
    one finds them in the log, leaves them out, and completes none."""
    stream = new_stream(broker, make_queue(lock_duration=timedelta(seconds=5)), tmp_path, maxMessagesPerBatch="20")
    stream.send(*SENT[:10])
    slow, other = stream.begin()
    finish = StageWriter.finish
    rows: list[list[pa.RecordBatch]] = []

    async def take_over() -> list[pa.RecordBatch]:
        reader, share = stream.reader, other.share  # type: ignore[attr-defined]
        async with reader._options.borrowed().new_carrier() as carrier:
            seal = await intake.take_in(reader._options, reader._staging, share, carrier)
        assert seal is not None and seal.rows == 10
        found = list(reader._rows(seal))
        reader._staging.note_read(share.batch, seal.number)
        return found

    def takes_too_long(stage: StageWriter) -> None:
        finish(stage)
        if not rows:
            rows.append([])
            with ThreadPoolExecutor() as elsewhere:  # `read` would wait for the event loop that this task blocks
                rows[0] = elsewhere.submit(asyncio.run, take_over()).result()

    monkeypatch.setattr(StageWriter, "finish", takes_too_long)
    monkeypatch.setattr(intake, "FIRST_WAIT_S", UNLOCKED_S)  # until the locks of the slow attempt end
    monkeypatch.setattr(intake, "NEXT_WAIT_S", 2.0)
    assert stream.task(slow) == []
    monkeypatch.undo()
    assert sorted(stream.end(rows)) == [text.encode() for text in SENT[:10]]
    stream.restart()
    assert stream.drain() == stream.bodies and bodies_in(broker, stream.entity) == []
    assert len(stream.bodies) == 10
