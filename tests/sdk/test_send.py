"""Sending: single messages, lists, batches, large ones; accepted messages can be received, in order, unchanged."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, aio
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError, ServiceBusQuotaExceededError

from tests.conftest import MakeQueue
from tests.sdk.flavours import Sdk, assert_empty, number, receive, receive_one, text

pytestmark = pytest.mark.asyncio(loop_scope="session")
KIB = 1024


async def test_a_single_message_arrives(sdk: Sdk, queue_name: str) -> None:
    """The shortest path through everything."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("hello"), timeout=10)
    message = await receive_one(receiver)
    assert text(message) == "hello"
    assert message.delivery_count == 0
    assert message.enqueued_time_utc is not None
    assert message.locked_until_utc is not None
    assert message.locked_until_utc > message.enqueued_time_utc
    await receiver.complete_message(message)
    await assert_empty(receiver)


async def test_a_list_arrives_in_its_order_with_growing_sequence_numbers(sdk: Sdk, queue_name: str) -> None:
    """A list is one transfer of many messages; receivers see each of them."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(100)], timeout=10)
    messages = await receive(receiver, 100)
    assert [text(message) for message in messages] == [f"{i}" for i in range(100)]
    numbers = [number(message) for message in messages]
    assert numbers == sorted(set(numbers))


async def test_a_batch_is_limited_by_the_link_and_arrives_whole(sdk: Sdk, queue_name: str) -> None:
    """The sender fills a batch up to the size that the broker announced, and exactly that is accepted."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    batch = await sender.create_message_batch()
    assert batch.max_size_in_bytes == 1024 * KIB
    count = 0
    with pytest.raises(MessageSizeExceededError):
        while True:
            batch.add_message(ServiceBusMessage(f"{count}".ljust(4000)))
            count += 1
    assert count > 200
    await sender.send_messages(batch, timeout=10)
    messages = await receive(receiver, count)
    assert [text(message).strip() for message in messages] == [f"{i}" for i in range(count)]


async def test_messages_of_one_sender_keep_their_order(sdk: Sdk, queue_name: str) -> None:
    """Sends one after another come out one after another."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    for i in range(30):
        await sender.send_messages(ServiceBusMessage(f"{i}"), timeout=10)
    assert [text(message) for message in await receive(receiver, 30)] == [f"{i}" for i in range(30)]


async def test_large_messages_arrive_unchanged(sdk: Sdk, queue_name: str) -> None:
    """More than one frame in both directions, at the edges of a frame of 64 KB, and nearly the limit of 1 MB."""
    bodies = [bytes(i * 7 % 251 for i in range(kib * KIB)) for kib in (60, 64, 65, 200, 1023)]
    sender, receiver = await sdk.pair(queue_name)
    for body in bodies:
        await sender.send_messages(ServiceBusMessage(body), timeout=10)
    for body in bodies:
        message = await receive_one(receiver)
        assert b"".join(message.body) == body
        await receiver.complete_message(message)


async def test_a_message_over_the_limit_is_refused_and_the_sender_goes_on(sdk: Sdk, queue_name: str) -> None:
    """The SDK does not check a single message itself: the broker must, and must not break the link for it."""
    sender, receiver = await sdk.pair(queue_name)
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(b"x" * 1100 * KIB), timeout=10)
    await sender.send_messages(ServiceBusMessage("small"), timeout=10)
    assert text(await receive_one(receiver)) == "small"


async def test_a_list_over_the_limit_is_refused(sdk: Sdk, queue_name: str) -> None:
    """The SDK learns the limit from the link and refuses before sending."""
    sender = await sdk.sender(queue_name)
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages([ServiceBusMessage(b"x" * 400 * KIB) for _ in range(3)], timeout=10)


async def test_the_limit_of_a_message_is_a_setting_of_the_queue(sdk: Sdk, make_queue: MakeQueue) -> None:
    """A queue may take larger messages than the default; the link announces it."""
    sender, receiver = await sdk.pair(make_queue(max_message_size_in_kilobytes=2048))
    await sender.send_messages(ServiceBusMessage(b"x" * 1900 * KIB), timeout=10)
    assert len(b"".join((await receive_one(receiver)).body)) == 1900 * KIB
    with pytest.raises(MessageSizeExceededError):
        await sender.send_messages(ServiceBusMessage(b"x" * 2100 * KIB), timeout=10)


async def _fill(sender: aio.ServiceBusSender) -> int:
    """Send 200 KB at a time into a queue of 1 MB until it refuses; how many it took.

    Whether the one that crosses the limit is still taken is the broker's choice.
    """
    for sent in range(8):
        try:
            await sender.send_messages(ServiceBusMessage(b"x" * 200 * KIB), timeout=10)
        except ServiceBusQuotaExceededError:
            assert sent in (5, 6)
            return sent
    raise AssertionError("a queue of 1 MB took 1.6 MB")


async def test_a_full_queue_refuses_until_there_is_room_again(sdk: Sdk, make_queue: MakeQueue) -> None:
    """Quota exceeded is an answer about the entity, not about the connection: the same sender goes on later."""
    sender, receiver = await sdk.pair(make_queue(max_size_in_megabytes=1))
    await _fill(sender)
    for message in await receive(receiver, 2):
        await receiver.complete_message(message)
    await sender.send_messages(ServiceBusMessage(b"x" * 200 * KIB), timeout=10)


async def test_a_batch_that_does_not_fit_the_queue_is_refused_whole(sdk: Sdk, make_queue: MakeQueue) -> None:
    """Half a batch stored would be half of it sent twice when the sender tries again."""
    queue = make_queue(max_size_in_megabytes=1)
    sender, receiver = await sdk.pair(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    sent = await _fill(sender)
    with pytest.raises(ServiceBusQuotaExceededError):
        await sender.send_messages([ServiceBusMessage(b"y" * 40 * KIB) for _ in range(6)], timeout=10)
    assert [b"".join(message.body)[:1] for message in await receive(receiver, sent)] == [b"x"] * sent
    await assert_empty(receiver)


async def test_a_batch_with_one_damaged_message_is_refused_whole(sdk: Sdk, queue_name: str) -> None:
    """Each member is read before any is stored. The SDK cannot make such a batch, so its encoded form is spoilt."""
    sender, receiver = await sdk.pair(queue_name)
    batch = await sender.create_message_batch()
    for i in range(3):
        batch.add_message(ServiceBusMessage(f"{i}"))
    data_sections: list[bytes] = batch._message[5]
    data_sections[1] = b"\x00\x53\x73\xff"
    with pytest.raises(ServiceBusError):
        await sender.send_messages(batch, timeout=10)
    await assert_empty(receiver)


async def test_an_empty_list_sends_nothing(sdk: Sdk, queue_name: str) -> None:
    """The SDK sends no frame at all, and no message appears."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages([], timeout=10)
    await assert_empty(receiver)
