"""The genuine SDK in both flavours behind one face, and our receivers, so that a test body is written once.

Every object that a test gets looks like its `azure.servicebus.aio` kind: its methods are awaited. In the sync flavour
each call runs in a thread of its own. Every call has a deadline, because some failures of a broker make the SDK wait
for ever; the threads are daemons, so that such a call fails its test and does not hold the run.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, cast

from azure.core.credentials import AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, aio
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioAdministrationClient
from azure.servicebus.management import QueueProperties, QueueRuntimeProperties, ServiceBusAdministrationClient

import pairbus
import pairbus.aio

Flavour = Literal["sync", "aio"]
Receivers = Literal["sdk", "pairbus"]
"Whose receivers a test uses: those of the genuine SDK, or ours."
CALL_S = 20.0  # deadline of one SDK call
WAIT_S = 15.0  # for messages and changes that must come; shorter than the deadline of the call that waits
FAST = {"retry_total": 0, "try_timeout": 10}
"Client options with which a failing call fails at once."


async def in_thread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`asyncio.to_thread`, but on a daemon thread that nothing waits for when the call never returns."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = call(*args, **kwargs)
        except Exception as raised:  # raised again in the test that awaits the call
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await done


class Guarded:
    """An SDK object whose methods are coroutines with a deadline. Other attributes pass through."""

    def __init__(self, target: Any, flavour: Flavour) -> None:
        self._target = target
        self._flavour = flavour

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        async def call(*args: Any, **kwargs: Any) -> Any:
            async with asyncio.timeout(CALL_S):
                if self._flavour == "aio":
                    return await attribute(*args, **kwargs)
                return await in_thread(attribute, *args, **kwargs)

        return call

    async def open(self) -> None:
        async with asyncio.timeout(CALL_S):
            if self._flavour == "aio":
                await self._target.__aenter__()
            else:
                await in_thread(self._target.__enter__)

    async def first(self, count: int) -> list[ServiceBusReceivedMessage]:
        """The first messages of iterating over a receiver (`for message in receiver`)."""
        async with asyncio.timeout(CALL_S):
            if self._flavour == "sync":
                return cast(
                    list[ServiceBusReceivedMessage],
                    await in_thread(lambda: list(itertools.islice(self._target, count))),
                )
            found: list[ServiceBusReceivedMessage] = []
            async for message in self._target:
                found.append(message)
                if len(found) == count:
                    break
            return found


class Admin:
    """ServiceBusAdministrationClient of either flavour; listings come as lists."""

    def __init__(self, flavour: Flavour, connection_string: str, ca_file: Path) -> None:
        options: dict[str, Any] = {
            "connection_verify": str(ca_file),
            "retry_total": 0,
            "connection_timeout": 5,
            "read_timeout": 15,
        }
        kind: Any = AioAdministrationClient if flavour == "aio" else ServiceBusAdministrationClient
        self._client = kind.from_connection_string(connection_string, **options)
        self._flavour = flavour
        self.calls = cast(AioAdministrationClient, Guarded(self._client, flavour))

    async def list_queues(self) -> list[QueueProperties]:
        return cast(list[QueueProperties], await self._listed(self._client.list_queues))

    async def list_queues_runtime_properties(self) -> list[QueueRuntimeProperties]:
        return cast(list[QueueRuntimeProperties], await self._listed(self._client.list_queues_runtime_properties))

    async def listed(self, method: str, *names: str) -> list[Any]:
        """All items of one of the client's listings, such as `list_rules` of a topic and a subscription."""
        return await self._listed(lambda: getattr(self._client, method)(*names))

    async def close(self) -> None:
        await self.calls.close()

    async def _listed(self, listing: Callable[[], Any]) -> list[Any]:
        async with asyncio.timeout(CALL_S):
            if self._flavour == "aio":
                return [item async for item in listing()]
            return cast(list[Any], await in_thread(lambda: list(listing())))


