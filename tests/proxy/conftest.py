"""A namespace in this process behind a proxy, and the genuine SDK in front of both."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from pairbus.amqp.message import Message, Properties
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.broker.namespace import Namespace
from pairbus.proxy import Proxy
from pairbus.proxy.faults import ProxyFaults
from pairbus.transport import connect

AZURE_HOST = "contoso.servicebus.windows.net"
OPTIONS = NamespaceOptions("contoso", queues=(QueueDescription("orders"), QueueDescription("other")))


class World:
    """The namespace `contoso` behind a proxy, and what a test opens against the proxy."""

    def __init__(self, broker: Broker, proxy: Proxy, stack: AsyncExitStack) -> None:
        self.broker = broker
        self.proxy = proxy
        self.faults: ProxyFaults = proxy.faults
        self.namespace: Namespace = broker.namespace("contoso")
        self.options: dict[str, Any] = {}
        "Options of the SDK's clients."
        self.trust: dict[str, Any] = {}
        "Options of our own transport."
        self._stack = stack

    @property
    def connection_string(self) -> str:
        return self.proxy.connection_string(self.broker.connection_string("contoso"))

    async def client(self) -> ServiceBusClient:
        made = ServiceBusClient.from_connection_string(self.connection_string, retry_total=0, **self.options)
        return await self._stack.enter_async_context(made)

    async def sender(self, queue: str = "orders") -> ServiceBusSender:
        """An open sender."""
        return await self._stack.enter_async_context((await self.client()).get_queue_sender(queue))

    async def named_sender(self, connection_string: str) -> ServiceBusSender:
        """An open sender of a client with a connection string of its own."""
        made = ServiceBusClient.from_connection_string(connection_string, retry_total=0, **self.options)
        client = await self._stack.enter_async_context(made)
        return await self._stack.enter_async_context(client.get_queue_sender("orders"))

    async def receiver(self, queue: str = "orders", **options: Any) -> ServiceBusReceiver:
        """An open receiver."""
        return await self._stack.enter_async_context((await self.client()).get_queue_receiver(queue, **options))

    def waiting(self, queue: str = "orders") -> int:
        return self.namespace.queue_info(queue).active

    async def store(self, body: str, queue: str = "orders") -> None:
        """Send a message to the broker, not by the proxy."""
        async with await connect(self.broker.connection_string("contoso")) as connection:
            await (await connection.sender(queue)).send(encoded(body), timeout_s=5)

    async def check_whole(self, queue: str = "orders") -> None:
        """No fault is on, and through the proxy a message goes in and comes out."""
        assert self.faults.list() == []
        async with await connect(self.connection_string, **self.trust) as connection:
            await (await connection.sender(queue)).send(encoded("whole"), timeout_s=5)
            receiver = await connection.receiver(queue)
            while True:
                messages = await receiver.receive(50, timeout_s=5)
                await receiver.complete(messages)
                if any(Message.decode(each.payload).data == [b"whole"] for each in messages):
                    return


def by_proxy(world: World) -> dict[str, Any]:
    """Options that lead a client to the proxy while names and tokens stay those of the namespace.

    With a custom endpoint the SDK speaks web sockets unless it is told otherwise.
    """
    return {"custom_endpoint_address": f"sb://{world.proxy.address}", "transport_type": TransportType.Amqp}


def message(body: str) -> ServiceBusMessage:
    return ServiceBusMessage(body)


def encoded(body: str) -> bytes:
    return Message(properties=Properties(message_id=body), data=[body.encode()]).encode()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens by itself, for half a minute at most."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - there is no event for each thing that a test looks at
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[World]:
    strict = options.pop("strict", False)
    async with Broker([OPTIONS], data=None, strict=strict) as broker, AsyncExitStack() as stack:
        port = int(broker.connection_string("contoso").split(";")[0].rsplit(":", 1)[1])
        if options.pop("encrypts", False):
            options["tls_to_target"] = ssl.create_default_context(cafile=str(broker.ca_file))
        async with Proxy("127.0.0.1", port, **options) as proxy:
            world = World(broker, proxy, stack)
            yield world
            proxy.faults.clear()
            await stack.aclose()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """AMQP in the clear, on both sides."""
    async with running() as made:
        yield made


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[World]:
    """TLS on both sides, ended and begun again by the proxy; clients know the namespace by its name in Azure."""
    async with running(tls=tmp_path / "tls", tls_names=[AZURE_HOST], encrypts=True) as made:
        made.options = by_proxy(made) | {"connection_verify": str(made.proxy.ca_file)}
        made.trust = {"ssl": made.proxy.ca_file}
        yield made
