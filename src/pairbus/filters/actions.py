"""SQL actions: SET and REMOVE on the properties of one copy of a message.

Statements run in order, and each sees the changes of those before it. Properties that no statement names keep their
type, and the body sections stay as they are, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pairbus.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, section
from pairbus.amqp.types import Symbol, Timestamp, encode, encode_pairs, list_of, map_of
from pairbus.filters.compile import Evaluate, compiled
from pairbus.filters.convert import converted, span_of, storable, time_of
from pairbus.filters.errors import FilterEvaluationError, FilterSyntaxError
from pairbus.filters.kinds import SqlAction
from pairbus.filters.operators import BOOL, GUID, INTEGER, KINDS, REAL, STRING, as_text
from pairbus.filters.parser import parse_action
from pairbus.filters.tree import Property, Remove, Set
from pairbus.filters.view import (
    CONTENT_TYPE,
    CORRELATION_ID,
    MESSAGE_ID,
    PARTITION_KEY,
    REPLY_TO,
    REPLY_TO_SESSION_ID,
    SCHEDULED_TIME,
    SESSION_ID,
    SUBJECT,
    TO,
    TTL_UNLIMITED,
    VIA_PARTITION_KEY,
    MessageView,
    comparable,
)

RULE_NAME = "RuleName"
"Application property of copies that a rule with an action made."
ID_LENGTH_MAX = 128  # of message ids, session ids and partition keys
TEXT_LENGTH_MAX = 32_768
TIME_MAX_MS = 253_402_300_799_999  # the end of the year 9999

Statement = Callable[[MessageView], None]
Setter = Callable[[MessageView, Any], None]


class Changed(NamedTuple):
    """A message that an action changed, in the form in which the broker stores it."""

    body: bytes
    "Sections from the properties on; the body sections are those of the published message, byte for byte."
    annotations: bytes
    "Encoded pairs of the message annotations."
    message_id: str
    session_id: str | None
    partition_key: str | None
    ttl_ms: int | None
    scheduled_ms: int


class CompiledAction:
    """A compiled action; `apply` runs it."""

    __slots__ = ("changes_user", "statements")

    def __init__(self, statements: list[Statement], changes_user: bool) -> None:
        self.statements = statements
        self.changes_user = changes_user
        "True when a statement names an application property."


def compile_action(action: SqlAction) -> CompiledAction:
    """Compile an action; FilterSyntaxError names the column."""
    parsed = parse_action(action.expression, action.parameters)
    return CompiledAction(
        [_statement(statement) for statement in parsed],
        any(not statement.target.is_system for statement in parsed),
    )


def apply(action: CompiledAction, view: MessageView, rule: str = "") -> Changed:
    """Return the message as the action changes it; FilterEvaluationError when it cannot be evaluated.

    With `rule`, the copy gets the application property RuleName, as copies of rules with actions have.
    """
    copy = view.editable()
    for statement in action.statements:
        statement(copy)
    if rule:
        _set_user(copy, RULE_NAME, rule)
    return Changed(
        _body(copy, view, action.changes_user or bool(rule)),
        encode_pairs(copy.annotation_pairs()),
        copy.text(MESSAGE_ID) or "",
        copy.text(SESSION_ID),
        copy.annotation_text(PARTITION_KEY),
        copy.ttl_ms,
        copy.scheduled_ms,
    )


def _body(copy: MessageView, view: MessageView, changes_user: bool) -> bytes:
    (_, properties_end), (_, user_end), rest = view.parts()
    head, fields = view.body[:properties_end], copy.properties()
    if fields != view.properties():
        while fields and fields[-1] is None:
            fields.pop()
        head = section(PROPERTIES, list_of([encode(field) for field in fields]))
    user = view.body[properties_end:user_end]
    if changes_user:
        pairs = copy.application_properties()
        user = section(APPLICATION_PROPERTIES, map_of(encode_pairs(pairs), 2 * len(pairs))) if pairs else b""
    return head + user + view.body[rest:]


# ── statements ──


def _statement(statement: Set | Remove) -> Statement:
    target = statement.target
    value = compiled(statement.value) if isinstance(statement, Set) else None
    if target.is_system:
        return _system_statement(target, value)
    name = target.name
    if value is None:
        return lambda view: _remove_user(view, name)
    compute = value
    return lambda view: _set_user(view, name, compute(view))


def _system_statement(target: Property, value: Evaluate | None) -> Statement:
    setter = _SETTERS.get(target.name.lower())
    if setter is None:
        raise FilterSyntaxError(
            target.column, f"sys.{target.name:.60} cannot be changed; an action may change {', '.join(SETTABLE)}"
        )
    if value is None:
        if target.name.lower() == "messageid":
            raise FilterSyntaxError(target.column, "sys.MessageId cannot be removed: every message has one")
        return lambda view: setter(view, None)
    compute = value
    return lambda view: setter(view, compute(view))


def _key_of(view: MessageView, name: str) -> str:
    """Return the name as the message spells it; of names that differ only in case, the last, which filters read."""
    folded = name.lower()
    if folded not in view.load_user():
        return name
    return [key for key in view.application_properties() if isinstance(key, str) and key.lower() == folded][-1]


def _set_user(view: MessageView, name: str, value: Any) -> None:
    properties, key = view.application_properties(), _key_of(view, name)
    properties[key] = storable(converted(value, properties.get(key)))
    view.load_user()[name.lower()] = comparable(properties[key])


def _remove_user(view: MessageView, name: str) -> None:
    if view.load_user().pop(name.lower(), _MISSING) is not _MISSING:
        properties, folded = view.application_properties(), name.lower()
        for key in [key for key in properties if isinstance(key, str) and key.lower() == folded]:
            del properties[key]


_MISSING = object()


# ── system properties ──


def _text(name: str, value: Any, length_max: int) -> str | None:
    if value is None:
        return None
    if KINDS.get(type(value)) not in (STRING, INTEGER, REAL, BOOL, GUID):
        raise FilterEvaluationError(f"sys.{name} takes text, not {value!r:.80}")
    text = as_text(value)
    if len(text) > length_max:
        raise FilterEvaluationError(f"sys.{name} takes {length_max} characters, not {len(text)}")
    return text


def _field(name: str, index: int, length_max: int = TEXT_LENGTH_MAX) -> Setter:
    """Return the setter of a field of the properties section."""

    def put(view: MessageView, value: Any) -> None:
        text = _text(name, value, length_max)
        if index == MESSAGE_ID and not text:
            raise FilterEvaluationError("sys.MessageId cannot be empty")
        if index == CONTENT_TYPE and text is not None:
            if not text.isascii():
                raise FilterEvaluationError(f"sys.ContentType takes ASCII text, not {text!r:.80}")
            text = Symbol(text)
        fields = view.properties()
        fields.extend([None] * (index + 1 - len(fields)))
        fields[index] = text

    return put


def _annotation(name: str, key: str) -> Setter:
    def put(view: MessageView, value: Any) -> None:
        _annotate(view, key, _text(name, value, ID_LENGTH_MAX))

    return put


def _annotate(view: MessageView, key: str, value: Any) -> None:
    pairs = view.annotation_pairs()
    pairs.pop(key, None)
    if value is not None:
        pairs[Symbol(key)] = value


def _put_ttl(view: MessageView, value: Any) -> None:
    span = TTL_UNLIMITED if value is None else span_of(value)
    if span is None or span.total_seconds() <= 0:
        raise FilterEvaluationError(f"sys.TimeToLive takes a positive duration, not {value!r:.80}")
    view.ttl_ms = None if span >= TTL_UNLIMITED else max(int(span.total_seconds() * 1000), 1)


def _put_scheduled(view: MessageView, value: Any) -> None:
    time = Timestamp(0) if value is None else time_of(value)
    if time is None or not 0 <= time <= TIME_MAX_MS:
        raise FilterEvaluationError(f"sys.ScheduledEnqueueTimeUtc takes a date from 1970 to 9999, not {value!r:.80}")
    view.scheduled_ms = int(time)
    _annotate(view, SCHEDULED_TIME, time or None)


_NAMED_SETTERS: dict[str, Setter] = {
    "ContentType": _field("ContentType", CONTENT_TYPE),
    "CorrelationId": _field("CorrelationId", CORRELATION_ID),
    "Label": _field("Label", SUBJECT),
    "MessageId": _field("MessageId", MESSAGE_ID, ID_LENGTH_MAX),
    "PartitionKey": _annotation("PartitionKey", PARTITION_KEY),
    "ReplyTo": _field("ReplyTo", REPLY_TO),
    "ReplyToSessionId": _field("ReplyToSessionId", REPLY_TO_SESSION_ID, ID_LENGTH_MAX),
    "ScheduledEnqueueTimeUtc": _put_scheduled,
    "SessionId": _field("SessionId", SESSION_ID, ID_LENGTH_MAX),
    "Subject": _field("Subject", SUBJECT),
    "TimeToLive": _put_ttl,
    "To": _field("To", TO),
    "ViaPartitionKey": _annotation("ViaPartitionKey", VIA_PARTITION_KEY),
}
SETTABLE = tuple(_NAMED_SETTERS)
"System properties that an action may change."
_SETTERS = {name.lower(): setter for name, setter in _NAMED_SETTERS.items()}
