"""ARM templates as tools write them: what is read of them, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from pairbus.broker.config.file import parse_config
from pairbus.cli.admin.arm.export import as_template
from pairbus.cli.admin.arm.expressions import Evaluator
from pairbus.cli.admin.arm.template import read_parameters, read_template
from pairbus.errors import ConfigError
from pairbus.settings import KINDS, settings_of

BUS = "Microsoft.ServiceBus/namespaces"


def evaluated(text: str, **variables: Any) -> Any:
    return Evaluator({"name": lambda: "contoso"}, variables).value(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("orders", "orders"),
        ("[[not an expression]", "[not an expression]"),
        ("[concat('a', '-', 'b')]", "a-b"),
        ("[concat(createArray(1), createArray(2))]", [1, 2]),
        ("[format('{0}/{1}', parameters('NAME'), 'orders')]", "contoso/orders"),
        ("[format('{{0}} {0}', 'x')]", "{0} x"),
        ("['it''s']", "it's"),
        ("[variables('queue').names[1]]", "second"),
        ("[toLower(take('ABCdef', 4))]", "abcd"),
        ("[if(equals(parameters('name'), 'contoso'), 5, 6)]", 5),
        ("[resourceGroup().location]", "local"),
        ("[last(split('a/b/c', '/'))]", "c"),
        ("[replace(string(12), '1', '-')]", "-2"),
        ("[coalesce(null(), 'x')]", "x"),
        (
            "[resourceId('Microsoft.ServiceBus/namespaces/queues', 'contoso', 'orders')]",
            "/subscriptions/0/resourceGroups/local/providers/Microsoft.ServiceBus/namespaces/contoso/queues/orders",
        ),
    ],
)
def test_expressions_have_the_value_that_azure_gives_them(text: str, value: Any) -> None:
    assert evaluated(text, queue={"names": ["first", "second"]}) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[listKeys('x', '2024').key]", "the function listKeys is not known"),
        ("[parameters('other')]", "there is no parameter 'other'"),
        ("[variables('other')]", "there is no variable 'other'"),
        ("[variables('many')]", "made by a copy loop"),
        ("[concat('a']", "',' or ')' is missing"),
        ("[format('{3}', 'a')]", "format:"),
        ("[variables('self')]", "a variable uses itself"),
        ("[" + "concat(" * 100 + "'a'" + ")" * 100 + "]", "deeper than"),
    ],
)
def test_expression_that_cannot_be_evaluated_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match="cannot be evaluated") as caught:
        evaluated(text, copy=[{"name": "many", "count": 2, "input": 1}], self="[variables('self')]")
    assert words in str(caught.value)


def template(*resources: Any, **parts: Any) -> dict[str, Any]:
    return {"$schema": "…/deploymentTemplate.json#", "contentVersion": "1.0.0.0", "resources": list(resources), **parts}


def resource(kind: str, name: str, **parts: Any) -> dict[str, Any]:
    return {"type": f"{BUS}{kind}", "apiVersion": "2024-01-01", "name": name, **parts}


def namespace_of(document: Any, **values: Any) -> tuple[dict[str, Any], list[str]]:
    found = read_template(document, values)
    [namespace] = found.namespaces.values()
    return namespace, found.notes


def test_children_are_found_beside_and_within_their_parents() -> None:
    """Bicep writes them beside, people write them within; both name the same entities."""
    beside = template(
        resource("", "contoso", sku={"name": "Standard"}),
        resource("/topics/subscriptions/rules", "contoso/events/audit/red", properties={"filterType": "SqlFilter"}),
        resource("/topics", "contoso/events", properties={"maxSizeInMegabytes": 2048}),
        resource("/topics/subscriptions", "contoso/events/audit", properties={"maxDeliveryCount": 3}),
        resource("/queues", "contoso/orders", properties={"lockDuration": "PT2M"}),
    )
    rule = {"type": "rules", "name": "red", "properties": {"filterType": "SqlFilter"}}
    subscription = {
        "type": "subscriptions",
        "name": "audit",
        "properties": {"maxDeliveryCount": 3},
        "resources": [rule],
    }
    topic = {
        "type": "topics",
        "name": "events",
        "properties": {"maxSizeInMegabytes": 2048},
        "resources": [subscription],
    }
    queue = {"type": "queues", "name": "orders", "properties": {"lockDuration": "PT2M"}}
    within = template(resource("", "contoso", resources=[queue, topic]))
    assert namespace_of(beside) == namespace_of(within)
    namespace, notes = namespace_of(beside)
    assert notes == []
    assert namespace["Queues"] == [{"Name": "orders", "Properties": {"LockDuration": "PT2M"}}]
    [found] = namespace["Topics"]
    assert found["Properties"] == {"MaxSizeInMegabytes": 2048}
    assert found["Subscriptions"][0]["Rules"][0]["Properties"]["SqlFilter"] == {"SqlExpression": "1=1"}


def test_modules_and_symbolic_names_of_bicep_are_read() -> None:
    """A module is a deployment with its own parameters; newer Bicep lists resources by symbolic name."""
    inner = {
        **template(),
        "languageVersion": "2.0",
        "parameters": {"bus": {"type": "string"}, "names": {"type": "array", "defaultValue": ["orders"]}},
        "resources": {
            "bus": {"existing": True, "type": BUS, "name": "[parameters('bus')]"},
            "queue": resource("/queues", "[format('{0}/{1}', parameters('bus'), first(parameters('names')))]"),
        },
    }
    deployment = {
        "type": "Microsoft.Resources/deployments",
        "name": "queues",
        "properties": {
            "expressionEvaluationOptions": {"scope": "inner"},
            "parameters": {"bus": {"value": "[variables('bus')]"}},
            "template": inner,
        },
    }
    bus = "[format('sb-{0}', uniqueString(resourceGroup().id))]"
    namespace, _ = namespace_of(template(deployment, variables={"bus": bus}))
    assert [queue["Name"] for queue in namespace["Queues"]] == ["orders"]


def test_parameters_come_from_their_file_or_have_defaults() -> None:
    document = template(
        resource("/queues", "[concat(parameters('bus'), '/', parameters('queue'))]"),
        parameters={"bus": {"type": "string", "defaultValue": "contoso"}, "queue": {"type": "string"}},
    )
    values = read_parameters({"parameters": {"queue": {"value": "orders"}, "secret": {"reference": {}}}})
    assert values == {"queue": "orders"}
    assert namespace_of(document, **values)[0]["Queues"][0]["Name"] == "orders"
    with pytest.raises(ConfigError, match="parameter 'queue' has no value: give it with --parameters"):
        read_template(document, {})
    with pytest.raises(ConfigError, match="the template has no parameter other"):
        read_template(document, {"other": 1})


def test_loops_are_refused_by_name() -> None:
    """An import without the entities of a loop would look complete."""
    loop = resource("/queues", "[format('contoso/q{0}', copyIndex())]", copy={"name": "queueLoop", "count": 3})
    with pytest.raises(ConfigError, match="is repeated by the copy loop 'queueLoop'"):
        read_template(template(loop), {})


def test_names_that_only_azure_knows_are_refused() -> None:
    """The name of the namespace may be one: the import goes into the one to which it connects."""
    made_up = "[format('contoso/{0}', uniqueString(resourceGroup().id))]"
    with pytest.raises(ConfigError, match="which only Azure knows"):
        read_template(template(resource("/queues", made_up)), {})


def test_what_is_left_out_is_named() -> None:
    """Other resources, keys, false conditions, and properties that nobody here knows."""
    document = template(
        {"type": "Microsoft.Storage/storageAccounts", "name": "files", "apiVersion": "2023-01-01"},
        resource("/AuthorizationRules", "contoso/app", properties={"rights": ["Send"]}),
        resource("/networkRuleSets", "contoso/default", properties={"ipRules": "[reference('x')]"}),
        resource("/queues", "contoso/old", condition="[equals(1, 2)]"),
        resource("/queues", "contoso/orders", properties={"lockDuration": "PT1M", "isClientAffine": True}),
    )
    namespace, notes = namespace_of(document)
    assert [queue["Name"] for queue in namespace["Queues"]] == ["orders"]
    assert [note.partition(":")[0] for note in notes] == [
        "skipped Microsoft.Storage/storageAccounts 'files'",
        "skipped authorizationrules app",
        "skipped networkrulesets default",
        f"skipped {BUS}/queues 'contoso/old'",
        "queues orders",
    ]
    assert "the property 'isClientAffine' is not supported" in notes[-1]


def test_condition_of_a_filter_is_never_left_out() -> None:
    """A rule without one of its conditions would select other messages."""
    rule = resource(
        "/topics/subscriptions/rules",
        "contoso/events/audit/red",
        properties={"filterType": "CorrelationFilter", "correlationFilter": {"label": "x", "partitionKey": "y"}},
    )
    with pytest.raises(ConfigError, match="partitionKey of its filter or action is not supported"):
        read_template(template(rule), {})


@pytest.mark.parametrize("document", [[], {}, {"resources": 5}, "text"])
def test_other_files_are_no_templates(document: Any) -> None:
    with pytest.raises(ConfigError, match="it is no ARM template"):
        read_template(document, {})


def test_every_setting_of_the_table_passes_through_a_template() -> None:
    """A setting that is added to the table is in templates too."""
    words = {"duration": "PT5M", "number": 5, "flag": True, "status": "Disabled", "text": "[x] isn't"}
    values = {kind: {each.element: words[each.type.word] for each in settings_of(kind)} for kind in KINDS}
    rule = {
        "Name": "red",
        "Properties": {
            "FilterType": "Correlation",
            "CorrelationFilter": {"Label": "[label]", "Properties": {"colour": "red"}},
            "Action": {"SqlExpression": "SET a = 1"},
        },
    }
    subscription = {"Name": "audit", "Properties": values["subscription"], "Rules": [rule]}
    namespace = {
        "Name": "contoso",
        "Queues": [{"Name": "a/b", "Properties": values["queue"]}],
        "Topics": [{"Name": "it's", "Properties": values["topic"], "Subscriptions": [subscription]}],
    }
    document, notes = as_template(namespace)
    assert notes == []
    assert namespace_of(json.loads(json.dumps(document))) == (namespace, [])


def test_read_template_is_a_configuration_that_the_broker_checks() -> None:
    """Ranges and names are checked once, by the reader of configuration files."""
    namespace, _ = namespace_of(template(resource("/queues", "contoso/orders", properties={"lockDuration": "PT1H"})))
    with pytest.raises(ConfigError, match="LockDuration"):
        parse_config(json.dumps({"UserConfig": {"Namespaces": [namespace]}}), "main.json")


ODD: tuple[Any, ...] = (
    None,
    True,
    5,
    -1,
    "",
    "text",
    "[",
    "[x]",
    "[parameters('bus')]",
    [],
    [[]],
    {},
    {"a": {}},
    [None],
    "a/b/c/d/e/f",
)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield (*place, key)
        yield from places_in(inside, (*place, key))


def with_odd(document: Any, place: tuple[Any, ...], odd: Any) -> Any:
    changed = json.loads(json.dumps(document))
    inside = changed
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = odd
    return changed


def test_template_is_read_or_refused_whatever_stands_in_it() -> None:
    """Each place of a whole template gets each odd value: no traceback, for a file that a stranger wrote."""
    rule = {
        "type": "rules",
        "name": "red",
        "properties": {
            "filterType": "CorrelationFilter",
            "correlationFilter": {"label": "x", "properties": {"a": "b"}},
            "action": {"sqlExpression": "SET a = 1"},
        },
    }
    topic = resource(
        "/topics",
        "[format('{0}/events', parameters('bus'))]",
        condition="[variables('flags').on]",
        resources=[{"type": "subscriptions", "name": "audit", "properties": {}, "resources": [rule]}],
    )
    queue = resource("/queues", "contoso/orders", properties={"lockDuration": "[variables('lock')]"})
    module = {
        "type": "Microsoft.Resources/deployments",
        "name": "module",
        "properties": {
            "expressionEvaluationOptions": {"scope": "inner"},
            "parameters": {"bus": {"value": "contoso"}},
            "template": template(queue, parameters={"bus": {}}, variables={"lock": "PT1M"}),
        },
    }
    document = template(
        topic,
        module,
        parameters={"bus": {"type": "string", "defaultValue": "contoso"}},
        variables={"flags": {"on": True}},
    )
    assert [namespace["Name"] for namespace in read_template(document, {}).namespaces.values()] == ["contoso"]
    read = 0
    for place in places_in(document):
        for odd in ODD:
            with suppress(ConfigError):
                read_template(with_odd(document, place, odd), {})
                read += 1
    assert read > 100


@pytest.mark.parametrize(
    "text", ["[concat(variables('{0}'), variables('{0}'))]", "[format('{{0}}{{0}}{{0}}{{0}}', variables('{0}'))]"]
)
def test_variables_that_multiply_each_other_are_refused_soon(text: str) -> None:
    """Sixty lines of a file could fill the memory."""
    variables = {f"v{n}": text.format(f"v{n + 1}") for n in range(50)}
    with pytest.raises(ConfigError, match="cannot be evaluated"):
        evaluated("[variables('v0')]", **variables, v50="text")


def test_resources_nested_without_end_are_refused() -> None:
    """As deep as JSON may be."""
    inner: dict[str, Any] = {"type": "queues", "name": "a"}
    for _ in range(200):
        inner = {"type": "queues", "name": "a", "resources": [inner]}
    with pytest.raises(ConfigError):
        read_template(template(resource("", "contoso", resources=[inner])), {})
