"""Messages at the edge: every form that the SDK accepts, copies for the backlog, and the caller's objects untouched."""

from __future__ import annotations

import copy
import pickle
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, aio
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus import sdk
from pairbus.amqp.message import APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, sections
from pairbus.amqp.types import decode
from pairbus.pairing.aliases import RESERVED
from pairbus.pairing.envelope import Away, Home, unwrap, wrap
from pairbus.transport.client import connect
from tests.conftest import MakeQueue
from tests.sdk_edge.conftest import Strings

SCHEDULED = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


# ── the forms of a send ──


def test_every_form_that_the_sdk_accepts_becomes_a_list() -> None:
    """One message, an annotated one, a mapping, lists and generators of these, a batch."""
    message, annotated = ServiceBusMessage("a"), AmqpAnnotatedMessage(value_body=5)
    assert sdk.as_messages(message) == [message]
    assert sdk.as_messages([message, message]) == [message, message]
    assert sdk.as_messages(one for one in (message,)) == [message]
    assert [one.raw_amqp_message for one in sdk.as_messages(annotated)] == [annotated]
    assert [one.raw_amqp_message for one in sdk.as_messages((annotated,))] == [annotated]
    assert [str(one) for one in sdk.as_messages({"body": "b"})] == ["b"]
    assert [str(one) for one in sdk.as_messages([{"body": "b"}, message])] == ["b", "a"]
    batch = ServiceBusMessageBatch()
    batch.add_message(message)
    batch.add_message(annotated)
    assert sdk.as_messages(batch)[0] is message and len(sdk.as_messages(batch)) == 2


@pytest.mark.parametrize("nothing", [[], (), {}, "", ServiceBusMessageBatch()])
def test_nothing_is_nothing(nothing: Any) -> None:
    """The SDK sends nothing then, without a word."""
    assert sdk.as_messages(nothing) == []


@pytest.mark.parametrize("wrong", [5, "text", [5], None, {"bodi": "b"}, [["nested"]]])
def test_wrong_types_are_refused_as_the_sdk_refuses_them(wrong: Any) -> None:
    """In the SDK's own words, before anything is opened."""
    sender = ServiceBusClient.from_connection_string(
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true", retry_total=0
    ).get_queue_sender("q")
    with pytest.raises(TypeError) as theirs:
        sender.send_messages(wrong)
    with pytest.raises(TypeError) as ours:
        sdk.as_messages(wrong)
    assert str(ours.value) == str(theirs.value)


def test_a_message_without_an_id_gets_one_in_a_copy() -> None:
    """So that duplicate detection knows it again; the caller's object stays as it was."""
    annotated = AmqpAnnotatedMessage(data_body=b"x")
    [message] = sdk.as_messages(annotated)
    named = sdk.ensure_message_id(message)
    assert uuid.UUID(named.message_id) and annotated.properties is None
    assert sdk.ensure_message_id(named) is named
    emptied = ServiceBusMessage("x", subject="s")
    emptied.message_id = None
    again = sdk.ensure_message_id(emptied)
    assert again.message_id and again.subject == "s" and emptied.message_id is None


@pytest.mark.parametrize("key", ["x-ms-path", b"x-ms-path", "x-pairbus-counter"])
def test_reserved_names_are_found_as_text_and_as_bytes(key: str | bytes) -> None:
    """Received messages that are sent on have bytes."""
    name = key if isinstance(key, str) else key.decode()
    message = ServiceBusMessage("x", application_properties={"own": 1, key: "v"})
    assert sdk.reserved_property(message, RESERVED) == name
    assert sdk.reserved_property(ServiceBusMessage("x", application_properties={"x-ms-other": 1}), RESERVED) is None


def test_looking_for_reserved_names_costs_next_to_nothing() -> None:
    """Every send of a healthy client pays it; a fraction of a microsecond, where the whole healthy path may add 20."""
    message = ServiceBusMessage("x")
    assert min(_cpu_s(message) for _ in range(5)) < 5e-6


def _cpu_s(message: ServiceBusMessage) -> float:
    began = time.thread_time()
    for _ in range(1000):
        sdk.reserved_property(message, RESERVED)
    return (time.thread_time() - began) / 1000


# ── bytes ──


