"""A pair of namespaces in this process, and a syphon between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from pairbus.amqp.message import PROPERTIES, Message, Properties, sections
from pairbus.backlog.envelope import Envelope, wrap
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.broker.namespace import Namespace
from pairbus.pairing.events import Event
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.syphon.decide.pace import LOCK_S
from pairbus.transport import Carrier

BACKLOG = "contoso/x-servicebus-transfer/0"
QUICK = SyphonSettings(send_timeout_s=2.0)
ORDERS, BILLS = QueueDescription("orders"), QueueDescription("bills")
DISABLED = replace(BILLS, status="SendDisabled")

T = TypeVar("T", bound=Event)


def message(number: int, **properties: Any) -> bytes:
    """As an application sends it."""
    return Message(properties=Properties(message_id=f"m{number}", **properties), data=[b"%d" % number]).encode()


def bare(payload: bytes) -> bytes:
    """From the properties on: what nobody between sender and receiver may touch."""
    return next(payload[start:] for code, start, _, _ in sections(payload) if code >= PROPERTIES)


def numbers(payloads: list[bytes]) -> list[int]:
    return [int(Message.decode(payload).data[0]) for payload in payloads]


@dataclass
class World:
    broker: Broker
    primary: Carrier
    secondary: Carrier
    events: list[Event] = field(default_factory=list)
    meters: list[tuple[str, str, str, int, int, str]] = field(default_factory=list)
    on_meter: Callable[[str, str], None] = lambda namespace, kind: None

    @property
    def home(self) -> Namespace:
        return self.broker.namespace("contoso")

    @property
    def away(self) -> Namespace:
        return self.broker.namespace("fabrikam")

    def syphon(
        self,
        settings: SyphonSettings = QUICK,
        queues: tuple[str, ...] = (BACKLOG,),
        *,
        age_s: float = LOCK_S,
        clock: Callable[[], float] = time.monotonic,
        proven: bool = True,
        **options: Any,
    ) -> Syphon:
        """Make a syphon.

        `age_s`: how long it has been there. A younger one keeps lanes waiting for what others may have locked.
        `proven`: its queues have stored a completion before. Others let one message go first to each destination.
        """
        ago_s = age_s
        syphon = Syphon(
            options.pop("primary", self.primary),
            options.pop("secondary", self.secondary),
            queues,
            settings=settings,
            publish=self.events.append,
            meter=self.meter,
            clock=lambda: clock() - ago_s,
            **options,
        )
        for pump in syphon._pumps:
            pump._settling.is_proven = proven
        ago_s = 0.0  # at its creation a syphon only asks for the current time
        return syphon

    def meter(
        self, namespace: Literal["primary", "secondary"], entity: str, kind: str, count: int, size: int, outcome: str, /
    ) -> None:
        self.meters.append((namespace, entity, kind, count, size, outcome))
        self.on_meter(namespace, kind)

    def metered(self, kind: str) -> int:
        return sum(count for _, _, k, count, _, _ in self.meters if k == kind)

    def told(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    async def divert(self, path: str, payloads: list[bytes], queue: str = BACKLOG, **away: Any) -> None:
        """Into the backlog, as a failed-over sender does."""
        await self.put(queue, [wrap(payload, Envelope(path, **away)) for payload in payloads])

    async def put(self, queue: str, payloads: list[bytes]) -> None:
        sender = await self.secondary.sender(queue)
        futures = []
        for payload in payloads:
            await sender.ready()
            futures.append(sender.send_nowait(payload))
        await asyncio.gather(*futures)

    async def arrived(self, queue: str, count: int, within_s: float = 20.0) -> list[bytes]:
        """The first `count` messages that come to a queue at home, taken for good."""
        connection = await self.primary.connection()
        receiver = await connection.receiver(queue, mode="receive-and-delete")
        got: list[bytes] = []
        async with asyncio.timeout(within_s):
            while len(got) < count:
                got += [received.payload for received in await receiver.receive(count - len(got), 5.0)]
        await receiver.close()
        return got

    async def dead_letters(self, count: int, queue: str = BACKLOG) -> list[Message]:
        receiver = await self.secondary.receiver(queue, sub_queue="dead-letter")
        got: list[Message] = []
        async with asyncio.timeout(10):
            while len(got) < count:
                batch = await receiver.receive(count, 5.0)
                got += [Message.decode(received.payload) for received in batch]
                await receiver.complete(batch)
        await receiver.close()
        return got

    def waiting(self, queue: str = BACKLOG) -> int:
        """Messages in a queue of the secondary, locked ones included."""
        return self.away.queue_info(queue).active


async def locked(world: World, queue: str = BACKLOG) -> int:
    """Messages of a queue that nobody else can receive now."""
    receiver = await world.secondary.receiver(queue, credit=1000)
    free = await receiver.receive(1000, 1.0)
    # Asked twice: on a busy machine the first wait may end too soon.
    while more := await receiver.receive(1000, 0.2) or await receiver.receive(1000, 0.5):
        free += more
    await receiver.release(free)
    await receiver.close()
    return world.waiting(queue) - len(free)


async def enable(world: World) -> None:
    await world.home.update_queue(replace(world.home.queue_info("bills").description, status="Active"))


@asynccontextmanager
async def pair(
    *home: QueueDescription, lock_s: float = 60.0, backlogs: int = 1, backlog_message_kb: int = 1024, data: Any = None
) -> AsyncIterator[World]:
    queues = [
        QueueDescription(
            f"{BACKLOG[:-1]}{n}",
            lock_duration_ms=int(lock_s * 1000),
            max_delivery_count=2147483647,
            max_size_mb=5120,
            max_message_size_kb=backlog_message_kb,
        )
        for n in range(backlogs)
    ]
    namespaces = [NamespaceOptions("contoso", queues=home), NamespaceOptions("fabrikam", queues=tuple(queues))]
    async with (
        Broker(namespaces, data=data, strict=True) as broker,
        Carrier(broker.connection_string("contoso"), timeout_s=5.0) as primary,
        Carrier(broker.connection_string("fabrikam"), timeout_s=5.0) as secondary,
    ):
        yield World(broker, primary, secondary)


@asynccontextmanager
async def running(syphon: Syphon) -> AsyncIterator[Syphon]:
    task = asyncio.create_task(syphon.run())
    try:
        yield syphon
    finally:
        await syphon.stop()
        await task


async def until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    """Look again and again: what is waited for tells nobody."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        await asyncio.sleep(0.01)


async def timed(work: Coroutine[Any, Any, Any]) -> float:
    began = time.monotonic()
    await work
    return time.monotonic() - began
