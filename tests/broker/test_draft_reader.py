"""A reader uses the likeness to earlier messages: its drafts are those of a reader that looks at every byte."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import DATA, Header, Message, Properties, section
from pairbus.amqp.types import Symbol, Timestamp, encode
from pairbus.broker.entities.queue import Draft
from pairbus.broker.refusal import Refusal
from pairbus.broker.wire.draft_reader import HEAD_SIZE_MAX, HEADS_MAX, LEARN_EACH, DraftReader
from pairbus.broker.wire.messages import MESSAGE_ID_LENGTH_MAX, PING_CONTENT_TYPE, draft_of

HEADS = (
    b"",
    Header(durable=True).encode(),
    Header(durable=True, ttl=60_000).encode(),
    Header(durable=True).encode() + b"\x00\x53\x72" + encode({Symbol("x-own"): 1}),
    b"\x00\x53\x72" + encode({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5000), Symbol("x-own"): 1}),
)
MIDDLES = (
    b"",
    b"\x00\x53\x74" + encode({"colour": "red"}),
    b"\x00\x53\x74" + encode("no map"),
    b"\x00\x53\x74" + encode({"long": "x" * HEAD_SIZE_MAX}),
)
ENDS = (
    b"",
    b"\x00\x53\x75\xb0\x00\x00\x00\x03abc",
    b"\x00\x53\x75\xb0\x00\x00\x00\x00",
    b"\x00\x53\x75\xb0\x00\x00\x00\x04cut",
    b"\x00\x53\x75\xb0\x00\x00\x00\x02long",
    section(DATA, encode(b"abc")),
    section(DATA, encode(b"x" * 300)),
    section(DATA, encode(b"x" * 300)) * 2,
    b"\x00\x53\x77" + encode("value"),
    section(DATA, encode(b"x" * 300)) + b"\x00\x53\x78" + encode({Symbol("x-footer"): 1}),
)

message_ids = st.one_of(
    st.sampled_from(["0123456789abcdef", "0123456789abcdeé", "f" * 16, "", "i" * 128, "i" * 129, "i" * 255]),
    st.sampled_from([b"binary", UUID(int=7), 12, None, 1.5]),
)
properties = st.one_of(
    st.builds(lambda message_id: Properties(message_id=message_id).encode(), message_ids),
    st.builds(lambda message_id: Properties(message_id=message_id, subject="s").encode(), message_ids),
    st.builds(
        lambda message_id: Properties(message_id=message_id, content_type=PING_CONTENT_TYPE.decode()).encode(),
        message_ids,
    ),
    st.sampled_from(
        [
            b"",
            b"\x00\x53\x73\x45",
            b"\x00\x53\x73\xc0\x01\x00",
            b"\x00\x53\x73\xc0\x05\x01\xa1\x02\xff\xfe",  # an id that is not valid UTF-8
            b"\x00\x53\x73\xc0\x06\x02\xa1\x02\xff\xfe\x40",
            b"\x00\x53\x73\xc0\x07\x02\xa1\x02\xff\xfe\xa1\x00",
            b"\x00\x53\x73\xd0\x00\x00\x00\x08\x00\x00\x00\x01\xa1\x02ab",
        ]
    ),
)
payloads = st.builds(
    lambda head, fields, middle, end: head + fields + middle + end,
    st.sampled_from(HEADS),
    properties,
    st.sampled_from(MIDDLES),
    st.sampled_from(ENDS),
)


def outcome(read: object, payload: bytes) -> object:
    try:
        draft = read(payload)  # type: ignore[operator]
    except (ProtocolError, Refusal) as error:
        return type(error), error.condition, error.description
    assert isinstance(draft, Draft)
    if draft.message_id.encode() not in payload:  # the reader made up a random id, or the id was not a string
        return replace(draft, message_id="", body=draft.body.replace(draft.message_id.encode(), b""))
    return draft


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(payloads, st.integers(1, 4)), min_size=1, max_size=8), st.data())
def test_drafts_by_likeness_are_those_of_a_look_at_every_byte(
    said: list[tuple[bytes, int]], draw: st.DataObject
) -> None:
    """The two readers give the same draft or the same refusal, after any messages and with any byte changed."""
    reader = DraftReader()
    for payload, times in said:
        for _ in range(times):
            assert outcome(reader.draft_of, payload) == outcome(draft_of, payload)
        if payload:
            damaged = bytearray(payload)
            damaged[draw.draw(st.integers(0, min(len(payload) - 1, 80)))] = draw.draw(st.integers(0, 255))
            assert outcome(reader.draft_of, bytes(damaged)) == outcome(draft_of, bytes(damaged))


def test_the_second_message_of_a_sender_is_read_by_its_likeness() -> None:
    """Without the short cut the tests above would test nothing, and nothing would be faster."""
    reader = DraftReader()
    for number in range(5):
        message = Message(properties=Properties(message_id=f"id {number}"), data=[b"%d" % number * 300])
        assert reader.draft_of(message.encode()).message_id == f"id {number}"
    assert reader.misses == 1


def test_ids_of_every_length_are_read_by_likeness() -> None:
    """Numbers grow: a batch has `order-99` and `order-100`, and each length of an id makes another head."""
    reader = DraftReader()
    for number in range(1000):
        message = Message(properties=Properties(message_id=f"order-{number}"), data=[b"x" * 300])
        assert reader.draft_of(message.encode()).message_id == f"order-{number}"
    assert reader.misses == 3


def test_sender_of_unlike_messages_learns_only_now_and_then() -> None:
    """Learning costs more than reading: a sender of ever different messages must not pay for both each time."""
    reader = DraftReader()
    for number in range(1000):
        properties = Properties(message_id="id", subject="even" if number % 2 == 0 else "odd.")
        reader.draft_of(Message(properties=properties, data=[b"x" * 300]).encode())
    assert 450 < reader.misses < 550


def test_what_is_remembered_of_a_sender_is_bounded() -> None:
    """The number of heads is bounded, with ids of any length; learning one head again forgets no other."""
    reader = DraftReader()
    sizes = [1 + number % (MESSAGE_ID_LENGTH_MAX - 1) for number in range(LEARN_EACH * 3 * HEADS_MAX)]
    learned: set[bytes] = set()
    for number, size in enumerate(sizes):
        ids = Properties(message_id="i" * size, subject=f"{number:08}")
        reader.draft_of(Message(properties=ids, data=[b"x" * 300]).encode())
        learned |= reader._heads.keys()
        assert len(reader._heads) <= HEADS_MAX
    assert len(learned) > HEADS_MAX


def test_sections_out_of_order_are_put_in_order_each_time() -> None:
    """The Python SDK writes delivery annotations behind the body: such a head stands elsewhere in each message."""
    reader = DraftReader()
    for number in range(3):
        message = Message(properties=Properties(message_id=f"id {number}"), data=[b"x" * 300]).encode()
        hop = encode({Symbol("x-hop"): 1})
        draft = reader.draft_of(message + b"\x00\x53\x71" + hop)
        assert draft == Draft(message, b"\x53\x71" + hop, message_id=f"id {number}")
    assert reader.misses == 3
