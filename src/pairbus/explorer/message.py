"""Describes a message as a JSON object: every field with its type. `encoding.py` is the way back.

| field | is |
| --- | --- |
| `body`, `body_type` | the body; its type is one of the table below |
| `application_properties`, `annotations` | name → {"type", "value"} as in `pairbus.amqp.typed_text` |
| `property_types` | AMQP types of fields that are not of their usual type, such as a message id that is a uuid |
| `raw` | base64 of the whole message as it was read; only in exports |

| `body_type` | the body is |
| --- | --- |
| `text` | data that is UTF-8 |
| `base64` | data that is not |
| `string` | an AMQP value that is a text |
| `value`, `sequence` | base64 of another AMQP value, or of lists of them |

Law of this file. `sendable` keeps all bytes from the properties section on as they were sent.
"""

from __future__ import annotations

import base64
from typing import Any

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import (
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Message,
    Properties,
    in_order,
    section,
)
from pairbus.amqp.typed_text import to_text
from pairbus.amqp.types import decode, encode
from pairbus.backlog.envelope import ORIGINAL_ID
from pairbus.explorer.times import time_text

SEQUENCE_NUMBER, ENQUEUED_TIME = "x-opt-sequence-number", "x-opt-enqueued-time"
PARTITION_KEY, SCHEDULED_TIME = "x-opt-partition-key", "x-opt-scheduled-enqueue-time"
LOCKED_UNTIL, STATE = "x-opt-locked-until", "x-opt-message-state"
ENQUEUED_NUMBER, DEAD_LETTER_SOURCE = "x-opt-enqueue-sequence-number", "x-opt-deadletter-source"
REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"
OWNED_BY_THE_SERVICE = frozenset(
    {SEQUENCE_NUMBER, ENQUEUED_TIME, LOCKED_UNTIL, STATE, ENQUEUED_NUMBER, DEAD_LETTER_SOURCE}
)
STATES = {0: "active", 1: "deferred", 2: "scheduled"}

# Field of the JSON object → (field of the properties section, its usual AMQP type).
FIELDS = {
    "message_id": ("message_id", "string"),
    "correlation_id": ("correlation_id", "string"),
    "subject": ("subject", "string"),
    "session_id": ("group_id", "string"),
    "reply_to_session_id": ("reply_to_group_id", "string"),
    "group_sequence": ("group_sequence", "uint"),
    "to": ("to", "string"),
    "reply_to": ("reply_to", "string"),
    "user_id": ("user_id", "binary"),
    "content_type": ("content_type", "symbol"),
    "content_encoding": ("content_encoding", "symbol"),
    "creation_time": ("creation_time", "timestamp"),
    "absolute_expiry_time": ("absolute_expiry_time", "timestamp"),
}

# ── message → JSON ──


def described(payload: bytes, *, raw: bool = False) -> dict[str, Any]:
    """Describe a message that was peeked or received; with `raw`, losslessly. Never fails, whatever the bytes are."""
    try:
        fields = _shown(Message.decode(payload), len(payload))
    except (ProtocolError, ValueError, TypeError, IndexError) as error:
        # One message that cannot be decoded must not stop a look at a queue: its raw bytes are shown.
        fields = dict.fromkeys(("sequence_number", "message_id"))
        fields |= {"body": _base64(payload), "body_type": "base64", "size": len(payload), "undecodable": str(error)}
    if raw:
        fields["raw"] = _base64(payload)
    return fields


def _shown(message: Message, size: int) -> dict[str, Any]:
    annotations = message.annotations or {}
    application = message.application_properties or {}
    header, properties = message.header or Header(), message.properties or Properties()
    body_type, body = _body_of(message)
    fields, types = _fields_of(properties)
    state = annotations.get(STATE, 0)
    described_fields: dict[str, Any] = {
        "sequence_number": _number(annotations.get(SEQUENCE_NUMBER)),
        "message_id": fields.pop("message_id", None),
        "body": body,
        "body_type": body_type,
        "subject": fields.pop("subject", None),
        "session_id": fields.pop("session_id", None),
        "enqueued_time": _time(annotations.get(ENQUEUED_TIME)),
        "state": STATES.get(int(state), "active") if isinstance(state, int) else "active",
        "delivery_count": header.delivery_count or 0,
        "application_properties": {_name(name): typed(value) for name, value in application.items()},
        "size": size,
    }
    extra = {
        "dead_letter_reason": _plain(application.get(REASON)),
        "dead_letter_error_description": _plain(application.get(DESCRIPTION)),
        "dead_letter_source": _plain(annotations.get(DEAD_LETTER_SOURCE)),
        "scheduled_enqueue_time": _time(annotations.get(SCHEDULED_TIME)),
        "locked_until": _time(annotations.get(LOCKED_UNTIL)),
        "partition_key": _plain(annotations.get(PARTITION_KEY)),
        "enqueued_sequence_number": _number(annotations.get(ENQUEUED_NUMBER)),
        "time_to_live_ms": _number(header.ttl),
        **fields,
        "annotations": {
            _name(name): typed(value)
            for name, value in annotations.items()
            if name not in OWNED_BY_THE_SERVICE and name not in (PARTITION_KEY, SCHEDULED_TIME)
        },
        "property_types": types,
    }
    return described_fields | {name: value for name, value in extra.items() if value not in (None, {})}