async def test_encoding_gives_the_bytes_that_the_sdk_sends(strings: Strings, make_queue: MakeQueue) -> None:
    """Compared with what the real broker got: it passes on everything from the properties on byte for byte."""
    queue = make_queue()
    message = ServiceBusMessage(b"body", application_properties={"text": b"bytes", "n": 1}, subject="s")
    expected = sdk.encode(message)
    assert message.application_properties == {"text": b"bytes", "n": 1}
    async with aio.ServiceBusClient.from_connection_string(strings.here) as client:
        await client.get_queue_sender(queue).send_messages(message)
    async with await connect(strings.here) as connection:
        [received] = await (await connection.receiver(queue)).receive(1, timeout_s=5)
    assert from_properties(received.payload) == from_properties(expected) == expected
    assert sdk.size(message) == len(expected)


def from_properties(payload: bytes) -> bytes:
    [start] = [start for code, start, _, _ in sections(payload) if code == PROPERTIES]
    return bytes(payload[start:])


@pytest.mark.parametrize(
    ("message", "least"),
    [
        (ServiceBusMessage(b"x" * 1000), 1000),
        (ServiceBusMessage("ä" * 10), 20),
        (ServiceBusMessage(None), 0),
        (AmqpAnnotatedMessage(data_body=[b"12", b"345"]), 5),
        (AmqpAnnotatedMessage(value_body="text"), 4),
        (AmqpAnnotatedMessage(value_body={"a": 1}), 0),
        (AmqpAnnotatedMessage(sequence_body=[1, 2]), 0),
    ],
)
def test_the_size_of_a_body_is_a_lower_bound(message: Any, least: int) -> None:
    """Cheap: nothing is encoded."""
    assert sdk.body_size(message) == least <= sdk.size(message)


# ── the copy for the backlog ──

values = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=20),
    st.binary(max_size=20).map(lambda raw: raw.hex().encode()),
    st.booleans(),
    st.floats(allow_nan=False),
    st.uuids(),
    st.none(),
    st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
)
names = st.text("abcdefgh-", min_size=1, max_size=12)
texts = st.none() | st.text(max_size=30)
bodies: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.binary(max_size=300).map(lambda body: {"data_body": body}),
    st.lists(st.binary(max_size=20), min_size=1, max_size=3).map(lambda body: {"data_body": body}),
    st.lists(st.integers(0, 100) | st.text(max_size=5), min_size=1).map(lambda body: {"sequence_body": [body]}),
    (st.integers(0, 100) | st.text(max_size=5) | st.dictionaries(names, st.integers(0, 9))).map(
        lambda body: {"value_body": body}
    ),
)


@st.composite
def messages(draw: st.DrawFn) -> AmqpAnnotatedMessage:
    properties = {
        "message_id": draw(st.text(min_size=1, max_size=40) | st.uuids() | st.integers(0, 2**32)),
        "subject": draw(texts),
        "correlation_id": draw(texts),
        "content_type": draw(st.none() | names),  # a symbol: ASCII
        "reply_to": draw(texts),
        "group_id": draw(texts),
        "user_id": draw(st.none() | st.binary(max_size=9)),
        "group_sequence": draw(st.none() | st.integers(0, 9)),
        "creation_time": draw(st.none() | st.integers(1, 2**41)),
    }
    annotations: dict[Any, Any] = draw(st.dictionaries(names.map(lambda name: f"x-opt-{name}"), values, max_size=3))
    if draw(st.booleans()):
        annotations[b"x-opt-scheduled-enqueue-time"] = SCHEDULED
    return AmqpAnnotatedMessage(
        **draw(bodies),
        properties=properties,
        annotations=annotations or None,
        application_properties=draw(st.none() | st.dictionaries(names, values, max_size=4)),
        header=draw(
            st.none()
            | st.fixed_dictionaries(
                {"time_to_live": st.none() | st.integers(1, 2**32 - 1), "durable": st.sampled_from([None, True])}
            )
        ),
    )


aways = st.builds(
    lambda first, order: {"first_attempt_ms": first, "sender": order and "me", "counter": order},
    st.none() | st.integers(1, 2**42),
    st.none() | st.integers(1, 2**40),
)


