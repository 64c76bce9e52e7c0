"""The copy of a message that is scheduled for another attempt, and what a message tells about earlier attempts.

| in the original                     | in the copy                                                                |
| ----------------------------------- | -------------------------------------------------------------------------- |
| properties.message-id               | an id of its own, made of sequence number and attempt; the first id is in the property `x-pairbus-retry-message-id`, and a processor shows it as the message's id |
| header.ttl                          | what is left of it when the copy becomes visible, at least 1 ms             |
| annotations of the service          | removed                                                                    |
| annotation x-opt-scheduled-enqueue-time | the time of the next attempt                                           |
| application properties              | the same, and four of ours                                                 |
| all other fields                    | the same bytes                                                             |

The copy has another id because an entity that detects duplicates would accept it and drop it. It is always the same id
for one attempt of one message: a copy that is sent twice is stored once there.
"""  # noqa: E501 - a row of a table

from __future__ import annotations

from typing import Any, NamedTuple

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SectionSpan,
    in_order,
    section,
)
from pairbus.amqp.types import Int, Long, Timestamp, UInt, decode, encode, encode_string, encode_symbol
from pairbus.backlog.envelope import SERVICE_OWNED
from pairbus.backlog.splice import field_span, map_value, map_without, with_field

ATTEMPTS = "x-pairbus-retry-attempts"
"Attempts before those that the delivery count of this message counts."
FIRST_ENQUEUED = "x-pairbus-retry-first-enqueued"
"Time when the entity stored the message first."
FIRST_SEQUENCE = "x-pairbus-retry-sequence-number"
"Sequence number of the message that was stored first."
FIRST_ID = "x-pairbus-retry-message-id"
"Message id of the message that was stored first."
_OURS = frozenset(name.encode() for name in (ATTEMPTS, FIRST_ENQUEUED, FIRST_SEQUENCE, FIRST_ID))
_MARK = ATTEMPTS.encode()
_TTL, _DELIVERY_COUNT, _MESSAGE_ID, _PARTITION = 2, 4, 0, "x-opt-partition-key"
_SCHEDULED = b"x-opt-scheduled-enqueue-time"
_HEAD_MAX = 512  # bytes in which the annotations of the service stand, when they stand where the service writes them
_LOCKED_UNTIL = b"\xa3\x12x-opt-locked-until\x83"
_ENQUEUED = b"\xa3\x13x-opt-enqueued-time\x83"
_SEQUENCE_NUMBER = b"\xa3\x15x-opt-sequence-number"
_NULL = b"\x40"


class Facts(NamedTuple):
    """The fields of a message that a processor looks at."""

    message_id: Any = None
    "The id under which the message was stored first."
    encoded_id: bytes = _NULL
    sequence_number: int = 0
    first_sequence: int = 0
    delivery_count: int = 0
    "Earlier deliveries, as the entity counts them."
    enqueued_ms: int | None = None
    first_enqueued_ms: int | None = None
    ttl_ms: int | None = None
    attempts_before: int = 0
    "Attempts that the delivery count does not count."
    session_id: str | None = None
    partition_key: str | None = None

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1 on."""
        return self.attempts_before + self.delivery_count + 1


def facts_of(payload: bytes) -> Facts:
    """Read the facts; ProtocolError when the bytes are not a message."""
    payload, spans = _sections(payload)
    header = _value(payload, spans.get(HEADER)) or []
    annotations = _value(payload, spans.get(MESSAGE_ANNOTATIONS)) or {}
    properties = _value(payload, spans.get(PROPERTIES)) or []
    ours = _ours(payload, spans.get(APPLICATION_PROPERTIES))
    encoded_id = ours.get(FIRST_ID.encode()) or _id_of(payload, spans.get(PROPERTIES))
    sequence, enqueued = annotations.get("x-opt-sequence-number"), annotations.get("x-opt-enqueued-time")
    group_id = properties[10] if len(properties) > 10 else None
    key = annotations.get(_PARTITION)
    return Facts(
        message_id=decode(encoded_id)[0],
        encoded_id=encoded_id,
        sequence_number=_number(sequence) or 0,
        first_sequence=_decoded(ours, FIRST_SEQUENCE) or _number(sequence) or 0,
        delivery_count=_number(header[_DELIVERY_COUNT]) or 0 if len(header) > _DELIVERY_COUNT else 0,
        enqueued_ms=_number(enqueued),
        first_enqueued_ms=_decoded(ours, FIRST_ENQUEUED) or _number(enqueued),
        ttl_ms=_number(header[_TTL]) if len(header) > _TTL else None,
        attempts_before=_decoded(ours, ATTEMPTS) or 0,
        session_id=group_id if isinstance(group_id, str) else None,
        partition_key=key if isinstance(key, str) else None,
    )


def locked_until_ms(payload: bytes) -> int | None:
    """Return the end of the lock by the service's clock; None when the message does not tell it where services do."""
    at = payload.find(_LOCKED_UNTIL, 0, _HEAD_MAX)
    if at < 0:
        return None
    return int.from_bytes(payload[at + len(_LOCKED_UNTIL) : at + len(_LOCKED_UNTIL) + 8], "big", signed=True)


