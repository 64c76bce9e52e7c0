"""Sections of a message: round trips, order, and bytes that are no message."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import BatchMessage
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import (
    BATCH_FORMAT,
    DATA,
    FOOTER,
    PROPERTIES,
    Header,
    Message,
    Properties,
    encode_batch,
    header_section,
    in_order,
    section,
    sections,
)
from pairbus.amqp.types import Decimal, Described, Symbol, Timestamp, UInt, ULong, encode
from tests.amqp.test_performatives import composites
from tests.amqp.test_types import same, values

some_annotations = st.none() | st.dictionaries(st.text(max_size=3).filter(str.isascii).map(Symbol), values, max_size=2)
properties = st.none() | st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4), values, max_size=2
)
heads: dict[str, st.SearchStrategy[Any]] = {
    "header": st.none() | composites(Header),
    "delivery_annotations": some_annotations,
    "annotations": some_annotations,
    "properties": st.none() | composites(Properties),
    "application_properties": properties,
    "footer": some_annotations,
}
messages = st.one_of(
    st.builds(Message, **heads),
    st.builds(Message, **heads, data=st.lists(st.binary(max_size=300), max_size=3)),
    st.builds(Message, **heads, sequences=st.lists(st.lists(values, max_size=2), max_size=3)),
    st.builds(Message, **heads, value=values, has_value=st.just(True)),
)


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Every section, every kind of body and none at all."""
    raw = message.encode()
    got = Message.decode(raw)
    assert got == message
    assert same(got.value, message.value) and same(got.sequences, message.sequences)
    assert got.encode() == raw


@given(messages)
def test_the_walk_over_sections_covers_every_byte(message: Message) -> None:
    """A broker keeps sections as bytes: what it cuts out and joins again is the message."""
    raw = message.encode()
    at = 0
    for code, start, value_at, end in sections(raw):
        assert start == at and raw[start:value_at] == b"\x00\x53" + bytes((code,))
        at = end
    assert at == len(raw)


def test_sections_may_be_named_by_symbol_or_by_a_wide_number() -> None:
    """The standard allows both; nobody's message is refused for it."""
    by_symbol = b"\x00\xa3\x10amqp:data:binary\xa0\x01x"
    by_ulong = b"\x00\x80" + DATA.to_bytes(8, "big") + b"\xa0\x01y"
    assert Message.decode(by_symbol + by_ulong).data == [b"x", b"y"]


def test_sections_in_any_order_are_put_into_the_standards() -> None:
    """The Python SDK writes delivery annotations behind the body, and others the body behind the footer."""
    message = Message(
        header=Header(ttl=5),
        delivery_annotations={Symbol("d"): "1"},
        annotations={Symbol("a"): "2"},
        properties=Properties(message_id="m"),
        data=[b"x", b"y"],
        footer={Symbol("f"): "3"},
    )
    encoded = message.encode()
    parts = [encoded[start:end] for _, start, _, end in sections(encoded)]
    assert in_order(encoded)[0] is encoded
    for order in ([0, 2, 3, 4, 5, 6, 1], [6, 4, 5, 3, 2, 1, 0], [4, 0, 1, 2, 3, 6, 5]):
        mixed = b"".join(parts[at] for at in order)
        assert Message.decode(mixed) == message
        assert in_order(mixed) == (encoded, sections(encoded))


WRONG = {
    "not described": b"\x40",
    "an unknown section": section(0x79, b"\x40"),
    "a descriptor that is text": b"\x00\xa1\x01x\x40",
    "out of order": section(0x73, b"\x45") + section(0x72, b"\xc1\x01\x00"),
    "two headers": section(0x70, b"\x45") * 2,
    "two values": section(0x77, b"\x40") * 2,
    "data and a value": section(0x75, b"\xa0\x00") + section(0x77, b"\x40"),
    "data and a sequence": section(0x75, b"\xa0\x00") + section(0x76, b"\x45"),
    "a sequence and a value": section(0x76, b"\x45") + section(0x77, b"\x40"),
    "a cut section": section(0x75, b"\xa0\x05abc"),
    "a cut descriptor": b"\x00\x53",
    "a descriptor that is described": b"\x00\x00\x53\x75\x40\xa0\x00",
    "a value whose descriptor is described": section(0x77, b"\x00\x00\x53\x01\x40\x40"),
}


@pytest.mark.parametrize("raw", WRONG.values(), ids=WRONG.keys())
def test_bytes_that_are_no_row_of_sections_are_refused(raw: bytes) -> None:
    """Before anything is stored: what is stored must be readable for whoever receives it."""
    with pytest.raises(ProtocolError):
        list(sections(raw))


MISTYPED: dict[str, Any] = {
    "a header that is a map": section(0x70, encode({})),
    "data that is text": section(0x75, encode("x")),
    "data that is a decimal": section(0x75, encode(Decimal(b"1234"))),
    "properties that are an array": section(0x73, b"\xe0\x02\x00\x70"),
    "properties with a number for a group": section(0x73, encode([None] * 10 + [UInt(1)])),
    "a time beyond 64 bits": section(0x73, encode([None] * 8 + [ULong((1 << 64) - 1)])),
    "a value that ends early": section(0x75, b"\xc0\x03\x01\x40\x40"),
}


