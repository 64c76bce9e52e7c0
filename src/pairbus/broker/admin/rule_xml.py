"""Rules in XML: filters, actions, and the typed values of their parameters and properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from pairbus.broker.admin.atom import Elements, Markup, entry, format_time, inside
from pairbus.broker.admin.xml import SCHEMA, Element
from pairbus.broker.description import RuleDescription
from pairbus.broker.description.values import value_from_text, value_to_text
from pairbus.errors import InvalidDescription
from pairbus.filters import CorrelationFilter, FalseFilter, Filter, SqlAction, SqlFilter, TrueFilter, Value

COMPATIBILITY_LEVEL = 20
_CORRELATION = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}
"Element name to attribute, in the order of the service."
_PREFIX = "d6p1"  # exactly four letters: the JavaScript SDK cuts five characters from every type


def read_rule(element: Element, topic: str, subscription: str, name: str) -> RuleDescription:
    """Read a `RuleDescription`; a rule without a filter selects every message."""
    members = element.members()
    rule_filter, action = members.get("Filter"), members.get("Action")
    return RuleDescription(
        topic,
        subscription,
        name,
        filter=TrueFilter() if rule_filter is None or rule_filter.is_nil else _read_filter(rule_filter, name),
        action=None if action is None or action.is_nil else _read_action(action, name),
    )


def read_default_rule(element: Element, topic: str, subscription: str) -> RuleDescription | None:
    """Read the first rule of a new subscription, if the request has one."""
    rule = element.members().get("DefaultRuleDescription")
    if rule is None or rule.is_nil or not rule.children:
        return None
    name = rule.members().get("Name")
    if name is None or not name.text.strip():
        raise InvalidDescription("DefaultRuleDescription has no Name")
    return read_rule(rule, topic, subscription, name.text.strip())


def _read_filter(element: Element, name: str) -> Filter:
    match element.type:
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(_expression(element), _properties(element, "Parameters"))
        case "CorrelationFilter":
            members = element.members()
            texts = {
                attribute: members[local].text
                for local, attribute in _CORRELATION.items()
                if local in members and not members[local].is_nil and members[local].text
            }
            return CorrelationFilter(**texts, properties=_properties(element, "Properties"))
    raise InvalidDescription(
        f"Filter of rule {name!r} has the type {element.type!r};"
        " known are SqlFilter, TrueFilter, FalseFilter and CorrelationFilter"
    )


def _read_action(element: Element, name: str) -> SqlAction | None:
    match element.type:
        case "EmptyRuleAction" | "":
            return None
        case "SqlRuleAction":
            return SqlAction(_expression(element), _properties(element, "Parameters"))
    raise InvalidDescription(
        f"Action of rule {name!r} has the type {element.type!r}; known are SqlRuleAction and EmptyRuleAction"
    )


def _expression(element: Element) -> str:
    expression = element.members().get("SqlExpression")
    return "" if expression is None else expression.text


def _properties(element: Element, name: str) -> dict[str, Value]:
    holder = element.members().get(name)
    properties: dict[str, Value] = {}
    for local, pair in holder.of_service() if holder is not None else ():
        members = pair.members()
        if local != "KeyValueOfstringanyType" or "Key" not in members or "Value" not in members:
            raise InvalidDescription(f"{name} must hold KeyValueOfstringanyType elements with Key and Value")
        key, value = members["Key"].text, members["Value"]
        if key in properties:
            raise InvalidDescription(f"{name}: {key!r} occurs twice")
        try:
            properties[key] = value_from_text(value.type or "string", value.text)
        except ValueError as error:
            raise InvalidDescription(f"{name}: {key!r}: {error}") from None
    return properties


# ── answers ──


def rule_entry(rule: RuleDescription, base_url: str, author: str) -> str:
    """Write one rule as an Atom entry. The Python and the JavaScript SDK need an Action in every answer."""
    elements: Elements = (
        ("Filter", _filter(rule.filter)),
        ("Action", _action(rule.action)),
        ("CreatedAt", format_time(rule.created_ms)),
        ("Name", rule.name),
    )
    url = f"{base_url}/{rule.path}"
    return entry(url, rule.name, author, rule.created_ms, rule.updated_ms, "RuleDescription", elements)


def _filter(rule_filter: Filter) -> Markup:
    match rule_filter:
        case TrueFilter():
            return _typed("Filter", "TrueFilter", _sql(rule_filter.expression, {}))
        case FalseFilter():
            return _typed("Filter", "FalseFilter", _sql(rule_filter.expression, {}))
        case SqlFilter():
            return _typed("Filter", "SqlFilter", _sql(rule_filter.expression, rule_filter.parameters))
        case CorrelationFilter():
            texts: Any = ((local, getattr(rule_filter, attribute)) for local, attribute in _CORRELATION.items())
            return _typed(
                "Filter", "CorrelationFilter", (*texts, ("Properties", _pairs("Properties", rule_filter.properties)))
            )


def _action(action: SqlAction | None) -> Markup:
    if action is None:
        return Markup('<Action i:type="EmptyRuleAction"/>')
    return _typed("Action", "SqlRuleAction", _sql(action.expression, action.parameters))


def _sql(expression: str, parameters: Mapping[str, Value]) -> Elements:
    return (
        ("SqlExpression", expression),
        ("CompatibilityLevel", COMPATIBILITY_LEVEL),
        ("Parameters", _pairs("Parameters", parameters)),
    )


def _typed(name: str, kind: str, elements: Elements) -> Markup:
    return Markup(f'<{name} i:type="{kind}">{inside(elements)}</{name}>')


def _pairs(name: str, properties: Mapping[str, Value]) -> Markup:
    written = "".join(
        f"<KeyValueOfstringanyType><Key>{escape(key)}</Key>"
        f'<Value i:type="{_PREFIX}:{kind}" xmlns:{_PREFIX}="{SCHEMA}">{escape(text)}</Value></KeyValueOfstringanyType>'
        for key, (kind, text) in ((key, value_to_text(value)) for key, value in properties.items())
    )
    return Markup(f"<{name}>{written}</{name}>")