@settings(max_examples=150)
@given(messages(), aways)
def test_the_copy_says_what_the_envelope_says(message: AmqpAnnotatedMessage, away: dict[str, Any]) -> None:
    """The sender goes through the SDK and the spool through raw bytes: a syphon must not be able to tell."""
    plain = sdk.encode(message)
    copied = sdk.encode(sdk.wrapped(message, path="orders", **away))
    assert meaning(copied) == meaning(wrap(plain, Away("orders", **away)))
    home = unwrap(copied)
    assert isinstance(home, Home) and home.path == "orders"
    assert (home.first_attempt_ms, home.sender, home.counter) == tuple(away.values())
    assert meaning(home.payload) == meaning(plain)


def meaning(payload: bytes) -> dict[int, Any]:
    """Section by section: maps without order, lists without nulls at their end, and nothing for what says nothing.

    Times are left out where the SDK derives them from the clock of each encoding.
    """
    found: dict[int, Any] = {}
    for code, start, value_at, end in sections(payload):
        if code in (MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES):
            pairs = decode(payload, value_at)[0].items()
            value: Any = {key: (type(one).__name__, one) for key, one in pairs}
        elif code in (HEADER, PROPERTIES):
            value = [(type(one).__name__, one) for one in decode(payload, value_at)[0]]
            if code == PROPERTIES and len(value) > 9 and value[8][1] is not None:
                value[8:10] = []
            while value and value[-1][1] is None:
                value.pop()
        else:
            value = [*found.get(code, []), payload[start:end]]
        if value:
            found[code] = value
    return found


def full_message() -> ServiceBusMessage:
    return ServiceBusMessage(
        b"body",
        session_id="session",
        time_to_live=timedelta(seconds=90),
        scheduled_enqueue_time_utc=SCHEDULED,
        partition_key="session",
        application_properties={"own": 1, "raw": b"bytes"},
    )


def test_the_callers_message_is_never_modified() -> None:
    """Deeply: whoever sends the same object again sends the same message."""
    message = full_message()
    before = pickle.dumps(message.raw_amqp_message)
    sdk.wrapped(message, path="orders", first_attempt_ms=1, sender="me", counter=1)
    sdk.encode(message)
    sdk.size(message)
    assert pickle.dumps(message.raw_amqp_message) == before


def test_the_copy_shares_the_body() -> None:
    """A copy costs no copy of what is large."""
    message = ServiceBusMessage(bytes(200_000))
    copied = sdk.wrapped(message, path="orders")
    assert copied.raw_amqp_message._data_body is message.raw_amqp_message._data_body


def test_session_time_to_live_and_scheduled_time_are_out_of_the_way() -> None:
    """A backlog queue has no sessions, keeps for ever, and shows the message at once; the partition key stays."""
    copied = sdk.wrapped(full_message(), path="orders")
    assert (copied.session_id, copied.time_to_live, copied.scheduled_enqueue_time_utc) == (None, None, None)
    assert copied.partition_key == "session"


def test_creation_and_expiry_time_stay_as_the_sdk_would_have_set_them() -> None:
    """It derives them from the time to live at each send."""
    message = full_message()
    copied, original = (
        one.raw_amqp_message.properties for one in (sdk.wrapped(message, path="orders"), copy.deepcopy(message))
    )
    assert copied is not None and copied.absolute_expiry_time and copied.creation_time
    assert original is not None and original.creation_time
    assert copied.absolute_expiry_time - copied.creation_time == 90_000
    assert abs(copied.creation_time - original.creation_time) < 60_000


def test_a_time_to_live_that_amqp_cannot_carry_is_refused() -> None:
    """The SDK fails to encode more than 49.7 days; a message that it cannot send home is not taken away either."""
    with pytest.raises(ValueError, match="time_to_live"):
        sdk.wrapped(ServiceBusMessage("x", time_to_live=timedelta(days=50)), path="orders")


def test_the_sdks_longest_time_to_live_means_none() -> None:
    """There is nothing to restore."""
    message = AmqpAnnotatedMessage(data_body=b"x", header={"time_to_live": 922337203685477})
    copied = sdk.wrapped(message, path="orders")
    assert copied.application_properties == {"x-ms-path": "orders"} and copied.time_to_live is None
