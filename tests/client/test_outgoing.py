"""What one call was given, on its way to the SDK: quick ways lead to the same bytes and the same errors."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus import sdk
from pairbus.amqp.errors import ProtocolError
from pairbus.outgoing import PairedMessageBatch, batches, new_batch, outgoing, readily_wrapped
from pairbus.pairing.envelope import Away, Home, aliases_alone, unwrap
from pairbus.client.errors import ReservedPropertyError


def messages(count: int, size: int = 300) -> list[ServiceBusMessage]:
    return [ServiceBusMessage("x" * size, message_id=f"id-{number}") for number in range(count)]


def payloads_of(batch: ServiceBusMessageBatch) -> list[bytes]:
    return [bytes(payload) for payload in batch._message[5]]


@pytest.mark.parametrize("size", [10, 300])
def test_a_batch_of_bytes_is_the_batch_that_the_sdk_would_make(size: int) -> None:
    """Its size counts against the link's limit, so it must be exact on both sides of the one-byte lengths."""
    given = messages(3, size)
    theirs, ours = ServiceBusMessageBatch(), sdk.EncodedBatch()
    for message in given:
        theirs.add_message(message)
        ours.add_encoded(sdk.encode(message))
    assert (ours.size_in_bytes, len(ours)) == (theirs.size_in_bytes, len(theirs))
    assert payloads_of(ours) == payloads_of(theirs)


def test_a_batch_is_split_where_the_link_has_its_limit() -> None:
    """Copies for a backlog queue are larger than what they are copies of."""
    payloads = [sdk.encode(message) for message in messages(4, 400)]
    parts = batches(payloads, 1100)
    assert [count for _, count in parts] == [2, 2]
    with pytest.raises(MessageSizeExceededError):
        batches(payloads, 300)


@pytest.mark.parametrize("form", ["list", "batch"])
def test_every_message_of_a_list_or_batch_comes_back_as_it_was(form: str) -> None:
    """They travel as bytes: unwrapping them must give the bytes that the primary would have got."""
    given: list[ServiceBusMessage] | ServiceBusMessageBatch = messages(3)
    plain = [sdk.encode(message) for message in messages(3)]
    if form == "batch":
        batch = new_batch(0, None)
        for message in messages(3):
            batch.add_message(message)
        given = batch
    going = outgoing(given)
    assert going is not None
    homes = [unwrap(payload) for payload in going.wrapped("orders", None, None)]
    assert [(home.path, home.payload) for home in homes if isinstance(home, Home)] == [("orders", one) for one in plain]


def test_a_batch_looks_at_its_messages_when_they_are_added() -> None:
    """At the send nobody looks again, so what is missing or forbidden must be found here."""
    batch = new_batch(0, None)
    batch.add_message(ServiceBusMessage("no id"))
    batch.add_message({"body": "a mapping, without an id"})
    assert type(batch) is PairedMessageBatch
    assert all(message.message_id for message in batch._messages)
    with pytest.raises(ReservedPropertyError):
        batch.add_message(ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"}))
    assert len(batch) == 2


def test_a_batch_that_is_filled_while_failed_over_is_wrapped_already() -> None:
    """While a message is at hand it costs a third; what is sent must be the same bytes."""
    message_ids = ["a", "bb", "c" * 40]
    made = {}
    for wrapped_for in (None, "orders", "payments"):
        batch = new_batch(0, None, wrapped_for=wrapped_for)
        for message_id in message_ids:
            batch.add_message(ServiceBusMessage(b"x", message_id=message_id, session_id=message_id[:2]))
        going = outgoing(batch)
        assert going is not None
        made[wrapped_for] = [going.wrapped("orders", first_ms, None) for first_ms in (None, 5)]
        assert (batch.away is not None) is (wrapped_for is not None)
    assert made[None] == made["orders"] == made["payments"]
    assert made[None][0] != made[None][1], "an unknown outcome is in the message"


ALIASES = aliases_alone(Away("orders"))


def test_a_batch_that_is_wrapped_already_goes_to_the_backlog_as_it_is() -> None:
    """When it was filled for this entity, fits the link, and the SDK takes it without making it anew."""
    batch = new_batch(0, None, wrapped_for="orders")
    for message in messages(3):
        batch.add_message(message)
    assert batch.away is not None
    assert readily_wrapped(batch, "orders", ALIASES, 0) is batch.away
    assert payloads_of(batch.away) == [readily_wrapped(one, "orders", ALIASES, 0).payloads[0] for one in messages(3)]
    assert readily_wrapped(batch, "payments", ALIASES, 0) is None
    assert readily_wrapped(batch, "orders", ALIASES, batch.away.size_in_bytes) is batch.away
    assert readily_wrapped(batch, "orders", ALIASES, batch.away.size_in_bytes - 1) is None


def test_a_batch_of_a_sync_sender_is_not_given_to_the_async_sdk_as_it_is() -> None:
    """It would be made anew there from messages that it does not have, and an empty batch is sent without an error."""
    batch = new_batch(0, None, wrapped_for="orders")
    batch.add_message(messages(1)[0])
    assert readily_wrapped(batch, "orders", ALIASES, 0, aio=True) is None


def test_a_batch_of_which_a_message_could_not_be_wrapped_is_not_taken_for_wrapped() -> None:
    """Whoever goes on with it must not be told that all of it was stored."""
    batch = new_batch(0, None, wrapped_for="orders")
    batch.add_message(messages(1)[0])
    assert batch.wrapped_for("orders") is batch.away
    odd = AmqpAnnotatedMessage(
        data_body=b"x", header={"time_to_live": 1000}, delivery_annotations={"x": 1}, properties={"message_id": "odd"}
    )
    with pytest.raises(ProtocolError):  # the SDK writes its sections in an order that AMQP does not know
        batch.add_message(odd)
    assert batch.wrapped_for("orders") is None
    assert readily_wrapped(batch, "orders", ALIASES, 0) is None
