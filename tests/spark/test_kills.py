"""SIGKILL for everything that has a process: nothing is lost, misrouted or altered, every table has each message once.

| killed                    | stream          | syphon                      |
| ------------------------- | --------------- | --------------------------- |
| Java, with its driver     | the first test  | the first test              |
| a worker, its task again  | the first test  | the first test              |
| a worker, the query fails | the second test | the third test              |
| the source runner         | the second test | the third test              |
| a broker                  | the second test | the third test, either side |
| nobody, others consume    | the second test | the fourth test             |

The first test runs with stages in a folder, and again with stages on Azure Blob. The first three belong to `make deep`.
Tasks that are killed at each point of their work, and locks that are shorter than it: `test_stream_crashes`,
`test_syphon_reader`.

Every kill hits in the middle of the work: more is sent before each of them, until the work goes on and some is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pairbus.ledger import Ledger
from pairbus.spark import Quotas, compact, drain, syphon
from pairbus.spark.storage.opening import open_storage
from pairbus.spark.syphon_job.rounds import LOCK_MIN_S
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.transport import Carrier
from tests.brokers import BrokerProcess
from tests.spark.conftest import BROKER_VARIABLE
from tests.spark.processes import java_of, kill_source_runners, kill_workers
from tests.spark.queues import bodies_in, put, text_message
from tests.spark.stream_query import start, writer
from tests.spark.syphon_world import BACKLOG, SyphonWorld, syphon_world
from tests.storage.azurites import Azurite
from tests.storage.fixtures import BACKENDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WITHIN_S = 180.0  # for what takes seconds, on a machine that is busy with other things
FEEDS_MAX = 10
LOCK_S = 5  # the shortest that a queue can have
QUEUES = 2
PER_S = 200.0  # rate of the syphon, low enough that a kill finds messages left
IN_FLIGHT_MAX = int(PER_S * LOCK_MIN_S / 2)  # all pumps: messages in hand must go within half a lock
DETECTS = {"requires_duplicate_detection": True}


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def in_the_middle(*works: tuple[Callable[[], Callable[[], bool]], Callable[[], int]]) -> None:
    """Return when each work makes progress and has messages left. A work is (how to feed it, count of the rest)."""
    for _ in range(FEEDS_MAX):
        goes_on = [feed() for feed, _ in works]
        until(lambda goes_on=goes_on: all(each() for each in goes_on), "some progress")  # type: ignore[misc]
        if all(left() for _, left in works):
            return
    raise AssertionError("it was always at its end")


def kill_until(is_hit: Callable[[], object], kill: Callable[[int], object], spark: SparkSession) -> None:
    """The death of a worker that has no task at the moment goes unnoticed: the next one, then."""
    began = time.monotonic()
    while not is_hit():
        assert time.monotonic() < began + WITHIN_S, "the loss of Java was not noticed"
        kill(java_of(spark))
        time.sleep(0.2)


# ── a stream ──


class Reading:
    """A stream of numbered messages into a table; staged in a folder, unless a place on Blob is given."""

    def __init__(self, broker: BrokerProcess, folder: Path, azurite: Azurite | None = None) -> None:
        self.folder = folder
        self.options: dict[str, str] = {}
        location, credential = str(folder / "staging"), None
        if azurite is not None:
            secret = folder / "storage.txt"
            secret.write_text(azurite.connection_string)
            location, credential = azurite.new_container(f"t-{uuid.uuid4().hex[:12]}") + "/staging", f"@{secret}"
            self.options = {"stagingLocation": location, "storageCredential": credential}
        self._storage = open_storage(location, credential, patience_s=20.0)
        self._broker = broker
        self._place = folder / "stream.txt"
        self._place.write_text(broker.connection_string())
        self.sent: list[bytes] = []
        with broker.admin() as admin:
            admin.create_queue("stream", lock_duration=timedelta(seconds=LOCK_S))

    def send(self, count: int) -> None:
        bodies = [b"%06d" % number for number in range(len(self.sent), len(self.sent) + count)]
        put(self._broker, "stream", [text_message(body.decode()) for body in bodies])
        self.sent += bodies

    def start(self, spark: SparkSession) -> StreamingQuery:
        return start(spark, "stream", self.folder, once=False, connection=f"@{self._place}", **self.options)

    def seals(self) -> int:
        entries = [self._storage.get(f"log/{name}") for name in self._storage.list("log/") if name[0].isdigit()]
        return sum(b'"kind":"seal"' in entry for entry in entries if entry is not None)

    def feed(self) -> Callable[[], bool]:
        """Send more; whether a task has sealed some of it since, which is before Spark has its rows."""
        self.send(240)
        before = self.seals()
        return lambda: self.seals() > before + 1

    def left(self) -> int:
        return len(bodies_in(self._broker, "stream"))

    def check(self, spark: SparkSession, taken: list[bytes] | None = None) -> None:
        """Run a last time; then every message is in the table or was taken by the competitor, and none is twice."""
        drain(writer(spark, "stream", self.folder, connection=f"@{self._place}", **self.options))
        rows = spark.read.parquet(str(self.folder / "out")).select("body").collect()
        assert sorted([bytes(row.body) for row in rows] + (taken or [])) == self.sent
        assert self.left() == 0


@contextmanager
def competitor(connection_string: str, queue: str) -> Iterator[list[bytes]]:
    """Run another consumer, which completes two of three messages and gives one back; yield the completed ones."""
    taken: list[bytes] = []
    over = threading.Event()

    async def consume() -> None:
        async with Carrier(connection_string) as carrier:
            receiver = await carrier.receiver(queue, credit=3)
            while not over.is_set():
                batch = await receiver.receive(3, 0.2)
                await receiver.release(batch[2:])
                await receiver.complete(batch[:2])
                taken.extend(message.payload[-6:] for message in batch[:2])
                await asyncio.sleep(0.02)
            await receiver.close()

    thread = threading.Thread(target=asyncio.run, args=[consume()])
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()


# ── a syphon ──


def syphon_options(world: SyphonWorld) -> dict[str, Any]:
    return {
        "primary": world.secret_file("contoso"),
        "secondary": world.secret_file("fabrikam"),
        "journal": str(world.location),
        "primary_name": "contoso",
        "backlog_queue_count": QUEUES,
        "max_messages_per_second": PER_S,
    }


def divert(world: SyphonWorld, count: int) -> None:
    for queue in range(QUEUES):
        world.divert(count // QUEUES, "orders", "safe", queue=queue)


def feed(world: SyphonWorld) -> Callable[[], bool]:
    """Divert more; whether some of it has been moved since."""
    divert(world, 800)
    before = len(world.journaled())
    return lambda: len(world.journaled()) >= before + 100


def left(world: SyphonWorld) -> int:
    return sum(world.waiting(queue) for queue in range(QUEUES))


def check_moves(spark: SparkSession, world: SyphonWorld, kills: int) -> None:
    """Check the messages at home, and the rows of the table about them."""
    copies = len(world.journaled())
    compact(spark, world.location)
    rows = spark.read.parquet(str(world.location / "moves")).collect()
    assert len(rows) == len(world.sent), "the table has each message once"
    assert {row["message_id"] for row in rows} == world.sent.keys()
    assert sum(row["attempts"] for row in rows) == copies
    found = world.found("orders", "safe", expects=True)
    assert len(found["safe"]) == len(world.sent) // 2, "a queue that detects duplicates has none"
    world.check_found(found, duplicates_max=kills * IN_FLIGHT_MAX)


# ── the tests ──


@pytest.mark.deep
@pytest.mark.classic
@pytest.mark.parametrize("storage", BACKENDS)
def test_stream_and_syphon_survive_killed_workers_and_java(
    storage: str, request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> None:
    """Stream and syphon run in a Spark that tries tasks again; when its Java is killed, another Spark goes on."""
    azurite = request.getfixturevalue("azurite") if storage == "blob" else None
    with syphon_world(tmp_path, queues=QUEUES, lock_s=LOCK_S, orders={}, safe=DETECTS) as world:
        reading = Reading(world.broker, tmp_path, azurite)
        options = syphon_options(world)
        works = ((reading.feed, reading.left), (lambda: feed(world), lambda: left(world)))
        command = [sys.executable, "-m", "tests.spark.stream_query", "stream", str(tmp_path)]
        command += [json.dumps(reading.options), json.dumps(options)]
        environment = {**os.environ, BROKER_VARIABLE: world.broker.connection_string()}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                java = int(child.stdout.readline())
                in_the_middle(*works)
                assert kill_workers(java)
                in_the_middle(*works)
                assert child.poll() is None, "Spark has tried the tasks again"
                os.kill(java, signal.SIGKILL)
            finally:
                child.kill()
        moving = syphon(spark, **options, once=True)
        reading.check(spark)
        assert moving.wait(WITHIN_S) and moving.left == 0
        check_moves(spark, world, kills=2)


@pytest.mark.deep
def test_stream_with_a_competitor_survives_kills_of_everything(spark: SparkSession, tmp_path: Path) -> None:
    """No task is tried again here: a query that fails is started again by hand. The broker is waited for."""
    with BrokerProcess(tmp_path / "data", strict=True) as broker:
        reading = Reading(broker, tmp_path)
        query = reading.start(spark)
        for kill in (kill_workers, kill_source_runners):
            in_the_middle((reading.feed, reading.left))
            reading.feed()
            kill_until(lambda: not query.isActive, kill, spark)  # noqa: B023
            assert query.exception() is not None
            query = reading.start(spark)
        in_the_middle((reading.feed, reading.left))
        broker.restart()
        in_the_middle((reading.feed, reading.left))
        assert query.isActive, "the query ended instead of waiting"
        with competitor(broker.connection_string(), "stream") as taken:
            until(reading.feed(), "some progress")
            until(lambda: len(taken) > 10, "messages for the competitor")
        query.stop()
        reading.check(spark, taken)


@pytest.mark.deep
def test_syphon_survives_kills_of_workers_and_both_brokers(spark: SparkSession, tmp_path: Path) -> None:
    """A query that failed is started again by its supervisor, a side that is away is waited for; locks run out."""
    with syphon_world(tmp_path, queues=QUEUES, lock_s=LOCK_S, apart=True, orders={}, safe=DETECTS) as world:
        running = syphon(spark, **syphon_options(world), quotas=Quotas(max_s=4.0))
        work = (lambda: feed(world), lambda: left(world))
        try:
            for restarts, kill in enumerate((kill_workers, kill_source_runners)):
                in_the_middle(work)
                assert running.restarts == restarts
                kill_until(lambda now=restarts + 1: running.restarts == now, kill, spark)  # type: ignore[misc]
            for broker in (world.broker, world.secondary):
                in_the_middle(work)
                broker.restart()
            until(lambda: left(world) == 0, "an empty backlog")
        finally:
            running.stop()
        check_moves(spark, world, kills=4)


@pytest.mark.deep
def test_three_syphons_and_a_peek_move_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    """Locks decide: no message is moved twice, and the three tables together have each of them once."""
    with syphon_world(tmp_path, queues=QUEUES, lock_s=30, orders={}, safe=DETECTS) as world:
        divert(world, 2000)
        options = syphon_options(world) | {"max_messages_per_second": None, "once": True}
        places = [tmp_path / "one", tmp_path / "other"]
        both = [syphon(spark, **options | {"journal": place}) for place in places]
        threads = [
            threading.Thread(target=asyncio.run, args=[drain_here(world, tmp_path / "ledger")]),
            threading.Thread(target=asyncio.run, args=[look(world)]),
        ]
        for thread in threads:
            thread.start()
        assert all(each.wait(WITHIN_S) for each in both)
        for thread in threads:
            thread.join()
        tables = []
        for place, ledgers in zip(places, ([tmp_path / "ledger"], []), strict=True):
            compact(spark, place, ledgers=ledgers)
            if (place / "moves").is_dir():
                tables += spark.read.parquet(str(place / "moves")).select("message_id", "attempts").collect()
        assert len(tables) == len(world.sent) and all(row["attempts"] == 1 for row in tables)
        assert {row["message_id"] for row in tables} == world.sent.keys()
        assert world.check("orders", "safe") == 0


async def drain_here(world: SyphonWorld, folder: Path) -> None:
    """Run the syphon without Spark, with a ledger; slowly, so that Spark's tasks get messages too."""
    ledger = Ledger(folder, client="app")
    async with (
        Carrier(world.broker.connection_string("contoso")) as home,
        Carrier(world.secondary.connection_string("fabrikam")) as away,
    ):
        queues = [f"{BACKLOG}/{queue}" for queue in range(QUEUES)]
        settings = SyphonSettings(max_messages_per_second=50)
        await Syphon(home, away, queues, settings=settings, publish=ledger.record).run_once()
    ledger.close(5.0)


async def look(world: SyphonWorld) -> None:
    """Receives and gives back, until there is nothing."""
    async with Carrier(world.secondary.connection_string("fabrikam")) as away:
        receiver = await away.receiver(f"{BACKLOG}/0", credit=20)
        while batch := await receiver.receive(20, 1.0):
            await receiver.release(batch)
            await asyncio.sleep(0.05)
        await receiver.close()
