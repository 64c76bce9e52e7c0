"""A spool, two namespaces and a forwarder between them, for tests that say where it may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.pairing.events import Event
from pairbus.pairing.policy import Failure
from pairbus.spool import Spool
from pairbus.spool.forwarder import Forwarder
from pairbus.spool.lanes import PRIMARY, Way
from pairbus.transport import Carrier, connect
from tests.spool.entries import number_of

QUEUE = "contoso/x-servicebus-transfer/0"


class Ways:
    """Ways to send: one for all paths, unless a path has its own."""

    def __init__(self, way: Way | None = PRIMARY, **paths: Way | None) -> None:
        self.default = way
        self.paths = paths
        self.after_failure: Way | None = None
        "The way of all paths from the first failure on."
        self.told: list[tuple[str, str, Failure | None]] = []

    def way(self, path: str, now: float) -> Way | None:
        return self.paths.get(path, self.default)

    def accepted(self, path: str, way: Way, count: int, now: float) -> None:
        self.told.append((path, str(way), None))

    def failed(self, path: str, way: Way, failure: Failure, now: float) -> None:
        self.told.append((path, str(way), failure))
        self.default = self.after_failure or self.default


class World:
    def __init__(self, folder: Path, primary: str, secondary: str, **options: Any) -> None:
        self.spool = Spool(folder / "spool")
        self.ways = Ways()
        self.events: list[Event] = []
        self.primary, self.secondary = (
            Carrier(text, connect_timeout_s=2, timeout_s=2) for text in (primary, secondary)
        )
        self.meters: list[tuple[object, ...]] = []
        self.forwarder = Forwarder(
            self.spool,
            self.ways,
            self.primary,
            self.secondary,
            publish=self.events.append,
            meter=lambda *numbers, cause: self.meters.append((*numbers, cause)),
            **options,
        )

    async def close(self) -> None:
        await self.primary.close()
        await self.secondary.close()
        self.spool.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.forwarder.run())
        try:
            yield
            self.forwarder.stop()
            await asyncio.wait_for(task, 20)
        finally:
            task.cancel()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110 - the awaited change may happen in other threads
                await asyncio.sleep(0.005)

    def is_down_to(self, count: int) -> bool:
        return self.spool.waiting <= count

    async def emptied(self) -> None:
        await self.until(lambda: not self.spool.waiting)


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[str, str]]:
    """Connection strings of two embedded namespaces: a primary with two queues, a secondary with a backlog queue."""
    primary = NamespaceOptions("contoso", queues=(QueueDescription("orders"), QueueDescription("bills")))
    secondary = NamespaceOptions("fabrikam", queues=(QueueDescription(QUEUE),))
    async with Broker([primary, secondary], data=None, strict=True) as broker:
        yield broker.connection_string("contoso"), broker.connection_string("fabrikam")


async def payloads_in(connection_string: str, path: str) -> list[bytes]:
    """Take all messages out of a queue and return their payloads in order."""
    found: list[bytes] = []
    async with await connect(connection_string) as connection:
        receiver = await connection.receiver(path, mode="receive-and-delete", credit=1000)
        while messages := await receiver.receive(1000, timeout_s=2.0):
            found += [message.payload for message in messages]
    return found


async def numbers_in(connection_string: str, path: str) -> list[int]:
    return [number_of(payload) for payload in await payloads_in(connection_string, path)]
