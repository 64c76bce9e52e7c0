"""Order: a lane and the messages that hold it up, over queues, kills and drains."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from pairbus.amqp.message import Header, Message, Properties
from pairbus.amqp.types import UInt
from pairbus.backlog.envelope import EXPIRED, Envelope, wrap
from pairbus.pairing.events import DeadLettered, PumpPaused
from pairbus.syphon import pump
from pairbus.syphon.decide.pace import LOCK_S
from pairbus.transport import Carrier
from tests.syphon.world import BACKLOG, BILLS, DISABLED, ORDERS, QUICK, enable, message, numbers, pair, running, until
from tests.transport.server import Script, Server


@pytest.mark.slow
async def test_in_a_lane_nothing_overtakes_what_waits() -> None:
    """A message that was stored after the destination had recovered does not overtake either."""
    async with pair(ORDERS, DISABLED, lock_s=6.0) as world:
        for number in (1, 2, 3):
            await world.divert("bills", [message(number, group_id="s")], sender="me", counter=number)
        async with running(world.syphon()) as syphon:
            await until(lambda: bool(world.told(PumpPaused)))
            assert syphon.progress().blocked == 3
            await enable(world)
            await world.divert("bills", [message(4, group_id="s")], sender="me", counter=4)
            await world.divert("bills", [message(9, group_id="t")], sender="me", counter=5)
            assert numbers(await world.arrived("bills", 5)) == [9, 1, 2, 3, 4]  # another session does not wait


@pytest.mark.slow
async def test_a_lane_that_changed_its_queue_comes_home_in_order() -> None:
    """A sender whose backlog queue fails goes on with another one; one syphon reads both."""
    async with pair(ORDERS, backlogs=3) as world:
        queues = [f"{BACKLOG[:-1]}{n}" for n in range(3)]
        for number in range(60):
            where = queues[(number // 7) % 3]
            await world.divert("orders", [message(number, group_id="s")], where, sender="me", counter=number)
        progress = await world.syphon(queues=tuple(queues)).run_once(wait_s=0.3)
        assert (progress.moved, progress.blocked) == (60, 0)
        assert numbers(await world.arrived("orders", 60)) == list(range(60))
        async with running(world.syphon(queues=tuple(queues))):
            for number in range(20):
                where = queues[(number // 3) % 3]
                await world.divert("orders", [message(number, group_id="s")], where, sender="me", counter=number)
            assert numbers(await world.arrived("orders", 20)) == list(range(20))


async def test_nothing_waits_for_a_message_of_its_lane_that_has_expired() -> None:
    """The expired message waited itself, and is among the dead letters now."""
    short = Message(header=Header(ttl=UInt(100)), properties=Properties(message_id="short"), data=[b"1"]).encode()
    async with pair(DISABLED, lock_s=2.0) as world:
        wall_ms = time.time_ns() // 1_000_000
        await world.divert("bills", [short], sender="me", counter=1)
        await world.divert("bills", [message(2)], sender="me", counter=2)
        syphon = world.syphon(replace(QUICK, ttl_policy="deduct"), wall_ms=lambda: wall_ms)
        assert (await syphon.run_once(wait_s=0.1)).blocked == 2
        await enable(world)
        wall_ms += 1_500
        async with running(syphon):
            assert numbers(await world.arrived("bills", 1)) == [2]
        assert world.metered("receive") == 4  # both messages were received a second time, together
        [told] = world.told(DeadLettered)
        assert (told.message_id, told.reason) == ("short", EXPIRED)


async def test_after_a_kill_the_next_syphon_keeps_the_order() -> None:
    """Messages of the killed syphon are locked, and come before those that are not; messages without order do not
    wait.
    """
    skew_s = 0.0
    async with pair(ORDERS, BILLS, lock_s=1.0) as world:
        for number in range(300):
            await world.divert("orders", [message(number, group_id="s")], sender="me", counter=number)
        async with Carrier(world.broker.connection_string("fabrikam")) as killed:
            receiver = await killed.receiver(BACKLOG, credit=100)
            assert await receiver.receive(100, 5.0)
            await killed.drop()
        await world.divert("bills", [message(0)])
        syphon = world.syphon(age_s=0.0, clock=lambda: time.monotonic() + skew_s)
        async with running(syphon):
            await world.arrived("bills", 1)
            assert syphon.progress().moved == 1
            await asyncio.sleep(1.1)  # until the locks of the killed syphon have ended

            async def minutes_pass() -> None:
                """Again after a while: on a busy machine the syphon's own locks of a second may end too soon."""
                nonlocal skew_s
                while True:
                    skew_s += LOCK_S
                    await asyncio.sleep(5)

            clock = asyncio.create_task(minutes_pass())
            assert numbers(await world.arrived("orders", 300, within_s=60)) == list(range(300))
            clock.cancel()


async def test_lanes_that_could_not_be_given_back_are_waited_for() -> None:
    """The messages stay locked for a while, and so do those that the link had fetched behind them."""
    skew_s = 0.0
    async with pair(ORDERS) as world, Server(Script(settlement=None)) as server:
        world.secondary = Carrier(server.connection_string)
        server.put(BACKLOG, wrap(message(1), Envelope("orders", sender="me", counter=1)))
        syphon = world.syphon(age_s=0.0, clock=lambda: time.monotonic() + skew_s)
        async with running(syphon):
            await until(lambda: (results := syphon._pumps[0]._results) is not None and results.too_early)
            skew_s = LOCK_S
            await until(lambda: syphon._pumps[0]._intake.hidden_until > time.monotonic() + skew_s)
        assert syphon.progress().moved == 0
        await world.secondary.close()


