"""Locks: renewal, expiry, and what a settlement after expiry is told."""

from __future__ import annotations

import asyncio
import datetime

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError

from tests.conftest import MakeQueue
from tests.sdk.flavours import Sdk, assert_empty, number, receive_one, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
SECOND = datetime.timedelta(seconds=1)


def _believe_the_lock_holds(message: ServiceBusReceivedMessage) -> None:
    """The SDK does not even ask the broker once the announced time is over; a client whose clock is late does."""
    annotations = message.raw_amqp_message.annotations
    assert annotations is not None
    annotations[b"x-opt-locked-until"] += 60_000
    message._expiry = None


async def _expire(message: ServiceBusReceivedMessage) -> None:
    assert message.locked_until_utc is not None
    left = message.locked_until_utc - datetime.datetime.now(datetime.UTC)
    await asyncio.sleep(max(0.0, left.total_seconds()) + 0.1)


async def test_the_lock_lasts_as_long_as_the_queue_says(sdk: Sdk, make_queue: MakeQueue) -> None:
    """The announced end is the receive time plus the lock duration."""
    sender, receiver = await sdk.pair(make_queue(lock_duration=datetime.timedelta(seconds=30)))
    await sender.send_messages(ServiceBusMessage("x"), timeout=10)
    before = datetime.datetime.now(datetime.UTC)
    message = await receive_one(receiver)
    assert message.locked_until_utc is not None
    assert -SECOND < message.locked_until_utc - before - datetime.timedelta(seconds=30) < 9 * SECOND


async def test_renewing_moves_the_end_of_the_lock(sdk: Sdk, make_queue: MakeQueue) -> None:
    """A message held for longer than one lock duration stays with its receiver and can be completed."""
    queue = make_queue(lock_duration=4 * SECOND)
    sender, receiver = await sdk.pair(queue)
    other = await sdk.receiver(queue)
    await sender.send_messages(ServiceBusMessage("long work"), timeout=10)
    message = await receive_one(receiver)
    first_end = message.locked_until_utc
    assert first_end is not None
    while datetime.datetime.now(datetime.UTC) < first_end + SECOND / 2:
        renewed = await receiver.renew_message_lock(message, timeout=10)
        assert renewed > datetime.datetime.now(datetime.UTC)
        await asyncio.sleep(0.3)
    assert message.locked_until_utc is not None
    assert message.locked_until_utc > first_end
    await receiver.complete_message(message)
    await assert_empty(other)


async def test_after_its_lock_expired_a_message_comes_again(sdk: Sdk, make_queue: MakeQueue) -> None:
    """The receiver may have died. The count says that a delivery was used up."""
    lock = 3 * SECOND
    queue = make_queue(lock_duration=lock)
    sender, receiver = await sdk.pair(queue)
    other = await sdk.receiver(queue)
    await sender.send_messages(ServiceBusMessage("x"), timeout=10)
    first = await receive_one(receiver)
    again = await receive_one(other)
    assert first.locked_until_utc is not None
    assert again.locked_until_utc is not None
    assert again.locked_until_utc >= first.locked_until_utc + lock
    assert number(again) == number(first)
    assert again.delivery_count == 1
    assert again.lock_token != first.lock_token
    await other.complete_message(again)


@pytest.mark.parametrize("settle", ["complete_message", "abandon_message", "defer_message", "dead_letter_message"])
async def test_a_settlement_after_expiry_is_refused(sdk: Sdk, make_queue: MakeQueue, settle: str) -> None:
    """The broker answers "lock lost", and the message is still there for the next receiver."""
    queue = make_queue(lock_duration=SECOND)
    sender, receiver = await sdk.pair(queue)
    await sender.send_messages(ServiceBusMessage("x"), timeout=10)
    message = await receive_one(receiver)
    await _expire(message)
    _believe_the_lock_holds(message)
    with pytest.raises(MessageLockLostError):
        await getattr(receiver, settle)(message)
    again = await receive_one(await sdk.receiver(queue))
    assert (number(again), again.delivery_count) == (number(message), 1)


async def test_a_lost_lock_cannot_be_renewed(sdk: Sdk, make_queue: MakeQueue) -> None:
    """The message may be with another receiver by now."""
    sender, receiver = await sdk.pair(make_queue(lock_duration=SECOND))
    await sender.send_messages(ServiceBusMessage("x"), timeout=10)
    message = await receive_one(receiver)
    await _expire(message)
    _believe_the_lock_holds(message)
    with pytest.raises(MessageLockLostError):
        await receiver.renew_message_lock(message, timeout=10)


async def test_a_client_that_knows_of_the_expiry_says_so_itself(sdk: Sdk, make_queue: MakeQueue) -> None:
    """The announced time must be the real one: the SDK decides by it, without asking."""
    sender, receiver = await sdk.pair(make_queue(lock_duration=SECOND))
    await sender.send_messages(ServiceBusMessage("x"), timeout=10)
    message = await receive_one(receiver)
    await _expire(message)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(message)


async def test_expired_locks_count_as_deliveries(sdk: Sdk, make_queue: MakeQueue) -> None:
    """A message that kills each of its receivers ends in the dead-letter queue."""
    queue = make_queue(lock_duration=SECOND, max_delivery_count=1)
    sender, receiver = await sdk.pair(queue)
    await sender.send_messages(ServiceBusMessage("killer"), timeout=10)
    await receive_one(receiver)
    dead = await sdk.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    letter = await receive_one(dead)
    assert text(letter) == "killer"
    assert letter.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_a_deferred_message_is_locked_and_expires_back_to_deferred(sdk: Sdk, make_queue: MakeQueue) -> None:
    """Receiving by number takes a lock too; losing it does not make the message active."""
    sender, receiver = await sdk.pair(make_queue(lock_duration=3 * SECOND))
    await sender.send_messages(ServiceBusMessage("x"), timeout=10)
    message = await receive_one(receiver)
    await receiver.defer_message(message)
    [locked] = await receiver.receive_deferred_messages(number(message), timeout=10)
    await _expire(locked)
    _believe_the_lock_holds(locked)
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(locked)
    await assert_empty(receiver)
    [again] = await receiver.receive_deferred_messages(number(message), timeout=10)
    await receiver.complete_message(again)


async def test_a_closed_receiver_gives_back_what_it_buffered(sdk: Sdk, queue_name: str) -> None:
    """Closing releases: the others need not wait for the locks, and no delivery is counted."""
    sender = await sdk.sender(queue_name)
    await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(5)], timeout=10)
    hoarder = await sdk.receiver(queue_name, prefetch_count=5)
    held = await receive_one(hoarder)
    await hoarder.abandon_message(held)
    await hoarder.close()
    receiver = await sdk.receiver(queue_name)
    counts = {}
    for _ in range(5):
        message = await receive_one(receiver)
        counts[text(message)] = message.delivery_count
        await receiver.complete_message(message)
    assert counts == {text(held): 1, **{f"{i}": 0 for i in range(5) if f"{i}" != text(held)}}
