"""Plan of an import: the entities of a file are compared with those of a namespace.

Only settings that the file has are compared. Nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from azure.servicebus.management import CorrelationRuleFilter, RuleProperties, SqlRuleAction, SqlRuleFilter

from pairbus.cli.admin.namespace_export import CORRELATION
from pairbus.errors import ConfigError
from pairbus.settings import Setting, path_of, settings_of
from pairbus.settings.durations import parse_span
from pairbus.settings.types import PATH

DEFAULT_RULE = "$Default"
_NEW_DEFAULT = RuleProperties(DEFAULT_RULE, filter=SqlRuleFilter("1=1"), action=None, created_at_utc=None)
"Rule that a new subscription has, which selects every message."


@dataclass(slots=True)
class ImportStep:
    """One change."""

    sentence: str
    "Such as `update queue orders: LockDuration PT1M -> PT2M`."
    run: Callable[[], object]


@dataclass(slots=True)
class ImportPlan:
    creations: list[ImportStep] = field(default_factory=list)
    changes: list[ImportStep] = field(default_factory=list)
    "Changes of entities that are there once the creations are done: forwarding too, whose destination may be new."
    unchanged: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    "Sentences about parts that are impossible; with one of them nothing is done."


def plan_import(client: Any, wanted: dict[str, Any]) -> ImportPlan:
    """Compare a namespace of the emulator's format, which was checked, with the namespace of the client."""
    return _Planner(client).plan(wanted)


class _Planner:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._plan = ImportPlan()

    def plan(self, wanted: dict[str, Any]) -> ImportPlan:
        queues, topics = _by_name(self._client.list_queues()), _by_name(self._client.list_topics())
        for queue in wanted.get("Queues") or ():
            self._entity("queue", (queue["Name"],), queue, queues, others=topics)
        for topic in wanted.get("Topics") or ():
            name = topic["Name"]
            is_there = self._entity("topic", (name,), topic, topics, others=queues)
            belonging = topic.get("Subscriptions") or ()
            known = _by_name(self._client.list_subscriptions(name)) if is_there and belonging else {}
            for subscription in belonging:
                path = (name, subscription["Name"])
                existed = self._entity("subscription", path, subscription, known, others={})
                self._rules(path, subscription.get("Rules") or (), existed=existed)
        return self._plan

    def _entity(
        self, kind: str, path: tuple[str, ...], wanted: dict[str, Any], known: dict[str, Any], others: dict[str, Any]
    ) -> bool:
        """ImportPlan one entity; return whether it is there."""
        place = f"{kind} {'/'.join(path)}"
        values = _values(kind, wanted.get("Properties") or {})
        if path[-1].lower() in others:
            self._plan.problems.append(f"{place}: there is an entity of another kind with this name")
            return False
        existing = known.get(path[-1].lower())
        if existing is None:
            create = {s.sdk: s.type.to_sdk(value) for s, value in values if s.type is not PATH}
            self._plan.creations.append(
                ImportStep(f"create {place}", lambda: getattr(self._client, f"create_{kind}")(*path, **create))
            )
            self._update(kind, path, place, [(s, value) for s, value in values if s.type is PATH and value])
            return False
        changed = [(s, value) for s, value in values if _current(s, existing) != value]
        fixed = [s.element for s, _ in changed if s.is_fixed]
        if fixed:
            self._plan.problems.append(f"{place}: {', '.join(fixed)} cannot be changed; delete the {kind} first")
        if changed:
            texts = [f"{s.element} {_shown(s, _current(s, existing))} -> {_shown(s, value)}" for s, value in changed]
            self._update(kind, path, place, changed, f": {', '.join(texts)}")
        else:
            self._plan.unchanged += 1
        return True

    def _update(
        self, kind: str, path: tuple[str, ...], place: str, changed: list[tuple[Setting, Any]], detail: str = ""
    ) -> None:
        if not changed:
            return

        def run() -> None:
            existing = getattr(self._client, f"get_{kind}")(*path)
            for setting, value in changed:
                setattr(existing, setting.sdk, setting.type.to_sdk(value))
            getattr(self._client, f"update_{kind}")(*path[:-1], existing)

        forwards = ", ".join(f"{setting.element} {value}" for setting, value in changed)
        self._plan.changes.append(ImportStep(f"update {place}{detail or ': ' + forwards}", run))

    def _rules(self, path: tuple[str, ...], rules: Iterable[dict[str, Any]], *, existed: bool) -> None:
        known = _by_name(self._client.list_rules(*path)) if existed else {DEFAULT_RULE.lower(): _NEW_DEFAULT}
        wanted = {rule["Name"].lower(): rule for rule in rules}
        for rule in wanted.values():
            self._rule(path, rule, known.get(rule["Name"].lower()))
        if not wanted or DEFAULT_RULE.lower() in wanted:
            return
        if not existed:
            step = ImportStep(
                f"replace {DEFAULT_RULE} of {'/'.join(path)}", lambda: self._client.delete_rule(*path, DEFAULT_RULE)
            )
            self._plan.changes.append(step)
        elif DEFAULT_RULE.lower() in known:
            self._plan.notes.append(
                f"{'/'.join(path)} has {DEFAULT_RULE} beside the rules of the file, which may select every message;"
                f" `pairbus rule delete` removes it"
            )

    def _rule(self, path: tuple[str, ...], wanted: dict[str, Any], existing: Any) -> None:
        place = f"rule {'/'.join((*path, wanted['Name']))}"
        filter_, action = _filter(wanted["Properties"]), _action(wanted["Properties"])
        if existing is None:
            self._plan.changes.append(
                ImportStep(
                    f"create {place}",
                    lambda: self._client.create_rule(*path, wanted["Name"], filter=filter_, action=action),
                )
            )
        elif (_condition(existing.filter), _condition(existing.action)) == (_condition(filter_), _condition(action)):
            self._plan.unchanged += 1
        else:

            def run() -> None:
                rule = self._client.get_rule(*path, wanted["Name"])
                rule.filter, rule.action = filter_, action
                self._client.update_rule(*path, rule)

            self._plan.changes.append(ImportStep(f"update {place}", run))


