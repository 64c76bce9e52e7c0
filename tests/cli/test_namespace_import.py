"""`pairbus namespace import`: entities created and updated from a file, and from what `export` wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.admin_world import AdminServer, serve
from tests.cli.command import Command


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
def pairbus(capsys: pytest.CaptureFixture[str], server: AdminServer) -> Command:
    return Command(capsys)


def written(folder: Path, document: Any, name: str = "main.json") -> str:
    (folder / name).write_text(json.dumps(document))
    return str(folder / name)


def template(**queue: Any) -> dict[str, Any]:
    """A template with a queue that forwards to a topic which comes later, and a subscription with one rule."""
    bus = "Microsoft.ServiceBus/namespaces"
    name = "parameters('bus')"
    colour = {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": "colour = 'red'", "compatibilityLevel": 20}}
    return {
        "$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#",
        "contentVersion": "1.0.0.0",
        "parameters": {"bus": {"type": "string"}, "lock": {"type": "string", "defaultValue": "PT1M"}},
        "resources": [
            {
                "type": f"{bus}/queues",
                "name": f"[format('{{0}}/orders', {name})]",
                "properties": {"lockDuration": "[parameters('lock')]", "forwardTo": "events", **queue},
            },
            {"type": f"{bus}/topics", "name": f"[format('{{0}}/events', {name})]", "properties": {}},
            {"type": f"{bus}/topics/subscriptions", "name": f"[format('{{0}}/events/audit', {name})]"},
            {
                "type": f"{bus}/topics/subscriptions/rules",
                "name": f"[format('{{0}}/events/audit/red', {name})]",
                "properties": colour,
            },
        ],
    }


PARAMETERS = {"parameters": {"bus": {"value": "somewhere"}}}


def names(pairbus: Command, *arguments: str) -> list[str]:
    outcome = pairbus(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    return [each["name"] for each in json.loads(outcome.out)]


def test_template_is_carried_out_and_the_second_time_changes_nothing(pairbus: Command, tmp_path: Path) -> None:
    """Forwarding to an entity that comes later works, and a new subscription has the rules of the file alone."""
    line = [written(tmp_path, template()), "--parameters", written(tmp_path, PARAMETERS, "dev.json")]
    first = pairbus("namespace", "import", *line)
    assert first.code == 0, first.err
    assert first.out.splitlines() == [
        "create queue orders",
        "create topic events",
        "create subscription events/audit",
        "update queue orders: ForwardTo events",
        "create rule events/audit/red",
        "replace $Default of events/audit",
    ]
    assert names(pairbus, "rule", "list", "events", "audit") == ["red"]
    assert json.loads(pairbus("queue", "show", "orders", "--json").out)["forward_to"] == "events"
    second = pairbus("namespace", "import", *line)
    assert (second.code, second.out) == (0, "")
    assert "0 changes, 4 unchanged" in second.err


def test_settings_of_the_file_are_updated_and_others_stay(pairbus: Command, tmp_path: Path) -> None:
    """Nothing is deleted, and a setting that the file lacks keeps its value."""
    line = ["--parameters", written(tmp_path, PARAMETERS, "dev.json")]
    assert pairbus("namespace", "import", written(tmp_path, template()), *line).code == 0
    pairbus("queue", "update", "orders", "--max-delivery-count", "7")
    pairbus("queue", "create", "other")
    values = {"parameters": {**PARAMETERS["parameters"], "lock": {"value": "PT2M"}}}
    later = [written(tmp_path, template()), "--parameters", written(tmp_path, values, "test.json")]
    tried = pairbus("namespace", "import", *later, "--dry-run")
    assert tried.out.splitlines() == ["would update queue orders: LockDuration PT1M -> PT2M"]
    assert "1 changes to make" in tried.err
    shown = json.loads(pairbus("queue", "show", "orders", "--json").out)
    assert shown["lock_duration_s"] == 60, "a dry run changed it"
    assert pairbus("namespace", "import", *later).out.splitlines() == ["update queue orders: LockDuration PT1M -> PT2M"]
    shown = json.loads(pairbus("queue", "show", "orders", "--json").out)
    assert (shown["lock_duration_s"], shown["max_delivery_count"]) == (120, 7)
    assert names(pairbus, "queue", "list") == ["orders", "other"]


def test_changed_rule_is_updated_and_others_are_told(pairbus: Command, tmp_path: Path) -> None:
    """`$Default` beside the rules of a file selects every message; it is not deleted, and not passed over."""
    pairbus("topic", "create", "events")
    pairbus("subscription", "create", "events", "audit")
    pairbus("rule", "create", "events", "audit", "red", "--sql", "colour = 'blue'")
    line = [written(tmp_path, template()), "--parameters", written(tmp_path, PARAMETERS, "dev.json")]
    outcome = pairbus("namespace", "import", *line)
    assert "update rule events/audit/red" in outcome.out
    assert "events/audit has $Default beside the rules of the file" in outcome.err
    assert names(pairbus, "rule", "list", "events", "audit") == ["$Default", "red"]


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (("queue", "create", "orders", "--requires-session"), "queue orders: RequiresSession cannot be changed"),
        (("topic", "create", "orders"), "queue orders: there is an entity of another kind with this name"),
    ],
)
def test_import_that_cannot_be_done_changes_nothing(
    pairbus: Command, tmp_path: Path, before: tuple[str, ...], words: str
) -> None:
    """The whole file is compared first."""
    pairbus(*before)
    file = written(tmp_path, template(requiresSession=False))
    outcome = pairbus("namespace", "import", file, "--parameters", written(tmp_path, PARAMETERS, "dev.json"))
    assert outcome.code == 1 and words in outcome.err and "nothing was changed" in outcome.err
    assert "events" not in names(pairbus, "topic", "list")


def fill(pairbus: Command) -> None:
    for line in (
        "queue create orders --lock-duration 2m --duplicate-window 10m --ttl 14d --max-delivery-count 3",
        "queue create inbox --forward-to orders --user-metadata [note]",
        "queue create contoso/x-servicebus-transfer/0 --requires-session",
        "topic create events --max-size-mb 2048",
        "subscription create events audit --dead-letter-on-expiration --forward-to orders",
        "rule create events audit red --sql colour='red' --action SET\tseen=TRUE",
        "rule create events audit blue --correlation label=blue --correlation size=large",
        "subscription create events silent",
        "rule delete events silent $Default --yes",
    ):
        outcome = pairbus(*(word.replace("\t", " ") for word in line.split(" ")))
        assert outcome.code == 0, (line, outcome.err)


@pytest.mark.parametrize("kind", ["arm", "emulator"])
def test_export_is_imported_as_it_was(pairbus: Command, server: AdminServer, tmp_path: Path, kind: str) -> None:
    """A second export, after an import into an empty namespace, has the same text."""
    fill(pairbus)
    first, second = str(tmp_path / "first.json"), str(tmp_path / "second.json")
    options = ["--format", kind, *(["--extended"] if kind == "emulator" else [])]
    assert pairbus("namespace", "export", *options, "--out", first).code == 0
    unchanged = pairbus("namespace", "import", first)
    # `silent` has no rule, and the file has one that selects nothing.
    assert (unchanged.code, unchanged.out.splitlines()) == (0, ["create rule events/silent/none"]), unchanged.err
    server.namespace.forget_tests()
    assert pairbus("namespace", "import", first).code == 0
    assert pairbus("namespace", "export", *options, "--out", second).code == 0
    assert json.loads(Path(second).read_text()) == json.loads(Path(first).read_text())


def test_template_of_an_export_has_no_key_and_one_parameter(pairbus: Command, server: AdminServer) -> None:
    """It deploys into a namespace that exists; slashes of a path are written as `~`, which ARM takes for one name."""
    fill(pairbus)
    document = json.loads(pairbus("namespace", "export", "--format", "arm", "--name", "fabrikam").out)
    assert document["parameters"] == {"namespaceName": {"type": "string", "defaultValue": "fabrikam"}}
    found = {each["name"]: each for each in document["resources"]}
    assert "[format('{0}/{1}', parameters('namespaceName'), 'contoso~x-servicebus-transfer~0')]" in found
    rule = found["[format('{0}/{1}/{2}/{3}', parameters('namespaceName'), 'events', 'audit', 'red')]"]
    assert rule["type"] == "Microsoft.ServiceBus/namespaces/topics/subscriptions/rules"
    assert rule["dependsOn"] == [
        "[resourceId('Microsoft.ServiceBus/namespaces/topics/subscriptions',"
        " parameters('namespaceName'), 'events', 'audit')]"
    ]
    assert "SharedAccessKey" not in json.dumps(document)


@pytest.mark.parametrize(
    ("document", "more", "words"),
    [
        ({"resources": []}, (), "describes no entity of Service Bus"),
        ("no JSON", (), "it is no ARM template"),
        ({"UserConfig": {"Namespaces": [{"Name": "a"}, {"Name": "b"}]}}, (), "namespaces a, b; choose one with --name"),
        ({"UserConfig": {"Namespaces": [{"Name": "a"}]}}, ("--name", "c"), "namespaces a; choose one with --name"),
        ({"UserConfig": {"Namespaces": [{"Title": "a"}]}}, (), "unknown key 'Title'"),
        (
            {
                "resources": [
                    {"type": "Microsoft.ServiceBus/namespaces/queues", "name": "a/b", "properties": {"status": 5}}
                ]
            },
            (),
            "Status must be a text",
        ),
    ],
)
def test_file_that_cannot_be_imported_is_told_in_one_line(
    pairbus: Command, tmp_path: Path, document: Any, more: tuple[str, ...], words: str
) -> None:
    outcome = pairbus("namespace", "import", written(tmp_path, document), *more)
    assert outcome.code == 1 and words in outcome.err and outcome.err.count("\n") == 1
    assert "main.json" in outcome.err
