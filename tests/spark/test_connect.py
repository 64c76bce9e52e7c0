"""Spark Connect: the library and the commands on a server of our own, from a process that has none of its files."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.cli import main
from pairbus.errors import ConfigError
from pairbus.spark import features, open_session, register
from tests.backlog import put_diverted_sync
from tests.brokers import BrokerProcess
from tests.pages import blocks_of
from tests.report.worlds import hand_ledger
from tests.spark.connect_client import AWAY, BROKER, HOME
from tests.spark.connect_server import ConnectServer
from tests.spark.queues import dead_letter, messages_in, put, text_message
from tests.spark.syphon_world import SyphonWorld, syphon_world
from tests.spark.test_syphon_spark import IN_FLIGHT_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHIN_S = 400.0  # for what takes half a minute, on a machine that is busy with other things
PYTHON = os.environ.get("PAIRBUS_TESTS_CONNECT", sys.executable)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SyphonWorld]:
    with syphon_world(tmp_path, queues=2, orders={}) as world:
        yield world


def server_of(world: SyphonWorld, broker: BrokerProcess, folder: Path) -> ConnectServer:
    environment = {
        HOME: world.broker.connection_string("contoso"),
        AWAY: world.broker.connection_string("fabrikam"),
        BROKER: broker.connection_string(),
    }
    return ConnectServer(folder / "server", environment=environment, python=PYTHON)


def client_environment(remote: str) -> dict[str, str]:
    """Return the environment of a process that has an address, and no secret."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PAIRBUS_", "SPARK_"))}
    return kept | {"SPARK_REMOTE": remote}


