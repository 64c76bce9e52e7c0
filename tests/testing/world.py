"""A broker in this process behind a nemesis, and the genuine SDK in front of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from pairbus.amqp.message import Message, Properties
from pairbus.broker import Broker
from pairbus.testing import Nemesis

DEADLINE_S = 12.0  # of any one call in these tests; the slowest legitimate one takes three seconds


class World:
    """The namespace `contoso` with the queues `orders` and `invoices`."""

    def __init__(self, broker: Broker, nemesis: Nemesis) -> None:
        self.broker = broker
        self.nemesis = nemesis
        self.client = sdk(nemesis.connection_string(broker.connection_string("contoso")))
        self._senders: list[ServiceBusSender] = []

    def stored(self, path: str) -> int:
        return self.broker.namespace("contoso").queue_info(path).active

    async def sender(self, path: str) -> ServiceBusSender:
        sender: ServiceBusSender = await opened(self.client.get_queue_sender(path))
        self._senders.append(sender)
        return sender

    async def close(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(sender.close() for sender in self._senders))
            await self.client.close()


def sdk(connection_string: str, **options: Any) -> ServiceBusClient:
    """A client that neither tries again nor waits for ever."""
    return ServiceBusClient.from_connection_string(connection_string, **{"retry_total": 0, "try_timeout": 8, **options})


async def opened(handler: Any) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        return await handler.__aenter__()


async def send(sender: Any, body: str, timeout_s: float = 8) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await sender.send_messages(ServiceBusMessage(body), timeout=timeout_s)


def text(body: str) -> bytes:
    """An encoded message."""
    return Message(properties=Properties(message_id=body), data=[body.encode()]).encode()


def texts(payloads: list[bytes]) -> list[str]:
    return [Message.decode(payload).body.decode() for payload in payloads]


async def error_of(call: Any) -> BaseException:
    """Return the error of a call that must fail."""
    try:
        await call
    except Exception as error:
        return error
    raise AssertionError("the call was expected to fail")


async def all_rows(check: Callable[..., Awaitable[None]], rows: Sequence[tuple[Any, ...]]) -> None:
    """Check every row of a table at once: the SDK spends its time waiting, and a row has an endpoint of its own."""
    ended = await asyncio.gather(*(check(*row) for row in rows), return_exceptions=True)
    failed = [f"{row}: {error!r}" for row, error in zip(rows, ended, strict=True) if error is not None]
    assert not failed, "\n".join(failed)


class Stopwatch:
    """`with Stopwatch() as watch: …` then `watch.seconds`."""

    seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._began
