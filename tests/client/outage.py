"""An outage as two applications live through it at the same time, one with threads and one with asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from azure.servicebus.exceptions import ServiceBusError

from pairbus.pairing.events import FailedOver, Suspected
from pairbus.pairing.failover import State
from tests.client.losses import Heal, Loss
from tests.client.world import Client, Sender, World, message
from tests.history.check import Verdict
from tests.limits import slowness
from tests.sdk.flavours import Flavour

BACK_S = 1.0 + 1.0 + 2.0  # one ping interval, one ping time-out, and 2 s
FLAVOURS: tuple[Flavour, ...] = ("sync", "aio")


class Application:
    """Client that sends to `orders`, which is lost, and to `invoices`, which the loss must not touch."""

    def __init__(self, world: World, loss: Loss, client: Client, **settings: Any) -> None:
        self.world = world
        self.loss = loss
        self.client = client
        self.orders = loss.make_queue(world, **settings)
        self.invoices = world.namespaces.make_queue()
        self.sender: Sender = client.sender(self.orders)
        self.other: Sender = client.sender(self.invoices)

    def __repr__(self) -> str:
        return f"<Application {self.client.flavour} {self.loss}>"

    async def send(self) -> float:
        return await self.world.send(self.sender, message(f"{self.client.flavour} {self.loss}"))

    async def send_other(self) -> float:
        return await self.world.send(self.other, message("other"))

    async def works(self) -> None:
        if not self.loss.before_connection:  # sending to the other entity opens the connection of both
            await self.send_other()
            await self.send()

    async def diverts_at_once(self) -> None:
        """The first send after the loss is stored in time, the next ones at once; the other entity is not touched."""
        took_s = await self.send()
        assert took_s < self.loss.limit_s, f"{self}: {took_s:.2f} s"
        assert len(self.client.diverted_ids) == 1
        assert self.client.state(self.orders) is State.FAILED_OVER
        if self.loss.of_one_entity:
            assert await self.send_other() < slowness()
        for _ in range(3):
            assert await self.send() < slowness()
        assert len(self.client.diverted_ids) == 4
        assert self.client.state(self.invoices) is State.HEALTHY

    async def fails_until(self, interval_s: float) -> None:
        """Assert that calls fail until the interval is over, and that calls which end later are stored."""
        ended_badly: list[float] = []
        while True:
            began = time.monotonic()
            try:
                await self.send()
                break
            except ServiceBusError:
                ended_badly.append(time.time())
            assert time.monotonic() - began < self.loss.limit_s
        took_s = time.monotonic() - began
        assert took_s < self.loss.limit_s, f"{self}: {took_s:.2f} s"
        suspected, failed_over = self.client.told(Suspected), self.client.told(FailedOver)
        assert len(suspected) == len(failed_over) == 1
        waited_s = failed_over[0].at_s - suspected[0].at_s
        assert interval_s - 0.01 <= waited_s < interval_s + 0.5 * slowness(), f"{self}: {waited_s:.2f} s"
        assert ended_badly and max(ended_badly) < failed_over[0].at_s + 0.2 * slowness(), (
            "no send fails after the failover"
        )
        assert await self.send() < slowness()
        assert len(self.client.diverted_ids) == 2
        assert self.client.state(self.invoices) is State.HEALTHY

    async def comes_back(self) -> None:
        back_s = await self.client.until_state(self.orders, State.HEALTHY, BACK_S)
        assert back_s < BACK_S * slowness()
        diverted = len(self.client.diverted_ids)
        await self.send()
        await self.send_other()
        assert len(self.client.diverted_ids) == diverted, "the message after the recovery went home"


@asynccontextmanager
async def outage(
    world: World, loss: Loss, settings: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Outage]:
    """Let both applications work, then cause the loss; at the end heal it, unless the test has done so."""
    loss.prepare(world)
    applications = [
        Application(world, loss, await world.client(flavour, **options), **(settings or {})) for flavour in FLAVOURS
    ]
    await asyncio.gather(*(application.works() for application in applications))
    heal = await loss.happens(world, [application.orders for application in applications])
    outage = Outage(world, applications, heal)
    try:
        yield outage
    finally:
        await outage.heal()


class Outage:
    def __init__(self, world: World, applications: list[Application], heal: Heal) -> None:
        self.world = world
        self.applications = applications
        self._heal = heal
        self._healed = False

    async def each(self, what: Callable[[Application], Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*(what(application) for application in self.applications))

    async def heal(self) -> None:
        if not self._healed:
            self._healed = True
            await self._heal()

    async def judge(self) -> tuple[Verdict, set[str]]:
        """The checker's word, and the ids of messages whose outcome at the primary was unknown."""
        doubtful = {one for application in self.applications for one in application.client.doubtful_ids}
        paths = [path for application in self.applications for path in (application.orders, application.invoices)]
        return await self.world.judge(*paths), doubtful

    async def nothing_is_lost(self) -> None:
        """After the drain: no message lost, misrouted or altered; duplicates only of unknown outcomes."""
        verdict, doubtful = await self.judge()
        assert (verdict.lost, verdict.misrouted, verdict.altered, verdict.unexpected) == ((), (), (), ()), str(verdict)
        assert set(verdict.duplicated) <= doubtful, str(verdict)


async def diverted_at_once(world: World, loss: Loss) -> None:
    """The whole course with a failover interval of 0."""
    async with outage(world, loss) as course:
        await course.each(Application.diverts_at_once)
        await course.heal()
        await course.each(Application.comes_back)
    await course.nothing_is_lost()


async def diverted_after(world: World, loss: Loss, interval_s: float) -> None:
    """The whole course with a failover interval."""
    async with outage(world, loss, failover_interval=interval_s) as course:
        await course.each(lambda application: application.fails_until(interval_s))
        await course.heal()
        await course.each(Application.comes_back)
    await course.nothing_is_lost()
