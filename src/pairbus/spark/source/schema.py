"""The schema of `format("servicebus")`, for both directions: a table that code, documents and tests read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa

from pairbus.errors import ConfigError

TIMES = "timestamp"
TYPED_MAP = "map<string,struct<type:string,value:string>>"
_TEXT = ("string",)
_WHOLE = ("bigint", "int", "smallint", "tinyint")
_BYTES = ("binary", "string")
PLAIN_MAP = "map<string,string>"
_MAPS = (TYPED_MAP, PLAIN_MAP)


@dataclass(frozen=True, slots=True)
class Column:
    """A row of the table."""

    name: str
    type: str
    "Type in Spark's spelling, as a read returns it."
    accepts: tuple[str, ...]
    "Types that the sink takes; none: only the service sets this column, and the sink ignores it."
    meaning: str


COLUMNS = (
    Column("body", "binary", _BYTES, "the content; text is sent as UTF-8"),
    Column("body_type", "string", _TEXT,
           "`data`: the bytes of the data sections. `string`: an AMQP value that is text, here as UTF-8. `value`: "
           "another AMQP value, `sequence`: lists, both as AMQP encodes them. `undecodable`: the whole message, which "
           "is not AMQP. Null: there is no body, or (sink) `data`"),
    Column("message_id", "string", _TEXT, "at most 128 characters; the sink makes one where it is null"),
    Column("correlation_id", "string", _TEXT,
           "id of the message that this message answers, or an id that related messages share"),
    Column("subject", "string", _TEXT, "also called label"),
    Column("content_type", "string", _TEXT, "type of the body, such as `application/json`; ASCII"),
    Column("content_encoding", "string", _TEXT, "encoding of the body; ASCII"),
    Column("to", "string", _TEXT, "an address for the receiver's own use"),
    Column("reply_to", "string", _TEXT, "where an answer should go"),
    Column("session_id", "string", _TEXT, "at most 128 characters"),
    Column("reply_to_session_id", "string", _TEXT, "session id that an answer should have"),
    Column("group_sequence", "bigint", _WHOLE, "place within the session, if the sender sets it"),
    Column("partition_key", "string", _TEXT, "the same as `session_id` where both are there"),
    Column("user_id", "binary", _BYTES, "who sent the message, as the sender says"),
    Column("time_to_live_ms", "bigint", _WHOLE, "1 … 4294967295; null: the default of the entity"),
    Column("scheduled_enqueue_time", TIMES, (TIMES,), "the message cannot be received before this time"),
    Column("creation_time", TIMES, (TIMES,), "time of creation, as the sender says"),
    Column("absolute_expiry_time", TIMES, (TIMES,), "time of expiry, as the sender says"),
    Column("application_properties", TYPED_MAP, _MAPS,
           "each with its [AMQP type](#types-of-properties); the sink takes plain text too"),
    Column("annotations", TYPED_MAP, _MAPS, "message annotations that have no column of their own"),
    Column("entity", "string", _TEXT, "path of the queue, topic or subscription, without `/$DeadLetterQueue`"),
    Column("sequence_number", "bigint", (), "place in the queue"),
    Column("enqueued_sequence_number", "bigint", (),
           "of a forwarded message: its sequence number in the entity that it was sent to"),
    Column("enqueued_time", TIMES, (), "when the service stored the message"),
    Column("delivery_count", "bigint", (), "deliveries before this one"),
    Column("state", "string", (), "`active`, `deferred` or `scheduled`"),
    Column("dead_letter_reason", "string", (), "the application property `DeadLetterReason`"),
    Column("dead_letter_error_description", "string", (), "the application property `DeadLetterErrorDescription`"),
    Column("dead_letter_source", "string", (), "entity whose message this was before it was dead-lettered"),
)  # fmt: skip
RAW = Column("raw", "binary", (), "with option `includeRaw`: the message as it is encoded")
NAMES = tuple(column.name for column in COLUMNS)
COLUMN_TYPES = {column.name: column.type for column in (*COLUMNS, RAW)}
_BY_NAME = {column.name: column for column in (*COLUMNS, RAW)}

_ARROW_TYPES = {
    "binary": pa.binary(),
    "string": pa.string(),
    "bigint": pa.int64(),
    TIMES: pa.timestamp("us", tz="UTC"),
    TYPED_MAP: pa.map_(pa.string(), pa.struct([("type", pa.string()), ("value", pa.string())])),
    PLAIN_MAP: pa.map_(pa.string(), pa.string()),
}


def columns(include_raw: bool, plain: bool = False) -> tuple[Column, ...]:
    """Return the columns of a read; with `plain`, properties are maps of text to text."""
    all_columns = (*COLUMNS, RAW) if include_raw else COLUMNS
    return tuple(
        replace(column, type=PLAIN_MAP) if plain and column.type == TYPED_MAP else column for column in all_columns
    )


def spark_schema(include_raw: bool = False, plain: bool = False) -> str:
    """Return the schema as a DDL text, which a data source may answer."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns(include_raw, plain))


@cache
def arrow_schema(include_raw: bool = False, plain: bool = False) -> pa.Schema:
    """Return the schema that Spark expects of the batches of a reader: names and types must be equal."""
    return pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in columns(include_raw, plain)])


def arrow_type(name: str, kind: str | None = None) -> pa.DataType:
    """Return the Arrow type of a column, or of another type that the sink takes in its place."""
    kind = kind or _BY_NAME[name].type
    return _ARROW_TYPES[kind]


def check_written_columns(types: Mapping[str, str]) -> None:
    """Raise ConfigError unless the sink can take a frame of these columns (name → type as Spark writes it)."""
    for name, kind in types.items():
        column = _BY_NAME.get(name)
        if column is None:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"column {name} is not known to format servicebus{hint}")
        if column.accepts and kind != "void" and kind not in column.accepts:
            raise ConfigError(f"column {name} is {kind}; format servicebus takes {' or '.join(column.accepts)}")
    if "body" not in types:
        raise ConfigError("column body is missing: it is what a message carries (null makes an empty one)")