def run(command: list[str], environment: Mapping[str, str], code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep
def test_all_of_the_library_works_from_a_client_without_files_or_secrets(
    world: SyphonWorld, broker: BrokerProcess, queue_name: str, tmp_path: Path
) -> None:
    """Journal, staging, checkpoint and tables are the server's, and so are the connection strings."""
    put(broker, queue_name, [text_message(f"m{number}") for number in range(100)])
    world.divert(200, "orders")
    world.divert(100, "orders", queue=1)
    with server_of(world, broker, tmp_path) as server:
        client = ["-m", "tests.spark.connect_client", str(tmp_path / "there"), queue_name]
        found = json.loads(run(client, client_environment(server.remote)).stdout.splitlines()[-1])
        said = server.log()
    if importlib.util.find_spec("py4j") is None:
        assert not found["py4j"]
    del found["py4j"]
    assert found == {
        "read": 100,
        "streamed": 200,
        "moved": 300,
        "left": 0,
        "restarts": 0,
        "moves": 300,
        "files touched": [],
        "secrets here": [],
    }
    assert world.check("orders") == 0
    assert "replaced a statically registered data source" not in said


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep
def test_page_runs_on_a_server(world: SyphonWorld, tmp_path: Path) -> None:
    """The program of docs/spark-clusters.md for Connect, with the address and the journal of this server."""
    home = world.broker.connection_string("contoso")
    environment = {"ORDERS": home, "CONTOSO": home, "FABRIKAM": world.broker.connection_string("fabrikam")}
    backlog = f"127-0-0-1-{world.broker.ports['contoso']}/x-servicebus-transfer"
    with world.broker.admin("fabrikam") as admin:
        for index in range(10):
            admin.create_queue(f"{backlog}/{index}")
    put_diverted_sync(environment["FABRIKAM"], f"{backlog}/0", "orders", [ServiceBusMessage("late")])
    [block] = blocks_of("test_page_runs_on_a_server")
    with ConnectServer(tmp_path / "server", environment=environment, python=PYTHON) as server:
        text = block.text.replace("sc://spark.example:15002", server.remote).replace("/mnt", str(tmp_path))
        done = run(["-c", f"{text}\ndrain.wait()\nprint(drain.progress().moved, 'moved')"], client_environment(""))
    assert done.stdout.endswith("1 moved\n")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep
def test_commands_drain_and_redrive_on_a_server(
    world: SyphonWorld, broker: BrokerProcess, queue_name: str, tmp_path: Path
) -> None:
    """The secrets are where the server is, and an error says what is missing there."""
    world.divert(200, "orders")
    put(broker, queue_name, [text_message(f"m{number}") for number in range(5)])
    dead_letter(broker, queue_name, 5)
    journal = ["--engine", "spark", "--journal", str(tmp_path / "location")]
    with server_of(world, broker, tmp_path) as server:
        remote = client_environment(server.remote)
        namespaces = ["--primary", f"env:{HOME}", "--secondary", f"env:{AWAY}", "--primary-name", "contoso"]
        done = run(["-m", "pairbus", "syphon", "--once", *journal, *namespaces], remote)
        assert "moved 200" in done.stdout
        done = run(["-m", "pairbus", "redrive", queue_name, *journal, "--connection-string", f"env:{BROKER}"], remote)
        assert "moved 5" in done.stdout
        missing = ["--primary", "env:NOT_THERE", "--secondary", f"env:{AWAY}"]
        done = run(["-m", "pairbus", "syphon", "--once", *journal, *missing], remote, code=1)
        assert "--primary: no connection string in env:NOT_THERE" in " ".join(done.stderr.split())
    assert world.check("orders") == 0
    assert len(messages_in(broker, queue_name)) == 5
    assert not [path for path in (tmp_path / "location").rglob("*") if b"SharedAccessKey" in _bytes_of(path)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep
def test_reports_and_tables_of_ledgers_are_made_on_a_server(
    world: SyphonWorld, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Ledgers and table are the server's; the page of the report is written where the command runs."""
    there = tmp_path / "there"
    there.mkdir()
    hand_ledger(there / "ledger")
    with server_of(world, broker, tmp_path) as server:
        remote = client_environment(server.remote)
        run(["-m", "pairbus", "report", str(there / "ledger"), "--json", str(tmp_path / "report.json")], remote)
        done = run(["-m", "pairbus", "ledger", "compact", str(there / "ledger"), "--to", str(there / "table")], remote)
        assert " rows of " in done.stdout and not done.stdout.startswith("0 rows")
        done = run(["-m", "pairbus", "ledger", "compact", str(there / "ledger"), "--to", str(there / "table")], remote)
        assert done.stdout.startswith("0 rows"), "what was compacted is not read again"
        done = run(["-m", "pairbus", "ledger", "view", "outages", str(there / "table")], remote)
        assert "orders" in done.stdout
        run(["-m", "pairbus", "report", str(there / "table"), "--json", str(tmp_path / "of-table.json")], remote)
        done = run(["-m", "pairbus", "report", str(there / "nowhere")], remote, code=1)
        assert "There is no ledger" in done.stderr
    of_ledger, of_table = (json.loads((tmp_path / name).read_text()) for name in ("report.json", "of-table.json"))
    assert of_ledger["availability"] == of_table["availability"] and of_ledger["availability"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep
def test_no_message_is_lost_when_client_and_server_are_killed(
    world: SyphonWorld, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The command is killed while it drains, which leaves its query running on the server, and started again; then the
    server is killed, and starts again at the same address. Only what was in flight at a kill may come home twice."""
    world.divert(4_000, "orders")
    world.divert(4_000, "orders", queue=1)
    namespaces = ["--primary", f"env:{HOME}", "--secondary", f"env:{AWAY}", "--primary-name", "contoso"]
    budget = ["--max-messages-per-second", "150", "--journal", str(tmp_path / "location")]
    command = [sys.executable, "-m", "pairbus", "syphon", "--engine", "spark", *budget, *namespaces]
    with server_of(world, broker, tmp_path) as server:
        remote, log = client_environment(server.remote), tmp_path / "second.log"
        first = subprocess.Popen(command, env=remote, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _until(lambda: world.waiting() + world.waiting(1) < 7_700, first)
        first.kill()
        first.wait()
        with log.open("wb") as said:
            second = subprocess.Popen(command, env=remote, stdout=said, stderr=said)
        try:
            _until(lambda: "using the Spark Connect server" in log.read_text(), second)
            server.restart()
            _until(lambda: world.waiting() + world.waiting(1) == 0, second)
            assert "starting again" in log.read_text()
            second.send_signal(signal.SIGTERM)
            assert second.wait(WITHIN_S) == 0
        finally:
            second.kill()
            second.wait()
    world.check_found(world.found("orders", expects=True), duplicates_max=2 * IN_FLIGHT_MAX)


def _until(holds: Callable[[], bool], command: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert command.poll() is None, "the command has ended"
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


# ── what is said before a server is asked ──

CS = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
NOBODY = "sc://127.0.0.1:9"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--remote", NOBODY, "--master", "local[2]"], "give one of the two"),
        (["--remote", NOBODY], "no Spark Connect server answers at 127.0.0.1:9"),
        (["--remote", "http://127.0.0.1:9"], "is not the address of a Spark Connect server"),
        (["--remote", "local[2]"], "is not the address of a Spark Connect server"),
    ],
)
@pytest.mark.parametrize("command", [["syphon", "--primary", "env:A", "--secondary", "env:B"], ["redrive", "orders"]])
def test_a_remote_that_cannot_be_meant_is_refused_at_once(
    command: list[str], arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """PySpark would ignore the one, and try the other for ten minutes."""
    with pytest.raises(SystemExit) as ended:
        main([*command, "--engine", "spark", "--journal", "/j", *arguments])
    assert ended.value.code in (1, 2)
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_token_in_an_address_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Addresses of managed servers have one among their parameters."""
    with pytest.raises(ConfigError) as told:
        open_session("x", remote="sc//h:1/;token=c2VjcmV0")
    assert "c2VjcmV0" not in str(told.value)
    with pytest.raises(ConfigError, match="give one of the two"):
        open_session("x", master="local[2]", remote=NOBODY)


def test_a_connection_string_is_not_sent_to_a_server() -> None:
    """The key would stand in options, which Spark shows: only the name of a place travels."""
    from pairbus.cli.pipeline.spark_server import server_secret

    for given in (CS, "@relative.txt", None):
        with pytest.raises(ConfigError, match="--primary") as told:
            server_secret(given, "--primary", "PAIRBUS_PRIMARY", None)
        assert "c2VjcmV0" not in str(told.value)
    assert server_secret("@/run/secret", "--primary", "PAIRBUS_PRIMARY", None).source == "@/run/secret"


# ── what Spark finds by itself ──

WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
import pyspark_servicebus
source = pyspark_servicebus.DefaultSource({})
assert source.name() == "servicebus"
try:
    source.schema()
except ImportError as error:
    print(error)
"""


def test_a_missing_package_is_named_when_the_format_is_used() -> None:
    """Spark leaves out a module that it cannot import, and then says only that there is no such format."""
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "format servicebus cannot be used" in said and "pyarrow" in said and "pip install 'pairbus[spark]'" in said


@pytest.mark.spark
def test_registering_what_spark_has_found_does_nothing(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark warns of a format that replaces one that it has found by itself."""
    registered: list[str] = []
    monkeypatch.setattr(features, "register_format", lambda _, kind: registered.append(kind.name()))
    register(spark)
    assert registered == []
    assert not features.knows_format(spark, "pairbus-unknown")
