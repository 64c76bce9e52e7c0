"""A namespace in this process, and the genuine SDK as its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairbus.amqp.message import Message, Properties
from pairbus.broker import (
    Broker,
    NamespaceOptions,
    QueueDescription,
    SubscriptionConfig,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.namespace import Namespace
from pairbus.broker.outages import NamespaceFaults
from pairbus.transport import connect

OPTIONS = NamespaceOptions(
    "contoso",
    queues=(
        QueueDescription("orders"),
        QueueDescription("other"),
        QueueDescription("talks", requires_session=True),
        QueueDescription("spread", enable_partitioning=True),
    ),
    topics=(TopicDescription("events"),),
    subscriptions=(SubscriptionConfig(SubscriptionDescription("events", "audit")),),
)


class World:
    """One broker with its namespace `contoso`, and the clients that a test opens."""

    def __init__(self, broker: Broker, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.namespace: Namespace = broker.namespace("contoso")
        self.faults: NamespaceFaults = self.namespace.faults
        self._stack = stack

    @property
    def connection_string(self) -> str:
        return self.broker.connection_string("contoso")

    async def client(self) -> ServiceBusClient:
        made = ServiceBusClient.from_connection_string(self.connection_string, retry_total=0)
        return await self._stack.enter_async_context(made)

    async def sender(self, queue: str = "orders") -> ServiceBusSender:
        """An open sender."""
        client = await self.client()
        sender = client.get_topic_sender(queue) if queue == "events" else client.get_queue_sender(queue)
        return await self._stack.enter_async_context(sender)

    async def receiver(self, queue: str = "orders", **options: Any) -> ServiceBusReceiver:
        """An open receiver."""
        client = await self.client()
        made = (
            client.get_subscription_receiver("events", "audit", **options)
            if queue == "events"
            else client.get_queue_receiver(queue, **options)
        )
        return await self._stack.enter_async_context(made)

    async def admin(self) -> ServiceBusAdministrationClient:
        made = ServiceBusAdministrationClient.from_connection_string(
            self.connection_string, connection_verify=str(self.broker.ca_file), retry_total=0
        )
        return await self._stack.enter_async_context(made)

    def waiting(self, queue: str = "orders") -> int:
        return self.namespace.queue_info(queue).active

    async def check_whole(self, queue: str = "orders") -> None:
        """No fault is on, and a message goes in and comes out."""
        assert self.faults.list() == []
        assert not self.faults.acts
        whole = Message(properties=Properties(message_id="whole"), data=[b"whole"]).encode()
        async with await connect(self.connection_string) as connection:
            await (await connection.sender(queue)).send(whole, timeout_s=5)
            receiver = await connection.receiver(queue)
            while True:
                messages = await receiver.receive(50, timeout_s=5)
                await receiver.complete(messages)
                if any(Message.decode(each.payload).data == [b"whole"] for each in messages):
                    return


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens by itself, for half a minute at most."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - the broker is not to have an event for each thing that a test looks at
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(options: NamespaceOptions = OPTIONS, **settings: Any) -> AsyncIterator[World]:
    async with Broker([options], **{"data": None, **settings}) as broker, AsyncExitStack() as stack:
        world = World(broker, stack)
        yield world
        world.faults.clear()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as made:
        yield made
