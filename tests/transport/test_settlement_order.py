"""Completions that reach the broker in one read, in another order than the messages."""

from __future__ import annotations

import asyncio

from pairbus.transport import connect
from tests.brokers import BrokerProcess
from tests.transport.test_with_broker import encoded, take


async def test_completions_in_any_order_are_each_answered(broker: BrokerProcess, queue_name: str) -> None:
    """The last id is as far from the first as if all between had been completed: they had not."""
    async with await connect(broker.connection_string()) as connection:
        sender = await connection.sender(queue_name)
        await asyncio.gather(*[sender.send(encoded(number)) for number in range(50)])
        receiver = await connection.receiver(queue_name)
        messages = await take(receiver, 50)
        at_once = [messages[0], messages[20], messages[40], messages[3]]
        await asyncio.gather(*[receiver.complete([message], timeout_s=5) for message in at_once])
        await receiver.complete([message for message in messages if message not in at_once], timeout_s=5)
