"""Messages as rows and back: nothing of a message is lost on the way through Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.message import Header, Message, Properties
from pairbus.amqp.typed_text import TYPES, from_text, to_text
from pairbus.amqp.types import Described, Int, Long, Symbol, Timestamp, UInt, ULong
from pairbus.errors import ConfigError
from pairbus.spark.sink.messages import BadRow, to_message, to_messages
from pairbus.spark.source.rows import enqueued_ms_of, sequence_number_of, to_columns
from pairbus.spark.source.schema import COLUMNS, RAW, arrow_schema, check_written_columns
from tests.amqp.test_types import SCALARS, same, scalars, values

PAGE = (Path(__file__).parents[2] / "docs" / "spark-options.md").read_text(encoding="utf-8")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
maybe_text = st.none() | texts
ascii_symbols = st.none() | st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol)
times = st.none() | st.integers(-62_135_596_800_000, 253_402_300_799_999).map(Timestamp)


def row_of(message: Message | bytes, **options: Any) -> dict[str, Any]:
    payload = message if isinstance(message, bytes) else message.encode()
    [row] = to_columns([payload], "orders", **options).to_pylist()
    return dict(row)


def through_spark(message: Message) -> Message:
    [outgoing] = to_messages(to_columns([message.encode()], "orders"))
    return Message.decode(outgoing.payload)


# ── the page ──


def test_the_schema_on_the_page_is_that_of_the_code() -> None:
    """The page has names, types, columns that the sink takes, and descriptions: users write their queries by it."""
    section = PAGE.split("## Schema\n")[1].split("### Types of properties")[0]
    shown = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (.*?) \| (.*) \|$", section, re.MULTILINE)
    wanted = [
        (column.name, column.type, ", ".join(f"`{kind}`" for kind in column.accepts) or "ignored", column.meaning)
        for column in (*COLUMNS, RAW)
    ]
    assert shown == wanted
    assert all(column.meaning for column in COLUMNS)


def test_every_type_of_a_property_is_on_the_page() -> None:
    """A user who writes a property has to spell its type, and finds the spelling on that page."""
    section = PAGE.split("### Types of properties")[1].split("```")[0]
    assert set(TYPES) <= set(re.findall(r"`(\w+)`", section))


# ── values ──


@pytest.mark.parametrize("name", SCALARS)
def test_a_simple_value_is_named_by_its_type_and_comes_back(name: str) -> None:
    """The name is the standard's, so that users need not learn another."""

    @given(SCALARS[name])
    def holds(value: Any) -> None:
        kind, text = to_text(value)
        assert kind == name
        assert same(from_text(kind, text), value)

    holds()


@given(values)
def test_any_value_comes_back(value: Any) -> None:
    """Described values, such as the time spans and addresses of .NET, and whole lists come back too."""
    assert same(from_text(*to_text(value)), value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "2147483648"),
        ("ubyte", "-1"),
        ("long", "1.0"),
        ("boolean", "True"),
        ("float", "1e39"),
        ("char", "ab"),
        ("symbol", "é"),
        ("uuid", "1234"),
        ("binary", "no base64!"),
        ("decimal32", "00"),
        ("amqp", "AAAA"),
        ("string", None),
        ("integer", "1"),
    ],
)
def test_text_that_is_no_value_of_its_type_is_refused(kind: str, text: str | None) -> None:
    """A value that was bent to fit would be another message."""
    with pytest.raises(ValueError, match=kind):
        from_text(kind, text)


# ── messages ──


@given(
    st.builds(
        Message,
        annotations=st.dictionaries(
            st.text(st.characters(max_codepoint=127), min_size=1, max_size=9).map(lambda t: Symbol("a-" + t)),
            scalars,
            min_size=1,
            max_size=3,
        ),
        properties=st.builds(
            Properties,
            message_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
            user_id=st.none() | st.binary(max_size=9),
            to=maybe_text,
            subject=maybe_text,
            reply_to=maybe_text,
            correlation_id=maybe_text,
            content_type=ascii_symbols,
            content_encoding=ascii_symbols,
            absolute_expiry_time=times,
            creation_time=times,
            group_id=maybe_text,
            group_sequence=st.none() | st.integers(0, 0xFFFFFFFF).map(UInt),
            reply_to_group_id=maybe_text,
        ),
        application_properties=st.dictionaries(texts, scalars, min_size=1, max_size=4),
        data=st.lists(st.binary(max_size=300), min_size=1, max_size=1),
    )
)
def test_any_message_comes_through_spark_as_it_was(message: Message) -> None:
    """Read by the source and written by the sink: properties, annotations, types of every value, body."""
    after = through_spark(message)
    assert after.properties == message.properties
    assert same(after.annotations, message.annotations)
    assert same(after.application_properties, message.application_properties)
    assert after.data == message.data


