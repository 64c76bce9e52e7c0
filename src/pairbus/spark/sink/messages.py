"""Turns rows of Arrow into encoded messages. A wrong value is a BadRow that names the row and the column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    section,
)
from pairbus.amqp.typed_text import from_text
from pairbus.amqp.types import (
    Timestamp,
    decode,
    encode,
    encode_binary,
    encode_string,
    encode_symbol,
    encode_uint,
    list_of,
    map_of,
)
from pairbus.errors import PairbusError
from pairbus.spark.source.rows import PARTITION_KEY, SCHEDULED_TIME
from pairbus.spark.source.schema import COLUMN_TYPES, COLUMNS, TYPED_MAP, arrow_type, check_written_columns

ID_LENGTH_MAX = 128  # for message ids, session ids and partition keys: the service's limit
TIME_TO_LIVE_MAX_MS = 0xFFFFFFFF
_NULL = b"\x40"
_WRITTEN = frozenset(column.name for column in COLUMNS if column.accepts)
_TYPED = "string"
_OWN_ANNOTATIONS = {PARTITION_KEY: "partition_key", SCHEDULED_TIME: "scheduled_enqueue_time"}

Values = dict[str, Any]
Triples = list[tuple[str, str, str | None]]


class BadRow(PairbusError, ValueError):
    """A row cannot become a message. No message of its task was sent; the text names the row and the column."""


class _BadColumn(ValueError):
    def __init__(self, column: str, text: str) -> None:
        super().__init__(f"column {column}: {text}")


@dataclass(frozen=True, slots=True)
class RoutedMessage:
    """A message and its routing: entity and group."""

    row: int
    entity: str | None
    group: str | None
    "Session id, or else partition key: messages of one batch share it."
    in_session: bool
    payload: bytes


def to_message(row: Mapping[str, Any]) -> bytes:
    """Encode one row as a message. Values as Spark's Row has them; BadRow when one of them cannot be sent."""
    check_written_columns(dict.fromkeys(row, "void"))
    arrays = []
    for name, value in row.items():
        plain = isinstance(value, str) or (
            isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())
        )
        kind = {"binary": "string", TYPED_MAP: "map<string,string>"}.get(COLUMN_TYPES[name]) if plain else None
        try:
            arrays.append(pa.array([value], arrow_type(name, kind)))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise BadRow(f"row 0, column {name}: {value!r:.80}: {error}") from None
    [message] = to_messages(pa.RecordBatch.from_arrays(arrays, names=list(row)))
    return message.payload


def to_messages(
    batch: pa.RecordBatch, *, first_row: int = 0, place: str = "", id_prefix: str | None = None
) -> Iterator[RoutedMessage]:
    """Yield the rows of a batch as messages, in their order.

    `first_row` is the number of its first row, and `place` comes before "row N" in errors. A row without a message id
    gets one made of `id_prefix`, its number and a digest of its content; without a prefix it has no id.
    """
    names = [name for name in batch.schema.names if name in _WRITTEN]
    columns = [_values(batch.column(batch.schema.get_field_index(name)), name) for name in names]
    for number, values in enumerate(zip(*columns, strict=True), first_row):
        row = dict(zip(names, values, strict=True))
        stem = f"{id_prefix}{number}-" if id_prefix is not None and row.get("message_id") is None else None
        try:
            session_id, partition_key = _keys(row)
            payload = _encoded(row, partition_key, stem)
        except _BadColumn as error:
            raise BadRow(f"{place}row {number}, {error}") from None
        group = session_id if session_id is not None else partition_key
        yield RoutedMessage(number, row.get("entity"), group, session_id is not None, payload)


# ── columns as Python values ──


def _values(column: pa.Array, name: str) -> list[Any]:
    if column.null_count == len(column):
        return [None] * len(column)
    kind = column.type
    if pa.types.is_timestamp(kind):
        return list(column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()).to_pylist())
    if pa.types.is_map(kind):
        return _triples(column)
    return list(column.to_pylist())


def _triples(column: pa.MapArray) -> list[Triples | None]:
    """Return (name, type, text) of each entry of each map; text without a type is a string."""
    values: list[Triples | None] = []
    for pairs in column.to_pylist():
        if pairs is None:
            values.append(None)
            continue
        values.append(
            [
                (name, value["type"], value["value"]) if isinstance(value, dict) else (name, _type_of(value), value)
                for name, value in (pairs.items() if isinstance(pairs, dict) else pairs)
            ]
        )
    return values


def _type_of(value: str | None) -> str:
    return "null" if value is None else _TYPED


# ── one message ──


def _keys(row: Values) -> tuple[str | None, str | None]:
    session_id, partition_key = row.get("session_id"), row.get("partition_key")
    for name in ("message_id", "session_id", "partition_key"):
        text = row.get(name)
        if text is not None and len(text) > ID_LENGTH_MAX:
            raise _BadColumn(name, f"{len(text)} characters; {ID_LENGTH_MAX} are allowed")
    if session_id is not None and partition_key is not None and session_id != partition_key:
        raise _BadColumn("partition_key", f"{partition_key!r} differs from session_id {session_id!r}")
    return session_id, partition_key


