"""Between the wire and the store: bytes stay what they were, and the broker's own words stand in front of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import (
    BATCH_FORMAT,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    SEQUENCE,
    Header,
    Message,
    Properties,
    encode_batch,
    section,
)
from pairbus.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong, encode
from pairbus.broker.entities.queue import Draft
from pairbus.broker.refusal import Refusal
from pairbus.broker.store import DEFERRED, StoredMessage
from pairbus.broker.wire.deliveries import encode_delivery, patch_of
from pairbus.broker.wire.draft_reader import DraftReader
from pairbus.broker.wire.messages import draft_of, drafts_of
from pairbus.filters import MessageView


def delivered(draft: Draft, locked_until_ms: int = 0, **fields: Any) -> Message:
    stored = StoredMessage(7, draft.body, annotations=draft.annotations, enqueued_ms=1000, **fields)
    return Message.decode(encode_delivery(stored, locked_until_ms))


def test_everything_from_the_properties_on_is_kept_byte_for_byte() -> None:
    """Re-encoding would change integer widths; a signature over the body would break."""
    bare = (
        Properties(message_id="m", subject="s", group_id="g").encode()
        + b"\x00\x53\x74" + encode({"wide": ULong(1), "narrow": Int(1)})
        + b"\x00\x53\x75\xb0\x00\x00\x00\x03abc"  # a length of 3 written in four bytes
        + b"\x00\x53\x78" + encode({Symbol("x-footer"): 1})
    )  # fmt: skip
    draft = draft_of(Header(durable=True).encode() + bare)
    assert draft.body == bare
    assert encode_delivery(StoredMessage(1, draft.body)).endswith(bare)


def test_annotations_of_the_sender_are_kept_and_those_of_the_service_dropped() -> None:
    """A received message that is sent again carries the number of its former life."""
    annotations = {
        Symbol("x-opt-partition-key"): "p",
        Symbol("x-opt-sequence-number"): 99,
        Symbol("x-opt-locked-until"): Timestamp(5),
        Symbol("x-own"): Int(3),
    }
    draft = draft_of(Message(annotations=annotations, properties=Properties(message_id="m")).encode())
    assert delivered(draft).annotations == {
        "x-opt-sequence-number": 7,
        "x-opt-enqueued-time": 1000,
        "x-opt-partition-key": "p",
        "x-own": 3,
    }


@pytest.mark.parametrize("locked_until_ms", [0, 5000])
@pytest.mark.parametrize("fields", [{}, {"ttl_ms": 60_000}, {"delivery_count": 2}, {"state": DEFERRED}])
def test_a_delivery_says_what_the_broker_knows(locked_until_ms: int, fields: dict[str, int]) -> None:
    """The short way for the common delivery and the long way for the others agree."""
    draft = draft_of(Message(properties=Properties(message_id="m"), data=[b"x"]).encode())
    found = delivered(draft, locked_until_ms, **fields)
    assert found.header is not None and found.annotations is not None
    assert found.header.delivery_count == fields.get("delivery_count", 0)
    assert found.header.ttl == fields.get("ttl_ms")
    assert found.annotations.get("x-opt-locked-until", 0) == locked_until_ms
    assert found.annotations.get("x-opt-message-state", 0) == fields.get("state", 0)
    assert found.annotations["x-opt-sequence-number"] == 7
    assert found.data == [b"x"]


@pytest.mark.parametrize("fields", [{}, {"origin_seq": 3}])
def test_short_and_long_way_of_a_locked_delivery_agree(fields: dict[str, Any]) -> None:
    """Most deliveries are packed into a ready form; receivers must not be able to tell."""
    token = bytes(range(16))
    body = Message(properties=Properties(message_id="m"), data=[b"x"]).encode()
    short = Message.decode(encode_delivery(StoredMessage(7, body, enqueued_ms=1000, **fields), 5000, token))
    again = StoredMessage(7, body, enqueued_ms=1000, delivery_count=1, **fields)
    long = Message.decode(encode_delivery(again, 5000, token))
    assert short.header is not None and not short.header.delivery_count
    assert long.header is not None and long.header.delivery_count == 1
    assert short.delivery_annotations == long.delivery_annotations == {"x-opt-lock-token": UUID(bytes_le=token)}
    assert short.annotations == long.annotations
    assert (short.annotations or {}).get("x-opt-enqueue-sequence-number", 0) == fields.get("origin_seq", 0)
    assert short.data == long.data == [b"x"]


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"\x00\x53\x73\x45",
        b"\x00\x53\x73\xc0\x01\x00",
        b"\x00\x53\x73\xd0\x00\x00\x00\x04\x00\x00\x00\x00",
        Properties(subject="s").encode(),
        b"\x00\x80" + bytes(7) + b"\x73" + Properties(subject="s").encode()[3:],  # the descriptor in eight bytes
        b"\x00\x53\x73\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x40",
    ],
)
def test_a_message_without_an_id_gets_one_and_keeps_the_rest(properties: bytes) -> None:
    """The JavaScript SDK sends none, and cannot settle a message that has none."""
    before = Message.decode(properties + b"\x00\x53\x75\xa0\x01x")
    draft = draft_of(properties + b"\x00\x53\x75\xa0\x01x")
    after = Message.decode(draft.body)
    assert after.properties is not None
    assert after.properties.message_id == draft.message_id and len(draft.message_id) == 36
    assert after.properties.subject == (before.properties.subject if before.properties else None)
    assert after.data == [b"x"]


@pytest.mark.parametrize("properties", [b"\x45", b"\xc0\x01\x00", b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00"])
def test_a_message_of_nothing_but_empty_properties_is_one(properties: bytes) -> None:
    """Empty properties have no byte behind them to look at; that broke the sender's connection."""
    draft = draft_of(b"\x00\x53\x73" + properties)
    assert draft.body == Properties(message_id=draft.message_id).encode()


