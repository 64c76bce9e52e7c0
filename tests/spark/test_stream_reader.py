"""Stream reads against a real broker, without Spark: batches, limits, repetitions, late attempts, restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.errors import ConfigError, EntityNotFound, StorageError
from pairbus.spark.source import intake, stream_driver
from pairbus.spark.source.batch_reader import Peeker
from pairbus.spark.source.schema import arrow_schema
from pairbus.spark.source.stream_reader import StagedStreamReader
from pairbus.spark.staging.log import LogEntry, Staging
from pairbus.spark.staging.stage_file import StageWriter
from pairbus.transport import Carrier, ReceivedMessage, Receiver, TransportError
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.spark.queues import bodies_in, dead_letter, options, place_of
from tests.spark.stream_world import Stream, new_stream


@pytest.fixture
def stream(broker: BrokerProcess, queue_name: str, tmp_path: Path) -> Stream:
    return new_stream(broker, queue_name, tmp_path)


def texts(count: int) -> list[str]:
    return [f"{number:04d}" for number in range(count)]


def as_bodies(sent: list[str]) -> list[bytes]:
    return [text.encode() for text in sent]


def test_every_message_comes_once_and_leaves_the_queue(stream: Stream, broker: BrokerProcess) -> None:
    """Rows have the documented schema, offsets are a number and the id of the staging location."""
    sent = texts(25)
    stream.send(*sent)
    results = [stream.task(partition) for partition in stream.begin()]
    assert all(batch.schema == arrow_schema(False) for batches in results for batch in batches)
    assert sorted(stream.end(results)) == as_bodies(sent)
    assert bodies_in(broker, stream.entity) == []
    assert stream.committed == {"batch": 1, "location": stream.book.identity.id}
    assert stream.batch() == []
    assert stream.committed["batch"] == 1, "an empty queue makes no micro-batch"


def test_a_batch_has_at_most_as_many_messages_as_was_said(
    stream: Stream, broker: BrokerProcess, tmp_path: Path
) -> None:
    """No more messages are taken from the queue: others would be locked in vain, and kept from other receivers."""
    stream = new_stream(broker, stream.entity, tmp_path, maxMessagesPerBatch="7", partitions="3")
    stream.send(*texts(17))
    sizes = [len(stream.batch()) for _ in range(3)]
    assert sizes == [7, 7, 3]
    stream = new_stream(broker, stream.entity, tmp_path, maxMessagesPerBatch="1", partitions="3")
    stream.send("a", "b")
    assert [stream.batch(), stream.batch()] == [[b"a"], [b"b"]]


def test_one_task_keeps_the_order_of_the_queue(stream: Stream, broker: BrokerProcess, tmp_path: Path) -> None:
    """Several tasks do not keep the order, as with any competing receivers."""
    stream = new_stream(broker, stream.entity, tmp_path, partitions="1", maxMessagesPerBatch="150")
    sent = texts(300)
    stream.send(*sent)
    assert stream.drain() == as_bodies(sent)


def test_a_repeated_batch_has_identical_rows_whatever_came_meanwhile(stream: Stream) -> None:
    """Same driver, and a driver that starts anew with other options; nothing is received for it."""
    stream.send(*texts(10))
    first = [stream.task(partition) for partition in stream.begin()]
    stream.send("later")
    assert [stream.task(partition) for partition in stream.begin()] == first
    stream.restart()
    assert [stream.task(partition) for partition in stream.begin()] == first
    stream.end(first)
    assert stream.batch() == [b"later"]


@pytest.mark.parametrize("earlier", [0, 2])
@pytest.mark.parametrize("restarts", [1, 3])
def test_first_batch_of_a_checkpoint_is_repeated_after_a_crash(
    earlier: int, restarts: int, stream: Stream, broker: BrokerProcess
) -> None:
    """Its rows were read, and the sink failed. The location may have batches of a checkpoint that was given up."""
    for number in range(earlier):
        stream.send(f"earlier {number}")
        stream.drain()
    new = stream.elsewhere(stream.location)
    new.committed, new.is_new = None, True
    new.restart()
    new.send("a", "b", "c")
    rows = [new.task(partition) for partition in new.begin()]
    assert bodies_in(broker, new.entity) == [], "received and sealed: they are in no other place"
    assert new.open is not None
    first = new.open["batch"]
    for _ in range(restarts):
        new.restart()
        assert [new.task(partition) for partition in new.begin()] == rows
    assert sorted(new.end(rows)) == [b"a", b"b", b"c"]
    new.send("d")
    assert new.batch() == [b"d"]
    assert new.committed is not None and new.committed["batch"] == first + 1
    new.restart()
    assert new.drain()[3:] == [b"d"]


def test_batch_that_spark_did_not_note_enters_with_the_next(stream: Stream) -> None:
    """The crash comes between the plan and the checkpoint, and another while that next batch is open."""
    stream.send("a", "b")
    for partition in stream.begin():
        stream.task(partition)
    stream.open = None
    for _ in range(2):
        stream.restart()
        assert stream.begin()
    assert sorted(stream.drain()) == [b"a", b"b"]


def test_equal_offsets_are_no_batch(stream: Stream) -> None:
    """Spark 4.0 and 4.1 ask for the tasks between them at a restart, and do not tell where the next batch begins."""
    stream.send("a")
    stream.batch()
    stream.restart()
    assert stream.reader.partitions(stream.committed, stream.committed) == []
    stream.send("b")
    assert stream.drain() == [b"a", b"b"]


def test_a_late_attempt_completes_nothing_and_reads_what_the_other_has_sealed(
    stream: Stream, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts of one task at once, and other messages in each: those of the second go back to the queue."""
    stream.send("a", "b")
    partition = stream.begin()[0]
    finish = StageWriter.finish
    others: list[list[pa.RecordBatch]] = []

    def overtaken(stage: StageWriter) -> None:
        finish(stage)
        if not others:
            others.append([])
            # `read` would wait for the event loop that this attempt blocks: the other attempt needs a loop of its own.
            with ThreadPoolExecutor() as elsewhere:
                elsewhere.submit(stream.send, "c").result()
                others[0] = elsewhere.submit(attempt_on_its_own, stream, partition).result()

    monkeypatch.setattr(StageWriter, "finish", overtaken)
    late = stream.task(partition)
    assert others[0] == late
    assert [body for batch in late for body in batch.column("body").to_pylist()] == [b"c"]
    assert bodies_in(broker, stream.entity) == [b"a", b"b"]
    stream.end([late])
    assert stream.batch() == [b"a", b"b"], "the late attempt gave its messages back at once"