async def test_long_lane_moves_when_hidden_locks_are_over() -> None:
    """The minute of waiting is no part of the pass: a pass that counted it moved nothing at all."""
    skew_s = 0.0
    async with pair(ORDERS) as world:
        for number in range(20):
            await world.divert("orders", [message(number, group_id="s")], sender="me", counter=number)
        syphon = world.syphon(age_s=0.0, clock=lambda: time.monotonic() + skew_s)
        async with running(syphon):
            await until(lambda: world.metered("receive") == 20)
            skew_s = LOCK_S + 1.0
            assert numbers(await world.arrived("orders", 20)) == list(range(20))
            await until(lambda: syphon.progress().moved == 20)
        assert world.metered("receive") <= 40, "given back at most once"


async def test_early_messages_of_replaced_links_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that has too many is replaced while the pump waits for old locks: its messages must not come late."""
    monkeypatch.setattr(pump, "HELD_MAX", 10)
    skew_s = 0.0
    async with pair(ORDERS) as world:
        for number in range(40):
            await world.divert("orders", [message(number)], sender="me", counter=number)
        syphon = world.syphon(replace(QUICK, batch_max=5), age_s=0.0, clock=lambda: time.monotonic() + skew_s)
        async with running(syphon):
            await until(lambda: world.metered("receive") == 40)
            skew_s = LOCK_S + 1.0
            assert numbers(await world.arrived("orders", 40)) == list(range(40))
        assert world.metered("receive") <= 80, "given back at most once"


async def test_order_exists_from_the_first_ordered_message_on() -> None:
    """Most syphons never meet one, and need not know how far each queue is read."""
    async with pair(ORDERS) as world, running(world.syphon()) as syphon:
        await world.divert("orders", [message(1)])
        await world.arrived("orders", 1)
        assert syphon._shared.order is None
        await world.divert("orders", [message(2)], sender="me", counter=1)
        await world.arrived("orders", 1)
        assert syphon._shared.order is not None


async def test_a_single_drain_of_lanes_waits_for_nobody() -> None:
    """A single drain ends when nothing comes: an operator who drains after a kill waits a minute first, as its
    page says.
    """
    async with pair(ORDERS) as world:
        for number in range(20):
            await world.divert("orders", [message(number, group_id="s")], sender="me", counter=number)
        progress = await asyncio.wait_for(world.syphon(age_s=0.0).run_once(wait_s=0.1), 20)
        assert (progress.moved, progress.blocked, world.metered("receive")) == (20, 0, 20)
        assert numbers(await world.arrived("orders", 20)) == list(range(20))


async def test_a_queue_that_is_adopted_holds_up_nobody() -> None:
    """An adopted queue has just been created: it cannot have messages under old locks."""
    second = f"{BACKLOG[:-1]}1"
    async with pair(ORDERS, BILLS, backlogs=2) as world:
        syphon = world.syphon()
        async with running(syphon):
            syphon.adopt([second])
            await world.divert("orders", [message(1)], sender="me", counter=1)
            await world.divert("bills", [message(2)])
            assert numbers(await world.arrived("bills", 1)) == [2]
            assert numbers(await world.arrived("orders", 1)) == [1]


async def test_a_syphon_that_is_stopped_while_lanes_wait_gives_them_back() -> None:
    """The next one need not wait for locks of this one."""
    async with pair(ORDERS) as world:
        await world.divert("orders", [message(1)], sender="me", counter=1)
        async with running(world.syphon(age_s=0.0)):
            await until(lambda: world.metered("receive") == 1)
        assert (await world.syphon().run_once(wait_s=0.1)).moved == 1


async def test_a_blocked_message_does_not_hold_up_the_lanes_of_other_queues() -> None:
    """The blocked queue pauses for longer than locks last; when others wait to hear of it, it is looked at sooner."""
    async with pair(ORDERS, DISABLED, backlogs=2) as world:
        first, second = BACKLOG, f"{BACKLOG[:-1]}1"
        await world.divert("bills", [message(0)], first)
        async with running(world.syphon(replace(QUICK, retry_interval_s=600.0), queues=(first, second))):
            await until(lambda: bool(world.told(PumpPaused)))
            for number in range(1, 4):
                await world.divert("orders", [message(number)], second, sender="me", counter=number)
            assert numbers(await world.arrived("orders", 3)) == [1, 2, 3]
        assert world.metered("receive") == 4


async def test_a_queue_that_waits_for_another_one_looks_again_soon() -> None:
    """Pauses do not grow as after failures: queues that wait for each other would hold up each other."""
    first, second = BACKLOG, f"{BACKLOG[:-1]}1"
    skew_s = 0.0
    async with pair(ORDERS, backlogs=2, lock_s=1.0) as world:
        await world.divert("orders", [message(1)], second, sender="me", counter=1)
        await world.divert("orders", [message(2)], first, sender="me", counter=2)
        backlog = world.away.queue_info(second).description
        await world.away.update_queue(replace(backlog, status="ReceiveDisabled"))
        settings = replace(QUICK, retry_interval_s=0.1)
        syphon = world.syphon(settings, queues=(first, second), clock=lambda: time.monotonic() + skew_s)
        async with running(syphon):
            for passes in (1, 2, 3):

                def holds_locks(passes: int = passes) -> bool:
                    """Tell whether the pass has noted when its locks end, which it does a moment after it received."""
                    return world.metered("receive") >= passes and syphon._pumps[0]._results is not None

                await until(holds_locks, within_s=60.0)
                skew_s += LOCK_S
            await world.away.update_queue(backlog)
            assert numbers(await world.arrived("orders", 2)) == [1, 2]
        assert {told.queue for told in world.told(PumpPaused)} == {second}