class Sdk:
    """One flavour of the SDK on one namespace: opens senders and receivers, and closes them all at the end.

    With `receivers="pairbus"` its receivers are those of our client.
    """

    def __init__(
        self, flavour: Flavour, connection_string: str, *, receivers: Receivers = "sdk", **client_options: Any
    ) -> None:
        self.flavour = flavour
        self.connection_string = connection_string
        self._client = self._kind.from_connection_string(connection_string, **{**FAST, **client_options})
        self._receiving = self._client
        "The client whose receivers are used."
        if receivers == "pairbus":
            kind: Any = pairbus.aio.ServiceBusClient if flavour == "aio" else pairbus.ServiceBusClient
            self._receiving = kind.from_connection_string(connection_string)
        self._opened: list[Guarded] = []

    @classmethod
    def with_token(cls, flavour: Flavour, authority: str, token: str) -> Sdk:
        """A client that presents a ready-made shared access signature, valid or not."""
        self = cls.__new__(cls)
        self.flavour = flavour
        self.connection_string = ""
        self._client = self._receiving = self._kind(authority, AzureSasCredential(token), use_tls=False, **FAST)
        self._opened = []
        return self

    @property
    def _kind(self) -> Any:
        return aio.ServiceBusClient if self.flavour == "aio" else ServiceBusClient

    async def sender(self, queue: str, **options: Any) -> aio.ServiceBusSender:
        """An open sender; its SDK error when the broker refuses the link."""
        return cast(aio.ServiceBusSender, await self._open(self._client.get_queue_sender(queue, **options)))

    async def receiver(self, queue: str, **options: Any) -> aio.ServiceBusReceiver:
        """An open receiver; its SDK error when the broker refuses the link."""
        return cast(aio.ServiceBusReceiver, await self._open(self._receiving.get_queue_receiver(queue, **options)))

    async def topic_sender(self, topic: str) -> aio.ServiceBusSender:
        return cast(aio.ServiceBusSender, await self._open(self._client.get_topic_sender(topic)))

    async def subscription_receiver(self, topic: str, name: str, **options: Any) -> aio.ServiceBusReceiver:
        receiver = self._receiving.get_subscription_receiver(topic, name, **options)
        return cast(aio.ServiceBusReceiver, await self._open(receiver))

    async def pair(self, queue: str, **receiver_options: Any) -> tuple[aio.ServiceBusSender, aio.ServiceBusReceiver]:
        """A sender and a receiver, opened side by side: opening takes the SDK half a second each."""
        return await asyncio.gather(self.sender(queue), self.receiver(queue, **receiver_options))

    async def close(self) -> None:
        await asyncio.gather(*(cast(Awaitable[None], handler.close()) for handler in self._opened))
        await Guarded(self._client, self.flavour).close()
        if self._receiving is not self._client:
            await Guarded(self._receiving, self.flavour).close()

    async def _open(self, handler: Any) -> Guarded:
        guarded = Guarded(handler, self.flavour)
        await guarded.open()
        self._opened.append(guarded)
        return guarded


async def receive(
    receiver: aio.ServiceBusReceiver, count: int = 1, *, within_s: float = WAIT_S
) -> list[ServiceBusReceivedMessage]:
    """Exactly `count` messages, or an AssertionError when they have not come in time."""
    found: list[ServiceBusReceivedMessage] = []
    deadline = time.monotonic() + within_s
    while len(found) < count and (left_s := deadline - time.monotonic()) > 0:
        found += await receiver.receive_messages(max_message_count=count - len(found), max_wait_time=left_s)
    assert len(found) == count, f"{len(found)} of {count} messages came within {within_s} s"
    return found


async def receive_one(receiver: aio.ServiceBusReceiver, *, within_s: float = WAIT_S) -> ServiceBusReceivedMessage:
    return (await receive(receiver, 1, within_s=within_s))[0]


async def assert_empty(receiver: aio.ServiceBusReceiver) -> None:
    """Assert that no message can be received now. The wait is several times the SDK's need for a round trip."""
    found = await receiver.receive_messages(max_message_count=10, max_wait_time=0.4)
    assert found == [], f"expected an empty queue, got {[text(message) for message in found]}"


async def until(condition: Callable[[], Awaitable[bool]], what: str, *, within_s: float = WAIT_S) -> None:
    """Poll until the condition holds; an AssertionError that names it when it does not in time."""
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.05)


def text(message: ServiceBusReceivedMessage) -> str:
    """The body of a message that was sent as text."""
    return b"".join(message.body).decode()


def number(message: ServiceBusReceivedMessage) -> int:
    assert message.sequence_number is not None
    return message.sequence_number
