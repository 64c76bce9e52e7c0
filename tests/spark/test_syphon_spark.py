"""The syphon on a real Spark: drained, stopped, and what its tables say afterwards; `test_kills` has what may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pairbus.errors import ConfigError, LedgerNewer
from pairbus.ledger import Ledger
from pairbus.pairing.events import Moved
from pairbus.spark import compact, syphon
from pairbus.spark.syphon_job.supervisor import SparkSyphon
from pairbus.syphon.decide.pace import SHIPMENT_MAX
from pairbus.syphon.send import AHEAD
from tests.spark.processes import command_of, descendants
from tests.spark.syphon_world import BACKLOG, SyphonWorld, syphon_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WITHIN_S = 150.0  # for what takes ten seconds, on a machine that is busy with other things
IN_FLIGHT_MAX = 2 * AHEAD * SHIPMENT_MAX  # messages of two pumps in loads that were sent and not completed
DETECTS = {"requires_duplicate_detection": True}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SyphonWorld]:
    with syphon_world(tmp_path, queues=4, lock_s=8, orders={}, bills={}, safe=DETECTS) as world:
        yield world


def start(spark: SparkSession, world: SyphonWorld, **options: Any) -> SparkSyphon:
    settings: dict[str, Any] = {
        "primary": world.secret_file("contoso"),
        "secondary": world.secret_file("fabrikam"),
        "journal": world.location,
        "primary_name": "contoso",
        "backlog_queue_count": 4,
    }
    return syphon(spark, **{**settings, **options})


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def moves(spark: SparkSession, world: SyphonWorld) -> dict[str, Any]:
    """The table, by message id; every message is in it once."""
    rows = spark.read.parquet(str(world.location / "moves")).collect()
    found = {row["message_id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_drain_on_spark_and_the_table_that_tells_of_it(
    spark: SparkSession, world: SyphonWorld, tmp_path: Path
) -> None:
    """Compacting is repeated, over a torn line, with the ledger of another syphon, and after old days were closed."""
    for queue in range(4):
        world.divert(500, "orders", "bills", queue=queue)
    drain = start(spark, world, once=True)
    assert drain.wait(WITHIN_S)
    assert (drain.progress().moved, drain.left, drain.restarts) == (2000, 0, 0)
    assert world.check("orders", "bills") == 0

    with next(world.location.glob("journal/*/*.jsonl")).open("a") as file:
        file.write('{"schema":1,"outcome":"moved","queue":"torn by a k')
    ledger = Ledger(tmp_path / "ledger", client="app")
    known_id = next(iter(world.sent))
    ledger.record(Moved("orders", f"{BACKLOG}/0", 2, ("in-process", known_id)))
    assert ledger.close(5.0)
    done = compact(spark, world.location, ledgers=[tmp_path / "ledger"])
    assert (done.moves, done.ledger_rows) == (2001, 2)
    done = compact(spark, world.location, ledgers=[tmp_path / "ledger"])
    assert (done.moves, done.ledger_rows, done.days) == (0, 0, ())
    table = moves(spark, world)
    assert table.keys() == world.sent.keys() | {"in-process"}
    row = table[known_id]
    assert (row["attempts"], row["outcome"], row["destination"]) == (1, "moved", world.sent[known_id][0])
    assert row["size_bytes"] == len(world.sent[known_id][1])
    assert row["enqueued_at"] <= row["moved_at"] == row["last_moved_at"]

    (day,) = world.location.glob("journal/day=*")
    (day / "newer.jsonl").write_text('{"schema":2,"outcome":"moved","queue":"q","at_ms":1,"attempt":"a"}\n')
    with pytest.raises(LedgerNewer, match="schema 2"):
        compact(spark, world.location)
    (day / "newer.jsonl").unlink()
    day.rename(day.with_name("day=2020-01-01"))
    assert compact(spark, world.location, journal_kept_days=7).days == ("2020-01-01",)
    assert not list(world.location.glob("journal/day=*/*"))
    assert compact(spark, world.location).moves == 0
    assert spark.read.parquet(str(world.location / "moves")).where("day = '2020-01-01'").count() == 2000


def test_a_queue_that_is_created_later_is_drained_by_the_same_syphon(
    spark: SparkSession, world: SyphonWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is found by its index, and the query goes on with it; then a stop ends the long polls at once."""
    monkeypatch.setattr("pairbus.spark.syphon_job.supervisor.NEW_QUEUES_S", 1.0)
    world.divert(50, "orders")
    running = start(spark, world, queues=[f"{BACKLOG}/{index}" for index in range(4)], backlog_queue_count=None)
    try:
        until(lambda: running.progress().moved == 50, "the known queues")
        with world.secondary.admin("fabrikam") as admin:
            admin.create_queue(f"{BACKLOG}/4", max_delivery_count=2147483647)
        world.divert(50, "bills", queue=4)
        until(lambda: running.progress().moved == 100, "the new queue")
    finally:
        began = time.monotonic()
        running.stop()
    assert time.monotonic() - began < 60.0, "a long poll lasts 900 s"
    assert (running.progress().queues, running.restarts) == (5, 0)
    assert world.check("orders", "bills") == 0


def test_what_is_wrong_is_said_before_anything_starts(spark: SparkSession, world: SyphonWorld) -> None:
    with pytest.raises(ConfigError, match="secondary: Spark shows options"):
        start(spark, world, secondary=world.broker.connection_string("fabrikam"))
    with pytest.raises(ConfigError, match=r"primary: .*no/such/file"):
        start(spark, world, primary="@/no/such/file")
    with pytest.raises(ConfigError, match=r"journal: .*S3 is not supported yet"):
        start(spark, world, journal="s3://bucket")
    with pytest.raises(ConfigError, match="none of the 4 queues can be read"):
        start(spark, world, primary_name="northwind")


@pytest.mark.deep
def test_the_command_survives_the_death_of_its_java_and_stops_cleanly(world: SyphonWorld) -> None:
    """The command starts Spark again by itself; SIGTERM ends it within 20 seconds with nothing half moved."""
    world.divert(3000, "orders", "safe")
    environment = {
        **os.environ,
        "PAIRBUS_PRIMARY": world.broker.connection_string("contoso"),
        "PAIRBUS_SECONDARY": world.broker.connection_string("fabrikam"),
    }
    options = ["--journal", str(world.location), "--master", "local[2]", "--max-messages-per-second", "400"]
    command = [sys.executable, "-m", "pairbus", "syphon", "--engine", "spark", "--primary-name", "contoso", *options]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            until(lambda: len(world.journaled()) > 300, "the first messages")
            (java,) = [pid for pid in descendants(process.pid) if "java" in command_of(pid).split("\0")[0]]
            assert "SharedAccessKey" not in command_of(java)
            os.kill(java, signal.SIGKILL)
            until(lambda: world.waiting() == 0, "an empty backlog")
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            out, err = process.communicate(timeout=60)
            took_s = time.monotonic() - began
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert took_s < 20.0
    assert "the Java process of Spark has ended" in err
    assert out.startswith("moved ")
    assert {row["message_id"] for row in world.journaled()} == world.sent.keys()
    found = world.found("orders", "safe", expects=True)
    assert len(found["safe"]) == 1500
    world.check_found(found, duplicates_max=IN_FLIGHT_MAX)