@pytest.mark.parametrize(
    ("message", "body_type"),
    [
        (Message(data=[b"raw"]), "data"),
        (Message(value="text é", has_value=True), "string"),
        (Message(value=Int(5), has_value=True), "value"),
        (Message(value=None, has_value=True), "value"),
        (Message(value={"a": [Long(1)]}, has_value=True), "value"),
        (Message(sequences=[["a", Int(1)], []]), "sequence"),
    ],
)
def test_every_kind_of_body_comes_through_spark(message: Message, body_type: str) -> None:
    """The body of a message of another client may be a value or lists."""
    assert row_of(message)["body_type"] == body_type
    after = through_spark(message)
    assert (after.data, after.value, after.has_value) == (message.data, message.value, message.has_value)
    assert same(after.sequences, message.sequences)


def test_what_the_service_says_of_a_message_has_columns_of_its_own() -> None:
    """The fields are not repeated among the annotations; a lock has no meaning to a reader of rows."""
    message = Message(
        header=Header(ttl=UInt(60_000), delivery_count=UInt(3)),
        annotations={
            Symbol("x-opt-sequence-number"): Long(12),
            Symbol("x-opt-enqueue-sequence-number"): Long(7),
            Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_123),
            Symbol("x-opt-locked-until"): Timestamp(1_700_000_060_000),
            Symbol("x-opt-message-state"): Int(1),
            Symbol("x-opt-deadletter-source"): "orders",
            Symbol("x-opt-partition-key"): "north",
            Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_700_000_000_000),
        },
        application_properties={"DeadLetterReason": "Expired", "DeadLetterErrorDescription": "too late"},
        data=[b""],
    )
    row = row_of(message)
    assert row["annotations"] == []
    assert (row["sequence_number"], row["enqueued_sequence_number"], row["delivery_count"]) == (12, 7, 3)
    assert row["enqueued_time"] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert row["scheduled_enqueue_time"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert (row["state"], row["dead_letter_source"], row["partition_key"]) == ("deferred", "orders", "north")
    assert (row["dead_letter_reason"], row["dead_letter_error_description"]) == ("Expired", "too late")
    assert (row["time_to_live_ms"], row["entity"]) == (60_000, "orders")
    assert sequence_number_of(message.encode()) == 12
    assert enqueued_ms_of(message.encode()) == 1_700_000_000_123


def test_fields_of_unusual_types_are_shown_as_text() -> None:
    """Ids may be numbers, UUIDs or bytes by the standard; one such message must not spoil its batch."""
    usual = Message(properties=Properties(message_id="a"), data=[b""]).encode()
    odd = [
        Message(properties=Properties(message_id=message_id), data=[b""]).encode()
        for message_id in (ULong(7), UUID(int=1), b"raw", b"\xff")
    ]
    batch = to_columns([usual, *odd], "orders")
    assert batch.column("message_id").to_pylist() == ["a", "7", str(UUID(int=1)), "raw", "�"]


def test_a_message_that_is_no_amqp_is_shown_as_it_is() -> None:
    """One broken message must not keep the others of its queue from being read; and it cannot be sent by mistake."""
    good, bad = Message(data=[b"x"]).encode(), b"\x00\x53\x75\xa0\xff"
    batch = to_columns([good, bad], "orders")
    assert batch.column("body_type").to_pylist() == ["data", "undecodable"]
    assert batch.column("body").to_pylist() == [b"x", bad]
    with pytest.raises(BadRow, match="row 1, column body_type: 'undecodable'"):
        list(to_messages(batch))


def test_times_that_no_clock_shows_are_null() -> None:
    """Spark and Python end at the year 9999; a clamped time would be a lie."""
    message = Message(properties=Properties(creation_time=Timestamp(1 << 62)), data=[b""])
    assert row_of(message)["creation_time"] is None


def test_the_raw_message_is_there_when_it_is_asked_for() -> None:
    """The column has all bytes, also of sections without a column."""
    payload = Message(footer={Symbol("f"): Int(1)}, data=[b"x"]).encode()
    assert row_of(payload, include_raw=True)["raw"] == payload
    assert "raw" not in row_of(payload)


def test_properties_without_their_types_are_plain_text() -> None:
    """The column is a map of text to text, which the sink takes as well; null stays null."""
    properties = {"n": Int(5), "t": "text", "none": None, "yes": True}
    message = Message(application_properties=properties, annotations={Symbol("x-own"): Long(7)}, data=[b""])
    batch = to_columns([message.encode(), Message(data=[b""]).encode()], "q", plain=True)
    assert batch.schema == arrow_schema(False, True)
    first, second = batch.column("application_properties").to_pylist()
    assert (dict(first), second) == ({"n": "5", "t": "text", "none": None, "yes": "true"}, [])
    assert batch.column("annotations").to_pylist()[0] == [("x-own", "7")]


def test_no_messages_are_an_empty_batch() -> None:
    """The empty batch has the same schema: code that concatenates batches needs no special case."""
    assert to_columns([], "orders").schema == arrow_schema() and to_columns([], "orders").num_rows == 0


# ── rows of users ──


def test_a_row_of_text_and_plain_properties_is_a_message() -> None:
    """Columns of a data frame are usually text."""
    message = Message.decode(to_message({"body": "grüezi", "application_properties": {"a": "1"}, "session_id": "s"}))
    assert message.body == "grüezi".encode()
    assert message.application_properties == {"a": "1"}
    assert message.properties is not None and message.properties.group_id == "s"


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"message_id": "x" * 129}, "message_id"),
    ({"session_id": "x" * 129}, "session_id"),
    ({"session_id": "a", "partition_key": "b"}, "partition_key"),
    ({"time_to_live_ms": 0}, "time_to_live_ms"),
    ({"time_to_live_ms": 1 << 32}, "time_to_live_ms"),
    ({"group_sequence": -1}, "group_sequence"),
    ({"content_type": "é"}, "content_type"),
    ({"application_properties": {"n": {"type": "int", "value": "x"}}}, "application_properties"),
    ({"application_properties": {"n": {"type": None, "value": "x"}}}, "application_properties"),
    ({"annotations": {"é": {"type": "int", "value": "1"}}}, "annotations"),
    ({"annotations": {"x-opt-partition-key": {"type": "string", "value": "1"}}}, "annotations"),
    ({"body": b"\xff", "body_type": "string"}, "body"),
    ({"body": b"\x54", "body_type": "value"}, "body"),
    ({"body": b"\x54\x01\x54\x01", "body_type": "value"}, "body"),
    ({"body": b"\x54\x01", "body_type": "sequence"}, "body"),
    ({"body": b"", "body_type": "sequence"}, "body"),
    ({"body_type": "json"}, "body_type"),
    ({"time_to_live_ms": "soon"}, "time_to_live_ms"),
]


