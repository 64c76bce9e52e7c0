"""Messages as JSON objects, and back."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.message import Header, Message, Properties
from pairbus.amqp.types import Int, Symbol, Timestamp, UInt
from pairbus.explorer import BadMessage, described, edited, encoded, importable, sendable

MESSAGE_ID = UUID("123e4567-e89b-12d3-a456-426614174000")


def full() -> Message:
    """A message as it is received, with something in every section."""
    return Message(
        header=Header(durable=True, ttl=UInt(60_000), delivery_count=UInt(3)),
        delivery_annotations={Symbol("x-opt-lock-token"): MESSAGE_ID},
        annotations={
            Symbol("x-opt-sequence-number"): 12,
            Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000),
            Symbol("x-opt-partition-key"): "k",
            Symbol("x-own"): Int(7),
        },
        properties=Properties(message_id=MESSAGE_ID, subject="s", group_id="g", creation_time=Timestamp(1_000)),
        application_properties={"count": Int(5), "ratio": 0.5, "DeadLetterReason": "Poison", "gone": None},
        data=[b"caf\xc3\xa9"],
    )


def test_message_is_described_with_its_types() -> None:
    """An operator sees the message as a receiver would get it, and a program can tell an int from a long."""
    payload = full().encode()
    shown = json.loads(json.dumps(described(payload)))
    expected = {
        "sequence_number": 12,
        "message_id": str(MESSAGE_ID),
        "property_types": {"message_id": "uuid"},
        "body": "café",
        "body_type": "text",
        "subject": "s",
        "session_id": "g",
        "enqueued_time": "2023-11-14T22:13:20.000Z",
        "creation_time": "1970-01-01T00:00:01.000Z",
        "state": "active",
        "delivery_count": 3,
        "time_to_live_ms": 60_000,
        "dead_letter_reason": "Poison",
        "partition_key": "k",
        "annotations": {"x-own": {"type": "int", "value": "7"}},
        "application_properties": {
            "count": {"type": "int", "value": "5"},
            "ratio": {"type": "double", "value": "0.5"},
            "DeadLetterReason": {"type": "string", "value": "Poison"},
            "gone": {"type": "null", "value": None},
        },
        "size": len(payload),
    }
    assert shown == expected


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        ({"data": [b"ab", b"c"]}, "text", "abc"),
        ({"data": [b"\xff"]}, "base64", "/w=="),
        ({"value": "text", "has_value": True}, "string", "text"),
        ({"value": {"a": Int(1)}, "has_value": True}, "value", "wQYCoQFhVAE="),
        ({"sequences": [["a"]]}, "sequence", "wAQBoQFh"),
        ({}, "text", None),
    ],
    ids=["text", "bytes", "string", "value", "sequence", "none"],
)
def test_bodies_of_every_kind_are_shown_and_written(body: dict[str, Any], kind: str, shown: str | None) -> None:
    """The kind says how the text is to be read, so that nothing has to be guessed."""
    found = described(Message(**body).encode())
    assert (found["body_type"], found["body"]) == (kind, shown)
    assert Message.decode(encoded(found)).body == Message.decode(Message(**body).encode()).body


def test_export_is_imported_byte_for_byte() -> None:
    """Only fields that the service adds are left out; the bytes from the properties on are the sender's."""
    bare = full()
    bare.header, bare.annotations, bare.delivery_annotations = None, None, None
    line = json.loads(json.dumps(described(full().encode(), raw=True)))
    sent = importable(line)
    assert sent.endswith(bare.encode())
    again = Message.decode(sent)
    assert again.header == Header(durable=True, ttl=UInt(60_000))
    assert again.annotations == {"x-opt-partition-key": "k", "x-own": 7}
    assert again.delivery_annotations is None
    assert sendable(sent) == sent


def test_description_is_enough_to_send_the_message_again() -> None:
    """Without the raw bytes the same values have the same types."""
    again = Message.decode(encoded(described(full().encode())))
    original = Message.decode(full().encode())
    assert again.properties == original.properties
    assert again.application_properties == original.application_properties
    assert type((again.application_properties or {})["count"]) is Int
    assert again.data == original.data


def test_edit_changes_what_is_named_and_nothing_else() -> None:
    """Null clears a field; maps are replaced whole."""
    changed = Message.decode(
        edited(full().encode(), {"subject": None, "body": "new", "application_properties": {"a": 1, "b": True}})
    )
    assert changed.properties is not None
    assert (changed.properties.subject, changed.properties.message_id) == (None, MESSAGE_ID)
    assert changed.application_properties == {"a": 1, "b": True}
    assert changed.data == [b"new"]
    assert changed.annotations == {"x-opt-partition-key": "k", "x-own": 7}


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ({"boddy": "x"}, "field 'boddy' is not known; a message has absolute_expiry_time, annotations"),
        ({"body": 5}, "field body is 5; a text is needed"),
        ({"body": "x", "body_type": "xml"}, "field body_type is 'xml'; it may be text, base64, string"),
        ({"body": "x!", "body_type": "base64"}, "field body is no base64"),
        ({"body": "\ud800"}, "field body cannot be written as UTF-8"),
        ({"subject": "\ud800"}, "field subject: '.ud800' is no string: .* surrogates not allowed"),
        ({"partition_key": "\ud800"}, "field partition_key: '.ud800' is no string"),
        ({"application_properties": {"a": "\ud800"}}, "field application_properties.a: '.ud800' is no string"),
        ({"application_properties": {"\ud800": 1}}, "field application_properties: '.ud800' is no string"),
        ({"annotations": {"x-größe": 1}}, "field annotations: 'x-größe' is no symbol"),
        ({"message_id": ["a"]}, "field message_id is \\['a'\\]; a text is needed"),
        ({"application_properties": {"a": [1]}}, "field application_properties.a is \\[1\\]; write a plain value"),
        ({"application_properties": {"a": {"type": "int", "value": "x"}}}, "application_properties.a: 'x' is no int"),
        ({"application_properties": 1}, "field application_properties is 1; an object is needed"),
        ({"scheduled_enqueue_time": "soon"}, "field scheduled_enqueue_time is 'soon'; write a time such as"),
        ({"time_to_live_ms": 0}, "field time_to_live_ms is 0; it may be 1"),
        ({"raw": "AAAA"}, "field raw is no message"),
    ],
)
def test_wrong_field_is_named(shown: dict[str, Any], text: str) -> None:
    """The error tells a person who writes JSON by hand what to write."""
    with pytest.raises(BadMessage, match=text):
        importable(shown)


def test_bytes_that_are_no_message_are_shown() -> None:
    """One damaged message must not keep a user from seeing the others."""
    shown = described(b"\x00\x53\x99")
    assert (shown["body"], shown["body_type"]) == ("AFOZ", "base64")
    assert "undecodable" in shown
