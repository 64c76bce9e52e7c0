"""Entities of an ARM template, as `az bicep build` writes it.

Resources are a list or an object by symbolic names, children stand beside or within their parents, and a module of
Bicep is a deployment with a template of its own. A loop is refused by name; resources that are no entity, and
properties that are not supported, are left out and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pairbus.cli.admin.arm.expressions import Evaluator
from pairbus.errors import ConfigError
from pairbus.settings import settings_of

NAMESPACE = "microsoft.servicebus/namespaces"
DEPLOYMENT = "microsoft.resources/deployments"
KINDS = {
    f"{NAMESPACE}/queues": "queue",
    f"{NAMESPACE}/topics": "topic",
    f"{NAMESPACE}/topics/subscriptions": "subscription",
    f"{NAMESPACE}/topics/subscriptions/rules": "rule",
}
DEPTH_MAX = 20  # resources and templates within each other; the service allows fewer
FILTER_TYPES = {"SqlFilter": "Sql", "CorrelationFilter": "Correlation"}
RESERVED = ("requiresPreprocessing", "compatibilityLevel")  # of filters and actions; without a meaning to anybody
CORRELATION = ("contentType", "correlationId", "label", "messageId", "replyTo", "replyToSessionId", "sessionId", "to")


def arm_name(element: str) -> str:
    """Return the property of ARM for an element of the administration's XML."""
    return element[0].lower() + element[1:]


PROPERTIES = {
    kind: {arm_name(setting.element): setting.element for setting in settings_of(kind)}
    for kind in ("queue", "topic", "subscription")
}


@dataclass(slots=True)
class TemplateEntities:
    """Entities of a template, in the emulator's format, by their namespace."""

    namespaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    "One sentence for each resource or property that was left out."


@dataclass(slots=True)
class _Resource:
    kind: str
    "Type in lower case."
    names: list[str]
    properties: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.kind.removeprefix(NAMESPACE + '/')} {'/'.join(self.names[1:]) or self.names[0]}"


def read_template(template: Any, values: Mapping[str, Any]) -> TemplateEntities:
    """Read a template with the values of its parameters. ConfigError names what cannot be evaluated."""
    entities = TemplateEntities()
    try:
        for resource in _resources_of_template(template, values, entities):
            _add(resource, entities)
    except RecursionError:
        raise ConfigError("the template is nested too deeply") from None
    return entities


def read_parameters(document: Any) -> dict[str, Any]:
    """Read the values of a parameters file; a value that lies in a key vault is none."""
    table = document.get("parameters") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise ConfigError("it has no 'parameters'")
    return {name: each["value"] for name, each in table.items() if isinstance(each, dict) and "value" in each}


# ── the resources of a template ──


def _resources_of_template(template: Any, values: Mapping[str, Any], entities: TemplateEntities) -> Iterator[_Resource]:
    if not isinstance(template, dict) or not isinstance(template.get("resources"), list | dict):
        raise ConfigError(
            "it is no ARM template ('resources'), and no configuration file of the emulator ('UserConfig')"
        )
    yield from _resources(template["resources"], _evaluator(template, values), entities, 0, ())


