"""The syphon's source without Spark: what the driver asks and what a task does, on real namespaces."""

from __future__ import annotations

import pickle
import resource
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.errors import ConfigError
from pairbus.ledger import read
from pairbus.ledger.rows import day_of
from pairbus.pairing.policy import Failure, Kind
from pairbus.spark.connections import Borrowed, Secret, run
from pairbus.spark.storage.folder import FileAppender, FolderStorage
from pairbus.spark.syphon_job import rounds
from pairbus.spark.syphon_job import source as syphon_source
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.spark.syphon_job.journal import DEAD_LETTERED, TaskReport
from pairbus.spark.syphon_job.looks import check, count_left, find_new
from pairbus.spark.syphon_job.missing import FORGOTTEN_S, SharedDestinations
from pairbus.spark.syphon_job.rounds import Quotas
from pairbus.spark.syphon_job.source import SCHEMA, SyphonReader
from pairbus.syphon import pump
from pairbus.syphon.decide.dead_letter import Fate
from pairbus.syphon.decide.pace import SHIPMENT_MAX
from pairbus.syphon.decide.redriving import Redriving
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.syphon.send import AHEAD
from tests.spark.syphon_world import BACKLOG, SyphonWorld, syphon_world

IN_FLIGHT_MAX = (AHEAD + 1) * SHIPMENT_MAX  # messages of one pump: loads on their way, and one being filled


@pytest.fixture(scope="module")
def broker_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyphonWorld]:
    with syphon_world(tmp_path_factory.mktemp("syphon"), queues=90, metered=True, orders={}, bills={}) as world:
        yield world


@pytest.fixture
def world(
    broker_world: SyphonWorld, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SyphonWorld]:
    """The same namespaces for all tests, a backlog queue and a location for each."""
    monkeypatch.setattr(pump, "FIRST_WAIT_S", 20.0)  # one round must find its messages, however busy the machine is
    broker_world.location = tmp_path / "location"
    broker_world.sent.clear()
    broker_world.first_queue = _numbers[request.node.name] = len(_numbers) * 3
    yield broker_world
    broker_world.found("orders", "bills")


_numbers: dict[str, int] = {}


@pytest.fixture(autouse=True)
def patient_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round whose messages are there begins, however busy the machine is. Spark would ask again and again."""
    monkeypatch.setattr(syphon_source, "ANSWER_S", 20.0)


def assert_no_round(reader: SyphonReader, start: dict[str, int]) -> None:
    """Check that the driver has no next tick, with the time that it usually has for its answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(syphon_source, "ANSWER_S", 1.0)
        assert reader.next_offset(start, None) == start
    assert reader.partitions(start, start) == []


def round_of(reader: SyphonReader, start: dict[str, int]) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """As Spark does it: the next tick, its partitions, their rows."""
    end = reader.next_offset(start, None)
    worker = pickle.loads(pickle.dumps(reader))
    batches = [
        batch for part in reader.partitions(start, end) for batch in worker.read(pickle.loads(pickle.dumps(part)))
    ]
    assert all(batch.schema == SCHEMA for batch in batches)
    return end, [row for batch in batches for row in batch.to_pylist()]


def reports_of(job: SyphonJob) -> list[TaskReport]:
    return [report for _, report in job.location.look(job.run).read_reports()]


def test_a_round_brings_everything_home_and_yields_what_is_in_the_journal(world: SyphonWorld) -> None:
    """The rows are for whoever wants them; the journal is what counts, and both say the same."""
    world.divert(700, "orders", "bills")
    reader = world.reader()
    end, rows = round_of(reader, reader.initialOffset())
    assert end == {"tick": 1}
    assert len(rows) == 700
    journaled = [{key: value for key, value in row.items() if key != "schema"} for row in world.journaled()]
    assert sorted(journaled, key=lambda row: row["sequence_number"]) == sorted(
        rows, key=lambda row: row["sequence_number"]
    )
    assert {row["message_id"]: row["destination"] for row in rows} == {id: path for id, (path, _) in world.sent.items()}
    assert all(row["size_bytes"] == len(world.sent[row["message_id"]][1]) for row in rows)
    assert world.waiting() == 0
    assert world.check("orders", "bills") == 0
    assert_no_round(reader, end)


