"""The short cut over messages that are alike: it must see no difference, and be a short cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.message import Header, Message, Properties, sections
from pairbus.amqp.types import Int, Symbol, UInt
from pairbus.backlog import reader
from pairbus.backlog.envelope import Envelope, Home, Spoiled, unwrap, wrap
from pairbus.backlog.reader import Reader
from tests.amqp.test_message import messages
from tests.pairing.test_envelope import NOW_MS, as_delivered


def delivered(
    number: int,
    *,
    size: int = 300,
    delivery_count: int = 0,
    path: str = "orders",
    own: int = 1,
    token: bool = False,
) -> bytes:
    payload = Message(
        properties=Properties(message_id=f"id-{number:06}", subject="label"),
        application_properties={"own": Int(own)},
        data=[bytes([number % 256]) * size],
    ).encode()
    received = as_delivered(wrap(payload, Envelope(path)), delivery_count)
    return with_token(received, number) if token else received


def with_token(received: bytes, number: int) -> bytes:
    """Add the lock token that some services write into each delivery."""
    [header, *_] = sections(received)
    token = {Symbol("x-opt-lock-token"): UUID(int=number)}
    return received[: header[3]] + Message(delivery_annotations=token).encode() + received[header[3] :]


@given(
    st.lists(
        st.builds(
            delivered,
            st.integers(0, 5),
            size=st.sampled_from([0, 10, 300]),
            delivery_count=st.sampled_from([0, 1, 300]),
            path=st.sampled_from(["orders", "bills"]),
            own=st.integers(0, 1),
            token=st.booleans(),
        )
        | messages.map(lambda message: as_delivered(wrap(message.encode(), Envelope("orders"))))
        | messages.map(lambda message: wrap(message.encode(), Envelope("orders", 5, "me", 1)))
        | st.binary(max_size=20),
        max_size=12,
    ),
    st.data(),
)
def test_any_row_of_messages_is_read_as_each_of_them_alone(payloads: list[bytes], data: st.DataObject) -> None:
    """Some of the messages are damaged where the short cut does not look."""
    queue = Reader()
    for payload in payloads:
        if payload and data.draw(st.integers(0, 3)) == 0:
            place = data.draw(st.integers(0, len(payload) - 1))
            payload = payload[:place] + bytes([data.draw(st.integers(0, 255))]) + payload[place + 1 :]
        assert queue.unwrap(payload) == unwrap(payload)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that were read in full."""
    found: list[bytes] = []

    def counting(real: Callable[[bytes], Home | Spoiled]) -> Callable[[bytes], Home | Spoiled]:
        return lambda payload: found.append(payload) or real(payload)  # type: ignore[func-returns-value]

    monkeypatch.setattr(reader, "unwrap", counting(unwrap))
    return found


def test_messages_alike_are_looked_at_once(looked: list[bytes]) -> None:
    """Ids, bodies of any size, and delivery counts differ; the rest is known."""
    queue = Reader()
    for number in range(100):
        home = queue.unwrap(delivered(number, size=256 + number, delivery_count=number % 3))
        assert isinstance(home, Home)
        assert (home.message_id, home.enqueued_ms) == (f"id-{number:06}", NOW_MS)
        assert len(Message.decode(home.payload).data[0]) == 256 + number
    assert len(looked) == 1


def test_lock_tokens_of_deliveries_do_not_matter(looked: list[bytes]) -> None:
    """A broker may write one into each delivery; a syphon that read every message in full took twice its time."""
    queue = Reader()
    for number in range(100):
        payload = delivered(number, delivery_count=number % 3, token=number % 10 != 5)
        assert queue.unwrap(payload) == unwrap(payload)
    assert len(looked) == 1


def test_reader_learns_each_destination_once(looked: list[bytes]) -> None:
    """Messages for twenty destinations lie in one queue in any order; the reader decodes only a few of each."""
    queue = Reader()
    for number in range(2000):
        home = queue.unwrap(delivered(number, path=f"orders-{number % 20}", own=number % 3))
        assert isinstance(home, Home) and home.path == f"orders-{number % 20}"
    assert len(looked) < 200


