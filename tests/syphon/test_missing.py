"""Since when a destination is missing outlives the process that found it missing: a message of the queue says it."""

from __future__ import annotations

import time
from dataclasses import replace

from pairbus.amqp.message import Message
from pairbus.amqp.types import Timestamp
from pairbus.backlog.aliases import MISSING_SINCE
from pairbus.backlog.envelope import Envelope, Home, redriven, unwrap, wrap
from pairbus.broker import QueueDescription
from pairbus.syphon.decide.dead_letter import MISSING
from tests.syphon.world import BACKLOG, DISABLED, QUICK, World, bare, message, numbers, pair, running, until

GRACE = replace(QUICK, missing_destination_grace_s=900.0)
MINUTE_MS = 60_000


class Clock:
    """Wall time that is moved by hand. A syphon of a new process has a new monotonic clock."""

    def __init__(self) -> None:
        self.wall_ms = time.time_ns() // 1_000_000

    def later(self, minutes: int) -> None:
        self.wall_ms += minutes * MINUTE_MS


async def marks(world: World, queue: str = BACKLOG) -> list[object]:
    """The marks of all messages in the queue, in its order."""
    management = await (await world.secondary.connection()).management(queue)
    found = [Message.decode(payload).application_properties or {} for payload in await management.peek(0, 100)]
    return [properties.get(MISSING_SINCE) for properties in found]


async def test_the_grace_survives_single_drains_of_new_processes() -> None:
    """From cron, on a fresh container each time: nothing but the queue remembers."""
    clock = Clock()
    async with pair() as world:
        await world.divert("gone", [message(1), message(2), message(3)])

        async def run() -> tuple[int, int]:
            syphon = world.syphon(GRACE, wall_ms=lambda: clock.wall_ms, proven=False)
            progress = await syphon.run_once(wait_s=0.1)
            return progress.blocked, progress.dead_lettered

        assert await run() == (3, 0)
        assert [mark is not None for mark in await marks(world)] == [True, False, False]
        clock.later(10)
        await world.divert("gone", [message(4)])
        assert await run() == (4, 0)
        clock.later(6)
        assert await run() == (0, 4)
        letters = await world.dead_letters(4)
        assert {(letter.application_properties or {})["DeadLetterReason"] for letter in letters} == {MISSING}


async def test_the_grace_survives_a_restart_of_a_running_syphon() -> None:
    """A crash loop must not keep messages of a deleted destination for ever."""
    clock = Clock()
    async with pair() as world:
        await world.divert("gone", [message(1), message(2)])
        async with running(world.syphon(GRACE, wall_ms=lambda: clock.wall_ms)) as first:
            await until(lambda: first.progress().blocked == 2)
        clock.later(16)
        async with running(world.syphon(GRACE, wall_ms=lambda: clock.wall_ms)) as second:
            await until(lambda: second.progress().dead_lettered == 2)


async def test_the_mark_is_taken_off_on_the_way_home() -> None:
    """The destination was redeployed: its messages are what they were."""
    original = message(1)
    async with pair() as world:
        await world.divert("late", [original, message(2)])
        assert (await world.syphon(GRACE).run_once(wait_s=0.1)).blocked == 2
        await world.home.create_queue(QueueDescription("late"))
        assert (await world.syphon(GRACE).run_once(wait_s=0.1)).moved == 2
        came = await world.arrived("late", 2)
        assert numbers(came) == [1, 2] and bare(came[0]) == bare(original)


async def test_a_destination_that_answers_otherwise_loses_its_mark() -> None:
    """The destination is there, though disabled: if it is deleted once more, the grace begins anew."""
    clock = Clock()
    async with pair() as world:
        await world.divert("bills", [message(1)])

        async def run() -> tuple[int, int]:
            progress = await world.syphon(GRACE, wall_ms=lambda: clock.wall_ms).run_once(wait_s=0.1)
            return progress.blocked, progress.dead_lettered

        assert await run() == (1, 0)
        await world.home.create_queue(DISABLED)
        clock.later(20)
        assert await run() == (1, 0)
        assert await marks(world) == [None]
        await world.home.delete_queue("bills")
        clock.later(20)
        assert await run() == (1, 0), "the destination was not missing for all of the 40 minutes"
        clock.later(16)
        assert await run() == (0, 1)


async def test_every_queue_keeps_its_own_mark() -> None:
    """The queues of a syphon may be drained by different ones the next time."""
    queues = tuple(f"{BACKLOG[:-1]}{number}" for number in range(2))
    async with pair(backlogs=2) as world:
        for queue in queues:
            await world.divert("gone", [message(1), message(2)], queue)
        await world.syphon(GRACE, queues=queues).run_once(wait_s=0.1)
        for queue in queues:
            assert [mark is not None for mark in await marks(world, queue)] == [True, False]


def test_a_mark_is_read_and_a_redriven_message_has_none() -> None:
    """Null means no mark; a dead letter that goes back to its backlog queue gets a whole grace."""
    marked = Message.decode(wrap(message(1), Envelope("orders")))
    assert marked.application_properties is not None
    for value, read in ((Timestamp(5), 5), (None, None)):
        marked.application_properties[MISSING_SINCE] = value
        home = unwrap(marked.encode())
        assert isinstance(home, Home) and home.missing_since_ms == read
        assert home.payload == message(1)
        again = redriven(marked.encode(), BACKLOG)
        assert isinstance(again, Home)
        assert MISSING_SINCE not in (Message.decode(again.payload).application_properties or {})
