"""A broker in this process, and the genuine SDK for asyncio in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairbus.auth.sas import SharedAccessKey, sign
from pairbus.broker import ROOT_KEY_NAME, WELL_KNOWN_KEY, Broker, NamespaceOptions
from pairbus.broker.namespace import Namespace

WAIT_S = 5  # longest wait for a message that is in the queue
LISTENER = SharedAccessKey("listener", "only listens", rights=frozenset({"Listen"}))


class World:
    """The namespace `contoso` of a broker, with one client that is closed at the end."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = ServiceBusClient.from_connection_string(broker.connection_string("contoso"), retry_total=0)
        self._open: list[Any] = []

    @property
    def namespace(self) -> Namespace:
        return self.broker.namespace("contoso")

    async def opened(self, link: Any) -> Any:
        """Open a sender or receiver, which is closed at the end."""
        self._open.append(await link.__aenter__())
        return link

    async def sender(self, path: str) -> Any:
        return await self.opened(self.client.get_queue_sender(path))

    async def receiver(self, path: str, **options: Any) -> Any:
        return await self.opened(self.client.get_queue_receiver(path, **options))

    async def send(self, path: str, *messages: ServiceBusMessage) -> None:
        """Send with a sender of its own; one by one, since a batch is accepted together."""
        sender = await self.sender(path)
        for message in messages:
            await sender.send_messages(message)

    async def http(self, method: str, path: str, *, key: SharedAccessKey | None = None, **options: Any) -> Any:
        """Make a signed request; (status, JSON or text)."""
        host = self.broker.connection_string("contoso").split("sb://")[1].split(";")[0]
        name, secret = (ROOT_KEY_NAME, WELL_KNOWN_KEY) if key is None else (key.name, key.key)
        headers = {"Authorization": sign(f"sb://{host}/", name, secret, 4_000_000_000)}
        url = f"http://{host}/{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers, **options) as answer,
        ):
            is_json = answer.content_type == "application/json"
            return answer.status, (await answer.json() if is_json else await answer.text())

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._open), return_exceptions=True)
        await self.client.close()


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    """A broker with one namespace; `options` are those of `Broker`, in memory unless told otherwise."""
    namespace = NamespaceOptions("contoso", keys=(LISTENER,))
    async with Broker([namespace], **{"data": None, **options}) as broker:
        world = World(broker)
        try:
            yield world
        finally:
            await world.close()


async def received(receiver: Any, count: int = 1) -> list[Any]:
    """Receive messages that are there."""
    found: list[Any] = []
    while len(found) < count:
        more = await receiver.receive_messages(max_message_count=count - len(found), max_wait_time=WAIT_S)
        assert more, f"{len(found)} of {count} messages came"
        found += more
    return found