def _table(value: Any, what: str) -> dict[str, Any]:
    """Return an object, which may be missing."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be an object, found {value!r:.60}")
    return value


def _evaluator(template: Mapping[str, Any], values: Mapping[str, Any]) -> Evaluator:
    declared = _table(template.get("parameters"), "parameters")
    parameters = {name.lower(): value for name, value in values.items()}
    strange = sorted(parameters.keys() - {name.lower() for name in declared})
    if strange:
        raise ConfigError(f"the template has no parameter {', '.join(strange)}")
    readers: dict[str, Any] = {}
    evaluator = Evaluator(readers, _table(template.get("variables"), "variables"))
    for name, declaration in declared.items():
        readers[name.lower()] = partial(_parameter, name, declaration, parameters, evaluator)
    return evaluator


def _parameter(name: str, declaration: Any, parameters: Mapping[str, Any], evaluator: Evaluator) -> Any:
    if name.lower() in parameters:
        return parameters[name.lower()]
    if not isinstance(declaration, dict) or "defaultValue" not in declaration:
        raise ConfigError(f"parameter {name!r} has no value: give it with --parameters")
    return evaluator.value(declaration["defaultValue"])


def _resources(
    listed: Any, evaluator: Evaluator, entities: TemplateEntities, depth: int, parent: tuple[str, ...]
) -> Iterator[_Resource]:
    """Yield the resources of a list, and those within them. `parent`: type and name of the resource around them."""
    if depth > DEPTH_MAX:
        raise ConfigError(f"more than {DEPTH_MAX} resources and templates within each other")
    if not isinstance(listed, list | dict):
        raise ConfigError(f"resources must be a list, found {listed!r:.60}")
    for each in listed.values() if isinstance(listed, dict) else listed:
        resource = _table(each, "a resource")
        if resource.get("existing") is True:
            continue
        kind, written = str(resource.get("type", "")), resource.get("name", "")
        full_kind = f"{parent[0]}/{kind}" if parent and not kind.lower().startswith("microsoft.") else kind
        _refuse_loop(resource, full_kind, written)
        is_ours = full_kind.lower().startswith(f"{NAMESPACE}") or full_kind.lower() == DEPLOYMENT
        if not is_ours:
            entities.notes.append(f"skipped {full_kind} {written!r:.80}: it is no entity")
            continue
        if evaluator.value(resource.get("condition", True)) is False:
            entities.notes.append(f"skipped {full_kind} {written!r:.80}: its condition is false")
            continue
        if full_kind.lower() == DEPLOYMENT:
            yield from _module(resource, evaluator, entities, depth)
            continue
        name = str(evaluator.value(written))
        if parent and full_kind != kind:
            name = f"{parent[1]}/{name}"
        names = _names(full_kind, name, evaluator)
        properties = evaluator.value(resource.get("properties")) if full_kind.lower() in KINDS else {}
        yield _Resource(full_kind.lower(), names, _table(properties, f"properties of {written!r:.80}"))
        yield from _resources(resource.get("resources") or [], evaluator, entities, depth + 1, (full_kind, name))


def _refuse_loop(resource: Mapping[str, Any], kind: str, name: Any) -> None:
    if "copy" in resource:
        loop = resource["copy"].get("name") if isinstance(resource["copy"], dict) else None
        raise ConfigError(
            f"{kind} {name!r:.80} is repeated by the copy loop {loop!r}, which is not carried out: write each"
        )


def _names(kind: str, name: str, evaluator: Evaluator) -> list[str]:
    """Split the name by the levels of the type; the last but one level of an entity may have slashes itself."""
    levels = kind.count("/")
    names = name.split("/")
    if len(names) > levels:  # paths of queues and topics are written with ~ in ARM, and with / by hand
        names = [names[0], "/".join(names[1 : len(names) - levels + 2]), *names[len(names) - levels + 2 :]]
    if len(names) != levels:
        raise ConfigError(f"{kind} {name!r}: the name needs {levels} parts, as its type has")
    made_up = [each for each in names[1:] if any(text in each for text in evaluator.made_up)]
    if made_up:
        raise ConfigError(f"{kind} {name!r}: the name depends on uniqueString or guid, which only Azure knows")
    return [names[0], *[each.replace("~", "/") for each in names[1:]]]


def _module(
    resource: Mapping[str, Any], evaluator: Evaluator, entities: TemplateEntities, depth: int
) -> Iterator[_Resource]:
    properties = _table(resource.get("properties"), f"properties of {resource.get('name')!r:.80}")
    template = properties.get("template")
    if not isinstance(template, dict):
        entities.notes.append(f"skipped {DEPLOYMENT} {resource.get('name')!r:.80}: its template is not in this file")
        return
    options = _table(properties.get("expressionEvaluationOptions"), "expressionEvaluationOptions")
    if str(options.get("scope", "outer")).lower() == "outer":
        yield from _resources(template.get("resources") or [], evaluator, entities, depth + 1, ())
        return
    parameters = {
        name: evaluator.value(each["value"])
        for name, each in _table(properties.get("parameters"), "parameters of a deployment").items()
        if isinstance(each, dict) and "value" in each
    }
    inner = _evaluator(template, parameters)
    inner.made_up |= evaluator.made_up
    yield from _resources(template.get("resources") or [], inner, entities, depth + 1, ())


# ── one resource ──


def _add(resource: _Resource, entities: TemplateEntities) -> None:
    kind = KINDS.get(resource.kind)
    if kind is None:
        if resource.kind.endswith("/authorizationrules"):
            entities.notes.append(f"skipped {resource.title}: keys are never imported")
        elif resource.kind != NAMESPACE:
            entities.notes.append(f"skipped {resource.title}: it is no entity")
        return
    namespace = entities.namespaces.setdefault(
        resource.names[0], {"Name": resource.names[0], "Queues": [], "Topics": []}
    )
    made = {"Name": resource.names[-1], "Properties": _properties(kind, resource, entities.notes)}
    match kind:
        case "queue":
            _put(namespace["Queues"], made, resource)
        case "topic":
            _put(namespace["Topics"], {**made, "Subscriptions": []}, resource)
        case "subscription":
            topic = _named(namespace["Topics"], resource.names[1], {"Properties": {}, "Subscriptions": []})
            _put(topic["Subscriptions"], {**made, "Rules": []}, resource)
        case "rule":
            topic = _named(namespace["Topics"], resource.names[1], {"Properties": {}, "Subscriptions": []})
            subscription = _named(topic["Subscriptions"], resource.names[2], {"Properties": {}, "Rules": []})
            _put(subscription["Rules"], made, resource)


def _named(listed: list[dict[str, Any]], name: str, new: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of this name. A child may come before its parent, or stand without one."""
    for each in listed:
        if each["Name"].lower() == name.lower():
            return each
    listed.append({"Name": name, **new})
    return listed[-1]


