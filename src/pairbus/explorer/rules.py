"""Lists the rules of a subscription, and says whether a message would match them."""

from __future__ import annotations

from typing import Any

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.typed_text import from_text
from pairbus.amqp.types import Described, Int
from pairbus.errors import InvalidDescription, PairbusError
from pairbus.explorer.address import Address
from pairbus.explorer.calls import explained
from pairbus.explorer.choice import view_of
from pairbus.explorer.message import typed
from pairbus.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    FilterEvaluationError,
    SqlFilter,
    TrueFilter,
    compile_filter,
)
from pairbus.transport import Carrier, TransportError

PAGE = 100
_CORRELATION = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)
"Fields of a correlation filter, in the order of the answer; the application properties follow."
_KINDS = {6: "sql", 7: "true", 8: "false", 9: "correlation"}
"Last digit of the descriptor of a filter."


async def rules(carrier: Carrier, address: Address) -> list[dict[str, Any]]:
    """List the rules of a subscription: name, kind of the filter, its expression or fields, and the action."""
    descriptions: list[dict[str, Any]] = []
    try:
        management = await carrier.management(address.owner)
        while True:
            body = {"skip": Int(len(descriptions)), "top": Int(PAGE)}
            answer = await management.request("enumerate-rules", body)
            page = [_rule(entry["rule-description"]) for entry in answer.get("rules", [])]
            descriptions += page
            if not page:
                return descriptions
    except TransportError as error:
        raise explained(error, carrier, address.owner) from error


def would_match(described: dict[str, Any], payload: bytes) -> tuple[bool, str | None]:
    """Tell whether a rule of `rules` selects a message, and the reason when it cannot be evaluated, else None."""
    try:
        test = compile_filter(_filter_of(described))
        return test(view_of(payload)) is True, None
    except (FilterEvaluationError, InvalidDescription, ProtocolError) as error:
        return False, str(error)


def _rule(described: Any) -> dict[str, Any]:
    if not isinstance(described, Described) or len(described.value) < 3:
        raise PairbusError(f"the service described a rule as {described!r:.80}")
    rule_filter, action, name, *_ = described.value
    kind = _KINDS.get(int(rule_filter.descriptor) & 0xF, "sql") if isinstance(rule_filter.descriptor, int) else "sql"
    rule: dict[str, Any] = {"name": str(name), "filter": kind}
    if kind == "sql":
        rule["expression"] = str(rule_filter.value[0])
    elif kind == "correlation":
        *texts, properties = rule_filter.value[: len(_CORRELATION) + 1]
        rule["fields"] = {key: str(text) for key, text in zip(_CORRELATION, texts, strict=False) if text is not None}
        rule["properties"] = {str(key): typed(value) for key, value in (properties or {}).items()}
    if action.value:
        rule["action"] = str(action.value[0])
    return rule


def _filter_of(described: dict[str, Any]) -> Filter:
    match described["filter"]:
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
        case "correlation":
            properties = {key: from_text(**_pair(value)) for key, value in described["properties"].items()}
            return CorrelationFilter(**described["fields"], properties=properties)
    return SqlFilter(described["expression"])


def _pair(value: dict[str, Any]) -> dict[str, Any]:
    return {"kind": value["type"], "text": value["value"]}
