"""Settlement: complete, abandon, defer, dead-letter, and the dead-letter sub-queue as a queue."""

from __future__ import annotations

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import MessageAlreadySettled, MessageNotFoundError

from tests.conftest import MakeQueue
from tests.sdk.flavours import Sdk, assert_empty, number, receive, receive_one, text

pytestmark = pytest.mark.asyncio(loop_scope="session")
DEAD = ServiceBusSubQueue.DEAD_LETTER
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


async def test_receive_and_delete_removes_what_it_delivers(sdk: Sdk, queue_name: str) -> None:
    """The message has no lock and need not be settled; a second receiver finds nothing."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=DELETE)
    await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], timeout=10)
    messages = await receive(receiver, 2)
    assert [text(message) for message in messages] == ["a", "b"]
    assert messages[0].locked_until_utc is None
    with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
        await receiver.complete_message(messages[0])
    await assert_empty(await sdk.receiver(queue_name))


async def test_a_locked_message_is_not_given_to_another_receiver(sdk: Sdk, queue_name: str) -> None:
    """The lock is there to keep other receivers away."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("mine"), timeout=10)
    message = await receive_one(receiver)
    other = await sdk.receiver(queue_name)
    await assert_empty(other)
    await receiver.complete_message(message)
    await assert_empty(other)


async def test_an_abandoned_message_comes_back_with_a_higher_delivery_count(sdk: Sdk, queue_name: str) -> None:
    """The same message, the same number, one delivery more."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("again"), timeout=10)
    numbers = set()
    for deliveries in range(3):
        message = await receive_one(receiver)
        assert message.delivery_count == deliveries
        numbers.add(number(message))
        await receiver.abandon_message(message)
    assert len(numbers) == 1


async def test_an_abandoned_message_keeps_its_place(sdk: Sdk, queue_name: str) -> None:
    """The abandoned message is older than those that wait behind it."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages([ServiceBusMessage(name) for name in "abc"], timeout=10)
    await receiver.abandon_message(await receive_one(receiver))
    assert [text(message) for message in await receive(receiver, 3)] == ["a", "b", "c"]


async def test_too_many_deliveries_end_in_the_dead_letter_queue(sdk: Sdk, make_queue: MakeQueue) -> None:
    """A poisoned message must not block its queue for ever."""
    queue = make_queue(max_delivery_count=2)
    sender, receiver = await sdk.pair(queue)
    dead = await sdk.receiver(queue, sub_queue=DEAD)
    await sender.send_messages(ServiceBusMessage("poison"), timeout=10)
    for _ in range(2):
        await receiver.abandon_message(await receive_one(receiver))
    message = await receive_one(dead)
    assert text(message) == "poison"
    assert message.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert message.dead_letter_error_description
    await assert_empty(receiver)


async def test_a_message_is_dead_lettered_with_reason_and_description(sdk: Sdk, queue_name: str) -> None:
    """The dead letter is the same message with two properties more, and completing it removes it."""
    sender, receiver = await sdk.pair(queue_name)
    dead = await sdk.receiver(queue_name, sub_queue=DEAD)
    await sender.send_messages(ServiceBusMessage("bad", application_properties={"k": "v"}), timeout=10)
    message = await receive_one(receiver)
    await receiver.dead_letter_message(message, reason="because", error_description="of this")
    letter = await receive_one(dead)
    assert number(letter) == number(message)
    assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("because", "of this")
    assert letter.application_properties == {
        b"k": b"v",
        b"DeadLetterReason": b"because",
        b"DeadLetterErrorDescription": b"of this",
    }
    await assert_empty(receiver)
    await dead.complete_message(letter)
    await assert_empty(dead)