def test_long_properties_and_short_bodies_are_known_too(looked: list[bytes]) -> None:
    """Sizes of one byte and of four are measured without reading the message in full."""
    queue = Reader()
    for number in range(10):
        payload = Message(
            properties=Properties(message_id=f"id-{number}"),
            application_properties={"own": "x" * 300},
            data=[b"y" * number],
        ).encode()
        home = queue.unwrap(as_delivered(wrap(payload, Envelope("orders"))))
        assert isinstance(home, Home) and home.payload == payload
    assert len(looked) == 1


OWN: dict[str, Any] = {"own": Int(1), "x-ms-path": "orders"}
LABELLED = Properties(message_id="id-000002", subject="label")
OTHERS: dict[str, bytes] = {
    "annotations of the sender": as_delivered(
        Message(None, None, {Symbol("own"): 1}, LABELLED, OWN, [b"x" * 300]).encode()
    ),
    "another subject": as_delivered(
        Message(None, None, None, Properties("id-000002", subject="other"), OWN, [b"x" * 300]).encode()
    ),
    "no application properties": as_delivered(Message(None, None, None, LABELLED, None, [b"x" * 300]).encode()),
    "a value as its body": as_delivered(Message(None, None, None, LABELLED, OWN, value=1, has_value=True).encode()),
    "two data sections": as_delivered(Message(None, None, None, LABELLED, OWN, [b"x" * 300, b"y"]).encode()),
    "no delivery count": Message(None, None, None, LABELLED, OWN, [b"x" * 300]).encode(),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_message_of_another_form_is_read_in_full(other: bytes, looked: list[bytes]) -> None:
    """A message that differs in any way from those before it is read without the short cut, and without guesses."""
    queue = Reader()
    queue.unwrap(delivered(1))
    assert queue.unwrap(other) == unwrap(other)
    assert looked[-1] == other


UNUSUAL: dict[str, Message] = {
    "no message id": Message(properties=Properties(subject="label"), data=[b"x"]),
    "an id of bytes": Message(properties=Properties(b"raw"), data=[b"x"]),
    "properties of 5 KB": Message(properties=Properties("m", subject="x" * 5000), data=[b"x"]),
    "application properties of 5 KB": Message(
        properties=Properties("m"), application_properties={"own": "x" * 5000}, data=[b"x"]
    ),
}


@pytest.mark.parametrize("message", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_or_large_message_is_not_learned_from(message: Message, looked: list[bytes]) -> None:
    """Memory of a reader is bounded by its number of messages and by their size."""
    queue, payload = Reader(), message.encode()
    for _ in range(3):
        home = queue.unwrap(as_delivered(wrap(payload, Envelope("orders"))))
        assert isinstance(home, Home) and home.payload == payload
    assert len(looked) == 3 and not queue._known


def test_damaged_annotations_of_the_usual_size_are_not_trusted() -> None:
    """One annotation is there twice and another one is missing."""
    queue, good = Reader(), delivered(1)
    assert isinstance(queue.unwrap(good), Home)
    number = good.index(b"\xa3\x15x-opt-sequence-number")
    time = good.index(b"\xa3\x13x-opt-enqueued-time")
    for bad in (
        good[:number] + good[time : time + 30] + good[number + 32 :],
        good[:time] + good[number : number + 32] + good[time + 30 :],
    ):
        assert queue.unwrap(bad) == unwrap(bad)


def test_a_queue_of_ever_new_properties_is_not_remembered_for_ever() -> None:
    queue = Reader()
    for number in range(reader.KNOWN_MAX * 3):
        queue.unwrap(delivered(number, own=number))
        queue.unwrap(delivered(number, own=number))
    assert len(queue._known) <= reader.KNOWN_MAX


def test_sessions_and_times_to_live_are_never_mixed_up() -> None:
    """Session and time to live are restored for each message, also when two messages look alike."""
    queue = Reader()
    for number in range(5):
        payload = Message(
            header=Header(ttl=UInt(1000 + number)), properties=Properties(message_id="m", group_id=f"s{number}")
        ).encode()
        home = queue.unwrap(as_delivered(wrap(payload, Envelope("orders"))))
        assert isinstance(home, Home) and (home.session_id, home.ttl_ms) == (f"s{number}", 1000 + number)
