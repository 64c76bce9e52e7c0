"""A message arrives as it was sent: every property, every type of application property, every kind of body."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from tests.client.messages import PROPERTIES_OF_ALL_TYPES, TYPED, WHEN
from tests.history.record import digest_of
from tests.sdk.flavours import Sdk, number, receive, receive_one

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _through(
    sdk: Sdk, queue: str, message: ServiceBusMessage | AmqpAnnotatedMessage
) -> tuple[ServiceBusReceivedMessage, ServiceBusReceivedMessage]:
    """The message as it is peeked and as it is received."""
    sender, receiver = await sdk.pair(queue)
    await sender.send_messages(message, timeout=10)
    peeked = await receiver.peek_messages(1, timeout=10)
    received = await receive_one(receiver)
    await receiver.complete_message(received)
    assert len(peeked) == 1
    assert number(peeked[0]) == number(received)
    return peeked[0], received


async def test_every_property_arrives(sdk: Sdk, queue_name: str) -> None:
    """Whether received or peeked, a message says what its sender said."""
    sent = ServiceBusMessage(
        "body",
        message_id="id-1",
        session_id="session-1",
        partition_key="session-1",
        content_type="text/plain",
        correlation_id="correlation-1",
        subject="subject-1",
        to="to-1",
        reply_to="reply-1",
        reply_to_session_id="reply-session-1",
        time_to_live=datetime.timedelta(hours=1),
        application_properties={"k": "v"},
    )
    digest = digest_of(sent)
    for message in await _through(sdk, queue_name, sent):
        assert message.message_id == "id-1"
        assert message.session_id == "session-1"
        assert message.partition_key == "session-1"
        assert message.content_type == "text/plain"
        assert message.correlation_id == "correlation-1"
        assert message.subject == "subject-1"
        assert message.to == "to-1"
        assert message.reply_to == "reply-1"
        assert message.reply_to_session_id == "reply-session-1"
        assert message.time_to_live == datetime.timedelta(hours=1)
        assert message.enqueued_time_utc is not None
        assert message.expires_at_utc == message.enqueued_time_utc + datetime.timedelta(hours=1)
        assert digest_of(message) == digest


async def test_every_type_of_application_property_arrives(sdk: Sdk, queue_name: str) -> None:
    """Values keep their AMQP types; the SDK shows received text as bytes and times as milliseconds."""
    expected = {
        b"int": 1,
        b"negative": -5,
        b"largest": 2**31 - 1,
        b"double": 0.1,
        b"text": "grüße".encode(),
        b"empty": b"",
        b"long text": b"x" * 1000,
        b"true": True,
        b"false": False,
        b"null": None,
        b"uuid": PROPERTIES_OF_ALL_TYPES["uuid"],
        b"time": round(WHEN.timestamp() * 1000),
        **{name.encode(): value for name, (_, value) in TYPED.items()},
        b"symbol": b"symbol",
    }
    message = AmqpAnnotatedMessage(data_body=b"x", application_properties=PROPERTIES_OF_ALL_TYPES)
    for received in await _through(sdk, queue_name, message):
        assert received.application_properties == expected


BODIES: dict[str, tuple[dict[str, Any], AmqpMessageBodyType, Any]] = {
    "data": ({"data_body": b"\x00\x01\xff"}, AmqpMessageBodyType.DATA, [b"\x00\x01\xff"]),
    "empty data": ({"data_body": b""}, AmqpMessageBodyType.DATA, [b""]),
    "two data sections": ({"data_body": [b"one", b"two"]}, AmqpMessageBodyType.DATA, [b"one", b"two"]),
    "text value": ({"value_body": "text"}, AmqpMessageBodyType.VALUE, b"text"),
    "number value": ({"value_body": 7}, AmqpMessageBodyType.VALUE, 7),
    "map value": (
        {"value_body": {"a": [1, "x", None, True, 2.5], "b": {"c": b"y"}}},
        AmqpMessageBodyType.VALUE,
        {b"a": [1, b"x", None, True, 2.5], b"b": {b"c": b"y"}},
    ),
    "sequence": ({"sequence_body": [1, "a", None]}, AmqpMessageBodyType.SEQUENCE, [[1, b"a", None]]),
    "two sequences": ({"sequence_body": [[1, "a"], [2, None]]}, AmqpMessageBodyType.SEQUENCE, [[1, b"a"], [2, None]]),
}


async def test_every_kind_of_body_arrives(sdk: Sdk, queue_name: str) -> None:
    """The broker stores the encoded body and never rewrites it."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    for given, _, _ in BODIES.values():
        await sender.send_messages(AmqpAnnotatedMessage(**given), timeout=10)
    peeked = await receiver.peek_messages(len(BODIES), timeout=10)
    for messages in (peeked, await receive(receiver, len(BODIES))):
        found = {
            name: (m.body_type, m.body if m.body_type is AmqpMessageBodyType.VALUE else list(m.body))
            for name, m in zip(BODIES, messages, strict=True)
        }
        assert found == {name: (body_type, expected) for name, (_, body_type, expected) in BODIES.items()}


async def test_a_message_without_a_body_arrives(sdk: Sdk, queue_name: str) -> None:
    """Python sends no body section at all for None; the SDK shows that as a value of None."""
    for received in await _through(sdk, queue_name, ServiceBusMessage(None, message_id="bare")):
        assert received.body_type is AmqpMessageBodyType.VALUE
        assert received.body is None
        assert received.message_id == "bare"


async def test_the_rest_of_an_amqp_message_arrives(sdk: Sdk, queue_name: str) -> None:
    """Header, annotations of both kinds, footer and the rarer properties are the sender's, not the broker's."""
    sent = AmqpAnnotatedMessage(
        data_body=b"x",
        header=AmqpMessageHeader(durable=True, priority=7, first_acquirer=True),
        delivery_annotations={"x-hop": 5},
        properties=AmqpMessageProperties(
            message_id="m", user_id=b"user", content_encoding="gzip", group_id="g", group_sequence=5
        ),
        annotations={"x-mine": 1, "x-text": "t"},
        footer={"checksum": "abc"},
    )
    for received in await _through(sdk, queue_name, sent):
        raw = received.raw_amqp_message
        assert raw.properties is not None
        assert raw.properties.user_id == b"user"
        assert raw.properties.content_encoding == b"gzip"
        assert raw.properties.group_sequence == 5
        assert raw.header is not None
        assert (raw.header.durable, raw.header.priority, raw.header.first_acquirer) == (True, 7, True)
        assert raw.delivery_annotations is not None
        assert raw.delivery_annotations[b"x-hop"] == 5
        assert raw.annotations is not None
        assert raw.annotations[b"x-mine"] == 1
        assert raw.annotations[b"x-text"] == b"t"
        assert raw.footer == {b"checksum": b"abc"}


async def test_a_received_message_can_be_sent_again(sdk: Sdk, queue_name: str) -> None:
    """A received message carries the broker's annotations and a binary message id; the broker replaces its own and
    keeps the rest.
    """
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("again", message_id="m-1", subject="s"), timeout=10)
    first = await receive_one(receiver)
    await sender.send_messages(first, timeout=10)
    await receiver.complete_message(first)
    second = await receive_one(receiver)
    assert number(second) > number(first)
    assert second.delivery_count == 0
    assert second.subject == "s"
    assert b"".join(second.body) == b"again"


async def test_a_message_without_an_id_gets_one(sdk: Sdk, queue_name: str) -> None:
    """Receivers of other languages settle by it and fail without one."""
    for received in await _through(sdk, queue_name, AmqpAnnotatedMessage(data_body=b"x")):
        assert received.message_id
