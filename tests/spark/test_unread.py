"""Micro-batches that Spark commits without reading all of them: what no task has read enters with a later one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.spark.source import stream_driver
from pairbus.spark.staging import stage_book, stage_file
from pairbus.spark.staging.log import Staging
from tests.brokers import BrokerProcess
from tests.spark.queues import bodies_in
from tests.spark.stream_world import Stream, new_stream

FOUR = ("a", "b", "c", "d")


@pytest.fixture
def stream(broker: BrokerProcess, queue_name: str, tmp_path: Path) -> Stream:
    return new_stream(broker, queue_name, tmp_path, partitions="2", maxMessagesPerBatch="4")


def seal_all(stream: Stream) -> None:
    """Run the tasks of a batch that Spark never commits: messages are only in the staging location."""
    for partition in stream.begin():
        stream.task(partition)


@pytest.mark.parametrize("is_planned", [True, False])
def test_deleted_checkpoint_with_kept_output_loses_nothing(
    is_planned: bool, broker: BrokerProcess, stream: Stream
) -> None:
    """A new checkpoint counts from 0 again, and a file sink skips batches that it has: no task of these runs."""
    stream.send(*FOUR)
    seal_all(stream)
    again = Stream(broker, stream.entity, stream.location)
    again.skip()
    for _ in range(2):
        again.skip(is_planned=is_planned)
    again.restart()
    again.skip(is_planned=is_planned)
    assert sorted(again.drain()) == [b"a", b"b", b"c", b"d"]
    assert again.drain() == again.bodies and bodies_in(broker, stream.entity) == []


def test_skipped_batches_follow_without_a_pause(broker: BrokerProcess, stream: Stream) -> None:
    """A sink may have thousands of batches; the pause is for messages that others have locked."""
    waiting = Stream(broker, stream.entity, stream.location, idlePollSeconds="900")
    waiting.send("a")
    for _ in range(30):
        waiting.skip()
    assert waiting.drain() == [b"a"]


def test_run_ends_when_nobody_reads(broker: BrokerProcess, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `foreachBatch` that never looks at its frame: Trigger.AvailableNow must not go on for ever."""
    monkeypatch.setattr(stream_driver, "SKIPPED_MAX", 5)
    stream.send(*FOUR)
    seal_all(stream)
    again = Stream(broker, stream.entity, stream.location)
    again.reader.prepareForTriggerAvailableNow()
    for _ in range(5):
        again.skip()
    assert again.begin() == []
    again.restart()
    assert sorted(again.drain()) == [b"a", b"b", b"c", b"d"], "the next run has them"


def test_function_that_reads_half_of_its_frame_gets_the_rest_later(broker: BrokerProcess, stream: Stream) -> None:
    """Spark runs the tasks of some partitions only. Partitions that were sealed and not read come again, once."""
    stream.send(*FOUR, *(text + "2" for text in FOUR))
    seal_all(stream)
    again = Stream(broker, stream.entity, stream.location)
    for number in range(20):
        partitions = again.begin()
        if not partitions:
            break
        half = partitions[number % 2 :: 2] if len(partitions) > 1 else partitions
        again.end([again.task(partition) for partition in half])
        again.restart()
    assert sorted(again.bodies) == sorted(text.encode() for text in (*FOUR, *(text + "2" for text in FOUR)))
    assert bodies_in(broker, stream.entity) == []


def test_partition_that_is_not_read_to_its_end_comes_again(
    broker: BrokerProcess, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`limit` stops in the middle. How many rows Spark has used is not known, so the partition comes again as a whole:
    nothing is lost."""
    monkeypatch.setattr(stage_file, "ROWS_PER_BATCH", 2)
    stream = new_stream(broker, queue_name, tmp_path, partitions="1")
    stream.send(*FOUR)
    (partition,) = stream.begin()
    rows = stream.reader.read(partition)
    assert next(rows).num_rows == 2
    rows.close()
    stream.end([])
    assert stream.batch() == [b"a", b"b", b"c", b"d"]
    assert stream.batch() == []


def test_what_was_not_read_is_kept_when_the_location_is_cleaned(
    broker: BrokerProcess, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage, the seal and the commit that names it stay for as long as it takes."""
    monkeypatch.setattr(stage_book, "LOG_AGE_MIN_S", 0.0)
    stream = new_stream(broker, queue_name, tmp_path, stageRetentionSeconds="0", partitions="1")
    stream.send(*FOUR)
    seal_all(stream)
    stream.end([])
    for path in Path(stream.location).glob("read/*"):
        path.unlink()  # as if Spark had stopped reading before the end
    for _ in range(5):
        stream.skip()
    stream.restart()
    assert stream.batch() == [b"a", b"b", b"c", b"d"]
    stream.send("e")
    assert stream.batch() == [b"e"]
    assert len(stream.book.staging.storage.list("read/")) <= 1, "notes of reads are removed with their batches"


def test_empty_seal_does_not_stay_unconfirmed(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its confirmation was lost in a kill. It has no message that a look at the queue could miss."""
    with monkeypatch.context() as killed:
        killed.setattr(Staging, "confirm", lambda staging, number: None)
        assert stream.begin() == []
        stream.send("a")
        seal_all(stream)
    assert stream.book.unconfirmed or stream.book.staging.numbers("log")
    monkeypatch.setattr(stream_driver, "RESOLVE_EVERY_S", 0.0)
    stream.restart()
    assert stream.batch() == [b"a"]
    assert stream.begin() == []
    assert stream.book.unconfirmed == set()
