"""Queues, topics, subscriptions and rules of a configuration file, in the words of Microsoft's emulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pairbus.broker.admin.settings import in_words_of_the_service
from pairbus.broker.config.place import ConfigPlace, kind_of
from pairbus.broker.description import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.description.values import value_from_text
from pairbus.errors import InvalidDescription
from pairbus.filters import CorrelationFilter, Filter, SqlAction, SqlFilter, Value
from pairbus.settings import KINDS, settings_of

E = TypeVar("E", QueueDescription, TopicDescription, SubscriptionDescription)


@dataclass(frozen=True, slots=True)
class SubscriptionConfig:
    """A subscription and its first rules."""

    description: SubscriptionDescription
    rules: tuple[RuleDescription, ...] | None = None
    "None: the subscription gets `$Default`, which selects every message."


PROPERTIES = {kind: {setting.element: setting for setting in settings_of(kind)} for kind in KINDS}
CORRELATION = {
    "ContentType": "content_type",
    "CorrelationId": "correlation_id",
    "Label": "label",
    "MessageId": "message_id",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_session_id",
    "SessionId": "session_id",
    "To": "to",
}
STANDARD_MESSAGE_SIZE_KB = 256  # the limit of every entity on the Standard tier
FILTER_TYPES = ("Correlation", "Sql")


def read_queue(value: Any, place: ConfigPlace) -> QueueDescription:
    place = place.named("queue", value)
    table = place.table(value, ("Name", "Properties"))
    return _with_properties(QueueDescription(place.member(table, "Name", str)), table, place)


def read_topic(value: Any, place: ConfigPlace) -> tuple[TopicDescription, list[SubscriptionConfig]]:
    place = place.named("topic", value)
    table = place.table(value, ("Name", "Properties", "Subscriptions"))
    name = place.member(table, "Name", str)
    topic = _with_properties(TopicDescription(name), table, place)
    subscriptions = [_read_subscription(item, topic.path, place) for item in place.items(table, "Subscriptions")]
    place.refuse_repeated((each.description.name for each in subscriptions), "subscription")
    return topic, subscriptions


def _read_subscription(value: Any, topic: str, place: ConfigPlace) -> SubscriptionConfig:
    place = place.named("subscription", value)
    table = place.table(value, ("Name", "Properties", "Rules"))
    name = place.member(table, "Name", str)
    description = _with_properties(SubscriptionDescription(topic, name), table, place)
    rules = tuple(_read_rule(item, description, place) for item in place.items(table, "Rules"))
    place.refuse_repeated((rule.name for rule in rules), "rule")
    return SubscriptionConfig(description, rules or None)


def _with_properties(description: E, table: dict[str, Any], place: ConfigPlace) -> E:
    known = PROPERTIES[description.KIND]
    properties = place.table(place.member(table, "Properties", dict, {}), known)
    values: dict[str, Any] = {}
    for name, value in properties.items():
        setting = known[name]
        if value in ("", None):  # the emulator's way to say: not set
            continue
        if setting.attribute == "max_message_size_kb" and value == STANDARD_MESSAGE_SIZE_KB:
            continue  # the file was made from a namespace of that tier, where nobody can choose the limit
        member = place.member(properties, name, setting.type.json_type)
        try:
            values[setting.attribute] = setting.type.read(member) if isinstance(member, str) else member
        except ValueError as error:
            raise place.error(f"{name}: {error}") from None
    try:
        return replace(description, **values).checked()
    except InvalidDescription as error:
        raise place.error(in_words_of_the_service(str(error))) from None


# ── rules ──


def _read_rule(value: Any, subscription: SubscriptionDescription, place: ConfigPlace) -> RuleDescription:
    place = place.named("rule", value)
    table = place.table(value, ("Name", "Properties"))
    name = place.member(table, "Name", str)
    properties = place.table(
        place.member(table, "Properties", dict), ("FilterType", "CorrelationFilter", "SqlFilter", "Action")
    )
    kind = place.member(properties, "FilterType", str)
    if kind not in FILTER_TYPES:
        raise place.error(f"FilterType is {kind!r}; known are {', '.join(FILTER_TYPES)}")
    member = f"{kind}Filter"
    inside = place.member(properties, member, dict)
    read = _read_sql_filter if kind == "Sql" else _read_correlation_filter
    action = properties.get("Action") or None
    rule = RuleDescription(
        subscription.topic,
        subscription.name,
        name,
        # A filter without one of its conditions would select other messages.
        filter=read(inside, place.into(member).strict()),
        action=None if action is None else _read_action(action, place.into("Action")),
    )
    try:
        return rule.checked()
    except InvalidDescription as error:
        raise place.error(str(error)) from None


def _read_sql_filter(value: Any, place: ConfigPlace) -> Filter:
    table = place.table(value, ("SqlExpression", "Parameters"))
    return SqlFilter(place.member(table, "SqlExpression", str), _values(table, "Parameters", place))


def _read_action(value: Any, place: ConfigPlace) -> SqlAction | None:
    table = place.table(value, ("SqlExpression", "Parameters"))
    expression = place.member(table, "SqlExpression", str, "")
    return SqlAction(expression, _values(table, "Parameters", place)) if expression else None


def _read_correlation_filter(value: Any, place: ConfigPlace) -> Filter:
    table = place.table(value, (*CORRELATION, "Properties"))
    texts = {attribute: place.member(table, name, str) for name, attribute in CORRELATION.items() if table.get(name)}
    return CorrelationFilter(**texts, properties=_values(table, "Properties", place))


def _values(table: dict[str, Any], name: str, place: ConfigPlace) -> dict[str, Value]:
    """Read typed values: plain JSON, or `{"Type": "dateTime", "Value": "…"}` for a type that JSON lacks."""
    values: dict[str, Value] = {}
    for key, value in place.member(table, name, dict, {}).items():
        if isinstance(value, dict):
            inside = place.into(f"{name} {key!r}")
            typed = inside.table(value, ("Type", "Value"))
            try:
                values[key] = value_from_text(inside.member(typed, "Type", str), inside.member(typed, "Value", str))
            except ValueError as error:
                raise inside.error(str(error)) from None
        elif isinstance(value, str | bool | int | float):
            values[key] = value
        else:
            raise place.error(f"{name} {key!r} must be a text, a number, true or false, found {kind_of(value)}")
    return values