def _encoded(row: Values, partition_key: str | None, id_stem: str | None) -> bytes:
    head = _header(row.get("time_to_live_ms")) + _annotations(row, partition_key)
    fields = [_NULL if row.get(name) is None else _field(name, row[name], write) for name, write in _PROPERTIES]
    while fields and fields[-1] == _NULL:
        fields.pop()
    application = _pairs(row.get("application_properties"), "application_properties", encode_string)
    tail = _map_section(APPLICATION_PROPERTIES, application) + _body(row.get("body"), row.get("body_type"))
    if id_stem is not None:
        # The digest keeps duplicate detection from mistaking one row for another: when a task is repeated with its rows
        # in another order, a number alone would be an id that was used already, and the service would drop the message.
        digest = blake2b(b"".join((head, *fields, tail)), digest_size=8).hexdigest()
        fields[:1] = [encode_string(id_stem + digest)]
    properties = section(PROPERTIES, list_of(fields)) if fields else b""
    return head + properties + tail


def _header(ttl_ms: int | None) -> bytes:
    if ttl_ms is None:
        return b""
    if not 0 < ttl_ms <= TIME_TO_LIVE_MAX_MS:
        raise _BadColumn("time_to_live_ms", f"{ttl_ms} is not within 1 … {TIME_TO_LIVE_MAX_MS}")
    return section(HEADER, list_of([_NULL, _NULL, encode_uint(ttl_ms)]))


def _map_section(code: int, pairs: list[bytes]) -> bytes:
    return section(code, map_of(b"".join(pairs), 2 * len(pairs))) if pairs else b""


def _field(name: str, value: Any, write: Callable[[Any], bytes]) -> bytes:
    try:
        return write(value)
    except (ValueError, OverflowError) as error:
        raise _BadColumn(name, f"{value!r:.80}: {error}") from None


def _annotations(row: Values, partition_key: str | None) -> bytes:
    pairs = _pairs(row.get("annotations"), "annotations", encode_symbol)
    if partition_key is not None:
        pairs.append(_field("partition_key", partition_key, partition_key_pair))
    scheduled = row.get("scheduled_enqueue_time")
    if scheduled is not None:
        pairs.append(encode_symbol(SCHEDULED_TIME) + _time(scheduled))
    return _map_section(MESSAGE_ANNOTATIONS, pairs)


def partition_key_pair(key: str) -> bytes:
    """Return the annotation as an encoded pair of a map."""
    return encode_symbol(PARTITION_KEY) + encode_string(key)


def _pairs(triples: Triples | None, column: str, write_name: Callable[[str], bytes]) -> list[bytes]:
    pairs = []
    for name, kind, text in triples or ():
        if column == "annotations" and name in _OWN_ANNOTATIONS:
            raise _BadColumn(column, f"{name!r} has a column of its own: {_OWN_ANNOTATIONS[name]}")
        try:
            pairs.append(write_name(name) + encode(from_text(kind, text)))
        except (ValueError, TypeError, OverflowError) as error:
            raise _BadColumn(column, f"{name!r}: {error}") from None
    return pairs


def _body(body: bytes | str | None, kind: str | None) -> bytes:
    raw = body.encode() if isinstance(body, str) else body or b""
    if kind is None or kind == "data":
        return section(DATA, encode_binary(raw))
    try:
        if kind == "string":
            return section(VALUE, encode_string(raw.decode()))
        if kind == "value":
            return section(VALUE, _checked(raw, 0, len(raw)))
        if kind == "sequence":
            return b"".join(section(SEQUENCE, piece) for piece in _lists(raw))
    except (ValueError, ProtocolError) as error:
        raise _BadColumn("body", f"is no {kind}: {error}") from None
    raise _BadColumn("body_type", f"{kind!r} is not one of data, string, value, sequence")


def _checked(raw: bytes, start: int, end: int) -> bytes:
    if decode(raw, start)[1] != end:
        raise ValueError("there are bytes behind the value")
    return raw[start:end]


def _lists(raw: bytes) -> Sequence[bytes]:
    pieces, at = [], 0
    while at < len(raw):
        value, end = decode(raw, at)
        if type(value) is not list:
            raise ValueError(f"{type(value).__name__} at byte {at} is no list")
        pieces.append(raw[at:end])
        at = end
    if not pieces:
        raise ValueError("it is empty")
    return pieces


def _bytes(value: bytes | str) -> bytes:
    return encode_binary(value.encode() if isinstance(value, str) else value)


def _time(micros: int) -> bytes:
    return encode(Timestamp(micros // 1000))


def _sequence(value: int) -> bytes:
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError("not within 0 … 4294967295")
    return bytes(encode_uint(value))


_PROPERTIES: tuple[tuple[str, Callable[[Any], bytes]], ...] = (
    ("message_id", encode_string),
    ("user_id", _bytes),
    ("to", encode_string),
    ("subject", encode_string),
    ("reply_to", encode_string),
    ("correlation_id", encode_string),
    ("content_type", encode_symbol),
    ("content_encoding", encode_symbol),
    ("absolute_expiry_time", _time),
    ("creation_time", _time),
    ("session_id", encode_string),
    ("group_sequence", _sequence),
    ("reply_to_session_id", encode_string),
)