def test_an_idle_queue_costs_one_receive_for_each_poll(world: SyphonWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls of 15 minutes: 4 receives an hour, 960 a day for ten queues, however often Spark asks."""
    monkeypatch.setattr(syphon_source, "ANSWER_S", 0.05)
    before = world.operations()
    settings = SyphonSettings(poll_s=1.0)
    reader, began = world.reader(world.job(settings=settings), queues=2), time.monotonic()
    while time.monotonic() - began < 3.5:
        assert reader.next_offset({"tick": 3}, None) == {"tick": 3}
    reader.stop()
    took_s = time.monotonic() - began
    assert reader.partitions({"tick": 3}, {"tick": 3}) == []
    done = world.operations() - before
    assert done.keys() == {"empty receive"}
    assert 4 <= done["empty receive"] <= 2 * (took_s + 1), "two queues: a poll each second, and the one that was ended"
    assert SyphonSettings().poll_s == 900.0


def test_what_arrives_starts_a_round_and_was_never_taken_away(world: SyphonWorld) -> None:
    """The poll gives it back before the round begins, as if it had not been delivered; others go on being polled."""
    reader, end = world.reader(queues=3), {"tick": 0}
    for _ in range(2):
        assert_no_round(reader, end)
        world.divert(2, "orders", queue=1)
        end, rows = round_of(reader, end)
        assert [row["queue"] for row in rows] == [f"{BACKLOG}/{world.first_queue + 1}"] * 2
    reader.stop()
    assert end == {"tick": 2}
    assert world.check("orders") == 0


def test_no_tick_while_the_primary_cannot_be_reached(world: SyphonWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The circuit breaker: nothing is received, locked or counted as delivered during an outage."""
    world.divert(3, "orders")
    monkeypatch.setenv("NO_HOME", _nobody_there(world))
    reader = world.reader(world.job(primary=Secret("env:NO_HOME")))
    assert_no_round(reader, {"tick": 0})
    monkeypatch.setenv("NO_HOME", world.broker.connection_string("contoso"))
    assert round_of(reader, {"tick": 0})[0] == {"tick": 1}
    assert world.check("orders") == 0


def test_a_single_drain_says_that_the_primary_is_away(world: SyphonWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single drain is to end, so it cannot wait for the primary."""
    world.divert(1, "orders")
    monkeypatch.setenv("NO_HOME", _nobody_there(world))
    reader = world.reader(world.job(primary=Secret("env:NO_HOME")), once=True)
    with pytest.raises(Exception, match="no connection to 127"):
        reader.next_offset({"tick": 0}, None)


def _nobody_there(world: SyphonWorld) -> str:
    text = world.broker.connection_string("contoso")
    return text.replace(f":{world.broker.ports['contoso']}", ":1")


def test_a_task_keeps_its_quota_and_the_next_round_needs_no_look(world: SyphonWorld) -> None:
    """Memory of a worker and the length of a round are bounded; what is in flight still arrives."""
    world.divert(5000, "orders")
    job = world.job()
    reader = world.reader(job, quotas=Quotas(max_messages=300))
    end, rows = round_of(reader, {"tick": 0})
    assert 300 <= len(rows) <= 300 + IN_FLIGHT_MAX
    assert [report.more for report in reports_of(job)] == [True]
    while world.waiting():
        end, more = round_of(reader, end)
        rows += more
    assert len(rows) == 5000
    assert world.check("orders") == 0


def test_a_task_keeps_its_share_of_the_budget(world: SyphonWorld) -> None:
    """From its first second on: many short tasks would otherwise each begin with a burst."""
    world.divert(500, "orders")
    settings = SyphonSettings(max_messages_per_second=100.0)
    reader = world.reader(world.job(settings=settings), quotas=Quotas(max_s=4.0))
    began = time.monotonic()
    _, rows = round_of(reader, {"tick": 0})
    took_s = time.monotonic() - began
    assert 50 <= len(rows) <= 100 * took_s + 1
    settings = SyphonSettings()
    while world.waiting():
        round_of(world.reader(world.job(settings=settings)), {"tick": 0})


def test_a_journal_that_cannot_be_begun_fails_before_anything_is_received(world: SyphonWorld) -> None:
    world.divert(2, "orders")
    reader = world.reader()
    (partition,) = reader.partitions({"tick": 0}, {"tick": 1})
    day = world.location / "journal" / f"day={day_of(time.time())}"
    day.parent.mkdir(parents=True, exist_ok=True)
    day.touch()
    with pytest.raises(OSError, match="Not a directory"):
        list(reader.read(partition))
    day.unlink()
    assert round_of(world.reader(), {"tick": 0})[1] != []
    assert world.check("orders") == 0


def test_a_journal_that_fails_completes_nothing(world: SyphonWorld) -> None:
    """Messages that came home without a row stay in the backlog, to come again: rather twice than unrecorded."""
    world.divert(200, "orders")
    reader = world.reader()
    (partition,) = reader.partitions({"tick": 0}, {"tick": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert rows == []
    assert world.waiting() == 200
    assert len(world.found("orders")["orders"]) > 0


def test_a_journal_whose_key_is_refused_midway_ends_its_task(
    world: SyphonWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message is completed. The task ends with that error instead of waiting for ever: Spark and its user hear."""
    world.divert(200, "orders")
    reader = world.reader()
    (partition,) = reader.partitions({"tick": 0}, {"tick": 1})

    def refused(record: FileAppender, data: bytes) -> None:
        raise ConfigError("the key is refused")

    told: list[str] = []

    def task() -> None:
        with pytest.raises(ConfigError) as error:
            list(reader.read(partition))
        told.append(str(error.value))

    monkeypatch.setattr(FileAppender, "append", refused)
    # A task that waits for ever must not keep the tests from ending.
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    thread.join(30)
    assert told == ["the key is refused"]
    assert world.waiting() == 200
    assert len(world.found("orders")["orders"]) > 0


def test_a_missing_destination_holds_its_messages_and_nobody_elses(world: SyphonWorld) -> None:
    """The core of the in-process syphon decides, on Spark as well."""
    world.divert(20, "orders", "nowhere")
    job = world.job()
    _, rows = round_of(world.reader(job), {"tick": 0})
    assert Counter(row["destination"] for row in rows) == {"orders": 10}
    (report,) = reports_of(job)
    assert (report.moved, report.held) == (10, 10)
    assert "nowhere" in report.problems[0]
    assert len(job.location.storage.list("missing/")) == 1


def test_messages_for_a_long_missing_destination_are_dead_lettered(world: SyphonWorld) -> None:
    world.divert(4, "nowhere")
    job = world.job(settings=SyphonSettings(missing_destination_grace_s=0.0))
    _, rows = round_of(world.reader(job), {"tick": 0})
    assert {(row["outcome"], row["reason"].split(":")[0]) for row in rows} == {(DEAD_LETTERED, "DestinationMissing")}
    assert len(world.journaled()) == len(rows) == 4
    assert world.waiting() == 0


def test_how_long_a_destination_is_missing_is_known_to_every_worker(tmp_path: Path) -> None:
    """A task lasts seconds, the grace a quarter of an hour, and the next task may run on another host."""
    now = [1_000.0]
    one, other = (SharedDestinations(900.0, FolderStorage(tmp_path), lambda: now[0]) for _ in range(2))
    missing = Failure(Kind.NOT_FOUND, "no such entity")
    for _ in range(9):
        assert one.failed("Orders", missing, 5.0).fate is Fate.SKIP
        now[0] += 100.0
    assert other.failed("orders", missing, 77.0).fate is Fate.DEAD_LETTER
    other.look()
    other.delivered("orders")
    assert one.failed("orders", missing, 6.0).fate is Fate.SKIP
    now[0] += FORGOTTEN_S + 1
    assert (
        SharedDestinations(100.0, FolderStorage(tmp_path), lambda: now[0]).failed("orders", missing, 0.0).fate
        is Fate.SKIP
    )


@pytest.mark.parametrize("content", [b"", b"\0" * 80], ids=["empty", "zeros"])
def test_a_note_that_a_power_failure_has_emptied_counts_as_none(tmp_path: Path, content: bytes) -> None:
    """Notes are written without a sync. The grace begins again; an error would fail every task of that destination."""
    now = [1_000.0]
    destinations = SharedDestinations(900.0, FolderStorage(tmp_path), lambda: now[0])
    missing = Failure(Kind.NOT_FOUND, "no such entity")
    assert destinations.failed("orders", missing, 5.0).fate is Fate.SKIP
    (note,) = tmp_path.glob("missing/*.json")
    note.write_bytes(content)
    after = SharedDestinations(900.0, FolderStorage(tmp_path), lambda: now[0])
    after.look()
    for _ in range(9):
        assert after.failed("orders", missing, now[0]).fate is Fate.SKIP
        now[0] += 100.0
    assert after.failed("orders", missing, now[0]).fate is Fate.DEAD_LETTER


def test_connections_are_kept_from_one_task_to_the_next(world: SyphonWorld) -> None:
    """Opening one costs more than moving a hundred messages."""

    async def connection() -> object:
        async with Borrowed(Secret(f"env:{world.home}"), None) as carrier:
            return await carrier.connection()

    assert run(connection()) is run(connection())


def test_a_task_has_several_pumps_and_one_journal(world: SyphonWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pump waits most of its time: one for each task that can run at once would leave processors idle.

    The round waits for arrivals in the other queues, here longer than usual: the machine may be busy.
    """
    monkeypatch.setattr(syphon_source, "GATHER_S", 2.0)
    for queue in range(3):
        world.divert(100, "orders", queue=queue)
    job = world.job()
    _, rows = round_of(world.reader(job, queues=3, quotas=Quotas(tasks=1, max_s=120.0)), {"tick": 0})
    assert len(rows) == 300, [report.problems for report in reports_of(job)]
    assert len(list(world.location.glob("journal/*/*.jsonl"))) == 1
    assert sorted(report.moved for report in reports_of(job)) == [100, 100, 100]
    assert world.check("orders") == 0


def test_two_syphons_share_a_queue_without_a_duplicate(world: SyphonWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks decide who has which message: competing consumers are harmless."""
    monkeypatch.setattr(rounds, "WAIT_S", 3.0)  # one round must find all messages, however busy the machine is
    world.divert(2000, "orders", "bills")

    def drain(_: int) -> list[dict[str, Any]]:
        return round_of(world.reader(world.job(), quotas=Quotas(max_s=60.0)), {"tick": 0})[1]

    with ThreadPoolExecutor(2) as threads:
        rows = [row for moved in threads.map(drain, range(2)) for row in moved]
    assert len(rows) == len({row["sequence_number"] for row in rows}) == 2000
    assert world.check("orders", "bills") == 0


def test_a_task_ends_when_the_driver_asks_for_it(world: SyphonWorld) -> None:
    """Spark would kill it in the middle of its work."""
    world.divert(300, "orders")
    job = world.job(settings=SyphonSettings(max_messages_per_second=20.0))
    reader = world.reader(job, quotas=Quotas(max_s=60.0))
    end = reader.next_offset({"tick": 0}, None)
    (partition,) = reader.partitions({"tick": 0}, end)
    threading.Timer(0.5, job.location.ask_to_stop, [job.run]).start()
    began = time.monotonic()
    list(reader.read(partition))
    assert time.monotonic() - began < 15.0
    assert reader.next_offset(end, None) == end
    world.found("orders")
    world.sent.clear()


def test_dead_letters_go_back_to_their_queue_on_the_same_engine(world: SyphonWorld) -> None:
    with ServiceBusClient.from_connection_string(world.broker.connection_string("contoso")) as client:
        client.get_queue_sender("bills").send_messages([ServiceBusMessage(f"poison {n}") for n in range(5)])
        with client.get_queue_receiver("bills", max_wait_time=20) as receiver:
            for message in islice(receiver, 5):
                receiver.dead_letter_message(message, reason="test")
    origin = Secret(f"env:{world.home}")
    job = world.job(primary=origin, secondary=origin, redriving=Redriving("bills", "contoso/bills", 0.0))
    reader = world.reader(job, paths=["bills"])
    _, rows = round_of(reader, {"tick": 0})
    assert [row["destination"] for row in rows] == ["bills"] * 5
    assert len(world.found("bills")["bills"]) == 5
    assert count_left(job, ["bills"]) == 0


def test_operations_are_metered_into_a_ledger(world: SyphonWorld, tmp_path: Path) -> None:
    world.divert(30, "orders")
    round_of(world.reader(world.job(ledger=str(tmp_path / "ledger"))), {"tick": 0})
    counted: Counter[str] = Counter()
    for row in read(tmp_path / "ledger"):
        counted[row.kind] += row.count or 1
    assert (counted["send"], counted["moved"]) == (30, 30)
    assert counted["complete"] == 31, "the poll that found the first message gave it back"


def test_no_key_travels_with_options_or_tasks(world: SyphonWorld) -> None:
    """Spark writes options into plans, logs and pages, and tasks to the disks of its hosts."""
    reader = world.reader()
    parts = world.broker.connection_string("contoso").split("SharedAccessKey=")
    key = parts[1].split(";")[0].encode()
    assert key not in pickle.dumps(reader)
    with pytest.raises(ConfigError, match="primary: Spark shows options"):
        Secret.parse(world.broker.connection_string("contoso"), "primary")


@pytest.mark.parametrize(
    ("secret", "says"), [("env:NOT_SET", "env:NOT_SET on host .*not set"), ("@/no/such/file", "@/no/such/file on host")]
)
def test_missing_secret_is_named_with_its_host(secret: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Secret.parse(secret, "primary").read()


def test_a_wrong_key_is_refused_before_any_message_is_touched(
    world: SyphonWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.divert(1, "orders")
    queues = [f"{BACKLOG}/{world.first_queue}"]
    for side, namespace in (("secondary", "fabrikam"), ("primary", "contoso")):
        monkeypatch.setenv("WRONG", world.broker.connection_string(namespace, key="d3Jvbmc="))
        with pytest.raises(ConfigError, match=f"{side}: the connection string in env:WRONG is refused"):
            check(world.job(**{side: Secret("env:WRONG")}), queues)
    with pytest.raises(ConfigError, match="none of the 1 queues can be read: no-such-queue"):
        check(world.job(), ["no-such-queue"])
    assert count_left(world.job(), queues) == 1


def test_a_worker_that_does_not_see_the_location_touches_nothing(world: SyphonWorld, tmp_path: Path) -> None:
    world.divert(1, "orders")
    reader = world.reader()
    (partition,) = reader.partitions({"tick": 0}, {"tick": 1})
    world.location.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="does not see the journal location"):
        list(reader.read(partition))
    assert not (world.location / "journal").exists()
    assert world.waiting() == 1


def test_locks_that_are_shorter_than_the_work_are_kept_all_the_same(tmp_path: Path) -> None:
    """Locks of five seconds, ten messages a second: a task takes no more in hand than it can send in time."""
    with syphon_world(tmp_path, queues=1, lock_s=5, orders={}) as world:
        world.divert(70, "orders")
        settings = SyphonSettings(max_messages_per_second=10.0)
        reader = world.reader(world.job(settings=settings), quotas=Quotas(max_s=30.0))
        end, rows = round_of(reader, {"tick": 0})
        assert (end, len(rows), world.waiting()) == ({"tick": 1}, 70, 0)
        assert world.check("orders") == 0


def test_messages_of_ordered_senders_stay_and_are_named(world: SyphonWorld) -> None:
    """Ordered messages may lie in several queues, which tasks drain independently: the in-process syphon keeps
    their order.
    """
    world.divert(40, "orders")
    world.divert(5, "bills", sender="till-7")
    job = world.job()
    _, rows = round_of(world.reader(job), {"tick": 0})
    assert Counter(row["destination"] for row in rows) == {"orders": 40}
    (report,) = reports_of(job)
    assert (report.moved, report.held, report.more) == (40, 5, False)
    assert "ordered sender, for 'bills'" in report.problems[0] and "--engine local" in report.problems[0]
    assert world.waiting() == 5
    assert world.found("bills") == {"bills": []}


def test_new_backlog_queues_are_found_without_a_list(world: SyphonWorld) -> None:
    """By opening a link to the next index: no Manage claim, no operation that is billed."""
    known = [f"{BACKLOG}/{index}" for index in range(80) if index != 4]
    before = world.operations()
    found = find_new(world.job(), "contoso", known)
    assert found == [f"{BACKLOG}/4", *[f"{BACKLOG}/{index}" for index in range(80, 90)]]
    assert find_new(world.job(), "contoso", known + found) == []
    assert find_new(world.job(), "northwind", []) == []
    assert world.operations() == before
