"""`pairbus pair check` on real namespaces, and what it says about settings and clocks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient

from pairbus.auth.sas import LISTEN, SEND, SharedAccessKey
from pairbus.broker import NamespaceOptions
from pairbus.cli.pair.findings import clock_finding, differences, right_finding, settings_finding
from pairbus.settings.durations import UNLIMITED
from pairbus.testing.broker_thread import BrokerThread, ServiceBusNamespace
from tests.cli.command import Command

NAME = "contoso"
KEYS = {right: SharedAccessKey(right, f"{right} key", rights=frozenset({right})) for right in (LISTEN, SEND)}
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

    def check(self, *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
        """(exit code, check → (state, detail and advice))"""
        done = self.command("pair", "check", "--primary-name", NAME, "--backlog-queue-count", "2", "--json", *arguments)
        shown = json.loads(done.out)
        assert shown["ok"] is (done.code == 0)
        return done.code, {one["check"]: (one["state"], f"{one['detail']} {one['advice']}") for one in shown["checks"]}

    def create(self) -> None:
        done = self.command("pair", "create", "--primary-name", NAME, "--backlog-queue-count", "2")
        assert done.code == 0


@pytest.fixture
def pair(broker: BrokerThread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    number = next(_numbers)
    primary = broker.add_namespace(NamespaceOptions(f"home-{number}", keys=tuple(KEYS.values())))
    secondary = broker.add_namespace(NamespaceOptions(f"away-{number}", keys=tuple(KEYS.values())))
    primary.create_queue("orders")
    monkeypatch.setenv("PAIRBUS_PRIMARY", primary.connection_string)
    monkeypatch.setenv("PAIRBUS_SECONDARY", secondary.connection_string)
    yield Pair(primary, secondary, Command(capsys))
    broker.remove_namespace(primary.name)
    broker.remove_namespace(secondary.name)


def with_key(namespace: ServiceBusNamespace, right: str) -> str:
    """The connection string with a key that has only one right."""
    parts = dict(part.split("=", 1) for part in namespace.connection_string.rstrip(";").split(";"))
    parts |= {"SharedAccessKeyName": KEYS[right].name, "SharedAccessKey": KEYS[right].key}
    return ";".join(f"{name}={value}" for name, value in parts.items())


def test_pair_that_was_created_passes(pair: Pair) -> None:
    """The check leaves no message in the application's queue or in a backlog queue."""
    pair.create()
    code, found = pair.check()
    assert (code, {state for state, _ in found.values()}) == (0, {"ok"}), found
    assert list(found) == [
        "primary connection",
        "primary clock",
        "primary manage",
        "primary send",
        "secondary connection",
        "secondary clock",
        "secondary manage",
        "secondary backlog queues",
        "secondary settings of backlog queues",
        "secondary send",
        "secondary listen",
        "message there and back",
    ]
    assert pair.primary.sent("orders") == []
    with ServiceBusClient.from_connection_string(pair.secondary.connection_string) as client:
        for index in range(2):
            with client.get_queue_receiver(f"{NAME}/x-servicebus-transfer/{index}") as receiver:
                assert receiver.peek_messages(10) == []


def test_missing_queues_are_failed_and_names_that_exist_listed(pair: Pair) -> None:
    """The finding has the command that creates the queues."""
    pair.secondary.create_queue("northwind/x-servicebus-transfer/0")
    code, found = pair.check()
    state, text = found["secondary backlog queues"]
    assert (code, state) == (1, "failed")
    assert "it has those of northwind" in text and "pairbus pair create" in text
    assert found["message there and back"][0] == "skipped"


def test_settings_that_differ_are_named_with_the_remedy(pair: Pair) -> None:
    """A queue with a delivery count of 10 would dead-letter messages of a long outage."""
    pair.create()
    pair.secondary.create_queue(f"{NAME}/x-servicebus-transfer/2", max_delivery_count=10)
    code, found = pair.check()
    state, text = found["secondary settings of backlog queues"]
    assert (code, state) == (1, "failed")
    assert f"{NAME}/x-servicebus-transfer/2 has " in text and "max_delivery_count 10" in text
    assert "--max-delivery-count 2147483647" in text


def test_key_without_listen_fails_where_a_syphon_needs_it(pair: Pair) -> None:
    """Sending still works, so that part is ok."""
    pair.create()
    code, found = pair.check("--secondary", with_key(pair.secondary, SEND))
    assert code == 1
    assert found["secondary send"][0] == "ok" and found["secondary manage"][0] == "skipped"
    assert found["secondary listen"][0] == "failed" and "Listen claim" in found["secondary listen"][1]