def _put(listed: list[dict[str, Any]], made: dict[str, Any], resource: _Resource) -> None:
    known = _named(listed, made["Name"], {})
    if known.get("Properties"):
        raise ConfigError(f"{resource.title} is in the template twice")
    known["Properties"] = made["Properties"]
    for name, value in made.items():
        known.setdefault(name, value)


def _properties(kind: str, resource: _Resource, notes: list[str]) -> dict[str, Any]:
    if kind == "rule":
        return _rule(resource, notes)
    known = PROPERTIES[kind]
    values = {}
    for name, value in resource.properties.items():
        if name not in known:
            notes.append(f"{resource.title}: the property {name!r} is not supported and was left out")
        elif value is not None:
            values[known[name]] = value
    return values


def _rule(resource: _Resource, notes: list[str]) -> dict[str, Any]:
    properties = resource.properties
    kind = properties.get("filterType") or ("CorrelationFilter" if properties.get("correlationFilter") else "SqlFilter")
    if not isinstance(kind, str) or kind not in FILTER_TYPES:
        raise ConfigError(f"{resource.title}: filterType is {kind!r}; known are {', '.join(FILTER_TYPES)}")
    notes += [
        f"{resource.title}: the property {name!r} is not supported and was left out"
        for name in properties.keys() - {"filterType", "sqlFilter", "correlationFilter", "action"}
    ]
    if kind == "SqlFilter":
        part = _table(properties.get("sqlFilter"), "sqlFilter") or {"sqlExpression": "1=1"}
        made: dict[str, Any] = {"SqlFilter": _sql(part, resource)}
    else:
        made = {
            "CorrelationFilter": _correlation(
                _table(properties.get("correlationFilter"), "correlationFilter"), resource
            )
        }
    made["FilterType"] = FILTER_TYPES[kind]
    action = _table(properties.get("action"), "action")
    if action.get("sqlExpression"):
        made["Action"] = _sql(action, resource)
    return made


def _sql(part: Mapping[str, Any], resource: _Resource) -> dict[str, Any]:
    _refuse_strange(part, ("sqlExpression",), resource)
    return {"SqlExpression": part.get("sqlExpression")}


def _correlation(part: Mapping[str, Any], resource: _Resource) -> dict[str, Any]:
    _refuse_strange(part, (*CORRELATION, "properties"), resource)
    return {
        name[0].upper() + name[1:]: value
        for name, value in part.items()
        if name not in RESERVED and value not in (None, {})
    }


def _refuse_strange(part: Mapping[str, Any], known: tuple[str, ...], resource: _Resource) -> None:
    strange = sorted(part.keys() - {*known, *RESERVED})
    if strange:  # a filter without one of its conditions would select other messages
        raise ConfigError(f"{resource.title}: {', '.join(strange)} of its filter or action is not supported")