@pytest.mark.parametrize("message_id", ["text", b"text", ULong(5), UInt(5)])
def test_ids_of_every_type_are_known_by_their_text(message_id: Any) -> None:
    """Duplicate detection must recognise a message that the Python SDK re-sends with a binary id."""
    draft = draft_of(Message(properties=Properties(message_id=message_id)).encode())
    assert draft.message_id == (message_id.decode() if isinstance(message_id, bytes) else str(message_id))
    assert draft.body.startswith(b"\x00\x53\x73")


@pytest.mark.parametrize("ttl", [None, 0, 1, 4_294_967_295])
def test_the_time_to_live_is_read_from_the_header(ttl: int | None) -> None:
    """A header that ends before this field has no time to live."""
    assert draft_of(Message(header=Header(ttl=ttl), properties=Properties(message_id="m")).encode()).ttl_ms == ttl
    assert draft_of(Message(header=Header(durable=True), properties=Properties(message_id="m")).encode()).ttl_ms is None
    assert draft_of(b"\x00\x53\x70\xc0\x00").ttl_ms is None  # a list of no bytes, at the end of the message


@pytest.mark.parametrize(
    ("code", "value", "reason"),
    [
        (DATA, b"\xa2\x00", "a data section is not binary"),  # a constructor that AMQP does not know
        (DATA, b"\xa1\x01x", "a data section is not binary"),
        (DATA, b"\x40", "a data section is not binary"),
        (DATA, b"\x00\x53\x01\xa0\x01x", "a data section is not binary"),
        (SEQUENCE, b"\xa0\x01x", "a sequence section is not a list"),
        (SEQUENCE, b"\xc2\x01\x00", "a sequence section is not a list"),
    ],
)
@pytest.mark.parametrize("before", [b"", Properties(message_id="m").encode()])
def test_body_that_no_receiver_could_read_is_refused_at_the_send(
    code: int, value: bytes, reason: str, before: bytes
) -> None:
    """The receivers of the Python SDK fail as a whole when they meet such a message, again at each delivery of it."""
    payload = before + section(code, value)
    for read in (draft_of, DraftReader().draft_of):
        with pytest.raises(ProtocolError, match=reason) as refused:
            read(payload)
        assert refused.value.condition == "amqp:decode-error"


def test_every_form_of_data_and_sequence_is_taken() -> None:
    """Senders may choose among the forms of one value."""
    for code, values in ((DATA, ["a00178", "b00000000178"]), (SEQUENCE, ["45", "c0020140", "d0000000050000000140"])):
        bodies = [section(code, bytes.fromhex(value)) for value in values]
        whole = Properties(message_id="m").encode() + b"".join(bodies)
        assert draft_of(whole).body == whole


HEADERS = [
    Header(durable=True),
    Header(durable=False, priority=0, first_acquirer=False),
    Header(priority=9),
    Header(first_acquirer=True),
    Header(True, 200, 5000, True, 3),
]


