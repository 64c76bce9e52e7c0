"""A processor under test in either flavour. A handler is written once: what it returns is awaited if it can be."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

from azure.servicebus import ServiceBusMessage

import pairbus
import pairbus.aio
from pairbus.amqp.message import Message
from pairbus.testing.broker_thread import BrokerThread
from pairbus.transport import connect
from tests.limits import slowness
from tests.sdk.flavours import Flavour, in_thread

CALL_S = 30.0
Behaviour = Callable[[Any], Any]


class Desk:
    """A broker, a client of one flavour, and what its processors did."""

    def __init__(self, broker: BrokerThread, flavour: Flavour) -> None:
        self.broker = broker
        self.flavour = flavour
        self.events: list[Any] = []
        "Events that `on_error` got."
        self.client_events: list[Any] = []
        "Events that the client's `on_event` got."
        self.running: list[Any] = []
        "Messages whose handlers run now."
        self.most_at_once = 0
        self._client: Any = None

    @property
    def is_aio(self) -> bool:
        return self.flavour == "aio"

    def new_client(self, connection_string: str | None = None) -> Any:
        kind: Any = pairbus.aio.ServiceBusClient if self.is_aio else pairbus.ServiceBusClient
        text = connection_string or self.broker.connection_string()
        return kind.from_connection_string(text, on_event=self.client_events.append)

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def use(self, connection_string: str) -> None:
        """Use this way to the broker, that of a proxy perhaps."""
        assert self._client is None
        self._client = self.new_client(connection_string)

    def queue(self, **settings: Any) -> str:
        return self.broker.create_queue(f"q-{uuid.uuid4().hex[:8]}", **settings)

    def handler(self, behave: Behaviour) -> Any:
        """Return the handler of this flavour, which also counts those that run at once."""

        def enter(message: Any) -> None:
            self.running.append(message)
            self.most_at_once = max(self.most_at_once, len(self.running))

        async def handle(message: Any) -> None:
            enter(message)
            try:
                result = behave(message)
                if isawaitable(result):
                    await result
            finally:
                self.running.remove(message)

        def handle_in_thread(message: Any) -> None:
            enter(message)
            try:
                behave(message)
            finally:
                self.running.remove(message)

        return handle if self.is_aio else handle_in_thread

    def nap(self, seconds: float) -> Any:
        """Let a handler take time in the way of its flavour."""
        return asyncio.sleep(seconds) if self.is_aio else time.sleep(seconds)

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async with asyncio.timeout(CALL_S * slowness()):
            if self.is_aio:
                return await method(*args, **kwargs)
            return await in_thread(method, *args, **kwargs)

    def new_processor(self, queue: str, behave: Behaviour, **options: Any) -> Any:
        options.setdefault("on_error", self.events.append)
        return self.client.get_queue_processor(queue, self.handler(behave), **options)

    @asynccontextmanager
    async def processor(self, queue: str, behave: Behaviour, **options: Any) -> AsyncIterator[Any]:
        processor = self.new_processor(queue, behave, **options)
        await self.call(processor.start)
        try:
            yield processor
        finally:
            await self.call(processor.stop)

    async def send(self, queue: str, *bodies: str, **fields: Any) -> None:
        sender = self.client.get_queue_sender(queue)
        messages = [ServiceBusMessage(body, **{"message_id": body, **fields}) for body in bodies]
        for first in range(0, len(messages), 500):
            await self.call(sender.send_messages, messages[first : first + 500])

    async def take(self, path: str, count: int) -> list[Message]:
        """Take so many messages, past the client; nothing may be left in the entity then, locked or not."""
        found: list[Message] = []
        ends = time.monotonic() + CALL_S * slowness()
        async with await connect(self.broker.connection_string()) as connection:
            if count:
                receiver = await connection.receiver(path, credit=500)
                while len(found) < count:
                    assert time.monotonic() < ends, f"{len(found)} of {count} messages can be received"
                    batch = await receiver.receive(500, timeout_s=1)
                    found += [Message.decode(each.payload) for each in batch]
                    await receiver.complete(batch)
                await receiver.close()
            left = await (await connection.management(path)).peek(0, 10)
        assert len(found) == count
        assert not left, f"{len(left)} more messages"
        return found

    async def dead_letter(self, path: str) -> Message:
        """Take the only dead letter."""
        (letter,) = await self.take(f"{path}/$DeadLetterQueue", 1)
        return letter

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in list(self.events) if type(event) is kind]

    async def close(self) -> None:
        if self._client is not None:
            await self.call(self._client.close)


async def until(holds: Callable[[], object], what: str, within_s: float = 15.0) -> None:
    """Poll until it holds."""
    ends = time.monotonic() + within_s * slowness()
    while not holds():
        assert time.monotonic() < ends, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.01)


def body_of(message: Message) -> str:
    return bytes(message.body).decode()