@pytest.mark.parametrize("raw", MISTYPED.values(), ids=MISTYPED.keys())
def test_sections_that_hold_the_wrong_thing_are_refused_when_decoded(raw: bytes) -> None:
    """Values that could be read but never be written again are refused too."""
    with pytest.raises(ProtocolError):
        Message.decode(raw)


@given(st.binary(max_size=80) | messages.map(Message.encode), st.integers(0, 200), st.integers(0, 255))
def test_any_bytes_are_a_message_or_a_protocol_error(raw: bytes, at: int, value: int) -> None:
    """Random bytes, and messages with one byte changed."""
    damaged = bytearray(raw or b"\x00")
    damaged[at % len(damaged)] = value
    try:
        message = Message.decode(bytes(damaged))
    except ProtocolError:
        return
    assert isinstance(message.encode(), bytes)


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_a_batch_is_one_data_section_for_each_message(inner: list[bytes]) -> None:
    """message-format 0x80013700: each data section is a whole message, the envelope stands before them."""
    assert BATCH_FORMAT == 0x80013700
    first = Message(properties=Properties(message_id="m"), data=[b"x"]).encode()
    batch = Message.decode(encode_batch([first, *inner]))
    assert batch.data == [first, *inner] and batch.properties == Properties(message_id="m")


FIRSTS: dict[str, dict[str, Any]] = {
    "an id": {},
    "an id of its own": {"message_id": "m" * 128},
    "a session": {"session_id": "s"},
    "a session and its key": {"session_id": "s", "partition_key": "s"},
    "a long key": {"partition_key": "ü" * 120},
    "properties": {"application_properties": {"a": 1}, "subject": "x", "correlation_id": "c"},
}


@pytest.mark.parametrize("first", FIRSTS.values(), ids=FIRSTS.keys())
def test_the_envelope_of_a_batch_is_the_one_that_the_sdk_writes(first: dict[str, Any]) -> None:
    """Entities with sessions and partitions refuse a batch whose envelope does not say where its first message goes."""
    batch = ServiceBusMessageBatch()
    batch.add_message(ServiceBusMessage("body", **first))
    batch.add_message(ServiceBusMessage("other" * 100, session_id=first.get("session_id")))
    genuine = bytearray()
    encode_payload(genuine, BatchMessage(*batch._message))
    assert encode_batch([bytes(message) for message in batch._message[5]]) == bytes(genuine)


NO_ID = Properties(group_id="s")
ENVELOPES: dict[str, tuple[bytes, Any, Properties | None]] = {
    "annotations without a key": (Message(annotations={Symbol("own"): 1}, properties=NO_ID).encode(), None, NO_ID),
    "an empty key": (Message(annotations={Symbol("x-opt-partition-key"): ""}).encode(), None, None),
    "a key that is a number": (Message(annotations={Symbol("x-opt-partition-key"): 5}).encode(), None, None),
    "an id of bytes": (Message(properties=Properties(message_id=b"raw")).encode(), None, Properties("raw")),
    "an id of many bytes": (Message(properties=Properties(b"r" * 300)).encode(), None, Properties("r" * 300)),
    "an id of bytes that are no text": (Message(properties=Properties(b"\xff")).encode(), None, Properties(b"\xff")),
    "properties in the wide form": (
        section(PROPERTIES, b"\xd0\x00\x00\x00\x07\x00\x00\x00\x01\xa1\x01m"),
        None,
        Properties("m"),
    ),
}


@pytest.mark.parametrize(("first", "annotations", "properties"), ENVELOPES.values(), ids=ENVELOPES.keys())
def test_envelope_of_a_batch_says_where_it_goes_and_nothing_else(
    first: bytes, annotations: Any, properties: Properties | None
) -> None:
    """Messages of other encoders and odd keys too: a wrong envelope would file the whole batch in a wrong place."""
    batch = Message.decode(encode_batch([first]))
    assert (batch.annotations, batch.properties, batch.data) == (annotations, properties, [first])


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_get_no_envelope(inner: bytes) -> None:
    """The peer refuses them and says why; making the batch does not fail."""
    batch = encode_batch([section(PROPERTIES, inner), inner])
    assert batch.endswith(Message(data=[section(PROPERTIES, inner), inner]).encode())


def test_the_header_of_a_delivery_counts_the_deliveries_before() -> None:
    """A time to live of 0 is not said; one beyond 32 bits is said as the longest there is."""
    assert Message.decode(header_section(0, 3)).header == Header(delivery_count=3)
    assert Message.decode(header_section(1 << 40, 0)).header == Header(ttl=0xFFFFFFFF, delivery_count=0)


def test_the_body_is_whatever_kind_was_sent() -> None:
    """Value, joined data or sequences; a value of null is a value."""
    assert Message(data=[b"a", b"b"]).body == b"ab"
    assert Message(sequences=[[1]]).body == [[1]]
    assert Message(has_value=True).body is None
    assert Message().body == b""
    assert Message(application_properties={"a": Timestamp(1)}).property("a") == 1
    assert Message().property("a") is None
    assert Message.decode(section(FOOTER, encode({Symbol("x"): Described(ULong(1), None)}))).footer is not None
