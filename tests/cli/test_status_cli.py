"""`pairbus status` on real namespaces, and the words that it has for what it finds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus import PairedServiceBusClient
from pairbus.amqp.message import Message
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.auth.sas import LISTEN, SharedAccessKey
from pairbus.broker import NamespaceOptions
from pairbus.cli.pair.status_clients import NO_CLIENTS, EntityState
from pairbus.cli.pair.status_facts import (
    NO_DESTINATION,
    NO_REASON,
    UNREADABLE,
    CountChange,
    PeekedMessages,
    QueueFacts,
    Reached,
    Status,
    change_of,
    destination_of,
    duration,
    reason_of,
    summary,
)
from pairbus.cli.pair.status_next import next_step
from pairbus.cli.pair.status_syphons import NONE_SEEN, Syphoning, lines_of
from pairbus.testing.broker_thread import BrokerThread, ServiceBusNamespace
from tests.backlog import put_diverted_sync
from tests.cli.command import Command, Outcome

NAME = "contoso"
LISTENER = SharedAccessKey("listener", "listen key", rights=frozenset({LISTEN}))
_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(["unused"], strict=True) as running:
        yield running


@dataclass
class Pair:
    primary: ServiceBusNamespace
    secondary: ServiceBusNamespace
    command: Command

    def status(self, *arguments: str) -> Outcome:
        return self.command("status", "--primary-name", NAME, *arguments)

    def json(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = self.status("--json", *arguments)
        return done.code, json.loads(done.out)

    def create(self, indexes: range, name: str = NAME) -> None:
        for index in indexes:
            self.secondary.create_queue(f"{name}/x-servicebus-transfer/{index}")

    def divert(self, path: str, number: int, queue: int = 0) -> None:
        messages = [ServiceBusMessage(f"{path} {one}") for one in range(number)]
        put_diverted_sync(self.secondary.connection_string, f"{NAME}/x-servicebus-transfer/{queue}", path, messages)

    def dead_letter(self, number: int, reason: str) -> None:
        with (
            ServiceBusClient.from_connection_string(self.secondary.connection_string) as client,
            client.get_queue_receiver(f"{NAME}/x-servicebus-transfer/0") as receiver,
        ):
            while number:
                for message in receiver.receive_messages(number, max_wait_time=5):
                    receiver.dead_letter_message(message, reason=reason)
                    number -= 1


@pytest.fixture
def pair(broker: BrokerThread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    number = next(_numbers)
    primary = broker.add_namespace(f"home-{number}")
    secondary = broker.add_namespace(NamespaceOptions(f"away-{number}", keys=(LISTENER,)))
    monkeypatch.setenv("PAIRBUS_PRIMARY", primary.connection_string)
    monkeypatch.setenv("PAIRBUS_SECONDARY", secondary.connection_string)
    yield Pair(primary, secondary, Command(capsys))
    broker.remove_namespace(primary.name)
    broker.remove_namespace(secondary.name)


def away_at(namespace: ServiceBusNamespace, port: int) -> str:
    """The connection string of the namespace with another port."""
    head, _, rest = namespace.connection_string.partition(";")
    return f"{head.rpartition(':')[0]}:{port};{rest}"


# ── the command ──


def test_quiet_pair_exits_with_0(pair: Pair) -> None:
    """A script can wait for it."""
    pair.create(range(2))
    done = pair.status("--backlog-queue-count", "2")
    assert done.code == 0 and done.err == ""
    lines = done.out.splitlines()
    assert lines[1].startswith("primary ") and " opens a connection in " in lines[1]
    assert lines[2].startswith("secondary ") and " opens a connection in " in lines[2]
    assert lines[3] == NO_CLIENTS
    assert lines[4].split("\t") == ["queue", "messages", "oldest", "dead_letters", "in_rotation"]
    assert lines[5].split("\t") == [f"{NAME}/x-servicebus-transfer/0", "0", "-", "0", "yes"]
    assert lines[-3:] == ["waiting: 0 messages; 0 dead letters", NONE_SEEN, "next: nothing to do"]


def test_waiting_messages_are_counted_with_age_and_destination(pair: Pair) -> None:
    """The exit code is 1: an operator has to bring the messages home."""
    pair.create(range(2))
    pair.divert("orders", 3)
    pair.divert("invoices", 2, queue=1)
    code, shown = pair.json("--backlog-queue-count", "2")
    assert (code, shown["quiet"], shown["messages"], shown["exact"]) == (1, False, 5, True)
    queues = shown["queues"]
    assert [one["destinations"] for one in queues] == [{"orders": 3}, {"invoices": 2}]
    assert 0 <= queues[0]["oldest_s"] < 60
    assert "destinations: orders 3, invoices 2\n" in pair.status("--backlog-queue-count", "2").out


def test_dead_letters_are_counted_by_reason(pair: Pair) -> None:
    """Dead letters wait as well: no syphon brings them home."""
    pair.create(range(1))
    pair.divert("orders", 3)
    pair.dead_letter(2, "MissingDestination")
    pair.dead_letter(1, "TooLarge")
    done = pair.status("--backlog-queue-count", "1")
    assert done.code == 1
    assert "waiting: 0 messages; 3 dead letters\n" in done.out
    assert "dead letters by reason: MissingDestination 2, TooLarge 1\n" in done.out


def test_peeking_is_bounded_and_says_so(pair: Pair) -> None:
    """The counts are those of administration and stay exact."""
    pair.create(range(1))
    pair.divert("orders", 7)
    done = pair.status("--backlog-queue-count", "1", "--peek", "3")
    assert "waiting: 7 messages, the oldest for " in done.out
    assert "destinations: orders 3 (the first 3 looked at)\n" in done.out
    _, shown = pair.json("--backlog-queue-count", "1", "--peek", "0")
    assert shown["messages"] == 7 and shown["queues"][0]["peeked"] == 0


def test_queues_beyond_the_rotation_and_missing_ones_are_named(pair: Pair) -> None:
    """A syphon inside a client would never drain the first, and senders would miss the second."""
    pair.create(range(1, 4))
    pair.divert("orders", 1, queue=3)
    code, shown = pair.json("--backlog-queue-count", "3")
    queues = shown["queues"]
    assert code == 1
    assert [one["in_rotation"] for one in queues] == [True, True, False]
    assert shown["missing"] == [f"{NAME}/x-servicebus-transfer/0"]
    assert "missing of queues 0 … 2: 0; `pairbus pair create`" in pair.status("--backlog-queue-count", "3").out


def test_unknown_name_lists_names_that_exist(pair: Pair) -> None:
    """A misspelt name must not look like an empty backlog."""
    pair.create(range(1), name="northwind")
    done = pair.status()
    assert done.code == 1
    assert f"has no backlog queues {NAME}/x-servicebus-transfer/0 …; it has those of northwind" in done.out


def test_silent_primary_costs_its_time_out_and_secondary_is_shown(pair: Pair) -> None:
    """A black hole takes the connection and says nothing."""
    pair.create(range(1))
    pair.divert("orders", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        done = pair.status(
            "--primary", away_at(pair.primary, silent.getsockname()[1]), "--timeout", "4", "--backlog-queue-count", "1"
        )
        assert time.monotonic() - began < 30
    assert done.code == 1 and "waiting: 1 message, " in done.out
    assert " away: " in done.out.splitlines()[1] and " opens a connection in " in done.out.splitlines()[2]


def test_silent_secondary_costs_its_time_out_and_primary_is_shown(pair: Pair) -> None:
    """Administration is not asked where the connection already got no answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        code, shown = pair.json("--secondary", away_at(pair.secondary, silent.getsockname()[1]), "--timeout", "3")
        assert time.monotonic() - began < 30
    assert (code, shown["primary"]["reachable"], shown["secondary"]["reachable"]) == (1, True, False)
    assert 2.9 <= shown["secondary"]["seconds"] < 15