def test_key_without_send_at_home_fails(pair: Pair) -> None:
    """Without the Manage claim the entity must be named."""
    pair.create()
    weak = with_key(pair.primary, LISTEN)
    code, found = pair.check("--primary", weak)
    assert (code, found["primary send"][0]) == (0, "skipped") and "--entity" in found["primary send"][1]
    code, found = pair.check("--primary", weak, "--entity", "orders")
    assert (code, found["primary send"][0]) == (1, "failed") and "Send claim" in found["primary send"][1]


def test_side_that_is_away_leaves_the_other_checked(pair: Pair) -> None:
    """The primary's port is closed."""
    pair.create()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    head, _, rest = pair.primary.connection_string.partition(";")
    code, found = pair.check("--primary", f"{head.rpartition(':')[0]}:{port};{rest}")
    assert code == 1 and found["primary connection"][0] == "failed"
    assert found["message there and back"][0] == "ok"


def test_same_namespace_twice_is_no_pair(pair: Pair) -> None:
    """One outage would take both sides of such a pair."""
    done = pair.command("pair", "check", "--secondary", pair.primary.connection_string)
    assert done.code == 1 and "a pair needs two" in done.err


def test_lines_say_ok_or_failed_first(pair: Pair) -> None:
    """The lines are for people, and for grep."""
    done = pair.command("pair", "check", "--primary-name", NAME)
    lines = done.out.splitlines()
    assert done.code == 1 and lines[0].startswith("ok      primary connection: ")
    assert all(line.split()[0] in ("ok", "failed", "skipped") for line in lines)


# ── judgements ──

SPECIFIED: dict[str, Any] = {
    "max_size_in_megabytes": 5120,
    "max_delivery_count": 2147483647,
    "default_message_time_to_live": UNLIMITED,
    "auto_delete_on_idle": UNLIMITED + timedelta(hours=2),
    "lock_duration": timedelta(minutes=1),
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
    "requires_session": False,
    "requires_duplicate_detection": False,
    "forward_to": None,
    "status": "Active",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_size_in_megabytes", 1024),
        ("max_delivery_count", 10),
        ("default_message_time_to_live", timedelta(days=14)),
        ("lock_duration", timedelta(minutes=5)),
        ("requires_session", True),
        ("forward_to", "elsewhere"),
        ("status", "SendDisabled"),
    ],
)
def test_each_setting_is_compared(name: str, value: Any) -> None:
    """Each setting must be that of the specification."""
    assert differences(SPECIFIED) == []
    assert differences({**SPECIFIED, name: value}) == [name]


def test_larger_queue_is_fine() -> None:
    """A partitioned queue reports sixteen times its size."""
    assert differences({**SPECIFIED, "max_size_in_megabytes": 81_920}) == []


def test_setting_of_creation_needs_a_new_queue() -> None:
    """No update can take sessions away."""
    finding = settings_finding({"contoso/x-servicebus-transfer/0": {**SPECIFIED, "requires_session": True}})
    assert finding.state == "failed" and "delete it" in finding.advice and "queue update" not in finding.advice


@pytest.mark.parametrize(
    ("off_s", "state", "words"),
    [(0, "ok", "at most"), (-30, "ok", "at most"), (300, "failed", "ahead of"), (-300, "failed", "behind")],
)
def test_clocks_may_differ_by_a_minute(off_s: int, state: str, words: str) -> None:
    """Tokens and times to live are wrong by as much."""
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    date = format_datetime(now + timedelta(seconds=off_s), usegmt=True)
    finding = clock_finding("primary", date, now.timestamp() + 0.4, now.timestamp() + 0.6)
    assert finding.state == state and words in finding.detail


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_clock_without_a_date_is_skipped(date: str | None) -> None:
    """An answer without one is no failure of the pair."""
    assert clock_finding("primary", date, 0.0, 0.0).state == "skipped"


def test_right_names_the_first_entity_that_refused() -> None:
    """The finding also says how many other entities refused."""
    finding = right_finding("secondary send", ["a", "b", "c"], {"b": "no", "c": "no"}, "do this")
    assert str(finding) == "failed  secondary send: b: no and 1 more. do this"
    assert str(right_finding("send", ["a"], {"a": "not found."}, "do this")) == "failed  send: a: not found. do this"
