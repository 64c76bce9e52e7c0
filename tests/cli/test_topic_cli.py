"""`pairbus topic`, `subscription`, `rule` and `namespace` end to end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.types import Int
from pairbus.broker.config.file import parse_config
from pairbus.broker.description import (
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.filters import CorrelationFilter, SqlAction, SqlFilter, TrueFilter
from tests.broker.admin_world import AdminServer, serve
from tests.cli.command import Command, Outcome

RULE = "events/Subscriptions/audit/Rules/red"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with serve(tmp_path_factory.mktemp("cli")) as server:
        yield server


@pytest.fixture
def server(running: AdminServer, monkeypatch: pytest.MonkeyPatch) -> AdminServer:
    running.namespace.forget_tests()
    monkeypatch.setenv("PAIRBUS_CONNECTION_STRING", running.connection_string())
    return running


@pytest.fixture
def pairbus(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def audit(server: AdminServer, pairbus: Command) -> AdminServer:
    """A server with the topic events and its subscription audit."""
    assert pairbus("topic", "create", "events").code == 0
    assert pairbus("subscription", "create", "events", "audit").code == 0
    return server


def topic(server: AdminServer) -> TopicDescription:
    return replace(server.namespace.topic_info("events").description, created_ms=0, updated_ms=0)


def subscription(server: AdminServer) -> SubscriptionDescription:
    found = server.namespace.subscription_info("events", "audit").description
    return replace(found, created_ms=0, updated_ms=0)


def rule(server: AdminServer) -> RuleDescription:
    return replace(server.namespace.rule("events", "audit", "red"), created_ms=0, updated_ms=0)


def test_topic_is_created_updated_and_deleted(pairbus: Command, server: AdminServer) -> None:
    """Deleting takes the subscriptions along, and says so."""
    settings = ("--ttl", "PT1H", "--duplicate-window", "30", "--max-size-mb", "2048", "--partitioned")
    assert pairbus("topic", "create", "events", *settings) == Outcome(0, "created events\n", "")
    assert topic(server) == TopicDescription(
        "events",
        default_ttl_ms=3_600_000,
        requires_duplicate_detection=True,
        duplicate_window_ms=30_000,
        max_size_mb=2048,
        enable_partitioning=True,
    )
    assert pairbus("topic", "update", "events", "--status", "disabled").out == "updated events\n"
    assert topic(server).status == "Disabled"
    refused = pairbus("topic", "delete", "events")
    assert (refused.code, refused.out) == (1, "")
    assert "topic events with its subscriptions and every message in them" in refused.err
    assert pairbus("topic", "delete", "events", "-y") == Outcome(0, "deleted events\n", "")
    assert not server.namespace.catalog.topics


def test_topics_are_listed_and_shown(pairbus: Command, audit: AdminServer) -> None:
    """The output has counts; JSON has seconds, and null where there is no limit."""
    pairbus("topic", "create", "contoso/other")
    assert pairbus("topic", "list", "--prefix", "EV").out.splitlines() == [
        "name\tstatus\tsubscriptions\tscheduled\tsize_bytes",
        "events\tActive\t1\t0\t0",
    ]
    assert [found["name"] for found in json.loads(pairbus("topic", "list", "--json").out)] == [
        "contoso/other",
        "events",
    ]
    shown = json.loads(pairbus("topic", "show", "events", "--json").out)
    assert (shown["subscriptions"], shown["ttl_s"], shown["partitioned"]) == (1, None, False)


def test_subscription_is_created_updated_and_deleted(pairbus: Command, audit: AdminServer) -> None:
    """Settings that were not given keep their value."""
    audit.namespace.add("orders")
    changes = ("--lock-duration", "30", "--no-dead-letter-on-filter-error", "--forward-to", "orders")
    assert pairbus("subscription", "update", "events", "audit", *changes).out == "updated events/Subscriptions/audit\n"
    expected = SubscriptionDescription(
        "events", "audit", lock_duration_ms=30_000, dead_letter_on_filter_error=False, forward_to="orders"
    )
    assert subscription(audit) == expected
    pairbus("subscription", "update", "events", "audit", "--forward-to", "")
    assert subscription(audit) == replace(expected, forward_to=None)
    assert pairbus("subscription", "list", "events").out.splitlines()[1] == "audit\tActive\t0\t0\t0"
    shown = json.loads(pairbus("subscription", "show", "events", "audit", "--json").out)
    assert (shown["topic"], shown["name"], shown["lock_duration_s"], shown["active"]) == ("events", "audit", 30, 0)
    assert "would be deleted" in pairbus("subscription", "delete", "events", "audit").err
    assert pairbus("subscription", "delete", "events", "audit", "--yes").code == 0
    assert pairbus("subscription", "list", "events", "--json").out == "[]\n"


def test_subscription_is_created_with_its_filter(pairbus: Command, audit: AdminServer) -> None:
    """One command; a filter that is wrong leaves no subscription behind, which would get every message."""
    done = pairbus("subscription", "create", "events", "red", "--sql-filter", "color = 'red'")
    assert (done.code, done.out) == (0, "created events/Subscriptions/red\n")
    [rule] = json.loads(pairbus("rule", "list", "events", "red", "--json").out)
    assert (rule["name"], "color = 'red'" in str(rule["filter"])) == ("$Default", True)
    assert pairbus("subscription", "create", "events", "wrong", "--sql-filter", "color =").code == 1
    names = [each["name"] for each in json.loads(pairbus("subscription", "list", "events", "--json").out)]
    assert names == ["audit", "red"]


def test_rules_have_sql_and_correlation_filters(pairbus: Command, audit: AdminServer) -> None:
    """Texts unless a type is named; the action stays when only the filter is replaced."""
    arguments = ("--sql", "color = 'red'", "--action", "SET seen = TRUE")
    assert pairbus("rule", "create", "events", "audit", "red", *arguments).out == f"created {RULE}\n"
    expected = RuleDescription(
        "events", "audit", "red", filter=SqlFilter("color = 'red'"), action=SqlAction("SET seen = TRUE")
    )
    assert rule(audit) == expected
    pairs = ("subject=paint", "litres:int=5", "user.to=me", "ratio:double=1.5", "new:bool=TRUE", "text=a=b")
    correlation = [argument for pair in pairs for argument in ("--correlation", pair)]
    assert pairbus("rule", "update", "events", "audit", "red", *correlation).out == f"updated {RULE}\n"
    properties: dict[str, Any] = {"litres": Int(5), "to": "me", "ratio": 1.5, "new": True, "text": "a=b"}
    assert rule(audit) == replace(expected, filter=CorrelationFilter(label="paint", properties=properties))
    pairbus("rule", "update", "events", "audit", "red", "--action", "")
    assert rule(audit).action is None
    assert pairbus("rule", "list", "events", "audit").out.splitlines() == [
        "name\ttype\tfilter\taction",
        "$Default\ttrue\t1=1\t-",
        "red\tcorrelation\tsubject=paint, user.litres=5, user.to=me, user.ratio=1.5, user.new=True, user.text=a=b\t-",
    ]
    shown = json.loads(pairbus("rule", "show", "events", "audit", "red", "--json").out)
    assert shown["filter"] == {
        "subject": "paint", "user.litres": 5, "user.to": "me", "user.ratio": 1.5, "user.new": True, "user.text": "a=b"
    }  # fmt: skip
    assert pairbus("rule", "delete", "events", "audit", "$Default", "--yes").code == 0
    pairbus("rule", "create", "events", "audit", "all")
    assert audit.namespace.rule("events", "audit", "all").filter == TrueFilter()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("rule", "create", "events", "audit", "x", "--sql", "a ="), 1, "column"),
        (("rule", "create", "events", "audit", "x", "--sql", "a=1", "--correlation", "b=1"), 2, "exclude each other"),
        (("rule", "create", "events", "audit", "x", "--correlation", "b"), 2, "KEY=VALUE is needed"),
        (("rule", "create", "events", "audit", "x", "--correlation", "b:int=x"), 2, "'x' is not of the type int"),
        (("rule", "create", "events", "audit", "x", "--correlation", "b:date=x"), 2, "'date' is not one of"),
        (("rule", "create", "events", "audit", "x", "--correlation", "b:bool=1"), 2, "true or false"),
        (("rule", "create", "events", "other", "x"), 1, "subscription 'other' of topic 'events' does not exist"),
        (("rule", "create", "events", "other", "x"), 1, "`pairbus subscription list` shows what is there"),
        (("rule", "update", "events", "audit", "$Default"), 2, "give --sql, --correlation or --action"),
        (("subscription", "create", "absent", "s"), 1, "topic 'absent' does not exist"),
        (("subscription", "create", "events", "a/b"), 1, "a/b"),
        (("subscription", "update", "events", "audit"), 2, "no setting was given"),
        (("topic", "show", "absent"), 1, "there is no topic 'absent' in"),
        (("topic", "delete", "absent", "--yes"), 1, "there is no topic 'absent' in"),
        (
            ("subscription", "create", "events", "s", "--sql-filter", "color ="),
            1,
            "'$Default': column 8",
        ),
        (("topic", "create", "EVENTS"), 1, "'EVENTS' exists already"),
        (("topic", "create", " "), 2, "the name of the topic is empty"),
    ],
)
def test_slips_are_told_in_words(
    pairbus: Command, audit: AdminServer, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """Exit code 1 is the broker's refusal, 2 is wrong usage."""
    outcome = pairbus(*arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert words in " ".join(outcome.err.split())


def test_export_can_be_read_by_the_broker(pairbus: Command, audit: AdminServer, tmp_path: Path) -> None:
    """Whole with --extended; keys are never written."""
    audit.namespace.add("orders")
    pairbus("queue", "create", "inbox", "--forward-to", "orders", "--ttl", "PT1H30M", "--max-size-mb", "2048")
    pairbus("rule", "create", "events", "audit", "red", "--sql", "color = 'red'", "--action", "SET seen = TRUE")
    pairbus("rule", "create", "events", "audit", "large", "--correlation", "litres:int=5")
    pairbus("subscription", "create", "events", "silent")
    pairbus("rule", "delete", "events", "silent", "$Default", "--yes")
    file = tmp_path / "Config.json"
    outcome = pairbus("namespace", "export", "--extended", "--out", str(file))
    assert (outcome.code, outcome.out) == (0, "")
    assert "events/silent has no rules; the file has one that selects nothing" in outcome.err
    [found] = parse_config(file.read_text(), "Config.json")
    assert found.name == "contoso"
    namespace = audit.namespace

    def plain(description: Any) -> Any:
        return replace(description, created_ms=0, updated_ms=0)

    assert found.queues == [plain(info.description) for info in namespace.queue_infos()]
    assert found.topics == [plain(info.description) for info in namespace.topic_infos()]
    first, second = found.subscriptions
    assert first.description == plain(namespace.subscription_info("events", "audit").description)
    assert {each.name: (each.filter, each.action) for each in first.rules or ()} == {
        "$Default": (SqlFilter("1=1"), None),
        "large": (CorrelationFilter(properties={"litres": 5}), None),
        "red": (SqlFilter("color = 'red'"), SqlAction("SET seen = TRUE")),
    }
    assert [each.filter for each in second.rules or ()] == [SqlFilter("1=0")]


@pytest.mark.parametrize(("place", "words"), [("", "that is a folder"), ("no/such.json", "does not exist")])
def test_export_to_a_wrong_place_is_told(
    pairbus: Command, server: AdminServer, tmp_path: Path, place: str, words: str
) -> None:
    """The mistake is told before the namespace is read."""
    outcome = pairbus("namespace", "export", "--out", str(tmp_path / place))
    assert (outcome.code, words in outcome.err) == (1, True), outcome.err


def test_export_has_the_emulators_properties_only(pairbus: Command, server: AdminServer) -> None:
    """The official emulator refuses properties that it does not know."""
    pairbus("queue", "create", "orders", "--ttl", "P1DT2H", "--lock-duration", "30")
    document = json.loads(pairbus("namespace", "export", "--name", "sbemulatorns").out)
    [namespace] = document["UserConfig"]["Namespaces"]
    assert namespace["Name"] == "sbemulatorns"
    assert namespace["Queues"] == [
        {
            "Name": "orders",
            "Properties": {
                "DeadLetteringOnMessageExpiration": False,
                "DefaultMessageTimeToLive": "P1DT2H",
                "ForwardDeadLetteredMessagesTo": "",
                "ForwardTo": "",
                "LockDuration": "PT30S",
                "MaxDeliveryCount": 10,
                "RequiresSession": False,
                "DuplicateDetectionHistoryTimeWindow": "PT10M",
                "RequiresDuplicateDetection": False,
            },
        }
    ]
    assert namespace["Topics"] == []


def test_export_writes_no_key(pairbus: Command, server: AdminServer) -> None:
    """Keys are neither in the file nor on the terminal; the number of rules left out is told."""
    key = AuthorizationRule("app", ("Send",), "primary-secret", "secondary-secret")
    asyncio.run_coroutine_threadsafe(
        server.namespace.create(QueueDescription("orders", authorization=(key,))), server.loop
    ).result(10)
    outcome = pairbus("namespace", "export", "--extended")
    assert outcome.code == 0
    assert "1 authorization rules were left out" in outcome.err
    assert "secret" not in outcome.out + outcome.err


def test_namespace_is_shown(pairbus: Command, server: AdminServer) -> None:
    """The administration API answers with the name of the namespace."""
    assert json.loads(pairbus("namespace", "show", "--json").out)["name"] == "contoso"
