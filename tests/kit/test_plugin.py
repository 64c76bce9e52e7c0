"""The fixtures for pytest, in runs of their own: a user's folder, nothing of ours in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RUN_S = 300  # eight processes that each load the SDK and the broker, on a machine that is busy
PLUGIN = "pairbus.testing.plugin"

USERS_TESTS = '''
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

clients = []


def send(namespace, body):
    """As a user who forgets to close anything."""
    client = ServiceBusClient.from_connection_string(namespace.connection_string)
    sender = client.get_queue_sender("orders")
    sender.send_messages(ServiceBusMessage(body))
    clients.append((client, sender))


@pytest.mark.parametrize("number", range(8))
def test_namespace_is_fresh(servicebus_namespace, number):
    servicebus_namespace.create_queue("orders")
    send(servicebus_namespace, str(number))
    assert [str(one) for one in servicebus_namespace.sent("orders")] == [str(number)]
    assert servicebus_namespace.clock.offset.total_seconds() == 0
    servicebus_namespace.clock.advance(60)


def test_clock_is_that_of_the_namespace(servicebus_namespace, clock):
    servicebus_namespace.create_queue("orders", dead_lettering_on_message_expiration=True)
    clock.advance(3600)
    assert servicebus_namespace.clock.offset.total_seconds() == 3600


def test_reset_forgets(servicebus_namespace):
    servicebus_namespace.create_queue("orders")
    send(servicebus_namespace, "old")
    servicebus_namespace.reset()
    assert servicebus_namespace.sent("orders") == []


def test_pair_has_a_client(servicebus_pair):
    servicebus_pair.primary.create_queue("orders")
    client = servicebus_pair.client(backlog_queue_count=1)
    client.get_queue_sender("orders").send_messages(ServiceBusMessage("a book"))
    assert [str(one) for one in servicebus_pair.primary.sent("orders")] == ["a book"]
    assert servicebus_pair.primary.name != servicebus_pair.secondary.name


def test_clock_moves_both_sides_of_a_pair(servicebus_pair, clock):
    before = clock.now()
    assert (clock.advance(3600) - before).total_seconds() >= 3600
    clock.advance_to(clock.now() + (clock.now() - before))
    for side in (servicebus_pair.primary, servicebus_pair.secondary):
        assert side.clock.offset.total_seconds() >= 7199
    assert clock.offset.total_seconds() >= 7199


def test_clock_of_a_test_with_both_is_that_of_the_namespace(servicebus_pair, servicebus_namespace, clock):
    clock.advance(60)
    assert servicebus_namespace.clock.offset.total_seconds() == 60
    assert servicebus_pair.primary.clock.offset.total_seconds() == 0


def test_misspelt_words_name_the_one_that_was_meant(servicebus_pair):
    for call, meant in (
        (lambda: servicebus_pair.client(failover_intervall=1), "failover_interval"),
        (lambda: servicebus_pair.client(primary_kwargs={"http_proxi": {}}), "http_proxy"),
        (lambda: servicebus_pair.primary.create_queue("q", lock_duraton=5), "lock_duration"),
        (lambda: servicebus_pair.primary.outage("stal"), "stall"),
        (lambda: servicebus_pair.primary.outage("stall", directionn="send"), "direction"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"did you mean '{meant}'"):
            call()


def test_broker_is_shared(servicebus_broker, servicebus_namespace):
    assert servicebus_broker.namespace(servicebus_namespace.name) is servicebus_namespace
'''


def run_pytest(folder: Path, files: Sequence[str], *arguments: str, code: int = 0) -> str:
    """Run a user's tests in a process of their own, and return its output."""
    for number, text in enumerate(files):
        (folder / f"test_{number}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_users_tests_pass_without_clean_up(tmp_path: Path) -> None:
    """Every test has its own namespace, also if the one before has left clients open."""
    assert re.search(r"\b15 passed", run_pytest(tmp_path, [USERS_TESTS]))


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["2", pytest.param("8", marks=pytest.mark.deep)])
def test_users_tests_pass_in_processes_side_by_side(tmp_path: Path, processes: str) -> None:
    """Each process has a broker of its own, on ports that the system chose."""
    assert re.search(r"\b15 passed", run_pytest(tmp_path, [USERS_TESTS], "-n", processes))


def test_fixtures_are_listed_with_their_meaning(tmp_path: Path) -> None:
    """`pytest --fixtures` is where users look first."""
    listed = run_pytest(tmp_path, ["def test_nothing(): pass"], "--fixtures")
    for name in ("servicebus_broker", "servicebus_namespace", "servicebus_pair", "clock", "outage"):
        assert re.search(rf"^{name}\b.*\n    \w+", listed, re.MULTILINE), name


def test_missing_extra_is_told_with_its_name(tmp_path: Path) -> None:
    """The package can be installed without the broker."""
    text = "import sys\nsys.modules['cryptography'] = None\ndef test_it(servicebus_namespace): pass"
    assert "pip install 'pairbus[broker]'" in run_pytest(tmp_path, [text], code=1)


def test_plugin_loads_nothing_until_a_fixture_is_used() -> None:
    """pytest loads the plugin in every run of every user who has the package installed."""
    code = (
        "import sys, pytest; before = set(sys.modules); import pairbus.testing.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["pairbus", "pairbus.testing", PLUGIN]


def test_plugin_is_an_entry_point_of_pytest() -> None:
    """Under the name of its module, so that naming it on the command line does not load it twice."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
