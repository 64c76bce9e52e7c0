"""Turns encoded messages into rows of Arrow. `sink/messages.py` is the way back; the schema is in `schema.py`.

Only the fields of a row are decoded; bodies are cut out of the bytes. Whole columns are built at once, and a column
that no message of the batch uses costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from pairbus.amqp.errors import DECODE_ERROR, ProtocolError
from pairbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    sections,
)
from pairbus.amqp.typed_text import to_text
from pairbus.amqp.types import decode
from pairbus.spark.source.schema import COLUMNS, PLAIN_MAP, TYPED_MAP, arrow_schema, columns

SEQUENCE_NUMBER, ENQUEUED_TIME = "x-opt-sequence-number", "x-opt-enqueued-time"
PARTITION_KEY, SCHEDULED_TIME = "x-opt-partition-key", "x-opt-scheduled-enqueue-time"
_ENQUEUED_NUMBER, _STATE = "x-opt-enqueue-sequence-number", "x-opt-message-state"
_DEAD_LETTER_SOURCE, _LOCKED_UNTIL = "x-opt-deadletter-source", "x-opt-locked-until"
_STATES = {1: "deferred", 2: "scheduled"}
# Times that Spark and Python can both show: the years 1 to 9999. A time outside is null.
TIME_MIN_MS, TIME_MAX_MS = -62_135_596_800_000, 253_402_300_799_999
_NO_FIELDS: list[Any] = [None] * 13

Row = tuple[Any, ...]


def to_columns(
    payloads: Sequence[bytes], entity: str, *, include_raw: bool = False, plain: bool = False
) -> pa.RecordBatch:
    """Return the rows of messages as they were received or peeked, in their order. Never fails because of their
    content.

    With `plain`, properties are maps of text to text, without their AMQP types.
    """
    rows = [_row(payload, entity) for payload in payloads]
    schema = arrow_schema(include_raw, plain)
    lists: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    if include_raw:
        lists.append(payloads)
    arrays = [
        _array(values, column.type, field.type)
        for values, column, field in zip(lists, columns(include_raw, plain), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def sequence_number_of(payload: bytes) -> int | None:
    """Return the sequence number of a received or peeked message; None when it has none."""
    value = _annotations_of(payload).get(SEQUENCE_NUMBER)
    return int(value) if isinstance(value, int) else None


def enqueued_ms_of(payload: bytes) -> int | None:
    value = _annotations_of(payload).get(ENQUEUED_TIME)
    return int(value) if isinstance(value, int) else None


def _annotations_of(payload: bytes) -> dict[Any, Any]:
    for code, _, value_at, _ in sections(payload):
        if code == MESSAGE_ANNOTATIONS:
            value = decode(payload, value_at)[0]
            return value if isinstance(value, dict) else {}
        if code > MESSAGE_ANNOTATIONS:
            break
    return {}


# ── one message ──


def _row(payload: bytes, entity: str) -> Row:
    try:
        return _decoded(payload, entity)
    except (ProtocolError, ValueError, TypeError, IndexError):
        # One bad message must not stop the reading of a queue: it is shown as it is.
        return (payload, "undecodable", *[None] * 16, None, None, entity, *[None] * 8)


def _decoded(payload: bytes, entity: str) -> Row:
    ttl_ms: int | None = None
    deliveries = 0
    annotations: dict[Any, Any] = {}
    application: dict[Any, Any] = {}
    fields = _NO_FIELDS
    body: list[bytes] = []
    body_type: str | None = None
    for code, _, value_at, end in sections(payload):
        if code == DATA:
            body.append(_binary(payload, value_at, end))
            body_type = "data"
        elif code in (VALUE, SEQUENCE):
            piece, body_type = _value(payload, value_at, end, code)
            body.append(piece)
        elif code == PROPERTIES:
            fields = decode(payload, value_at)[0]
            fields = (fields + _NO_FIELDS)[:13]
        elif code == MESSAGE_ANNOTATIONS:
            annotations = dict(decode(payload, value_at)[0])
        elif code == APPLICATION_PROPERTIES:
            application = dict(decode(payload, value_at)[0])
        elif code == HEADER:
            header = decode(payload, value_at)[0]
            ttl_ms = header[2] if len(header) > 2 else None
            deliveries = (header[4] if len(header) > 4 else None) or 0
    take = annotations.pop
    scheduled, enqueued = take(SCHEDULED_TIME, None), take(ENQUEUED_TIME, None)
    take(_LOCKED_UNTIL, None)
    state = take(_STATE, 0)
    return (
        body[0] if len(body) == 1 else b"".join(body) if body else None,
        body_type,
        fields[0],
        fields[5],
        fields[3],
        fields[6],
        fields[7],
        fields[2],
        fields[4],
        fields[10],
        fields[12],
        fields[11],
        take(PARTITION_KEY, None),
        fields[1],
        ttl_ms,
        scheduled and _micros(scheduled),
        fields[9] and _micros(fields[9]),
        fields[8] and _micros(fields[8]),
        application,
        annotations,
        entity,
        take(SEQUENCE_NUMBER, None),
        take(_ENQUEUED_NUMBER, None),
        enqueued and _micros(enqueued),
        deliveries,
        _STATES.get(state, "active"),
        application.get("DeadLetterReason"),
        application.get("DeadLetterErrorDescription"),
        take(_DEAD_LETTER_SOURCE, None),
    )


def _binary(payload: bytes, value_at: int, end: int) -> bytes:
    form = payload[value_at]
    if form == 0xA0:
        return payload[value_at + 2 : end]
    if form == 0xB0:
        return payload[value_at + 5 : end]
    raise ProtocolError(DECODE_ERROR, f"a data section of 0x{form:02x}")


def _value(payload: bytes, value_at: int, end: int, code: int) -> tuple[bytes, str]:
    form = payload[value_at]
    if code == VALUE and form in (0xA1, 0xB1):
        return payload[value_at + (2 if form == 0xA1 else 5) : end], "string"
    return payload[value_at:end], "value" if code == VALUE else "sequence"


def _micros(time_ms: int) -> int | None:
    return time_ms * 1000 if TIME_MIN_MS <= time_ms <= TIME_MAX_MS else None


# ── one column ──


def _array(values: Sequence[Any], kind: str, arrow_type: pa.DataType) -> pa.Array:
    if kind in (TYPED_MAP, PLAIN_MAP):
        return _maps(values, arrow_type, plain=kind == PLAIN_MAP)
    if values.count(None) == len(values):
        return pa.nulls(len(values), arrow_type)
    try:
        return pa.array(values, arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        # Some peers send a field in another type than the standard's: an id that is a number, a subject of bytes.
        return pa.array([None if value is None else _REPAIRS[kind](value) for value in values], arrow_type)


def _maps(values: Iterable[dict[Any, Any] | None], arrow_type: pa.DataType, *, plain: bool) -> pa.Array:
    offsets, names = [0], []
    kinds, texts = [], []
    for entries in values:
        if entries:
            for name, value in entries.items():
                kind, text = to_text(value)
                names.append(_as_text(name))
                kinds.append(kind)
                texts.append(text)
        offsets.append(len(names))
    items = pa.array(texts, pa.string())
    if not plain:
        items = pa.StructArray.from_arrays([pa.array(kinds, pa.string()), items], fields=list(arrow_type.item_type))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names, pa.string()), items, type=arrow_type)


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _as_text(value).encode()


def _as_long(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None


_REPAIRS: dict[str, Callable[[Any], Any]] = {
    "string": _as_text,
    "binary": _as_bytes,
    "bigint": _as_long,
    "timestamp": _as_long,
}
