"""The syphon on a real Spark: drained, killed in every way, stopped; and what its tables say afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pairbus.errors import ConfigError, LedgerNewer
from pairbus.ledger import Ledger
from pairbus.pairing.events import Moved
from pairbus.spark import compact, syphon
from pairbus.spark.rounds import Quotas
from pairbus.spark.supervisor import SparkSyphon
from tests.spark.syphon_world import BACKLOG, SyphonWorld, syphon_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WITHIN_S = 150.0  # for what takes ten seconds, on a machine that is busy with other things
IN_FLIGHT_MAX = 1000  # of two lanes: each has four batches of a hundred on their way and one in hand
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
    for _ in range(2):
        done = compact(spark, world.location, ledgers=[tmp_path / "ledger"])
        assert (done.moves, done.ledger_rows) == (2001, 2)
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
    assert not list(world.location.glob("journal/day=*"))
    assert compact(spark, world.location).moves == 0
    assert spark.read.parquet(str(world.location / "moves")).where("day = '2020-01-01'").count() == 2000


def test_a_worker_and_the_broker_are_killed_and_nothing_is_lost(spark: SparkSession, world: SyphonWorld) -> None:
    """The query fails and is started again, locks run out, messages come again: those in flight may be there twice,
    and where duplicates are detected they are not. Each is in the table once."""
    for queue in range(2):
        world.divert(2000, "orders", "safe", queue=queue)
    running = start(spark, world, max_messages_per_second=700, quotas=Quotas(max_s=4.0))
    try:
        until(lambda: len(world.journaled()) > 300, "the first messages")
        for pid in workers(spark):
            os.kill(pid, signal.SIGKILL)
        until(lambda: running.restarts >= 1, "the restart of the query")
        before = len(world.journaled())
        until(lambda: len(world.journaled()) > before + 300, "messages after the kill of the workers")
        world.broker.restart()
        until(lambda: world.waiting(0) + world.waiting(1) == 0, "an empty backlog")
    finally:
        began = time.monotonic()
        running.stop()
    assert time.monotonic() - began < 20.0
    copies = len(world.journaled())
    compact(spark, world.location)
    table = moves(spark, world)
    assert table.keys() == world.sent.keys()
    assert sum(row["attempts"] for row in table.values()) == copies
    found = world.found("orders", "safe")
    assert len(found["safe"]) == 2000  # the broker's window of duplicates outlives its restart
    world.check_found(found, duplicates_max=IN_FLIGHT_MAX)


def test_two_syphons_at_once(spark: SparkSession, world: SyphonWorld, tmp_path: Path) -> None:
    """Two runs of the same job, each with a location of its own."""
    for queue in range(2):
        world.divert(1500, "orders", "bills", queue=queue)
    both = [start(spark, world, once=True, journal=tmp_path / name) for name in ("one", "other")]
    threads = [threading.Thread(target=each.wait, args=[WITHIN_S]) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.progress().moved for each in both) == 3000
    assert world.check("orders", "bills") == 0


def test_what_is_wrong_is_said_before_anything_starts(spark: SparkSession, world: SyphonWorld) -> None:
    with pytest.raises(ConfigError, match="secondary: Spark shows options"):
        start(spark, world, secondary=world.broker.connection_string("fabrikam"))
    with pytest.raises(ConfigError, match=r"primary: .*no/such/file"):
        start(spark, world, primary="@/no/such/file")
    with pytest.raises(ConfigError, match="journal: s3://bucket is not a folder"):
        start(spark, world, journal="s3://bucket")
    with pytest.raises(ConfigError, match="none of the 4 queues can be read"):
        start(spark, world, primary_name="northwind")


@pytest.mark.deep
def test_the_command_survives_the_death_of_its_java_and_stops_cleanly(world: SyphonWorld) -> None:
    """It starts anew by itself; SIGTERM ends it within 20 seconds with nothing half moved."""
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
    found = world.found("orders", "safe")
    assert len(found["safe"]) == 1500
    world.check_found(found, duplicates_max=IN_FLIGHT_MAX)


# ── processes ──


def workers(spark: SparkSession) -> list[int]:
    """Python workers of the session: children of the daemon that Java has started."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    daemons = [pid for pid in descendants(java) if "pyspark.daemon" in command_of(pid)]
    found = [pid for pid in daemons if parent_of(pid) in daemons]
    assert found
    return found


def descendants(root: int) -> list[int]:
    parents = {pid: parent_of(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
