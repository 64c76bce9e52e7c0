"""`pairbus spool`: its output, where drained messages go, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.backlog.envelope import unwrap
from pairbus.cli import main
from pairbus.cli.pair.draining import DrainWays
from pairbus.ledger import read
from pairbus.pairing.policy import Failure, Kind
from pairbus.spool import Spool
from pairbus.spool import lanes as forwarding
from pairbus.spool.files import FILE_NAME
from pairbus.spool.lanes import PRIMARY, Way
from tests.brokers import BrokerProcess
from tests.scripted.endpoint import ScriptedThread
from tests.scripted.script import Reject
from tests.spool.entries import entries, entry, number_of

NAME = "contoso"
FOUND = [("orders", 0), ("orders", 1), ("orders", 2), ("orders", 3), ("bills", 0)]
"Path and number of each message in the spools of `folder`."
NOBODY = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["spool", *map(str, arguments)])
    return int(caught.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An orphan: three messages for `orders`, one for `bills`, and one that a forked process left."""
    folder = tmp_path / "spool"
    for path, found in ((folder, [*entries(range(3)), entry(0, "bills")]), (folder / "1", [entry(3)])):
        spool = Spool(path)
        spool.append(found)
        spool.close()
    return folder


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "PAUSE_S", 0.02)


@pytest.fixture
def endpoint() -> Iterator[ScriptedThread]:
    with ScriptedThread() as endpoint:
        yield endpoint


