"""Messages as bytes: the quick ways of making them give the bytes that the SDK itself would send."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.backlog.envelope import Envelope, Home, Wrapper, unwrap, wrap
from pairbus.sdk.encoding import encode, plainly_encoded

texts = st.none() | st.text(max_size=8) | st.sampled_from(["", "é" * 127, "é" * 128, "x" * 255, "x" * 256])
ids = texts | st.uuids() | st.binary(min_size=1, max_size=8)
TEXTS = ("to", "subject", "reply_to", "content_type", "content_encoding")
OTHERS: dict[str, Any] = {
    "user_id": b"me",
    "creation_time": 1,
    "absolute_expiry_time": 2,
    "group_id": "session",
    "group_sequence": 3,
    "reply_to_group_id": "another",
}


@st.composite
def messages(draw: st.DrawFn) -> AmqpAnnotatedMessage:
    """Mostly those that are encoded at hand, and their neighbours that are not."""
    properties: dict[str, Any] = {name: draw(texts) for name in draw(st.sets(st.sampled_from(TEXTS), max_size=2))}
    properties |= {name: draw(ids) for name in ("message_id", "correlation_id") if draw(st.booleans())}
    properties |= {name: OTHERS[name] for name in draw(st.sets(st.sampled_from(sorted(OTHERS)), max_size=1))}
    size = draw(st.sampled_from([0, 1, 255, 256, 70_000]))
    more: dict[str, Any] = draw(
        st.sampled_from(
            [{}, {}, {}, {"annotations": {"x-opt-a": 1}}, {"application_properties": {"own": 1}}, {"footer": {"f": 1}}]
        )
    )
    header = draw(st.sampled_from([None, None, {}, {"durable": True}, {"priority": 0}]))
    bodies: list[dict[str, Any]] = [{"data_body": b"x" * size}, {"data_body": [b"a", b"b"]}, {"value_body": "text"}]
    body = draw(st.sampled_from(bodies))
    return AmqpAnnotatedMessage(**body, properties=properties, header=header, **more)


def as_the_sdk_says_it(message: AmqpAnnotatedMessage) -> bytes:
    outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
    return bytes(PyamqpTransport.encode_message(ServiceBusMessage(None, message=outgoing, raw_amqp_message=message)))


@settings(max_examples=400, deadline=None)
@given(messages())
def test_our_encoder_writes_the_bytes_of_the_sdk(message: AmqpAnnotatedMessage) -> None:
    """A copy that travels as bytes must not be told from the message that the primary would have got."""
    expected = as_the_sdk_says_it(message)
    assert encode(message) == expected
    plain = plainly_encoded(message)
    assert plain in (None, expected)
    if plain is not None:
        wrapped = Wrapper(Envelope("orders")).wrap(plain)
        assert wrapped == wrap(plain, Envelope("orders"))
        home = unwrap(wrapped)
        assert isinstance(home, Home) and home.path == "orders" and home.payload == plain


@pytest.mark.parametrize(
    "given",
    [
        {"message_id": "i"},
        {"message_id": "i" * 128, "subject": "s"},
        {"message_id": "i", "correlation_id": "c", "content_type": "application/json", "to": "t", "reply_to": "r"},
    ],
)
def test_the_usual_message_is_encoded_at_hand(given: dict[str, Any]) -> None:
    """Without our own encoder the tests above would test nothing, and nothing would be faster."""
    for size in (0, 255, 256, 30_000):
        assert plainly_encoded(ServiceBusMessage(b"x" * size, **given)) is not None


@pytest.mark.parametrize(
    "given",
    [
        {"session_id": "s"},
        {"time_to_live": timedelta(seconds=1)},
        {"application_properties": {"own": 1}},
        {"partition_key": "p"},
        {"subject": "\ud800"},
    ],
)
def test_a_message_with_more_to_say_is_left_to_the_sdk(given: dict[str, Any]) -> None:
    """A message that the SDK refuses is left to the SDK too, which raises its own error."""
    assert plainly_encoded(ServiceBusMessage(b"x", message_id="i", **given)) is None


def test_a_header_in_an_odd_form_is_left_to_the_sdk() -> None:
    """The SDK takes an empty mapping for no header, and a header with an invented field for one."""
    invented = AmqpMessageHeader()
    invented["invented"] = 1
    headers: list[Any] = [{}, invented]
    for header in headers:
        message = AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": "i"})
        message.header = header
        assert encode(message) == as_the_sdk_says_it(message)
