"""Operations on the rules of a subscription, as the rule managers of the SDKs speak them.

They need the Listen claim only: a receiver may choose its messages without the right to manage the namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from pairbus.amqp.types import Described, Int, Long, Timestamp, ULong
from pairbus.auth.sas import LISTEN
from pairbus.broker.description import RuleDescription
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.management.node import Answer, Fields, ManagementNode, Operation
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal
from pairbus.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
    without_kind,
)

PAGE_SIZE_MAX = 100

_RULE, _EMPTY_ACTION, _SQL_ACTION = (ULong(0x0000_0137_0000_0000 + code) for code in (4, 5, 6))
_FILTERS = {  # a digit fewer than those above: a mistake of the service that the JavaScript SDK relies on
    SqlFilter: ULong(0x0000_0013_7000_0006),
    TrueFilter: ULong(0x0000_0013_7000_0007),
    FalseFilter: ULong(0x0000_0013_7000_0008),
    CorrelationFilter: ULong(0x0000_0013_7000_0009),
}
_CORRELATION = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "label",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}
"Key of a request to attribute, in the order of an answer's list."


def _add_rule(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    subscription = _subscription(node).description
    described = Fields(fields.mapping("rule-description"))
    rule = RuleDescription(
        subscription.topic,
        subscription.name,
        _name(fields),
        filter=_filter(described),
        action=_action(described),
    )
    node.carry_out(rule.path, node.namespace.create(rule), answer)


def _remove_rule(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    path = f"{_subscription(node).path}/Rules/{_name(fields)}"
    node.carry_out(path, node.namespace.delete(path), answer)


def _enumerate_rules(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    skip, top = fields.integer("skip", 0), fields.integer("top", PAGE_SIZE_MAX)
    if skip < 0 or top < 1:
        raise Refusal(ARGUMENT_ERROR, f"'skip' must be at least 0 and 'top' at least 1; they are {skip} and {top}.")
    subscription = _subscription(node).description
    rules = node.namespace.rules(subscription.topic, subscription.name)[skip : skip + min(top, PAGE_SIZE_MAX)]
    if rules:
        answer.ok({"rules": [{"rule-description": _described(rule)} for rule in rules]})
    else:
        answer.nothing()


def _subscription(node: ManagementNode) -> Subscription:
    assert isinstance(node.target.entity, Subscription)
    return node.target.entity


def _name(fields: Fields) -> str:
    name = fields.text("rule-name")
    if not name or "/" in name:
        raise Refusal(ARGUMENT_ERROR, f"'rule-name' must be the name of a rule, is {name!r:.80}.")
    return name


def _filter(described: Fields) -> Filter:
    if "sql-filter" in described:
        return SqlFilter(Fields(described.mapping("sql-filter")).text("expression") or "")
    if "correlation-filter" in described:
        fields = Fields(described.mapping("correlation-filter"))
        texts = {attribute: fields.text(key) for key, attribute in _CORRELATION.items()}
        properties = {str(key): _value(key, value) for key, value in fields.mapping("properties").items()}
        return CorrelationFilter(**texts, properties=properties)
    if "false-filter" in described:
        return FalseFilter()
    return TrueFilter()


def _action(described: Fields) -> SqlAction | None:
    if "sql-rule-action" not in described:
        return None
    expression = Fields(described.mapping("sql-rule-action")).text("expression")
    return SqlAction(expression) if expression else None


def _value(key: object, value: Any) -> Value:
    """Convert a property of a request to a type that filters know."""
    match value:
        case bool() | Timestamp() | Int() | Long() | UUID() | timedelta():
            return value
        case int():
            # The JavaScript SDK sends unsigned numbers, and over HTTP it reads whole numbers of 32 bits only.
            return Int(value) if -(1 << 31) <= value < 1 << 31 else Long(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case bytes():
            return bytes(value)
    raise Refusal(
        ARGUMENT_ERROR, f"The property {key!r:.80} of the filter is {value!r:.80}; expected is a simple value."
    )


# ── answers ──


def _described(rule: RuleDescription) -> Described:
    action = (
        Described(_EMPTY_ACTION, [])
        if rule.action is None
        else Described(_SQL_ACTION, [rule.action.expression, Int(20)])
    )
    parts = [_described_filter(rule.filter), action, rule.name, Timestamp(rule.created_ms)]
    return Described(_RULE, parts)


def _described_filter(rule_filter: Filter) -> Described:
    descriptor = _FILTERS[type(rule_filter)]
    match rule_filter:
        case CorrelationFilter():
            texts = [getattr(rule_filter, attribute) for attribute in _CORRELATION.values()]
            return Described(descriptor, [*texts, _plain(rule_filter.properties)])
        case SqlFilter():
            return Described(descriptor, [rule_filter.expression, Int(20)])
    return Described(descriptor, [])


def _plain(properties: Mapping[str, Value]) -> dict[str, Any]:
    """Convert durations to ticks of 100 nanoseconds, as the service sends them: AMQP has no type for durations."""
    return {
        key: Long(value // timedelta(microseconds=1) * 10) if isinstance(value, timedelta) else without_kind(value)
        for key, value in properties.items()
    }


OPERATIONS = {
    "com.microsoft:add-rule": Operation(LISTEN, (Subscription,), _add_rule),
    "com.microsoft:remove-rule": Operation(LISTEN, (Subscription,), _remove_rule),
    "com.microsoft:enumerate-rules": Operation(LISTEN, (Subscription,), _enumerate_rules),
}