def test_a_list_shows_what_waits_and_what_was_set_aside(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each path, tab-separated outside a terminal, also while the owner lives."""
    spool = Spool(folder)
    [(number, _), *_] = spool.next_batch("orders", 1, 1)
    spool.refuse([(number, "too large")], refused_ms=1)
    assert run("list", folder) == 0
    spool.close()
    head, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert head == ["spool", "pair", "path", "waiting", "bytes", "oldest", "refused", "why"]
    size = entry(1).size
    assert lines == [
        [str(folder), "-", "orders", "2", str(2 * size), "1970-01-01T00:00:01+00:00", "1", "too large"],
        [str(folder), "-", "bills", "1", str(entry(0, "bills").size), "1970-01-01T00:00:01+00:00", "0", "-"],
        [str(folder / "1"), "-", "orders", "1", str(size), "1970-01-01T00:00:01+00:00", "0", "-"],
    ]


def test_a_damaged_spool_holds_up_no_other(
    folder: Path, endpoint: ScriptedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged spool is named and skipped; alone, it is the error."""
    (folder / FILE_NAME).write_bytes(b"rubbish" * 1000)
    assert run("list", folder) == 1
    out, err = capsys.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == ["spool", str(folder / "1")]
    assert str(folder / FILE_NAME) in err and "This spool is skipped." in err
    assert run("drain", folder, "--primary", endpoint.connection_string, "--any-pair") == 1
    out, err = capsys.readouterr()
    assert out == "forwarded 1 message\n" and "This spool is skipped." in err
    (folder / "1" / FILE_NAME).unlink()
    assert run("list", folder) == 1
    assert "skipped" not in capsys.readouterr().err


def test_a_list_for_programs_has_the_same_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Monitoring reads it."""
    assert run("list", folder, "--json") == 0
    [first, second] = json.loads(capsys.readouterr().out)
    assert [(found["path"], found["waiting"]) for found in first["paths"]] == [("orders", 3), ("bills", 1)]
    assert second["spool"] == str(folder / "1") and second["paths"][0]["oldest_ms"] == 1003


def test_a_drain_brings_everything_home(
    folder: Path, endpoint: ScriptedThread, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Messages go in order, from every spool of the folder; the connection string is in a file."""
    file = tmp_path / "primary.cs"
    file.write_text(f"{endpoint.connection_string}\n")
    assert run("drain", folder, "--primary", f"@{file}") == 0
    assert capsys.readouterr().out == "forwarded 5 messages\n"
    assert [number_of(payload) for payload in endpoint.stored("orders")] == [0, 1, 2, 3]
    assert run("drain", folder, "--primary", f"@{file}") == 0
    assert capsys.readouterr().out == "forwarded 0 messages\n"
    assert len(endpoint.stored("bills")) == 1


@pytest.mark.parametrize("by", ["option", "variable"])
def test_drain_writes_a_ledger(
    by: str, folder: Path, endpoint: ScriptedThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report must find that the messages which a client spooled are home, and what their sends cost."""
    ledger = tmp_path / "ledger"
    options = ["--ledger", ledger] if by == "option" else []
    if by == "variable":
        monkeypatch.setenv("PAIRBUS_LEDGER", str(ledger))
    assert run("drain", folder, "--primary", endpoint.connection_string, *options) == 0
    rows = list(read(ledger))
    home = [(row.entity, row.message_id) for row in rows if row.event == "SpoolForwarded"]
    assert sorted(home) == sorted((path, f"m{number}") for path, number in FOUND)
    sends = [row for row in rows if row.kind == "send"]
    assert sum(row.billable_operations or 0 for row in sends) == len(FOUND)
    assert {(row.client, row.side, row.cause, row.outcome) for row in sends} == {
        ("spool-drain", "primary", "spool", "ok")
    }


def test_a_drain_fills_topics_and_session_queues(
    broker: BrokerProcess,
    admin: ServiceBusAdministrationClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a real broker: every subscription has its copy, and each session its messages in their order."""
    topic, queue = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("news", "cases"))
    admin.create_topic(topic)
    admin.create_subscription(topic, "all")
    admin.create_subscription(topic, "cases", requires_session=True)
    admin.create_queue(queue, requires_session=True)
    spool = Spool(tmp_path / "spool")
    for path in (topic, queue):
        spool.append([entry(number, path, session_id=f"s{number % 2}") for number in range(6)])
    spool.close()
    assert run("drain", tmp_path / "spool", "--primary", broker.connection_string()) == 0
    assert capsys.readouterr().out == "forwarded 12 messages\n"

    def bodies(receiver: ServiceBusReceiver, count: int) -> list[int]:
        found: list[int] = []
        with receiver:
            while len(found) < count and (batch := receiver.receive_messages(count, max_wait_time=10)):
                found += [int(str(message)) for message in batch]
        return found

    with ServiceBusClient.from_connection_string(broker.connection_string()) as client:
        settings: dict[str, Any] = {"receive_mode": "receiveanddelete"}
        assert sorted(bodies(client.get_subscription_receiver(topic, "all", **settings), 6)) == list(range(6))
        for n in range(2):
            settings["session_id"] = f"s{n}"
            assert bodies(client.get_subscription_receiver(topic, "cases", **settings), 3) == [n, n + 2, n + 4]
            assert bodies(client.get_queue_receiver(queue, **settings), 3) == [n, n + 2, n + 4]


def test_what_the_primary_cannot_take_goes_to_backlog_queues(
    folder: Path, endpoint: ScriptedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary does not answer; one of two backlog queues is missing. Connection strings: from the environment."""
    endpoint.on("attach", Reject("amqp:not-found"), path=f"{NAME}/x-servicebus-transfer/0")
    monkeypatch.setenv("PAIRBUS_PRIMARY", NOBODY)
    monkeypatch.setenv("PAIRBUS_SECONDARY", endpoint.connection_string)
    assert run("drain", folder, "--primary-name", NAME, "--backlog-queue-count", 2) == 0
    homes = [unwrap(payload) for payload in endpoint.stored(f"{NAME}/x-servicebus-transfer/1")]
    assert sorted(getattr(home, "path", "") for home in homes) == ["bills", *["orders"] * 4]


def test_what_is_left_is_told_with_the_reason_and_exit_code_1(
    folder: Path, endpoint: ScriptedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused messages are left too: exit code 0 means that the folder may be deleted."""
    unauthorised = endpoint.on("attach", Reject("amqp:unauthorized-access"), path="orders")
    endpoint.on("transfer", Reject("com.microsoft:argument-error"), path="bills", times=1)
    assert run("drain", folder, "--primary", endpoint.connection_string, "--timeout", 0) == 1
    shown = capsys.readouterr()
    done, _, *left = shown.out.splitlines()
    assert done == "forwarded 0 messages"
    told = {tuple(line.split("\t")[:4]): line for line in left}
    assert set(told) == {
        *((str(folder), "-", "orders", "3"), (str(folder), "-", "bills", "0"), (str(folder / "1"), "-", "orders", "1"))
    }
    assert "amqp:unauthorized-access" in told[str(folder), "-", "orders", "3"]
    assert "com.microsoft:argument-error" in told[str(folder), "-", "bills", "0"]
    assert "bills message m0 is refused and stays in the spool" in shown.err
    endpoint.remove(unauthorised)
    assert run("drain", folder, "--primary", endpoint.connection_string) == 1
    assert run("drain", folder, "--primary", endpoint.connection_string, "--retry-refused") == 0
    assert len(endpoint.stored("bills")) == 1


def test_a_spool_whose_client_lives_is_not_drained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Command and client would send every message twice; the text names the folder and the client's process."""
    code = "import sys; from pairbus.spool import Spool; s = Spool(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdout is not None
        client.stdout.readline()
        assert run("drain", folder, "--primary", NOBODY, "--timeout", "0") == 1
        client.communicate()
    shown = capsys.readouterr()
    assert f"The spool {folder} is in use by another client (process {client.pid})" in shown.err
    assert "skipped" in shown.err and str(folder / "1") in shown.out  # the spool beside it was drained


def test_messages_of_another_pair_are_not_drained_unless_asked_for(
    folder: Path, endpoint: ScriptedThread, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong connection string must not send them to a namespace that they were never meant for."""
    Spool(folder, pair=NAME).close()
    own = ("drain", folder, "--primary", endpoint.connection_string)
    assert run(*own, "--primary-name", "litware") == 1
    shown = capsys.readouterr()
    assert f"The spool {folder} holds messages of the pair {NAME}, not of litware" in shown.err
    assert f"--primary-name {NAME}" in shown.err and "--any-pair" in shown.err
    assert [number_of(payload) for payload in endpoint.stored("orders")] == [3], (
        "the spool beside it names no pair and is drained"
    )
    assert run("list", folder, "--json") == 0
    assert [found["pair"] for found in json.loads(capsys.readouterr().out)] == [NAME, None]
    assert run(*own, "--primary-name", "litware", "--any-pair") == 0
    assert [number_of(payload) for payload in endpoint.stored("orders")] == [3, 0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["list", "{empty}"], 1, "There is no spool in"),
        (["drain", "{empty}", "--primary", NOBODY], 1, "There is no spool in"),
        (["drain", "{folder}", "--primary", "@nowhere.cs"], 1, "the file nowhere.cs cannot be read"),
        (["drain", "{folder}", "--primary", "nonsense"], 1, "pairbus: "),
        (["drain", "{folder}"], 2, "--primary"),
        (["drain", "{folder}", "--primary", NOBODY, "--primary-name", "a/b"], 2, "legal path segment"),
    ],
)
def test_wrong_calls_are_answered_in_a_sentence(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    """The code is 1 for errors, 2 for wrong usage; no message was sent or changed."""
    monkeypatch.delenv("PAIRBUS_PRIMARY", raising=False)
    (tmp_path / "empty").mkdir()
    places = {"{empty}": str(tmp_path / "empty"), "{folder}": str(folder)}
    assert run(*[places.get(argument, argument) for argument in arguments]) == code
    assert words in capsys.readouterr().err
    assert os.listdir(tmp_path / "empty") == []


def test_only_what_an_outage_explains_is_diverted_by_a_drain() -> None:
    """A wrong key or a missing entity is not healed elsewhere; throttling is waited for; a bad queue is left out."""
    ways, queue = DrainWays(["q/0"]), Way("q/0")
    for kind in (Kind.UNAUTHORIZED, Kind.NOT_FOUND, Kind.DISABLED, Kind.BUSY):
        ways.failed("orders", PRIMARY, Failure(kind, "no"), 0.0)
        assert ways.way("orders", 0.0) == PRIMARY
    ways.failed("Orders", PRIMARY, Failure(Kind.COMMUNICATION, "no"), 0.0)
    assert ways.way("orders", 0.0) == queue and ways.way("bills", 0.0) == PRIMARY
    ways.failed("orders", queue, Failure(Kind.BUSY, "later"), 0.0)
    assert ways.way("orders", 0.0) == queue
    ways.failed("orders", queue, Failure(Kind.FULL, "no"), 0.0)
    assert ways.way("orders", 0.0) is None