@pytest.mark.parametrize("token", [b"", bytes(16)], ids=["deleted", "locked"])
@pytest.mark.parametrize("fields", [{}, {"delivery_count": 2}, {"origin_seq": 3}])
@pytest.mark.parametrize("sent", HEADERS, ids=repr)
def test_header_of_the_sender_is_delivered(sent: Header, fields: dict[str, Any], token: bytes) -> None:
    """Durable, priority and first-acquirer are the sender's; time to live and delivery count are the broker's."""
    draft = draft_of(Message(header=sent, properties=Properties(message_id="m"), data=[b"x"]).encode())
    stored = StoredMessage(7, draft.body, annotations=draft.annotations, ttl_ms=draft.ttl_ms or 0, **fields)
    found = Message.decode(encode_delivery(stored, 5000 if token else 0, token))
    assert found.header == replace(sent, delivery_count=fields.get("delivery_count", 0))
    assert found.data == [b"x"]


def test_header_without_a_meaning_takes_no_room() -> None:
    """SDKs write empty headers, and headers with a time to live alone."""
    for header in (Header(), Header(ttl=5), Header(delivery_count=4)):
        assert draft_of(Message(header=header, properties=Properties(message_id="m")).encode()).annotations == b""


@pytest.mark.parametrize("header", [[1, None], [None, "high"], [None, 256], [None, None, None, "no"]])
def test_header_that_no_receiver_could_read_is_refused(header: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="header"):
        draft_of(section(HEADER, encode(header)) + Properties(message_id="m").encode())


@pytest.mark.parametrize("header", [None, Header(durable=True)])
@pytest.mark.parametrize("token", [b"", bytes(16)], ids=["deleted", "locked"])
def test_delivery_annotations_of_the_sender_are_delivered(header: Header | None, token: bytes) -> None:
    """Beside the broker's own lock token, wherever the sender's SDK wrote them; not with an earlier lock token."""
    own = {Symbol("x-own"): Int(3)}
    plain = Message(header, annotations=own, properties=Properties(message_id="m"), data=[b"x"])
    behind = section(DELIVERY_ANNOTATIONS, encode({Symbol("x-hop"): 1, Symbol("x-opt-lock-token"): UUID(int=5)}))
    draft = draft_of(plain.encode() + behind)
    stored = StoredMessage(7, draft.body, annotations=draft.annotations)
    found = Message.decode(encode_delivery(stored, 5000 if token else 0, token))
    of_broker = {"x-opt-lock-token": UUID(int=0)} if token else {}
    assert found.delivery_annotations == {"x-hop": 1} | of_broker
    assert found.header is not None and found.header.durable is (None if header is None else True)
    assert (found.annotations or {})["x-own"] == 3
    assert set(MessageView(draft.body, draft.annotations).annotation_pairs()) >= {"x-own"}


def test_annotations_named_like_a_section_are_dropped() -> None:
    """The standard reserves numbers as keys; here they are the places of header and delivery annotations."""
    draft = draft_of(
        Message(annotations={ULong(0x70): 1, ULong(0x71): 2}, properties=Properties(message_id="m")).encode()
    )
    assert draft.annotations == b""


def test_annotations_of_many_bytes_are_kept_too() -> None:
    """A map beyond 255 bytes has another form, and its pairs stand elsewhere."""
    annotations = {Symbol("x-opt-sequence-number"): 99, Symbol("x-long"): "y" * 300}
    draft = draft_of(Message(annotations=annotations, properties=Properties(message_id="m")).encode())
    assert draft.annotations == encode(Symbol("x-long")) + encode("y" * 300)
    assert (delivered(draft).annotations or {})["x-long"] == "y" * 300


def test_a_scheduled_time_is_read_and_kept() -> None:
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(123_456)}
    draft = draft_of(Message(annotations=annotations, properties=Properties(message_id="m")).encode())
    assert draft.scheduled_ms == 123_456
    assert (delivered(draft).annotations or {})["x-opt-scheduled-enqueue-time"] == 123_456


def test_only_the_content_type_makes_a_ping() -> None:
    """The words of a ping in a body or another property are nobody's business."""
    ping = "application/vnd.ms-servicebus-ping"
    assert draft_of(Message(properties=Properties(message_id="m", content_type=ping)).encode()).is_ping
    assert not draft_of(Message(properties=Properties(message_id="m", subject=ping)).encode()).is_ping
    assert not draft_of(Message(properties=Properties(message_id=ping), data=[ping.encode()]).encode()).is_ping


def test_a_batch_is_its_messages_and_nothing_of_its_envelope() -> None:
    inner = [Message(properties=Properties(message_id=f"m{i}"), data=[b"x"]).encode() for i in range(3)]
    drafts = drafts_of(encode_batch(inner), BATCH_FORMAT)
    assert [draft.body for draft in drafts] == inner


