"""A namespace in this process behind a proxy, and the genuine SDK in front of both."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
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

    async def receiver(self, queue: str = "orders", **options: Any) -> ServiceBusReceiver:
        """An open receiver."""
        return await self._stack.enter_async_context((await self.client()).get_queue_receiver(queue, **options))

    def waiting(self, queue: str = "orders") -> int:
        return self.namespace.queue_info(queue).active

    async def check_whole(self, queue: str = "orders") -> None:
        """No fault is on, and a message goes in and comes out through the proxy, by the genuine SDK."""
        assert self.faults.list() == []
        sender, receiver = await self.sender(queue), await self.receiver(queue)
        await sender.send_messages(message("whole"), timeout=5)
        seen: list[str] = []
        while "whole" not in seen:
            for one in await receiver.receive_messages(10, max_wait_time=5):
                seen.append(str(one))
                await receiver.complete_message(one)


def message(body: str) -> Any:
    from azure.servicebus import ServiceBusMessage

    return ServiceBusMessage(body)


def encoded(body: str) -> bytes:
    return Message(properties=Properties(message_id=body), data=[body.encode()]).encode()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that happens by itself, for five seconds at most."""
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110 - there is no event for each thing that a test looks at
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[World]:
    async with Broker([OPTIONS], data=None) as broker, AsyncExitStack() as stack:
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
        made.options = {
            "custom_endpoint_address": f"sb://{made.proxy.address}",
            "connection_verify": str(made.proxy.ca_file),
        }
        yield made


@pytest.fixture
async def plain_connection(world: World) -> AsyncIterator[Any]:
    """A connection of our own transport, which carries all links on one session."""
    async with await connect(world.connection_string) as connection:
        yield connection
