"""Requests that a running `pairbus syphon` makes, in this process: a quarter of an hour may be a second here."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairbus.cli.pipeline import backlogs, pumping
from pairbus.cli.pipeline.pumping import Pumping
from pairbus.cli.pipeline.spark_start import SparkStart
from pairbus.client.sides import Side
from pairbus.errors import PairbusError, SparkGone
from pairbus.ledger import read
from pairbus.syphon import SyphonProgress, SyphonSettings
from tests.backlog import put_diverted
from tests.brokers import BrokerProcess

BACKLOG = "contoso/x-servicebus-transfer"
NEVER_S = 3600.0
BEGUN_S = 5.0  # within which a syphon has asked for its first list, on a busy machine too
COUNTED_S = 3.0  # within which it has counted again after a move


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("bus") / "data", strict=True) as process:
        for namespace, queue in (("contoso", "orders"), ("fabrikam", f"{BACKLOG}/0"), ("fabrikam", f"{BACKLOG}/1")):
            with process.admin(namespace) as admin:
                admin.create_queue(queue)
        yield process


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("COUNT_LOOK_S", 0.05), ("LOG_S", 0.1), ("COUNT_S", 0.1), ("IDLE_COUNT_S", NEVER_S)):
        monkeypatch.setattr(pumping, name, seconds)


class Running:
    """A syphon that is told to end when the test is through."""

    def __init__(self, broker: BrokerProcess, ledger: Path) -> None:
        home, away = (Side.from_connection_string(broker.connection_string(name)) for name in ("contoso", "fabrikam"))
        self._ledger = ledger
        self._task = asyncio.create_task(
            Pumping(home, away, SyphonSettings(), ledger).syphon("contoso", None, once=False)
        )

    async def end(self) -> Counter[str]:
        """The operations that were metered, by kind."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        counted: Counter[str] = Counter()
        for row in read(self._ledger):
            counted[row.kind] += row.count or 0
        return counted


async def divert(broker: BrokerProcess, queue: str) -> None:
    await put_diverted(broker.connection_string("fabrikam"), queue, "orders", [ServiceBusMessage("1")])


async def arrived(broker: BrokerProcess) -> None:
    async with ServiceBusClient.from_connection_string(broker.connection_string("contoso")) as client:
        receiver = client.get_queue_receiver("orders", receive_mode="receiveanddelete")
        assert await receiver.receive_messages(max_wait_time=20)


async def test_an_idle_syphon_costs_its_long_polls(broker: BrokerProcess, tmp_path: Path) -> None:
    """The syphon asks for one list at the start, and for none until a message is moved."""
    running = Running(broker, tmp_path / "idle")
    await asyncio.sleep(BEGUN_S)
    assert (await running.end())["management"] == 1
    running = Running(broker, tmp_path / "busy")
    await divert(broker, f"{BACKLOG}/0")
    await arrived(broker)
    await asyncio.sleep(COUNTED_S)
    assert 2 <= (await running.end())["management"] <= 4