@pytest.mark.parametrize(
    ("payload", "message_format"),
    [
        (b"garbage", 0),
        (b"\x00\x53\x75\xa0\x05x", 0),  # data that ends before its length
        (b"\x00\x53\x73\xc1\x01\x00", 0),  # properties that are a map
        (b"\x00\x53\x73\xc0\x06\x03\xa1\x01m\xff\xff", 0),  # fields after the id that are not AMQP
        (b"\x00\x53\x74\xa1\x01x", 0),  # application properties that are text
        (b"\x00\x53\x72\x45", 0),  # annotations that are a list
        (Properties(message_id="i" * 129).encode(), 0),
        (Message(annotations={Symbol("x-opt-scheduled-enqueue-time"): "tomorrow"}).encode(), 0),
        (Message(annotations={Symbol("x-opt-scheduled-enqueue-time"): ULong(2**64 - 1)}).encode(), 0),
        (b"\x00\x53\x70" + encode([None, None, Int(-1)]), 0),  # times to live that do not fit a uint
        (b"\x00\x53\x70" + encode([None, None, ULong(2**32)]), 0),
        (b"\x00\x53\x70" + encode([None, None, "long"]), 0),
        (b"\x00\x53\x73\xc0\x04\x02\x40\xd1\x01", 0),  # properties without an id whose second field is cut
        (b"\x00\x53\x73\xc0\x03\x02\x40\xd1", 0),
        (b"\x00\x53\x73\xc0\x02\x01\xa1", 0),  # an id that is cut
        (b"\x00\x53\x73\xc0\x03\x01\xa1\x05" + section(DATA, encode(b"body")), 0),  # an id that reaches into the body
        (b"\x00\x53\x73\xc0\x03\x01\xa1\x03" + section(DATA, encode(b"body")), 0),  # the same, and it would be text
        (Properties(message_id=1.5).encode(), 0),  # no id of the standard
        (b"\x00\x53\x73" + encode(["m", *[None] * 9, 7]), 0),  # a session id that is a number
        (Properties(message_id="m", group_id="s" * 129).encode(), 0),
        (b"\x00\x53\x70\xc1\x03\x02\x40\x40", 0),  # a header that is a map
        (b"\x00\x53\x70\x45\x00\x53\x75\xa0\x01x\x00\x53\x70\x45", 0),  # a second header
        (b"\x00\x53\x77\x40\x00\x53\x71\xc1\x01\x00\x00\x53\x75\xa0\x01x", 0),  # two kinds of body, out of order
        (encode_batch([b"garbage"]), BATCH_FORMAT),
        (Properties(message_id="m").encode(), BATCH_FORMAT),  # a batch without messages
        (b"\x00\x53\x77\x40", 5),
        (encode(Described(ULong(0x75), "text instead of bytes")), BATCH_FORMAT),
    ],
)
def test_what_is_no_message_is_refused_with_a_reason(payload: bytes, message_format: int) -> None:
    """Before it is stored: a receiver never gets bytes that it cannot read."""
    with pytest.raises((ProtocolError, Refusal)) as refused:
        drafts_of(payload, message_format)
    assert refused.value.description  # type: ignore[attr-defined]


def test_changed_properties_replace_their_namesakes_and_leave_the_rest_as_bytes() -> None:
    """An abandon may change one property; the width of another one's integer is not its business."""
    before = Message(
        properties=Properties(message_id="m"), application_properties={"a": Int(1), "b": ULong(2)}, data=[b"x"]
    )
    patch = patch_of({"a": "one"}) + patch_of({"c": True}) + patch_of({"a": "two"})
    after = delivered(draft_of(before.encode()), patch=patch)
    assert after.application_properties == {"a": "two", "b": 2, "c": True}
    assert type((after.application_properties or {})["b"]) is ULong
    assert after.data == [b"x"]


@pytest.mark.parametrize("properties", [Properties(message_id="m"), Properties(message_id="m", subject="s")])
def test_changed_properties_stand_where_the_standard_wants_them(properties: Properties) -> None:
    """A message without application properties gets the section behind its properties, before its body."""
    after = delivered(
        draft_of(Message(properties=properties, data=[b"x"]).encode()), patch=patch_of({"why": "because"})
    )
    assert after.application_properties == {"why": "because"}
    assert after.properties is not None and after.properties.subject == properties.subject
    assert after.data == [b"x"]


def test_a_property_without_a_name_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not text"):
        patch_of({5: "five"})