def stored_ms(payload: bytes) -> int | None:
    """Return the time when the service stored the message, by its clock; None as for `locked_until_ms`."""
    at = payload.find(_ENQUEUED, 0, _HEAD_MAX)
    return None if at < 0 else int.from_bytes(payload[at + len(_ENQUEUED) :][:8], "big", signed=True)


def sequence_of(payload: bytes) -> int | None:
    """Return the sequence number; None when the message does not tell it where services do."""
    at = payload.find(_SEQUENCE_NUMBER, 0, _HEAD_MAX)
    if at < 0:
        return None
    try:
        return _number(decode(payload, at + len(_SEQUENCE_NUMBER))[0])
    except (ProtocolError, IndexError):
        return None


def copy_of(payload: bytes, facts: Facts, *, attempts: int, due_ms: int) -> tuple[str, bytes]:
    """Return (message id, payload) of the copy for the attempt after `attempts`, which becomes visible at `due_ms`."""
    payload, spans = _sections(payload)
    new_id = f"retry-{facts.first_sequence}-{attempts}"
    parts = [_header(payload, spans.get(HEADER), _ttl_left(facts, due_ms))]
    parts.append(_annotations(payload, spans.get(MESSAGE_ANNOTATIONS), due_ms))
    parts.append(_with_id(payload, spans.get(PROPERTIES), encode_string(new_id)))
    parts.append(_with_ours(payload, spans.get(APPLICATION_PROPERTIES), facts, attempts))
    known = (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES)
    body_at = max((spans[code][3] for code in known if code in spans), default=0)
    return new_id, b"".join(parts) + payload[body_at:]


def shown(payload: bytes) -> bytes:
    """Return the message as a handler sees it: a copy has the id of its original again."""
    if _MARK not in payload:
        return payload
    payload, spans = _sections(payload)
    encoded_id = _ours(payload, spans.get(APPLICATION_PROPERTIES)).get(FIRST_ID.encode())
    span = spans.get(PROPERTIES)
    if encoded_id is None or span is None:
        return payload
    return payload[: span[1]] + _with_id(payload, span, encoded_id) + payload[span[3] :]


def _sections(payload: bytes) -> tuple[bytes, dict[int, SectionSpan]]:
    payload, found = in_order(payload)
    return payload, {row[0]: row for row in found}


def _value(payload: bytes, span: SectionSpan | None) -> Any:
    return None if span is None else decode(payload, span[2])[0]


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _ours(payload: bytes, span: SectionSpan | None) -> dict[bytes, bytes]:
    if span is None or _MARK not in payload[span[2] : span[3]]:
        return {}
    return map_without(payload, span[2], span[3], _OURS)[2]


def _decoded(ours: dict[bytes, bytes], name: str) -> int | None:
    encoded = ours.get(name.encode())
    return None if encoded is None else _number(decode(encoded)[0])


def _id_of(payload: bytes, span: SectionSpan | None) -> bytes:
    at = None if span is None else field_span(payload, span[2], span[3], _MESSAGE_ID)
    return _NULL if at is None else payload[at[0] : at[1]]


def _ttl_left(facts: Facts, due_ms: int) -> int | None:
    if facts.ttl_ms is None or facts.enqueued_ms is None:
        return facts.ttl_ms
    return max(facts.enqueued_ms + facts.ttl_ms - due_ms, 1)


def _header(payload: bytes, span: SectionSpan | None, ttl_ms: int | None) -> bytes:
    ttl = _NULL if ttl_ms is None else encode(UInt(ttl_ms))
    if span is None:
        return b""
    value = with_field(payload, span[2], span[3], _TTL, ttl)
    return section(HEADER, with_field(value, 0, len(value), _DELIVERY_COUNT, _NULL))


def _annotations(payload: bytes, span: SectionSpan | None, due_ms: int) -> bytes:
    kept, count = b"", 0
    if span is not None:
        kept, count, _ = map_without(payload, span[2], span[3], SERVICE_OWNED | {_SCHEDULED})
    due = encode_symbol(_SCHEDULED.decode()) + encode(Timestamp(due_ms))
    return section(MESSAGE_ANNOTATIONS, map_value(due + kept, count + 2))


def _with_id(payload: bytes, span: SectionSpan | None, encoded_id: bytes) -> bytes:
    if span is None:
        return section(PROPERTIES, with_field(b"\x45", 0, 1, _MESSAGE_ID, encoded_id))
    return section(PROPERTIES, with_field(payload, span[2], span[3], _MESSAGE_ID, encoded_id))


def _with_ours(payload: bytes, span: SectionSpan | None, facts: Facts, attempts: int) -> bytes:
    kept, count = b"", 0
    if span is not None:
        kept, count, _ = map_without(payload, span[2], span[3], _OURS)
    values: dict[str, bytes] = {
        ATTEMPTS: encode(Int(attempts)),
        FIRST_SEQUENCE: encode(Long(facts.first_sequence)),
        FIRST_ID: facts.encoded_id,
    }
    if facts.first_enqueued_ms is not None:
        values[FIRST_ENQUEUED] = encode(Timestamp(facts.first_enqueued_ms))
    ours = b"".join(encode_string(name) + value for name, value in values.items())
    return section(APPLICATION_PROPERTIES, map_value(kept + ours, count + 2 * len(values)))
