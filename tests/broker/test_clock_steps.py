"""Somebody sets the machine's clock while the broker runs: dates follow it, what lasts does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace

import pytest

from pairbus.auth.sas import KeyRing
from pairbus.broker.description import QueueDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.queue import Queue
from pairbus.broker.namespace import Namespace
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.timetable import TIMER_MAX_S
from tests.broker.locking import lock_next
from tests.sim.loop import VirtualLoop

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
STEPS = pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 700, -700])


class World:
    """A namespace on a loop without real time; its wall clock can be set."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(Random(1))
        self.wall_ms = 1_790_000_000_000
        self.namespace = Namespace(
            "contoso",
            MemoryStore(self.loop.call_soon),
            KeyRing([]),
            loop=self.loop,
            now_ms=lambda: self.wall_ms + round(self.loop.time() * 1000),
            steady_ms=lambda: round(self.loop.time() * 1000),
        )

    def run(self, history: Callable[[World], Awaitable[None]]) -> None:
        try:
            self.loop.run_until_complete(history(self))
        finally:
            self.loop.close()

    @property
    def now_ms(self) -> int:
        return self.namespace.now_ms()

    async def queue(self, **settings: object) -> Queue:
        description = QueueDescription("orders", lock_duration_ms=MINUTE_MS, **settings)  # type: ignore[arg-type]
        await self.namespace.create(description)
        queue = self.namespace.catalog.queue("orders")
        draft = Draft(b"m", session_id="s" if queue.sessions else None)
        answered = self.loop.create_future()
        queue.send([draft], self.now_ms, answered.set_result)
        assert await answered is None
        return queue


@STEPS
def test_lock_of_a_message_lasts_as_long_as_it_should(step_ms: int) -> None:
    """A step of an hour ended all locks, or kept them for an hour."""

    async def history(world: World) -> None:
        queue = await world.queue()
        lock = lock_next(queue.main, world.now_ms)
        assert lock is not None
        world.namespace.changed(queue)
        await asyncio.sleep(20)
        world.wall_ms += step_ms
        assert queue.renew(queue.main, [lock.token], world.now_ms) == [world.now_ms + MINUTE_MS]
        await asyncio.sleep(30)
        world.wall_ms -= step_ms
        assert queue.main.locks.held(lock.token, world.now_ms) is lock
        assert lock.until_ms - world.now_ms == 30_000
        await asyncio.sleep(30 + TIMER_MAX_S + 1)
        assert queue.main.lapsed_count == 1
        again = lock_next(queue.main, world.now_ms)
        assert again is not None
        assert again.message.delivery_count == 1

    World().run(history)


@STEPS
def test_lock_of_a_session_lasts_as_long_as_it_should(step_ms: int) -> None:
    """With the locks of the messages under it."""

    async def history(world: World) -> None:
        queue = await world.queue(requires_session=True)
        assert queue.sessions is not None
        lost: list[bool] = []
        holder = SimpleNamespace(session_lost=lambda: lost.append(True))
        hold = queue.sessions.accept("s", holder, world.now_ms)
        assert hold is not None
        lock = lock_next(queue.main, world.now_ms, hold.session)
        assert lock is not None
        world.namespace.changed(queue)
        await asyncio.sleep(50)
        world.wall_ms += step_ms
        assert queue.sessions.held("s", lambda each: each is holder, world.now_ms) is hold
        assert (hold.until_ms, lock.until_ms) == (world.now_ms + 10_000, world.now_ms + 10_000)
        await asyncio.sleep(10 + TIMER_MAX_S + 1)
        assert lost == [True]

    World().run(history)


@STEPS
def test_idle_entity_is_deleted_when_its_idle_time_is_over(step_ms: int) -> None:
    """It was deleted at once, with its messages, or an hour late."""

    async def history(world: World) -> None:
        await world.queue(auto_delete_on_idle_ms=10 * MINUTE_MS)
        await asyncio.sleep(60)
        world.wall_ms += step_ms
        await asyncio.sleep(8.5 * 60)
        assert world.namespace.queue("orders") is not None
        await asyncio.sleep(30 + TIMER_MAX_S + 1)
        assert world.namespace.queue("orders") is None

    World().run(history)


def test_scheduled_message_follows_the_date() -> None:
    """Its time is a date, so a clock that is set forward makes it due."""

    async def history(world: World) -> None:
        queue = await world.queue()
        answered = world.loop.create_future()
        queue.schedule([Draft(b"later", scheduled_ms=world.now_ms + HOUR_MS)], world.now_ms, answered.set_result)
        await answered
        world.wall_ms += HOUR_MS
        await asyncio.sleep(TIMER_MAX_S + 1)
        assert (queue.scheduled_count, queue.active_count) == (0, 2)

    World().run(history)


def test_clock_of_a_test_still_ends_locks() -> None:
    """The offset that tests move is no step of the machine's clock."""

    async def history(world: World) -> None:
        queue = await world.queue()
        lock = lock_next(queue.main, world.now_ms)
        assert lock is not None
        world.wall_ms += HOUR_MS
        await world.namespace.clock.advance(MINUTE_MS / 1000 - 1)
        assert queue.main.locks.held(lock.token, world.now_ms) is lock
        await world.namespace.clock.advance(1)
        assert queue.main.locks.held(lock.token, world.now_ms) is None
        assert queue.main.lapsed_count == 1

    World().run(history)
