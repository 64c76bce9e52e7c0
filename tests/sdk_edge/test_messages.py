"""Messages at the edge: every form that the SDK accepts, and the caller's objects untouched."""

from __future__ import annotations

import pickle
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, aio
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.amqp.message import PROPERTIES, sections
from pairbus.backlog.aliases import RESERVED
from pairbus.sdk.encoding import encode
from pairbus.sdk.messages import as_messages, body_size, due_at, ensure_message_id, reserved_property
from pairbus.transport.connection.client_connection import connect
from tests.conftest import MakeQueue
from tests.sdk_edge.conftest import Strings

SCHEDULED = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


# ── the forms of a send ──


def test_every_form_that_the_sdk_accepts_becomes_a_list() -> None:
    """One message, an annotated one, a mapping, lists and generators of these, a batch."""
    message, annotated = ServiceBusMessage("a"), AmqpAnnotatedMessage(value_body=5)
    assert as_messages(message) == [message]
    assert as_messages([message, message]) == [message, message]
    assert as_messages(one for one in (message,)) == [message]
    assert [one.raw_amqp_message for one in as_messages(annotated)] == [annotated]
    assert [one.raw_amqp_message for one in as_messages((annotated,))] == [annotated]
    assert [str(one) for one in as_messages({"body": "b"})] == ["b"]
    assert [str(one) for one in as_messages([{"body": "b"}, message])] == ["b", "a"]
    batch = ServiceBusMessageBatch()
    batch.add_message(message)
    batch.add_message(annotated)
    assert as_messages(batch)[0] is message and len(as_messages(batch)) == 2


@pytest.mark.parametrize("nothing", [[], (), {}, "", ServiceBusMessageBatch()])
def test_nothing_is_nothing(nothing: Any) -> None:
    """The SDK sends nothing then, without a word."""
    assert as_messages(nothing) == []


@pytest.mark.parametrize("wrong", [5, "text", [5], None, {"bodi": "b"}, [["nested"]]])
def test_wrong_types_are_refused_as_the_sdk_refuses_them(wrong: Any) -> None:
    """The error has the SDK's own words, and comes before any connection is opened."""
    sender = ServiceBusClient.from_connection_string(
        "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true", retry_total=0
    ).get_queue_sender("q")
    with pytest.raises(TypeError) as theirs:
        sender.send_messages(wrong)
    with pytest.raises(TypeError) as ours:
        as_messages(wrong)
    assert str(ours.value) == str(theirs.value)


def test_a_message_without_an_id_gets_one_in_a_copy() -> None:
    """Duplicate detection can then recognise the message; the caller's object is not changed."""
    annotated = AmqpAnnotatedMessage(data_body=b"x")
    [message] = as_messages(annotated)
    named = ensure_message_id(message)
    assert uuid.UUID(named.message_id) and annotated.properties is None
    assert ensure_message_id(named) is named
    emptied = ServiceBusMessage("x", subject="s")
    emptied.message_id = None
    again = ensure_message_id(emptied)
    assert again.message_id and again.subject == "s" and emptied.message_id is None


@pytest.mark.parametrize("key", ["x-ms-path", b"x-ms-path", "x-pairbus-counter"])
def test_reserved_names_are_found_as_text_and_as_bytes(key: str | bytes) -> None:
    """Received messages that are sent on have bytes."""
    name = key if isinstance(key, str) else key.decode()
    message = ServiceBusMessage("x", application_properties={"own": 1, key: "v"})
    assert reserved_property(message, RESERVED) == name
    assert reserved_property(ServiceBusMessage("x", application_properties={"x-ms-other": 1}), RESERVED) is None


def test_looking_for_reserved_names_costs_next_to_nothing() -> None:
    """Every send of a healthy client pays it; a fraction of a microsecond, where the whole healthy path may add 20."""
    message = ServiceBusMessage("x")
    assert min(_cpu_s(message) for _ in range(5)) < 5e-6


def _cpu_s(message: ServiceBusMessage) -> float:
    began = time.thread_time()
    for _ in range(1000):
        reserved_property(message, RESERVED)
    return (time.thread_time() - began) / 1000


# ── bytes ──


async def test_encoding_gives_the_bytes_that_the_sdk_sends(strings: Strings, make_queue: MakeQueue) -> None:
    """The result is compared with a message of the real broker, which keeps all bytes from the properties on."""
    queue = make_queue()
    message = ServiceBusMessage(b"body", application_properties={"text": b"bytes", "n": 1}, subject="s")
    expected = encode(message)
    assert message.application_properties == {"text": b"bytes", "n": 1}
    async with aio.ServiceBusClient.from_connection_string(strings.here) as client:
        await client.get_queue_sender(queue).send_messages(message)
    async with await connect(strings.here) as connection:
        [received] = await (await connection.receiver(queue)).receive(1, timeout_s=5)
    assert from_properties(received.payload) == from_properties(expected) == expected
    assert len(encode(message)) == len(expected)


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
    assert body_size(message) == least <= len(encode(message))


# ── the caller's objects ──


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
    """Deeply: the same object, sent again, is the same message."""
    message = full_message()
    before = pickle.dumps(message.raw_amqp_message)
    later = due_at(message, SCHEDULED + timedelta(days=1))
    encode(message)
    len(encode(message))
    assert later.scheduled_enqueue_time_utc == SCHEDULED + timedelta(days=1)
    assert pickle.dumps(message.raw_amqp_message) == before


def test_a_scheduled_copy_shares_the_body() -> None:
    """A copy costs no copy of the large part."""
    message = ServiceBusMessage(bytes(200_000))
    copied = due_at(message, SCHEDULED)
    assert copied.raw_amqp_message._data_body is message.raw_amqp_message._data_body