def attempt_on_its_own(stream: Stream, partition: Any) -> list[pa.RecordBatch]:
    reader = stream.reader

    async def attempt() -> Any:
        async with reader._options.borrowed().new_carrier() as carrier:
            return await intake.take_in(reader._options, reader._staging, partition.share, carrier)

    return list(reader._rows(asyncio.run(attempt())))


@pytest.mark.parametrize("done", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_messages_whose_completion_failed_are_recognised_when_they_come_again(
    broker: BrokerProcess, make_queue: MakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """The answer was lost: the queue may or may not have forgotten them. Sealed is sealed, and in the end a look at the
    queue shows that nothing of it is left there."""
    complete = Receiver.complete

    async def fails(receiver: Receiver, deliveries: list[ReceivedMessage], **_: Any) -> None:
        if done:
            await complete(receiver, deliveries)
        raise TransportError("the answer was lost", outcome_unknown=True)

    stream = new_stream(broker, make_queue(lock_duration=timedelta(seconds=5)), tmp_path, partitions="1")
    stream.send("a", "b", "c")
    with monkeypatch.context() as broken:
        broken.setattr(Receiver, "complete", fails)
        assert stream.batch() == [b"a", b"b", b"c"]
    stream.send("d")
    stream.restart()
    monkeypatch.setattr(stream_driver, "RESOLVE_EVERY_S", 0.1)
    deadline = time.monotonic() + 15
    while bodies_in(broker, stream.entity) or stream.begin() or stream.book.unconfirmed:
        assert time.monotonic() < deadline, f"{stream.bodies}: {stream.book.unconfirmed}"
        stream.batch()
    assert stream.bodies == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_stage_stays_when_the_answer_to_its_seal_was_lost(
    broker: BrokerProcess, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """The seal may be in the log, and a seal without its stage would end the stream for good: no attempt could read it.
    The rows are those of the retry, whether the seal was stored or not."""
    append = Staging.append

    def fails(staging: Staging, entry: LogEntry) -> bool:
        if is_stored:
            assert append(staging, entry)
        raise StorageError("the answer was lost")

    stream = new_stream(broker, queue_name, tmp_path, partitions="1")
    stream.send("a", "b", "c")
    (partition,) = stream.begin()
    with monkeypatch.context() as broken:
        broken.setattr(Staging, "append", fails)
        with pytest.raises(StorageError, match="the answer was lost"):
            stream.task(partition)
    stream.restart()
    (partition,) = stream.begin()
    assert stream.end([stream.task(partition)]) == [b"a", b"b", b"c"]
    stream.send("d")
    assert stream.drain() == [b"a", b"b", b"c", b"d"]
    assert bodies_in(broker, stream.entity) == []


def test_messages_are_given_back_although_their_stage_cannot_be_removed(
    broker: BrokerProcess, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage that fails once mostly fails twice; the next attempt must not wait until the locks run out."""

    def fails(stage: StageWriter) -> None:
        raise StorageError("the storage is away")

    stream = new_stream(broker, queue_name, tmp_path, partitions="1")
    stream.send("a", "b")
    (partition,) = stream.begin()
    with monkeypatch.context() as broken:
        broken.setattr(StageWriter, "finish", fails)
        broken.setattr(StageWriter, "discard", fails)
        with pytest.raises(StorageError, match="the storage is away"):
            stream.task(partition)
    assert stream.end([stream.task(partition)]) == [b"a", b"b"]


def test_recreated_queue_is_read_from_its_beginning(
    broker: BrokerProcess,
    make_queue: MakeQueue,
    admin: ServiceBusAdministrationClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sequence numbers of the new queue begin with 1 again, and applications may use the same message ids again:
    the time of arrival tells these messages from those that were sealed and perhaps not completed.
    """

    async def fails(receiver: Receiver, deliveries: list[ReceivedMessage], **_: Any) -> None:
        raise TransportError("the answer was lost", outcome_unknown=True)

    queue = make_queue()
    stream = new_stream(broker, queue, tmp_path)
    stream.send("a", "b")
    with monkeypatch.context() as broken:
        broken.setattr(Receiver, "complete", fails)
        assert sorted(stream.batch()) == [b"a", b"b"]
    admin.delete_queue(queue)
    make_queue(queue)
    stream.send("a", "b")
    stream.restart()
    assert sorted(stream.drain()) == [b"a", b"a", b"b", b"b"]


def test_a_batch_that_spark_has_committed_is_closed_for_late_attempts(stream: Stream, broker: BrokerProcess) -> None:
    """A task that Spark never ran, or that sleeps, must not take messages that would enter nothing."""
    stream.send("a")
    partitions = stream.begin()
    stream.end([stream.task(partitions[0])])
    assert stream.batch() == []
    stream.send("b")
    assert stream.task(partitions[1]) == []
    assert bodies_in(broker, stream.entity) == [b"b"]
    assert stream.batch() == [b"b"]


def test_a_commit_that_spark_calls_itself_is_as_good(stream: Stream) -> None:
    """Spark calls commit when the next batch is constructed, after `latestOffset` has learnt the same."""
    stream.send("a")
    stream.batch()
    assert stream.committed is not None
    stream.reader.commit(stream.committed)
    stream.reader.commit(stream.committed)
    assert stream.book.committed == 1


def test_dead_letters_are_a_stream_too(broker: BrokerProcess, stream: Stream, tmp_path: Path) -> None:
    """The option is subQueue; the queue itself is another stream."""
    stream.send("a", "b", "c")
    dead_letter(broker, stream.entity, 2)
    dead = new_stream(broker, stream.entity, tmp_path, subQueue="deadletter", partitions="1")
    assert dead.drain() == [b"a", b"b"]
    assert stream.drain() == [b"c"]


def test_an_idle_stream_looks_at_the_queue_once_in_a_pause(
    stream: Stream, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks 90 times a second; each look is a billed operation."""
    stream = new_stream(broker, stream.entity, tmp_path, idlePollSeconds="900")
    looks = counted(monkeypatch, Peeker, "peek")
    monkeypatch.setattr(stream_driver, "SLICE_S", 0.01)
    assert stream.begin() == []
    at_start = len(looks)
    assert at_start == 2, "one peek to check the entity, one to look for messages"
    for _ in range(20):
        assert stream.begin() == []
    assert stream.reader.reportLatestOffset() == {"batch": 0, "oldestEnqueuedMs": None, "waitingAtMost": 0}
    assert len(looks) == at_start


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> list[str]:
    calls: list[str] = []
    original: Callable[..., Any] = getattr(kind, method)

    def count(*args: Any, **options: Any) -> Any:
        calls.append(method)
        return original(*args, **options)

    monkeypatch.setattr(kind, method, count)
    return calls


def test_the_progress_shows_how_much_is_waiting(stream: Stream) -> None:
    """An upper bound: numbers between the first and the last message."""
    stream.send(*texts(700))
    assert stream.begin()
    report = stream.reader.reportLatestOffset()
    assert report["waitingAtMost"] == 700
    assert abs(report["oldestEnqueuedMs"] / 1000 - time.time()) < 60


def test_available_now_ends_with_what_was_there_at_its_start(stream: Stream) -> None:
    """Messages sent after the start are for the next run."""
    stream.send(*texts(5))
    stream.reader.prepareForTriggerAvailableNow()
    partitions = stream.begin()
    first = stream.end([stream.task(partition) for partition in partitions])
    stream.send("later")
    assert sorted(first) == as_bodies(texts(5))
    assert stream.begin() == []


def test_available_now_gives_up_on_messages_that_somebody_else_keeps_locked(
    stream: Stream, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked messages can be seen and not received: after some batches without any the run is over, and they stay."""
    monkeypatch.setattr(stream_driver, "EMPTY_ROUNDS_MAX", 2)
    monkeypatch.setattr(intake, "FIRST_WAIT_S", 0.1)
    stream.send("a")

    async def locked() -> None:
        async with Carrier(broker.connection_string()) as carrier:
            receiver = await carrier.receiver(stream.entity)
            assert await receiver.receive(1, 5.0)
            stream.reader.prepareForTriggerAvailableNow()
            await asyncio.to_thread(stream.drain, 3)
            assert stream.committed is not None and stream.committed["batch"] == 2

    asyncio.run(locked())
    assert bodies_in(broker, stream.entity) == [b"a"]


def test_deferred_messages_are_not_waiting(stream: Stream, broker: BrokerProcess) -> None:
    """A peek shows them for as long as they are there; a batch for each look would never end."""
    stream.send("a", "b")

    async def defer() -> None:
        async with Carrier(broker.connection_string()) as carrier:
            receiver = await carrier.receiver(stream.entity, credit=1)
            await receiver.defer(await receiver.receive(1, 5.0))
            await receiver.close()

    asyncio.run(defer())
    assert stream.drain() == [b"b"]
    assert stream.begin() == []


def test_stages_are_removed_after_the_retention(stream: Stream, broker: BrokerProcess, tmp_path: Path) -> None:
    """Only stages of committed batches are removed: the open batch may be repeated."""
    stream = new_stream(broker, stream.entity, tmp_path, stageRetentionSeconds="0")
    for text in ("a", "b"):
        stream.send(text)
        stream.batch()
    assert stream.book.staging.numbers("stages") == [2]


def test_errors_name_what_is_wrong_before_anything_is_touched(
    stream: Stream, broker: BrokerProcess, tmp_path: Path
) -> None:
    """An entity that is not there, a key that is refused, a location that is missing or in use."""
    location = tmp_path / "never"
    missing = Stream(broker, "no-such-queue", location)
    with pytest.raises(EntityNotFound, match="no-such-queue"):
        missing.begin()
    wrong = {"connectionString": place_of(broker.connection_string(key="d3Jvbmc=")), "stagingLocation": str(location)}
    with pytest.raises(ConfigError, match=r"option connectionString: .* refuses its key"):
        StagedStreamReader(options(broker, "stream", entity=stream.entity, **wrong)).initialOffset()
    assert not location.exists()
    with pytest.raises(ConfigError, match="option stagingLocation is required"):
        options(broker, "stream", entity=stream.entity)
    stream.send("a")
    partition = stream.begin()[0]
    Stream(broker, stream.entity, stream.location).begin()
    with pytest.raises(ConfigError, match="another query has taken"):
        stream.begin()
    with pytest.raises(ConfigError, match="another query has taken"):
        stream.task(partition)
    assert bodies_in(broker, stream.entity) == [b"a"]


def test_a_task_on_a_host_without_the_location_touches_no_message(
    stream: Stream, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task would stage messages where no other process looks."""
    stream.send("a")
    partition = stream.begin()[0]
    monkeypatch.setattr("pairbus.spark.staging.log.VISIBLE_S", 0.0)
    elsewhere = Stream(broker, stream.entity, tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="option stagingLocation: host"):
        elsewhere.task(partition)
    assert stream.batch() == [b"a"]
