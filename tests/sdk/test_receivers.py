"""Several receivers, waiting receivers, prefetching receivers, iteration."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from tests.limits import slowness
from tests.sdk.flavours import Guarded, Sdk, assert_empty, receive, receive_one, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


async def test_a_waiting_receiver_gets_a_message_at_once(sdk: Sdk, queue_name: str) -> None:
    """Long polling by credit: no interval of a poller lies between sending and receiving."""
    sender, receiver = await sdk.pair(queue_name)
    waiting = asyncio.create_task(receive_one(receiver, within_s=10))
    # The receiver should wait by then; if it does not yet, it gets the message at once all the same.
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await sender.send_messages(ServiceBusMessage("now"), timeout=10)
    sent_at = time.monotonic()
    assert text(await waiting) == "now"
    assert time.monotonic() - sent_at < 0.5 * slowness()


async def test_competing_receivers_get_fair_shares(sdk: Sdk, queue_name: str) -> None:
    """Each receiver has credit for all messages; each gets at least a third, and no message comes twice."""
    receivers = await asyncio.gather(*(sdk.receiver(queue_name, prefetch_count=100) for _ in range(2)))
    sender = await sdk.sender(queue_name)
    await asyncio.gather(*(assert_empty(receiver) for receiver in receivers))  # the SDK gives credit now
    await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(60)], timeout=10)
    shares: tuple[list[str], list[str]] = [], []
    deadline = time.monotonic() + 30
    while sum(map(len, shares)) < 60 and time.monotonic() < deadline:
        for receiver, share in zip(receivers, shares, strict=True):
            share += [text(one) for one in await receiver.receive_messages(max_message_count=60, max_wait_time=2)]
    assert sorted(shares[0] + shares[1], key=int) == [f"{i}" for i in range(60)]
    assert min(len(share) for share in shares) >= 20


async def test_a_prefetching_receiver_gets_everything_in_order(sdk: Sdk, queue_name: str) -> None:
    """More messages than its credit: the credit is topped up while messages wait."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=DELETE, prefetch_count=20)
    for start in range(0, 100, 50):
        await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(start, start + 50)], timeout=10)
    assert [text(message) for message in await receive(receiver, 100)] == [f"{i}" for i in range(100)]


async def test_a_receiver_takes_no_more_than_it_asked_for(sdk: Sdk, queue_name: str) -> None:
    """Credit is a promise of room; the rest stays for others, unlocked."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(10)], timeout=10)
    assert [text(message) for message in await receive(receiver, 3)] == ["0", "1", "2"]
    other = await sdk.receiver(queue_name)
    assert [text(message) for message in await receive(other, 7)] == [f"{i}" for i in range(3, 10)]


async def test_messages_can_be_iterated(sdk: Sdk, queue_name: str) -> None:
    """`for message in receiver`: one credit at a time, ending after the wait time without a message."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=DELETE, max_wait_time=3)
    await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(5)], timeout=10)
    found = await cast(Guarded, receiver).first(6)
    assert [text(message) for message in found] == [f"{i}" for i in range(5)]


async def test_leftover_credit_costs_no_delivery(sdk: Sdk, queue_name: str) -> None:
    """A message that meets a receiver with old credit and no call under way is released by the SDK, uncounted."""
    sender, receiver = await sdk.pair(queue_name)
    await assert_empty(receiver)
    await sender.send_messages(ServiceBusMessage("x"), timeout=10)
    message = await receive_one(receiver)
    assert message.delivery_count == 0
    await receiver.complete_message(message)


async def test_many_receivers_share_one_queue_without_loss(sdk: Sdk, queue_name: str) -> None:
    """Each message goes to exactly one of the receivers."""
    count = 120
    receivers = await asyncio.gather(*(sdk.receiver(queue_name, receive_mode=DELETE) for _ in range(4)))
    sender = await sdk.sender(queue_name)
    for start in range(0, count, 40):
        await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(start, start + 40)], timeout=10)
    found: list[str] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        batches = await asyncio.gather(
            *(r.receive_messages(max_message_count=10, max_wait_time=0.5) for r in receivers)
        )
        found += [text(message) for batch in batches for message in batch]
    assert sorted(found, key=int) == [f"{i}" for i in range(count)]
