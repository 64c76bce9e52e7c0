"""Forwarding between queues, subscriptions and topics with the genuine SDK."""

from __future__ import annotations

import uuid
from itertools import pairwise

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import SqlRuleFilter

from tests.sdk.flavours import Admin, Sdk, assert_empty, number, receive, receive_one, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


def names(*parts: str) -> list[str]:
    tail = uuid.uuid4().hex[:12]
    return [f"{part}-{tail}" for part in parts]


async def test_a_queue_forwards_to_a_queue(sdk: Sdk, sdk_admin: Admin) -> None:
    """Messages keep order and their first number; the source is empty and cannot be received from."""
    first, last = names("first", "last")
    await sdk_admin.calls.create_queue(last)
    await sdk_admin.calls.create_queue(first, forward_to=last)
    sender, receiver = await sdk.sender(first), await sdk.receiver(last)
    await sender.send_messages([ServiceBusMessage(f"{n}", application_properties={"n": n}) for n in range(3)])
    messages = await receive(receiver, 3)
    assert [text(message) for message in messages] == ["0", "1", "2"]
    assert [message.enqueued_sequence_number for message in messages] == [1, 2, 3]
    assert [message.application_properties for message in messages] == [{b"n": n} for n in range(3)]
    counts = await sdk_admin.calls.get_queue_runtime_properties(first)
    assert (counts.total_message_count, counts.size_in_bytes) == (0, 0)
    with pytest.raises(ServiceBusError, match="forwards them to"):
        await (await sdk.receiver(first)).receive_messages(max_wait_time=2)


async def test_a_subscription_forwards_to_a_queue_and_a_topic(sdk: Sdk, sdk_admin: Admin) -> None:
    """The copies of one payload end in different entities, and rules of the second topic see the message."""
    topic, queue, second = names("topic", "queue", "second")
    await sdk_admin.calls.create_queue(queue)
    for name in (second, topic):
        await sdk_admin.calls.create_topic(name)
    await sdk_admin.calls.create_subscription(second, "odd")
    await sdk_admin.calls.delete_rule(second, "odd", "$Default")
    await sdk_admin.calls.create_rule(second, "odd", "odd", filter=SqlRuleFilter("n % 2 = 1"))
    await sdk_admin.calls.create_subscription(topic, "q", forward_to=queue)
    await sdk_admin.calls.create_subscription(topic, "t", forward_to=second)
    await sdk_admin.calls.create_subscription(topic, "stays")
    sender = await sdk.topic_sender(topic)
    await sender.send_messages([ServiceBusMessage(f"{n}", application_properties={"n": n}) for n in range(4)])
    assert [text(message) for message in await receive(await sdk.receiver(queue), 4)] == ["0", "1", "2", "3"]
    odd = await receive(await sdk.subscription_receiver(second, "odd"), 2)
    assert [(text(message), message.enqueued_sequence_number) for message in odd] == [("1", 2), ("3", 4)]
    stays = await receive(await sdk.subscription_receiver(topic, "stays"), 4)
    assert [text(message) for message in stays] == ["0", "1", "2", "3"]


async def test_dead_letters_are_forwarded_with_their_reason_and_source(sdk: Sdk, sdk_admin: Admin) -> None:
    """One queue may collect the dead letters of many."""
    source, graveyard = names("source", "graveyard")
    await sdk_admin.calls.create_queue(graveyard)
    await sdk_admin.calls.create_queue(source, forward_dead_lettered_messages_to=graveyard)
    sender, receiver = await sdk.pair(source)
    await sender.send_messages(ServiceBusMessage("bad", application_properties={"k": "v"}))
    message = await receive_one(receiver)
    await receiver.dead_letter_message(message, reason="broken", error_description="why")
    dead = await receive_one(await sdk.receiver(graveyard))
    assert (text(dead), dead.dead_letter_source) == ("bad", source)
    assert dead.application_properties == {
        b"k": b"v",
        b"DeadLetterReason": b"broken",
        b"DeadLetterErrorDescription": b"why",
    }
    assert dead.enqueued_sequence_number == number(message)
    await assert_empty(await sdk.receiver(source, sub_queue=ServiceBusSubQueue.DEAD_LETTER))


async def test_a_chain_ends_after_four_hops_in_the_dead_letter_queue(sdk: Sdk, sdk_admin: Admin) -> None:
    """Four forwards pass; the fifth is refused where the message is then."""
    chain = names(*"abcdef")
    await sdk_admin.calls.create_queue(chain[-1])
    for name, forward_to in reversed(list(pairwise(chain))):
        await sdk_admin.calls.create_queue(name, forward_to=forward_to)
    sender = await sdk.sender(chain[0])
    await sender.send_messages(ServiceBusMessage("far"))
    dead = await receive_one(await sdk.receiver(chain[4], sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert (text(dead), dead.dead_letter_reason) == ("far", "MaxTransferHopCountExceeded")
    sender = await sdk.sender(chain[1])
    await sender.send_messages(ServiceBusMessage("near"))
    assert text(await receive_one(await sdk.receiver(chain[5]))) == "near"


async def test_a_destination_that_is_gone_or_full_costs_no_message(sdk: Sdk, sdk_admin: Admin) -> None:
    """The messages become dead letters of the source, with the reason."""
    source, away = names("source", "away")
    await sdk_admin.calls.create_queue(away, max_size_in_megabytes=1)
    await sdk_admin.calls.create_queue(source, forward_to=away)
    sender = await sdk.sender(source)
    for _ in range(5):
        await sender.send_messages(ServiceBusMessage(b"x" * 220_000))
    await receive(await sdk.receiver(away), 5)
    await sender.send_messages(ServiceBusMessage("full"))
    dead = await sdk.receiver(source, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    message = await receive_one(dead)
    assert (text(message), message.dead_letter_reason) == ("full", "QuotaExceeded")
    await sdk_admin.calls.delete_queue(away)
    await sender.send_messages(ServiceBusMessage("gone"))
    message = await receive_one(dead)
    assert (text(message), message.dead_letter_reason) == ("gone", "MessagingEntityNotFound")


async def test_a_message_without_a_session_id_is_not_forwarded_to_sessions(sdk: Sdk, sdk_admin: Admin) -> None:
    """The message becomes a dead letter of the source, as on Azure; transfer dead letters are those of transactions."""
    talks, queue, topic = names("talks", "queue", "topic")
    await sdk_admin.calls.create_queue(talks, requires_session=True)
    await sdk_admin.calls.create_queue(queue, forward_to=talks)
    await sdk_admin.calls.create_topic(topic)
    await sdk_admin.calls.create_subscription(topic, "s", forward_to=talks)
    to_queue, to_topic = await sdk.sender(queue), await sdk.topic_sender(topic)
    for sender in (to_queue, to_topic):
        await sender.send_messages([ServiceBusMessage("lost"), ServiceBusMessage("found", session_id="a")])
    receiver = await sdk.receiver(talks, session_id="a")
    assert [text(message) for message in await receive(receiver, 2)] == ["found", "found"]
    for dead in (
        await sdk.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER),
        await sdk.subscription_receiver(topic, "s", sub_queue=ServiceBusSubQueue.DEAD_LETTER),
    ):
        message = await receive_one(dead)
        assert (text(message), message.dead_letter_reason) == ("lost", "Session ID is null")
        assert talks in (message.dead_letter_error_description or "")
    counts = await sdk_admin.calls.get_queue_runtime_properties(queue)
    assert (counts.dead_letter_message_count, counts.transfer_dead_letter_message_count) == (1, 0)
