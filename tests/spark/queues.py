"""Queues of the shared broker as the tests of source and sink use them: filled and looked at without Spark."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence

from azure.servicebus import ServiceBusClient

from pairbus.amqp.message import Message, Properties
from pairbus.spark.options import Options, Use
from pairbus.transport import Carrier
from tests.brokers import BrokerProcess


def options(broker: BrokerProcess, use: Use, **given: str) -> Options:
    return Options.parse({"connectionString": place_of(broker.connection_string())} | given, use)


def place_of(connection_string: str) -> str:
    """For the option connectionString: a variable that this process and its children have."""
    name = f"PAIRBUS_TEST_{hashlib.sha256(connection_string.encode()).hexdigest()[:12]}"
    os.environ[name] = connection_string
    return f"env:{name}"


def text_message(text: str) -> bytes:
    return Message(properties=Properties(message_id=text), data=[text.encode()]).encode()


def put(broker: BrokerProcess, queue: str, payloads: Sequence[bytes]) -> None:
    async def send() -> None:
        async with Carrier(broker.connection_string()) as carrier:
            sender = await carrier.sender(queue)
            for start in range(0, len(payloads), 200):
                await sender.send_batch(list(payloads[start : start + 200]))

    asyncio.run(send())


def messages_in(broker: BrokerProcess, queue: str) -> list[Message]:
    """In the order of the queue; they stay there."""

    async def look() -> list[Message]:
        found: list[Message] = []
        async with Carrier(broker.connection_string()) as carrier:
            management = await (await carrier.connection()).management(queue)
            from_number = 0
            while page := [Message.decode(payload) for payload in await management.peek(from_number, 250)]:
                found += page
                from_number = (page[-1].annotations or {})["x-opt-sequence-number"] + 1
        return found

    return asyncio.run(look())


def bodies_in(broker: BrokerProcess, queue: str) -> list[bytes]:
    return [message.body for message in messages_in(broker, queue)]


def dead_letter(broker: BrokerProcess, queue: str, count: int) -> None:
    """Dead-letter the first messages of the queue, one by one: more credit would lock the message after them."""
    client = ServiceBusClient.from_connection_string(broker.connection_string())
    with client, client.get_queue_receiver(queue) as receiver:
        for number in range(count):
            messages = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            assert messages, f"{number} of {count} messages came"
            receiver.dead_letter_message(messages[0], reason="spoiled", error_description="by a test")