async def test_backlog_queues_are_asked_by_name_among_many_queues(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list is a request for each hundred queues of the namespace."""
    monkeypatch.setattr(backlogs, "PAGE_SIZE", 1)
    with broker.admin("fabrikam") as admin:
        admin.create_queue("other")
        running = Running(broker, tmp_path / "ledger")
        await divert(broker, f"{BACKLOG}/1")
        await arrived(broker)
        await asyncio.sleep(COUNTED_S)
        await running.end()
        admin.delete_queue("other")
    asked = {row.entity for row in read(tmp_path / "ledger") if row.kind == "management"}
    assert asked == {"$Resources/queues", f"{BACKLOG}/0", f"{BACKLOG}/1"}


async def test_queues_that_are_created_meanwhile_are_drained(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Senders that pair later have more of them."""
    monkeypatch.setattr(pumping, "IDLE_COUNT_S", 0.2)
    running = Running(broker, tmp_path / "ledger")
    await divert(broker, f"{BACKLOG}/0")
    await arrived(broker)
    with broker.admin("fabrikam") as admin:
        admin.create_queue(f"{BACKLOG}/7")
        for number in (7, 0, 7):  # messages of queue 0 are still moved too
            await divert(broker, f"{BACKLOG}/{number}")
            await arrived(broker)
        await running.end()
        admin.delete_queue(f"{BACKLOG}/7")
    assert f"new backlog queues: {BACKLOG}/7\n" in capsys.readouterr().err


# ── on Spark ──


class FakeSparkSyphon:
    """A `SparkSyphon` that does no work: it runs until `ending` is set."""

    def __init__(self, *, java_dies: bool = False, failure: PairbusError | None = None) -> None:
        self.spark = None
        self.left: int | None = None
        self.problems: Counter[str] = Counter()
        self.ending = threading.Event()
        self.is_followed = threading.Event()
        self.stopped_within: list[float] = []
        self._failure = SparkGone("the Java process of Spark has ended") if java_dies else failure

    def wait(self, timeout_s: float) -> bool:
        self.is_followed.set()
        has_ended = self.ending.wait(timeout_s)
        if has_ended and self._failure is not None:
            raise self._failure
        return has_ended

    def stop(self, timeout_s: float) -> None:
        self.stopped_within.append(timeout_s)
        self.ending.set()

    def progress(self) -> SyphonProgress:
        return SyphonProgress(queues=1, moved=3, per_s=0.0, blocked=0, dead_lettered=0, errors=0)


class FakeSparkStart:
    """A `SparkStart` whose Spark is there when `make` returns."""

    server = None

    def __init__(self, make: Callable[[], FakeSparkSyphon]) -> None:
        self.compacted = threading.Event()
        self.failure: Exception | None = None
        self._make = make

    def redrive(self, *arguments: Any, **options: Any) -> FakeSparkSyphon:
        return self._make()

    def compact(self, spark: object) -> None:
        self.compacted.set()
        if self.failure is not None:
            raise self.failure


async def redrive_on(start: FakeSparkStart, *, once: bool) -> bool:
    """Run `pairbus redrive --engine spark` on namespaces that nothing connects to."""
    side = Side.from_connection_string("Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=aw==")
    run = Pumping(side, side, SyphonSettings(), None, cast(SparkStart, start))
    return await run.redrive("orders", None, once=once, duplicate_window_s=0.0, new_ids=False)


async def test_problems_of_a_job_are_told_once_and_its_journal_compacted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal is compacted every hour, here very often, and at the end; messages left make the exit code 1."""
    engine = FakeSparkSyphon()
    start = FakeSparkStart(lambda: engine)
    monkeypatch.setattr(pumping, "SPARK_LOOK_S", 0.01)
    monkeypatch.setattr(pumping, "COMPACT_S", 0.0)
    running = asyncio.create_task(redrive_on(start, once=True))
    for _ in range(3):
        engine.problems["orders: disabled"] += 1
        for _ in range(2):  # the second one has seen the problem
            start.compacted.clear()
            assert await asyncio.to_thread(start.compacted.wait, 20)
    monkeypatch.setattr(pumping, "COMPACT_S", NEVER_S)
    for _ in range(2):  # after which no hour is over
        engine.is_followed.clear()
        assert await asyncio.to_thread(engine.is_followed.wait, 20)
    start.compacted.clear()
    engine.left = 2
    engine.ending.set()
    assert await running
    assert start.compacted.is_set()
    said = capsys.readouterr()
    assert said.out == "moved 3 messages, 2 left\n"
    assert said.err.partition("WARNING")[2].count("disabled") == 2  # when it was met, and in the summary


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), PairbusError("the job was aborted")])
async def test_drain_outlives_compaction_that_fails(capsys: pytest.CaptureFixture[str], failure: Exception) -> None:
    """A full disk takes no tables; the messages are at home all the same."""
    engine = FakeSparkSyphon()
    engine.left = 0
    engine.ending.set()
    start = FakeSparkStart(lambda: engine)
    start.failure = failure
    assert not await redrive_on(start, once=True)
    said = capsys.readouterr()
    assert said.out == "moved 3 messages\n"
    assert said.err.count(f"the tables were not made; the next run makes them: {failure}") == 1


async def test_job_that_could_not_count_the_rest_does_not_end_as_if_nothing_were_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A throttled secondary does not tell what is left; after exit code 0 somebody may delete it."""
    engine = FakeSparkSyphon()
    engine.ending.set()
    assert await redrive_on(FakeSparkStart(lambda: engine), once=True)
    assert "does not say whether anything is left" in capsys.readouterr().err
    engine.left = 0
    assert not await redrive_on(FakeSparkStart(lambda: engine), once=True)


async def test_job_that_gives_up_tells_how_many_messages_it_moved(capsys: pytest.CaptureFixture[str]) -> None:
    """Thousands of messages may be at home already when the fifth query fails."""
    engine = FakeSparkSyphon(failure=PairbusError("the query failed 5 times"))
    engine.ending.set()
    with pytest.raises(PairbusError, match="failed 5 times"):
        await redrive_on(FakeSparkStart(lambda: engine), once=True)
    assert capsys.readouterr().out.startswith("moved 3 messages")


async def test_command_that_is_told_to_end_does_not_start_java_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A signal to the whole group ends Java too; only a Java that dies by itself is answered by a new process."""
    engine = FakeSparkSyphon(java_dies=True)
    running = asyncio.create_task(redrive_on(FakeSparkStart(lambda: engine), once=False))
    assert await asyncio.to_thread(engine.is_followed.wait, 20)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not await running
    assert engine.stopped_within == [pumping.STOP_S]
    assert capsys.readouterr().out == "moved 3 messages\n"
    engine.stopped_within.clear()
    with pytest.raises(SparkGone):
        await redrive_on(FakeSparkStart(lambda: engine), once=False)


async def test_stopped_command_does_not_wait_for_a_slow_java() -> None:
    """Spark takes ten seconds to start, on a busy machine minutes."""
    is_starting, may_start = threading.Event(), threading.Event()

    def make() -> FakeSparkSyphon:
        is_starting.set()
        may_start.wait()
        return FakeSparkSyphon()

    running = asyncio.create_task(redrive_on(FakeSparkStart(make), once=True))
    assert await asyncio.to_thread(is_starting.wait, 20)
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        async with asyncio.timeout(20):
            assert await running, "stopped before everything was moved"
    finally:
        may_start.set()