def _fields_of(properties: Properties) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of the message as JSON values, and the types of fields that do not have the usual type."""
    fields: dict[str, Any] = {}
    types: dict[str, str] = {}
    for name, (attribute, usual) in FIELDS.items():
        value = getattr(properties, attribute)
        if value is None:
            continue
        kind, text = to_text(value)
        if usual == "timestamp" and kind == "timestamp":
            text = time_text(int(value))
            if text is None:  # outside of the calendar
                text, types[name] = str(int(value)), kind
        elif usual == "uint" and isinstance(value, int):
            fields[name] = int(value)
            continue
        elif kind != usual and not (usual in ("string", "symbol") and kind in ("string", "symbol")):
            types[name] = kind
        fields[name] = text
    return fields, types


def _body_of(message: Message) -> tuple[str, str | None]:
    if message.has_value:
        if type(message.value) is str:
            return "string", message.value
        return "value", _base64(encode(message.value))
    if message.sequences:
        return "sequence", _base64(b"".join(encode(sequence) for sequence in message.sequences))
    if not message.data:
        return "text", None
    data = b"".join(message.data)
    try:
        return "text", data.decode()
    except UnicodeDecodeError:
        return "base64", _base64(data)


def typed(value: Any) -> dict[str, str | None]:
    """Return a value with the name of its AMQP type."""
    kind, text = to_text(value)
    return {"type": kind, "value": text}


def body_bytes(payload: bytes) -> bytes:
    """Return the body as bytes: the data, the text of a string, or the encoded value."""
    message = Message.decode(payload)
    if message.has_value:
        return message.value.encode() if isinstance(message.value, str) else encode(message.value)
    return b"".join(message.data) or b"".join(encode(sequence) for sequence in message.sequences)


# ── bytes ──


def sendable(payload: bytes) -> bytes:
    """Return a peeked or received message in the form to send it again: without the annotations of the service.

    Time to live, durability and priority of the header stay.
    """
    payload, sections = in_order(payload)
    head, rest_at = b"", len(payload)
    for code, start, value_at, _ in sections:
        if code == HEADER:
            fields: list[Any] = list(decode(payload, value_at)[0]) + [None] * 3
            header = Header(durable=fields[0], priority=fields[1], ttl=fields[2])
            if header != Header():
                head = header.encode()
        elif code == MESSAGE_ANNOTATIONS:
            own = {n: v for n, v in decode(payload, value_at)[0].items() if n not in OWNED_BY_THE_SERVICE}
            if own:
                head += section(MESSAGE_ANNOTATIONS, encode(own))
        elif code >= PROPERTIES:
            rest_at = start
            break
        else:
            assert code == DELIVERY_ANNOTATIONS  # they are for one hop only
    return head + payload[rest_at:]


def without_dead_letter_properties(payload: bytes) -> bytes:
    """Return the message without the two application properties that dead-lettering has added."""
    message = Message.decode(payload)
    application = message.application_properties
    if not application or (REASON not in application and DESCRIPTION not in application):
        return payload
    properties = {name: value for name, value in application.items() if name not in (REASON, DESCRIPTION)}
    message.application_properties = properties or None
    return message.encode()


def with_other_id(copy: bytes, original: bytes, new_id: str) -> bytes:
    """Return the copy with a new message id if it has that of the original; the old id becomes a property.

    A message without an id stays without: no entity takes it for a duplicate.
    """
    message, before = Message.decode(copy), Message.decode(original).properties
    own = message.properties
    if before is None or own is None or own.message_id in (None, "", b""):
        return copy
    if _plain(own.message_id) != _plain(before.message_id):  # as texts: entities compare ids of any type as texts
        return copy
    message.application_properties = {ORIGINAL_ID: own.message_id} | (message.application_properties or {})
    own.message_id = new_id
    return message.encode()


def sequence_number_of(payload: bytes) -> int | None:
    """Return the sequence number of a message that was peeked or received."""
    value = annotations_of(payload).get(SEQUENCE_NUMBER)
    return int(value) if isinstance(value, int) else None


def session_id_of(payload: bytes) -> str | None:
    """Return the session id of a message; None when it has none, or the bytes are not a message."""
    try:
        properties = Message.decode(payload).properties
    except (ProtocolError, ValueError, TypeError, IndexError):
        return None
    return None if properties is None else _plain(properties.group_id)


def annotations_of(payload: bytes) -> dict[Any, Any]:
    """Return the message annotations; empty when the bytes are not a message."""
    try:
        payload, sections = in_order(payload)
        for code, _, value_at, _ in sections:
            if code == MESSAGE_ANNOTATIONS:
                value = decode(payload, value_at)[0]
                return value if isinstance(value, dict) else {}
    except ProtocolError:
        pass
    return {}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) else None


def _plain(value: Any) -> str | None:
    return None if value is None else _name(value)


def _name(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _time(value: Any) -> str | None:
    return time_text(int(value)) if isinstance(value, int) else None