async def test_a_message_is_dead_lettered_without_a_reason(sdk: Sdk, queue_name: str) -> None:
    """The SDK sends no reason then."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("bad"), timeout=10)
    await receiver.dead_letter_message(await receive_one(receiver))
    assert text(await receive_one(await sdk.receiver(queue_name, sub_queue=DEAD))) == "bad"


async def test_a_dead_letter_can_be_abandoned_deferred_and_deleted_but_never_leaves(
    sdk: Sdk, make_queue: MakeQueue
) -> None:
    """The sub-queue is a queue, except that nothing is dead-lettered out of it, however often it is delivered."""
    queue = make_queue(max_delivery_count=1)
    sender, receiver = await sdk.pair(queue)
    await sender.send_messages(ServiceBusMessage("bad"), timeout=10)
    await receiver.dead_letter_message(await receive_one(receiver), reason="r")
    dead = await sdk.receiver(queue, sub_queue=DEAD)
    for _ in range(3):
        await dead.abandon_message(await receive_one(dead))
    letter = await receive_one(dead)
    await dead.defer_message(letter)
    await assert_empty(dead)
    [deferred] = await dead.receive_deferred_messages(number(letter), timeout=10)
    await dead.abandon_message(deferred)
    [again] = await dead.receive_deferred_messages(number(letter), timeout=10)
    await dead.complete_message(again)
    assert await dead.peek_messages(timeout=10) == []


async def test_a_deferred_message_comes_by_its_number_only(sdk: Sdk, queue_name: str) -> None:
    """Deferred means set aside: the receiver who kept the number gets it, under a lock, and completes it. That it was
    delivered before is counted."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages([ServiceBusMessage("later"), ServiceBusMessage("now")], timeout=10)
    later, now = await receive(receiver, 2)
    await receiver.defer_message(later)
    await receiver.complete_message(now)
    await assert_empty(receiver)
    [message] = await receiver.receive_deferred_messages([number(later)], timeout=10)
    assert text(message) == "later"
    assert message.state is ServiceBusMessageState.DEFERRED
    assert (later.delivery_count, message.delivery_count) == (0, 1)
    assert message.lock_token is not None
    await receiver.complete_message(message)
    with pytest.raises(MessageNotFoundError):
        await receiver.receive_deferred_messages([number(later)], timeout=10)


async def test_deferred_messages_can_be_received_and_deleted(sdk: Sdk, queue_name: str) -> None:
    """A call may name several numbers; the messages are gone with the answer."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages([ServiceBusMessage(name) for name in "abc"], timeout=10)
    messages = await receive(receiver, 3)
    for message in messages:
        await receiver.defer_message(message)
    deleting = await sdk.receiver(queue_name, receive_mode=DELETE)
    numbers = [number(message) for message in messages]
    found = await deleting.receive_deferred_messages(numbers, timeout=10)
    assert [text(message) for message in found] == ["a", "b", "c"]
    with pytest.raises(MessageNotFoundError):
        await deleting.receive_deferred_messages(numbers[:1], timeout=10)


async def test_a_deferred_message_can_be_dead_lettered_and_deferred_again(sdk: Sdk, queue_name: str) -> None:
    """Settlements of deferred messages travel over the management link, each kind of them."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("later"), timeout=10)
    message = await receive_one(receiver)
    await receiver.defer_message(message)
    [again] = await receiver.receive_deferred_messages(number(message), timeout=10)
    await receiver.defer_message(again)
    [again] = await receiver.receive_deferred_messages(number(message), timeout=10)
    await receiver.dead_letter_message(again, reason="r", error_description="d")
    letter = await receive_one(await sdk.receiver(queue_name, sub_queue=DEAD))
    assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("r", "d")


async def test_an_unknown_deferred_number_is_not_found(sdk: Sdk, queue_name: str) -> None:
    """The number of a message that exists and is not deferred is not found either."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("active"), timeout=10)
    [active] = await receiver.peek_messages(1, timeout=10)
    for unknown in (987_654, number(active)):
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(unknown, timeout=10)


async def test_a_message_is_settled_once(sdk: Sdk, queue_name: str) -> None:
    """The SDK itself refuses a second settlement."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("once"), timeout=10)
    message = await receive_one(receiver)
    await receiver.complete_message(message)
    with pytest.raises(MessageAlreadySettled):
        await receiver.abandon_message(message)


async def test_many_messages_are_completed_one_by_one(sdk: Sdk, queue_name: str) -> None:
    """Each completion is answered; the queue is empty afterwards, for every receiver."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(100)], timeout=10)
    for message in await receive(receiver, 100):
        await receiver.complete_message(message)
    assert await receiver.peek_messages(timeout=10) == []
