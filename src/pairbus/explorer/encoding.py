"""Turns JSON objects into messages: objects of `message.described`, edited or written by hand."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import Header, Message, Properties
from pairbus.amqp.typed_text import from_text
from pairbus.amqp.types import Symbol, Timestamp, UInt, decode
from pairbus.errors import PairbusError
from pairbus.explorer.message import FIELDS, OWNED_BY_THE_SERVICE, PARTITION_KEY, SCHEDULED_TIME, sendable
from pairbus.explorer.times import ms_of

TTL_MAX_MS = 0xFFFFFFFF
BODY_TYPES = ("text", "base64", "string", "value", "sequence")
WRITTEN = {
    *FIELDS,
    "body",
    "body_type",
    "application_properties",
    "annotations",
    "property_types",
    "partition_key",
    "scheduled_enqueue_time",
    "time_to_live_ms",
}
READ_ONLY = (
    "sequence_number",
    "enqueued_sequence_number",
    "enqueued_time",
    "locked_until",
    "state",
    "delivery_count",
    "dead_letter_reason",
    "dead_letter_error_description",
    "dead_letter_source",
    "size",
    "raw",
    "undecodable",
)
"Fields that the service decides; `encoded` ignores them."


class BadMessage(PairbusError, ValueError):
    """A JSON object cannot become a message. It was not sent; the text names the field, its value and the right one."""


def encoded(fields: Mapping[str, Any]) -> bytes:
    """Encode a message to send; BadMessage names the field that is wrong. Fields of the service are left out."""
    return edited(b"", fields)


def edited(original: bytes, changes: Mapping[str, Any]) -> bytes:
    """Return the message with some fields changed (null clears one); the others keep their values and types.

    `application_properties` and `annotations` are replaced as a whole.
    """
    _check_names(changes)
    message = Message.decode(sendable(original)) if original else Message()
    types = _mapping(changes.get("property_types"), "property_types")
    for name, value in changes.items():
        if name in FIELDS:
            if message.properties is None:
                message.properties = Properties()
            setattr(message.properties, FIELDS[name][0], _field(name, value, types.get(name)))
    if "body" in changes or "body_type" in changes:
        _set_body(message, changes)
    elif not original:
        message.data = [b""]  # a message without any body is refused by the service
    if "application_properties" in changes:
        message.application_properties = typed_map(changes, "application_properties", "string") or None
    _set_annotations(message, changes)
    if "time_to_live_ms" in changes:
        message.header = Header(ttl=_ttl(changes["time_to_live_ms"]))
    return message.encode()


def importable(fields: Mapping[str, Any]) -> bytes:
    """Return the message of a line of an export, to be sent: its raw bytes where it has them, else its fields."""
    raw = fields.get("raw")
    if raw is None:
        return encoded(fields)
    try:
        return sendable(_binary(raw, "raw"))
    except ProtocolError as error:
        raise BadMessage(f"field raw is no message: {error}") from None


def _check_names(changes: Mapping[str, Any]) -> None:
    unknown = [name for name in changes if name not in WRITTEN and name not in READ_ONLY]
    if unknown:
        raise BadMessage(f"field {unknown[0]!r} is not known; a message has {', '.join(sorted(WRITTEN))}")


def _field(name: str, value: Any, kind: Any) -> Any:
    usual = FIELDS[name][1]
    if value is None:
        return None
    if kind is None and usual == "timestamp":
        return Timestamp(_moment(value, name))
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise BadMessage(f"field {name} is {value!r:.60}; a text is needed")
    return _value(name, kind or usual, text)


def _value(name: str, kind: Any, text: Any) -> Any:
    if not isinstance(kind, str) or not (text is None or isinstance(text, str)):
        raise BadMessage(f"field {name}: type and value are texts, not {kind!r:.40} and {text!r:.40}")
    try:
        return from_text(kind, text)
    except ValueError as error:
        raise BadMessage(f"field {name}: {error}") from None


def _set_body(message: Message, changes: Mapping[str, Any]) -> None:
    kind, body = changes.get("body_type", "text"), changes.get("body")
    if kind not in BODY_TYPES:
        raise BadMessage(f"field body_type is {kind!r:.40}; it may be {', '.join(BODY_TYPES)}")
    if body is not None and not isinstance(body, str):
        raise BadMessage(f"field body is {body!r:.60}; a text is needed")
    message.data, message.sequences, message.value, message.has_value = [], [], None, False
    text = body or ""
    if kind == "text":
        message.data = [_utf8(text)]
    elif kind == "base64":
        message.data = [_binary(text, "body")]
    elif kind == "string":
        message.value, message.has_value = _utf8(text).decode(), True
    elif kind == "value":
        message.value, message.has_value = _value("body", "amqp", text), True
    else:
        message.sequences = _sequences(_binary(text, "body"))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadMessage(f"field body cannot be written as UTF-8: {error.reason} at {error.start}") from None


def _sequences(raw: bytes) -> list[list[Any]]:
    sequences, at = [], 0
    try:
        while at < len(raw):
            value, at = decode(raw, at)
            if type(value) is not list:
                raise BadMessage(f"field body: a sequence is made of lists, not of {type(value).__name__}")
            sequences.append(value)
    except ProtocolError as error:
        raise BadMessage(f"field body is no sequence: {error}") from None
    return sequences


def _set_annotations(message: Message, changes: Mapping[str, Any]) -> None:
    annotations = dict(message.annotations or {})
    if "annotations" in changes:
        fixed = {name: annotations[name] for name in (PARTITION_KEY, SCHEDULED_TIME) if name in annotations}
        entries = typed_map(changes, "annotations", "symbol")
        annotations = {name: value for name, value in entries.items() if name not in OWNED_BY_THE_SERVICE} | fixed
    for name, annotation, write in (
        ("partition_key", PARTITION_KEY, lambda value: _value("partition_key", "string", value)),
        ("scheduled_enqueue_time", SCHEDULED_TIME, lambda value: Timestamp(_moment(value, "scheduled_enqueue_time"))),
    ):
        if name in changes:
            annotations.pop(annotation, None)
            if changes[name] is not None:
                annotations[Symbol(annotation)] = write(changes[name])
    message.annotations = annotations or None


def typed_map(changes: Mapping[str, Any], field: str, kind: str) -> dict[Any, Any]:
    """Read the object in a field as a map; `kind` is the AMQP type of its names."""
    entries = _mapping(changes.get(field), field)
    return {_value(field, kind, name): _property(f"{field}.{name}", value) for name, value in entries.items()}


def _property(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _value(name, value.get("type", "string"), value.get("value"))
    kinds: dict[type, str] = {str: "string", bool: "boolean", int: "long", float: "double", type(None): "null"}
    kind = kinds.get(type(value))
    if kind is None:
        raise BadMessage(f"field {name} is {value!r:.60}; write a plain value, or {{'type': …, 'value': …}}")
    text = {"boolean": str(value).lower(), "null": None}.get(kind, str(value))
    return _value(name, kind, text)


def _mapping(value: Any, field: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadMessage(f"field {field} is {value!r:.60}; an object is needed")
    return value


def _ttl(value: Any) -> UInt | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= TTL_MAX_MS:
        raise BadMessage(f"field time_to_live_ms is {value!r:.40}; it may be 1 … {TTL_MAX_MS}")
    return UInt(value)


def _moment(value: Any, field: str) -> int:
    moment_ms = ms_of(value)
    if moment_ms is None or not -(1 << 63) <= moment_ms < 1 << 63:  # 64 bits on the wire
        raise BadMessage(f"field {field} is {value!r:.60}; write a time such as 2026-01-31T12:00:00Z")
    return moment_ms


def _binary(text: Any, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise BadMessage(f"field {field} is no base64: {error}") from None