def test_refused_secondary_is_away(pair: Pair) -> None:
    """The backlog is then unknown, and the exit code says so."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    code, shown = pair.json("--secondary", away_at(pair.secondary, port), "--timeout", "5")
    assert code == 1 and shown["queues"] == [] and shown["exact"] is False
    assert shown["primary"]["reachable"] is True and shown["secondary"]["reachable"] is False


def test_without_manage_the_peeked_messages_are_counted(pair: Pair) -> None:
    """The key of a syphon has no Manage claim."""
    pair.create(range(2))
    pair.divert("orders", 4)
    parts = dict(part.split("=", 1) for part in pair.secondary.connection_string.rstrip(";").split(";"))
    parts |= {"SharedAccessKeyName": LISTENER.name, "SharedAccessKey": LISTENER.key}
    weak = ";".join(f"{name}={value}" for name, value in parts.items())
    code, shown = pair.json("--secondary", weak)
    queues = shown["queues"]
    assert code == 1
    assert (shown["messages"], shown["exact"], len(queues)) == (4, True, 2)
    assert "Manage claim" in str(shown["notes"]) and shown["problems"] == []
    code, shown = pair.json("--secondary", weak, "--peek", "2")
    assert (shown["messages"], shown["exact"]) == (2, False)


def test_every_needs_watch(pair: Pair) -> None:
    """Without --watch the option --every would be ignored silently."""
    done = pair.status("--every", "3")
    assert done.code == 2 and "--every needs --watch" in done.err


def test_watch_shows_changes_until_stopped(pair: Pair) -> None:
    """One line of JSON for each look; Ctrl-C ends it with the code of the last one."""
    pair.create(range(1))
    command = [sys.executable, "-m", "pairbus", "status", "--primary-name", NAME, "--watch", "--every", "200ms"]
    command.append("--json")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as running:
        try:
            assert running.stdout is not None and running.stderr is not None
            assert json.loads(running.stdout.readline())["change"] is None
            pair.divert("orders", 6)
            changes: list[int] = []
            while sum(changes) < 6:
                changes.append(json.loads(running.stdout.readline())["change"]["messages"])
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 1
            assert running.stderr.read() == "" and sum(changes) == 6
        finally:
            running.kill()


def test_running_syphon_is_shown_with_its_rate(pair: Pair) -> None:
    """The syphon is shown until it ends; a syphon of another pair on this machine is not shown."""
    pair.create(range(1))
    pair.primary.create_queue("orders")
    pair.divert("orders", 200)
    command = [sys.executable, "-m", "pairbus", "syphon", "--primary-name", NAME]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as running:
        try:
            syphons: list[dict[str, Any]] = []
            deadline = time.monotonic() + 30
            while not syphons or syphons[0]["moved"] < 200:
                assert time.monotonic() < deadline, syphons
                syphons = pair.json("--backlog-queue-count", "1")[1]["syphons_on_this_machine"]
            [shown] = syphons
            assert (shown["pid"], shown["role"], shown["queues"]) == (running.pid, "syphon", 1)
            assert shown["per_second"] == pytest.approx(200 / shown["over_s"])
            assert not shown["primary_away"] and shown["errors"] == 0
            lines = pair.status("--backlog-queue-count", "1").out.splitlines()
            assert "syphons on this machine: 1, together " in lines[-3]
            assert f"pairbus (pid {running.pid}, syphon): 1 queue, 200 moved, " in lines[-2]
            other = pair.command("status", "--primary-name", "northwind")
            assert NONE_SEEN in other.out
        finally:
            running.terminate()
        running.communicate(timeout=30)
    assert pair.json("--backlog-queue-count", "1")[1]["syphons_on_this_machine"] == []


def test_syphon_inside_a_client_is_shown(pair: Pair) -> None:
    """The command asks the control socket of the client."""
    pair.create(range(1))
    pair.primary.create_queue("orders")
    pair.divert("orders", 5)
    ends = pair.primary.connection_string, pair.secondary.connection_string
    options: dict[str, Any] = {
        "primary_name": NAME,
        "backlog_queue_count": 1,
        "enable_syphon": True,
        "control_socket": True,
    }
    with PairedServiceBusClient.from_connection_strings(*ends, **options):
        deadline = time.monotonic() + 30
        while not (shown := pair.json("--backlog-queue-count", "1")[1])["syphons_on_this_machine"] or shown["messages"]:
            assert time.monotonic() < deadline, shown
        [syphon] = pair.json("--backlog-queue-count", "1")[1]["syphons_on_this_machine"]
        assert (syphon["pid"], syphon["role"], syphon["moved"]) == (os.getpid(), "client", 5)


def test_stalled_primary_is_told_by_its_clients(pair: Pair) -> None:
    """The connection opens, and nothing is answered. Somebody who looks at night needs the state and the next step."""
    pair.create(range(1))
    pair.primary.create_queue("orders")
    ends = pair.primary.connection_string, pair.secondary.connection_string
    options: dict[str, Any] = {"primary_name": NAME, "backlog_queue_count": 1, "control_socket": True}
    with (
        PairedServiceBusClient.from_connection_strings(*ends, failover_interval=0, **options) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("healthy"))
        assert pair.json("--backlog-queue-count", "1")[1]["quiet"]
        with pair.primary.outage("stall"):
            sender.send_messages(ServiceBusMessage("diverted"), timeout=5)
            code, shown = pair.json("--backlog-queue-count", "1")
            [entity] = shown["entities"]
            assert (code, entity["path"], entity["state"], entity["pid"]) == (1, "orders", "FAILED_OVER", os.getpid())
            assert 0 <= entity["for_s"] < 60 and entity["cause"]
            done = pair.status("--backlog-queue-count", "1")
            assert "; no message was sent to it\n" in done.out
            assert "clients on this machine: 1, 1 of 1 entities not HEALTHY\n  orders: FAILED_OVER since " in done.out
            assert "next: find out why " in done.out.splitlines()[-1]


def test_syphon_without_a_control_socket_goes_on(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The syphon brings messages home all the same, and says why `pairbus status` cannot see it."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PAIRBUS_CONTROL_DIR", str(tmp_path))
    pair.create(range(1))
    pair.primary.create_queue("orders")
    pair.divert("orders", 3)
    done = pair.command("syphon", "--primary-name", NAME, "--once")
    assert (done.code, done.out) == (0, "moved 3 messages\n")
    assert "is open to other users" in done.err and "`pairbus status` will not show this syphon" in done.err


# ── words ──

QUIET = Status(
    1_000.0, Reached("a", 0.01), Reached("b", 0.02), NAME, 1, (QueueFacts("contoso/x-servicebus-transfer/0", 0, 0),)
)


def holding(status: Status, messages: int | None, time_s: float = 0.0) -> Status:
    return replace(status, time_s=status.time_s + time_s, queues=(replace(status.queues[0], messages=messages),))


def test_change_is_the_difference_of_exact_counts() -> None:
    """A lower bound says nothing about a rate."""
    change = change_of(holding(QUIET, 100), holding(QUIET, 40, 5.0))
    assert change is not None and (change.messages, change.per_s) == (-60, -12.0)
    assert str(change) == "60 messages fewer in 5.0 s, 12.0 a second"
    assert change_of(holding(QUIET, None), holding(QUIET, 40, 5.0)) is None
    assert change_of(None, QUIET) is None
    assert any("60 messages fewer" in line for line in summary(holding(QUIET, 40), change))


@pytest.mark.parametrize(
    "status",
    [
        holding(QUIET, 1),
        holding(QUIET, None),
        replace(QUIET, primary=Reached("a", 1.0, "refused")),
        replace(QUIET, secondary=Reached("b", 1.0, "refused"), queues=()),
        replace(QUIET, problems=("no queues",)),
        replace(QUIET, entities=(EntityState(7, "app.py", "orders", "SUSPECT", 1.0),)),
        replace(QUIET, queues=(replace(QUIET.queues[0], dead_letters=1),)),
    ],
)
def test_pair_is_not_quiet_when_anything_waits_or_is_unknown(status: Status) -> None:
    """Zero must mean that nothing is left to do."""
    assert QUIET.is_quiet and not status.is_quiet


WORKS: dict[str, Any] = dict.fromkeys(("moved", "per_second", "over_s", "blocked", "dead_lettered", "errors"), 0)
SYPHON = Syphoning(1, "syphon", "pairbus", WORKS | {"queues": 1, "primary_away": False})
OVER = EntityState(7, "app.py", "orders", "FAILED_OVER", 61.0, "no answer within 5 s")


@pytest.mark.parametrize(
    ("status", "change", "step"),
    [
        (QUIET, None, "nothing to do"),
        (replace(QUIET, secondary=Reached("b", 1.0, "refused"), queues=()), None, "bring b back"),
        (replace(QUIET, queues=(), problems=("no queues",)), None, "create the backlog queues: pairbus pair create"),
        (
            replace(QUIET, queues=(), other_primaries=("northwind",)),
            None,
            "as its clients do: --primary-name northwind;",
        ),
        (replace(holding(QUIET, 5), primary=Reached("a", 1.0, "refused")), None, "wait for a: clients and syphons go"),
        (replace(holding(QUIET, 5), entities=(OVER,)), None, "find out why a does not take messages for orders;"),
        (replace(QUIET, entities=(replace(OVER, state="HELD_OVER"),)), None, "pairbus client force-healthy orders"),
        (holding(QUIET, 5), None, "start a syphon, unless one runs elsewhere: pairbus syphon --primary-name contoso"),
        (holding(QUIET, 5), CountChange(5.0, 3), "start a syphon"),
        (holding(QUIET, 5), CountChange(5.0, -3), "wait: a syphon that is not seen from here moves the messages home"),
        (replace(holding(QUIET, 5), syphons=(SYPHON,)), None, "wait: the syphon moves the messages home"),
        (
            replace(holding(QUIET, 5), syphons=(replace(SYPHON, facts={"error": "its event loop did not answer"}),)),
            None,
            "look at the syphon that does not move everything: pairbus (pid 1, syphon): its event loop did not answer",
        ),
        (
            replace(QUIET, queues=(replace(QUIET.queues[0], dead_letters=1),)),
            None,
            "pairbus message peek --dead-letter contoso/x-servicebus-transfer/0",
        ),
        (replace(QUIET, rotation=2), None, "create the missing backlog queues: pairbus pair create"),
        (replace(QUIET, problems=("it cannot be peeked",)), None, "solve the problem: it cannot be peeked"),
        (holding(QUIET, None), None, "the counts are not exact"),
    ],
)
def test_next_step_follows_from_the_states(status: Status, change: CountChange | None, step: str) -> None:
    """One step only: the first that helps."""
    assert step in next_step(status, change)
    assert summary(status, change)[-1] == f"next: {next_step(status, change)}"


def test_syphon_that_waits_or_does_not_answer_is_named() -> None:
    """A rate of 0 needs its reason."""
    facts = {"queues": 2, "moved": 1, "per_second": 0.0, "over_s": 61.0, "blocked": 3, "dead_lettered": 0, "errors": 1}
    syphons = [
        Syphoning(1, "syphon", "pairbus", {**facts, "primary_away": True}),
        Syphoning(2, "client", "app.py", {"error": "its event loop did not answer"}),
    ]
    assert lines_of(syphons) == [
        "syphons on this machine: 2, together 0.0 messages a second",
        "  pairbus (pid 1, syphon): 2 queues, 1 moved, 0.0 a second over the last 61 s, 3 blocked, 1 error,"
        " waits: it cannot reach the primary",
        "  app.py (pid 2, client): its event loop did not answer",
    ]


def test_sample_counts_strange_messages_too() -> None:
    """A backlog queue may hold messages of other programs, and a reason any characters."""
    sample, dead = PeekedMessages(), PeekedMessages()
    enqueued = {Symbol("x-opt-enqueued-time"): Timestamp(900_000)}
    plain = Message(annotations=enqueued, data=[b""]).encode()
    sample.add([plain, b"\xff", Message(application_properties={"x-ms-path": 7}, data=[b""]).encode()], destination_of)
    assert sample.labels == {NO_DESTINATION: 2, UNREADABLE: 1} and sample.looked_at == 3
    assert QUIET.age_s(sample) == 100.0
    rude = Message(application_properties={"DeadLetterReason": "\x1b[2Jgone" + "x" * 500}, data=[b""]).encode()
    dead.add([rude, plain], reason_of)
    assert dead.labels[NO_REASON] == 1
    assert all(label.isprintable() and len(label) <= 120 for label in dead.labels)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (180_000, "2 d 2 h")],
)
def test_durations_have_two_units(seconds: float | None, text: str) -> None:
    """Users should not have to divide by 3 600 during an outage."""
    assert duration(seconds) == text