def _by_name(entities: Iterable[Any]) -> dict[str, Any]:
    return {entity.name.lower(): entity for entity in entities}


def _values(kind: str, properties: dict[str, Any]) -> list[tuple[Setting, Any]]:
    """Return the settings of a file as fields of descriptions."""
    values = []
    for setting in settings_of(kind):
        value = properties.get(setting.element)
        if value in (None, ""):  # the emulator's way to say: not set
            continue
        values.append((setting, setting.type.read(value) if isinstance(value, str) else value))
    return values


def _current(setting: Setting, entity: Any) -> Any:
    value = getattr(entity, setting.sdk)
    if setting.type is PATH:
        return path_of(value)
    return None if value is None else setting.type.from_sdk(value)


def _shown(setting: Setting, value: Any) -> Any:
    return "none" if value is None and setting.type is PATH else setting.type.write(value)


# ── rules ──


def _filter(properties: dict[str, Any]) -> Any:
    if properties["FilterType"] == "Sql":
        part = properties["SqlFilter"]
        return SqlRuleFilter(part["SqlExpression"], _typed_values(part.get("Parameters")))
    part = properties["CorrelationFilter"]
    texts = {attribute: part[name] for name, attribute in CORRELATION.items() if part.get(name)}
    return CorrelationRuleFilter(**texts, properties=_typed_values(part.get("Properties")))


def _action(properties: dict[str, Any]) -> Any:
    part = properties.get("Action") or {}
    if not part.get("SqlExpression"):
        return None
    return SqlRuleAction(part["SqlExpression"], _typed_values(part.get("Parameters")))


def _typed_values(values: dict[str, Any] | None) -> dict[str, Any]:
    return {name: _typed(name, value) for name, value in (values or {}).items()}


def _typed(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    match value["Type"]:
        case "dateTime":
            return datetime.fromisoformat(value["Value"])
        case "duration":
            return parse_span(value["Value"])
        case "string":
            return value["Value"]
    raise ConfigError(f"{name}: values of the type {value['Type']} cannot be imported; dateTime, duration, string can")


def _condition(part: Any) -> dict[str, Any] | None:
    """Return what two filters, or two actions, are compared by."""
    if part is None:
        return None
    if isinstance(part, CorrelationRuleFilter):
        texts = {name: getattr(part, name) for name in CORRELATION.values()}
        return {**texts, "properties": dict(part.properties or {})}
    return {"expression": part.sql_expression, "parameters": dict(part.parameters or {})}
