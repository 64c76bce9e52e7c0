"""A secondary that hands out messages and cannot store that they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pairbus.amqp.performatives import Error, Rejected
from pairbus.backlog.envelope import Envelope, wrap
from pairbus.broker.refusal import Refusal
from pairbus.pairing.events import Moved, NotCompleted, PumpPaused
from pairbus.syphon.decide.at_home import AtHome
from pairbus.transport import Carrier
from tests.syphon.world import BACKLOG, ORDERS, QUICK, World, message, numbers, pair, running, until
from tests.transport.server import Script, Server

NO_SPACE = Refusal("amqp:internal-error", "No space left on the disk.")


class FullDisk:
    """A queue of the real broker whose completions are not stored, as long as `is_full`."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, queue: str = BACKLOG) -> None:
        self.is_full = True
        self.refused = 0
        found = world.away.queue(queue)
        assert found is not None
        genuine = found.complete_many

        def complete_many(box: Any, tokens: Any, now_ms: int, done: Callable[..., None]) -> None:
            if self.is_full:
                self.refused += 1
                done(list(tokens), NO_SPACE)
            else:
                genuine(box, tokens, now_ms, done)

        monkeypatch.setattr(found, "complete_many", complete_many)


async def test_no_message_is_multiplied_while_completions_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of one second run out again and again; each message is at home once, and counted once."""
    async with pair(ORDERS, lock_s=1.0) as world:
        await world.divert("orders", [message(number) for number in range(10)])
        disk = FullDisk(world, monkeypatch)
        async with running(world.syphon(replace(QUICK, retry_interval_s=0.2))) as syphon:
            await until(lambda: disk.refused >= 5)
            assert syphon.progress().moved == 10
            assert syphon.progress().uncompleted == 10
            assert world.home.queue_info("orders").active == 10
            assert not world.told(Moved), "they are at home, and still in the backlog"
            disk.is_full = False
            await until(lambda: world.waiting() == 0)
            await until(lambda: syphon.progress().uncompleted == 0)
            assert syphon.progress().moved == 10
        assert sum(told.count for told in world.told(Moved)) == 10
        assert sorted(numbers(await world.arrived("orders", 10))) == list(range(10))
        assert world.metered("send") == 10


async def test_the_operator_is_told_once_and_pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue, cause and number of messages stand in one event, however long it lasts."""
    async with pair(ORDERS, lock_s=1.0) as world:
        await world.divert("orders", [message(number) for number in range(3)])
        disk = FullDisk(world, monkeypatch)
        async with running(world.syphon(replace(QUICK, retry_interval_s=0.1))):
            await until(lambda: len(world.told(PumpPaused)) >= 4)
        pauses = [paused.for_s for paused in world.told(PumpPaused)]
        assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
        [told] = world.told(NotCompleted)
        assert (told.queue, told.count, "No space left" in told.reason) == (BACKLOG, 3, True)
        disk.is_full = False


async def test_a_queue_that_has_proven_nothing_gets_one_message_home() -> None:
    """A restarted syphon, or one from cron, knows nothing: it copies one message at the most."""
    async with pair(ORDERS) as world, Server(Script(settlement=Rejected(error=Error("amqp:internal-error")))) as server:
        server.put(BACKLOG, *[wrap(message(number), Envelope("orders")) for number in range(500)])
        world.secondary = Carrier(server.connection_string)
        progress = await world.syphon(proven=False).run_once(wait_s=0.1)
        assert (progress.moved, progress.uncompleted) == (1, 1)
        assert world.home.queue_info("orders").active == 1
        [told] = world.told(NotCompleted)
        assert told.count == 1
        await world.secondary.close()


async def test_a_single_drain_completes_first_what_is_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the second drain of the same syphon sends nothing twice."""
    async with pair(ORDERS, lock_s=1.0) as world:
        await world.divert("orders", [message(number) for number in range(10)])
        disk = FullDisk(world, monkeypatch)
        syphon = world.syphon()
        assert (await syphon.run_once(wait_s=0.1)).moved == 10
        await asyncio.sleep(1.1)  # until the locks are over
        disk.is_full = False
        await world.divert("orders", [message(number) for number in range(10, 15)])
        progress = await syphon.run_once(wait_s=0.3)
        assert (progress.moved, progress.uncompleted, world.waiting()) == (15, 0, 0)
        assert sorted(numbers(await world.arrived("orders", 15))) == list(range(15))


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    """A message is known by its place in its queue, not by its id alone."""
    memory = AtHome(most=2)
    memory.remember("a", [(1, "m", 10), (2, "m", 10)])
    assert (
        memory.knows("a", (1, "m", 10)) and not memory.knows("b", (1, "m", 10)) and not memory.knows("a", (3, "m", 10))
    )
    memory.remember("b", [(1, "m", 10)])
    assert [memory.knows("a", (1, "m", 10)), memory.knows("a", (2, "m", 10)), memory.knows("b", (1, "m", 10))] == [
        False,
        True,
        True,
    ]
    assert (memory.count("a"), memory.count("b")) == (1, 1)
    memory.forget("a", [(2, "m", 10), (9, "x", 0)])
    assert (memory.count("a"), repr(memory)) == (0, "<AtHome 1 of at most 2>")
