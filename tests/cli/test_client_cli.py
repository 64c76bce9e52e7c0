"""`pairbus client`: which client it takes, what it shows, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pairbus
from pairbus.cli.pair import clients
from pairbus.host.control.serving import by_routes, open_server
from pairbus.pairing.failover import State
from pairbus.testing.broker_thread import BrokerThread
from tests.cli.command import Command, Outcome

QUEUE = "orders"
_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(["home", "away"]) as running:
        yield running


class World:
    def __init__(self, broker: BrokerThread, command: Command, stack: ExitStack) -> None:
        self._broker = broker
        self._command = command
        self._stack = stack

    def run(self, *arguments: str) -> Outcome:
        return self._command("client", *arguments)

    def client(self, **options: Any) -> pairbus.PairedServiceBusClient:
        """A client of this process, which has paired, with a control socket."""
        ends = (self._broker.namespace(name).connection_string for name in ("home", "away"))
        made = pairbus.PairedServiceBusClient.from_connection_strings(
            *ends, backlog_queue_count=1, **{"control_socket": True, **options}
        )
        return self._stack.enter_context(made)

    def single(self) -> pairbus.ServiceBusClient:
        """A client of one namespace, with a control socket."""
        text = self._broker.namespace("home").connection_string
        return self._stack.enter_context(pairbus.ServiceBusClient.from_connection_string(text, control_socket=True))


@pytest.fixture
def world(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str], control_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.setenv("PAIRBUS_CONTROL_DIR", str(control_dir / f"cli-{next(_numbers)}"))
    with ExitStack() as stack:
        yield World(broker, Command(capsys), stack)


def test_list_shows_state_cause_and_counts(world: World) -> None:
    """An operator sees at a glance which entity of which process is away, since when and why."""
    client = world.client()
    empty = world.run("list").out.splitlines()[1].split("\t")
    assert (empty[0], empty[3]) == (str(os.getpid()), "-")
    client.get_queue_sender(QUEUE)
    assert world.run("force-failover", QUEUE.upper()).code == 0
    done = world.run("list")
    row = dict(zip(clients.COLUMNS, done.out.splitlines()[1].split("\t"), strict=True))
    assert (done.code, row["entity"], row["state"], row["sent"]) == (0, QUEUE, "HELD_OVER", "0")
    assert row["cause"] == "an operator asked for it"
    [shown] = json.loads(world.run("list", "--json").out)
    assert Path(shown["socket"]).is_socket() and shown["paired"] and shown["syphon"] is None
    assert "SharedAccessKey" not in json.dumps(shown)


def test_list_shows_a_receiver_that_gets_no_messages(world: World, broker: BrokerThread) -> None:
    """With the reason, and since when: a receiver that waits through an outage raises nothing."""
    receiver = world.single().get_queue_receiver(QUEUE)
    outage = broker.namespace("home").outage("refuse")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(receiver.receive_messages, 1, 60.0)
        while "NOT_RECEIVING" not in (shown := world.run("list").out):
            assert not call.done()
        receiver.close()
        assert call.result() == []
    outage.end()
    row = dict(zip(clients.COLUMNS, shown.splitlines()[-1].split("\t"), strict=True))
    assert (row["entity"], row["state"], row["sent"]) == (QUEUE, "NOT_RECEIVING", "-")
    assert row["for"].endswith(" s") and "no connection" in row["cause"]
    assert "NOT_RECEIVING" not in world.run("list").out


def test_unknown_entity_is_refused_and_known_ones_are_named(world: World) -> None:
    """A misspelt name must not seem to work; `--new` is for an entity that has not been used yet."""
    client = world.client()
    client.get_queue_sender(QUEUE)
    done = world.run("force-failover", QUEUE, "ordres")
    assert done.code == 1 and f"it has no sender for ordres; it has senders for: {QUEUE}" in done.err
    assert client.states() == {QUEUE: State.HEALTHY}
    assert world.run("force-failover", "--new", "later", "--json").code == 0
    assert client.states() == {QUEUE: State.HEALTHY, "later": State.HELD_OVER}


def test_several_clients_are_named_and_can_all_be_told(world: World) -> None:
    """A user must not fail over a client by mistake; a client that does not use the entity is no failure."""
    first, second = world.client(), world.client()
    first.get_queue_sender(QUEUE)
    for which in ((), ("--pid", str(os.getpid()))):
        done = world.run("force-failover", QUEUE, *which)
        assert done.code == 1 and "several clients are found; say which: --socket " in done.err
        assert done.err.endswith(".sock | --all-clients\n")
    done = world.run("force-failover", QUEUE, "--all-clients")
    assert (done.code, done.out) == (0, f"pid {os.getpid()}: {QUEUE} HEALTHY -> HELD_OVER\n")
    assert "it has senders for: nothing" in done.err
    assert (first.states(), second.states()) == ({QUEUE: State.HELD_OVER}, {})
    assert world.run("force-failover", "ordres", "--all-clients").code == 1
    done = world.run("force-failover", QUEUE, "--pid", "1")
    assert done.code == 1 and f"clients are found in: {os.getpid()}\n" in done.err


def test_client_that_cannot_fail_over_says_why(world: World) -> None:
    """A plain client has nowhere else to send to."""
    client = world.client()
    client.get_queue_sender(QUEUE)
    client.clear_pairing()
    done = world.run("force-failover", QUEUE)
    assert done.code == 1 and "is not paired, sends go to " in done.err
    assert "HEALTHY (not paired)" in world.run("list").out


def test_single_client_is_listed_with_its_namespace(world: World) -> None:
    """It has no secondary, and cannot be failed over."""
    client = world.single()
    client.get_queue_sender(QUEUE)
    row = dict(zip(clients.COLUMNS, world.run("list").out.splitlines()[1].split("\t"), strict=True))
    assert (row["pair"], row["state"]) == (client.fully_qualified_namespace, "HEALTHY")
    assert json.loads(world.run("list", "--json").out)[0]["secondary"] is None


def test_without_a_client_the_command_says_how_to_open_a_socket(world: World) -> None:
    for command in (("list",), ("force-failover", QUEUE), ("force-healthy", "--all-entities")):
        done = world.run(*command)
        assert done.code == 1 and "control_socket=True" in done.err and os.environ["PAIRBUS_CONTROL_DIR"] in done.err


@pytest.mark.parametrize(
    "wrong", [(), (QUEUE, "--all-entities"), (QUEUE, "--pid", "1", "--all-clients"), (QUEUE, "--pid", "x")]
)
def test_wrong_usage_is_told_before_any_client_is_asked(world: World, wrong: tuple[str, ...]) -> None:
    assert world.run("force-failover", *wrong).code == 2


def test_explicit_path_is_found_by_it_alone(world: World, control_dir: Path) -> None:
    """A service may put its socket where its operators look."""
    path = control_dir / "service"
    client = world.client(control_socket=path)
    client.get_queue_sender(QUEUE)
    assert world.run("list").code == 1
    done = world.run("force-failover", "--all-entities", "--socket", str(path))
    assert (done.code, done.out) == (0, f"{path}: {QUEUE} HEALTHY -> HELD_OVER\n")
    assert world.run("list", "--socket", str(path)).code == 0
    client.close()
    done = world.run("list", "--socket", str(path))
    assert done.code == 1 and "no answer: No such file" in done.err


def test_process_without_an_answer_is_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The silent process may be stopped; the other processes are shown all the same."""
    monkeypatch.setattr(clients, "WAIT_S", 3.0)
    world.client()
    with socket.socket(socket.AF_UNIX) as stopped:
        path = Path(os.environ["PAIRBUS_CONTROL_DIR"]) / "client-1-1.sock"
        stopped.bind(str(path))
        stopped.listen()
        done = world.run("list")
    assert done.code == 1 and f"{path}: no answer within 3 s" in done.err
    assert done.out.splitlines()[1].startswith(str(os.getpid()))


def test_socket_of_another_role_is_refused(world: World, control_dir: Path) -> None:
    """A syphon has control sockets beside those of clients, and no entities to show."""
    path = control_dir / "syphon"
    server = open_server("syphon", path, by_routes({("GET", "/"): lambda _: {"role": "syphon"}}), lambda: None)
    try:
        done = world.run("list", "--socket", str(path))
    finally:
        server.close(wait=True)
    assert (done.code, f"{path} is no control socket of a client: its role is 'syphon'" in done.err) == (1, True)