@pytest.mark.parametrize(("row", "column"), BAD_ROWS)
def test_a_bad_row_is_named_with_its_column(row: dict[str, Any], column: str) -> None:
    """The error must lead to one cell among a million rows."""
    with pytest.raises(BadRow, match=rf"^row 0, column {column}: "):
        to_message({"body": b""} | row)


def test_the_number_of_a_bad_row_counts_all_batches_of_the_task() -> None:
    """Arrow cuts a partition into batches that no user knows of."""
    batch = pa.RecordBatch.from_pydict({"body": [b"", b""], "time_to_live_ms": [1, -1]})
    with pytest.raises(BadRow, match="partition 3, row 101, column time_to_live_ms: -1 is not within"):
        list(to_messages(batch, first_row=100, place="partition 3, "))


def test_id_is_made_of_the_place_and_content_of_a_row() -> None:
    """The same row in the same place has the same id; another row in its place must never be taken for it."""

    def ids(*bodies: str) -> list[Any]:
        batch = pa.RecordBatch.from_pydict({"body": list(bodies)})
        found = (Message.decode(message.payload).properties for message in to_messages(batch, id_prefix="job-0-"))
        return [properties.message_id if properties else None for properties in found]

    assert ids("a", "a") == ids("a", "a")
    assert len(set(ids("a", "a"))) == 2
    assert set(ids("a", "b")).isdisjoint(ids("b", "a"))
    assert all(len(message_id) <= 128 for message_id in ids("a"))


def test_a_given_id_is_kept() -> None:
    """A given id is the sender's own promise that two messages are the same."""
    batch = pa.RecordBatch.from_pydict({"body": ["a"], "message_id": ["mine"]})
    [message] = to_messages(batch, id_prefix="job-0-")
    properties = Message.decode(message.payload).properties
    assert properties is not None and properties.message_id == "mine"


@pytest.mark.parametrize(
    ("types", "text"),
    [
        (
            {"body": "binary", "subjct": "string"},
            "column subjct is not known to format servicebus; did you mean subject?",
        ),
        ({"body": "array<int>"}, "column body is array<int>; format servicebus takes binary or string"),
        ({"subject": "string"}, "column body is missing"),
        ({"body": "binary", "creation_time": "timestamp_ntz"}, "column creation_time is timestamp_ntz"),
    ],
)
def test_a_frame_that_cannot_be_sent_is_refused_by_its_columns(types: dict[str, str], text: str) -> None:
    """Columns are checked before any row."""
    with pytest.raises(ConfigError, match=re.escape(text)):
        check_written_columns(types)


def test_whatever_was_read_can_be_written() -> None:
    """Columns of the service are ignored by the sink, so that a frame needs no selecting on its way back."""
    check_written_columns({column.name: column.type for column in (*COLUMNS, RAW)})
    check_written_columns({"body": "void", "subject": "void"})


def test_described_values_keep_their_descriptors() -> None:
    """A time span of .NET is one of them."""
    span = Described(Symbol("com.microsoft:timespan"), Long(600_000_000))
    message = Message(application_properties={"wait": span}, data=[b""])
    assert row_of(message)["application_properties"][0][1]["type"] == "amqp"
    assert through_spark(message).application_properties == {"wait": span}
