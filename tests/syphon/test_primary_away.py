"""The whole primary is away: the syphon holds nothing, one probe asks, and all pumps wake at its first answer."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.amqp.performatives import Error
from pairbus.pairing.events import DeadLettered, DestinationSkipped, PrimaryReachable, PrimaryUnreachable, PumpPaused
from pairbus.pairing.policy import Silence
from pairbus.syphon import SyphonSettings, presence
from pairbus.testing.nemesis import Nemesis
from pairbus.transport import Carrier, Endpoint, Timeout, TransportError
from tests.brokers import BrokerProcess
from tests.limits import slowness
from tests.syphon.world import (
    BACKLOG,
    BILLS,
    DISABLED,
    ORDERS,
    QUICK,
    locked,
    message,
    numbers,
    pair,
    running,
    timed,
    until,
)
from tests.transport.server import Script, Server

QUEUES = tuple(f"{BACKLOG[:-1]}{number}" for number in range(3))


async def test_nothing_is_held_and_all_pumps_wake_at_the_first_answer(tmp_path: Path) -> None:
    """With locks of a minute, messages of every queue are home within two seconds of the first success."""
    with BrokerProcess(tmp_path / "home", namespaces=["contoso"], strict=True) as home:
        with home.admin("contoso") as admin:
            admin.create_queue("orders")
        async with (
            pair(backlogs=3) as world,
            Carrier(home.connection_string("contoso"), connect_timeout_s=1.0) as primary,
        ):
            world.primary = primary
            syphon = world.syphon(QUICK, queues=QUEUES)
            async with running(syphon):
                await world.divert("orders", [message(0)])
                assert len(await world.arrived("orders", 1)) == 1
                home.kill()
                for number, queue in enumerate(QUEUES):
                    await world.divert("orders", [message(10 * number + n) for n in range(10)], queue)
                await until(lambda: len(world.told(PrimaryUnreachable)) >= 2)
                assert [await locked(world, queue) for queue in QUEUES] == [0, 0, 0]
                assert syphon.progress().is_away and syphon.progress().blocked == 0
                receives = world.metered("receive")
                home.start()
                await until(lambda: bool(world.told(PrimaryReachable)))
                back = time.monotonic()
                await until(lambda: all(world.waiting(queue) == 0 for queue in QUEUES))
                assert time.monotonic() - back < 2.0 * slowness()
                assert world.metered("receive") == receives + 30, (
                    "each message is received once more, and none was while the primary was away"
                )
            assert sorted(numbers(await world.arrived("orders", 30))) == list(range(30))
        tries = [told.next_try_s for told in world.told(PrimaryUnreachable)]
        assert tries[:2] == [1.0, 2.0]
        assert not world.told(DestinationSkipped) and not world.told(PumpPaused) and not world.told(DeadLettered)


async def test_a_stopped_primary_is_away_as_a_whole(tmp_path: Path) -> None:
    """Silence before the connection is open; its sockets still take connections."""
    with BrokerProcess(tmp_path / "home", namespaces=["contoso"], strict=True) as home:
        with home.admin("contoso") as admin:
            admin.create_queue("orders", requires_duplicate_detection=True)
        async with pair() as world, Carrier(home.connection_string("contoso"), connect_timeout_s=0.5) as primary:
            world.primary = primary
            async with running(world.syphon(replace(QUICK, send_timeout_s=0.5))) as syphon:
                await world.divert("orders", [message(0)])
                assert len(await world.arrived("orders", 1)) == 1
                before = len(world.told(PrimaryUnreachable))  # its times are short: a busy machine may exceed one
                os.kill(home.pid, signal.SIGSTOP)
                try:
                    await world.divert("orders", [message(number) for number in range(1, 20)])
                    await until(lambda: len(world.told(PrimaryUnreachable)) > before)
                    assert await locked(world) == 0
                finally:
                    os.kill(home.pid, signal.SIGCONT)
                await until(lambda: world.waiting() == 0)
                assert not syphon.progress().is_away
            assert sorted(numbers(await world.arrived("orders", 19))) == list(range(1, 20))


async def test_pump_that_pauses_gives_its_messages_back_too() -> None:
    """Its destination was disabled, and before it looks again another pump finds that the primary is away."""
    async with pair(ORDERS, DISABLED, backlogs=2) as world:
        near, (paused, other, _) = world.primary.endpoint, QUEUES
        nemesis = Nemesis(near.host, near.port)
        await nemesis.start()
        async with Carrier(replace(near, port=nemesis.port), connect_timeout_s=1.0) as primary:
            settings = replace(QUICK, retry_interval_s=60.0)
            async with running(world.syphon(settings, queues=(paused, other), primary=primary)) as syphon:
                await world.divert("bills", [message(1)], paused)
                await until(lambda: bool(world.told(PumpPaused)))
                assert syphon.progress().blocked == 1
                nemesis.refuse()
                await world.divert("orders", [message(2)], other)
                await until(lambda: bool(world.told(PrimaryUnreachable)))
                assert [await locked(world, queue) for queue in (paused, other)] == [0, 0]
                assert syphon.progress().blocked == 0
        await nemesis.stop()


async def test_pause_that_the_secondary_asked_for_lasts_while_the_primary_is_away() -> None:
    """Any other pause ends at once: the pump gives its messages back, and waits for the primary instead."""
    async with pair(ORDERS) as world:
        syphon = world.syphon()
        syphon._shared.presence.lost("orders", "refused", 0.0, 0.0)
        [pump] = syphon._pumps
        await asyncio.wait_for(pump._rest(60.0, for_all=True, is_asked_for=False), 10.0)
        assert await timed(pump._rest(0.3, for_all=True, is_asked_for=True)) >= 0.29


async def test_one_silent_entity_is_not_the_whole_primary() -> None:
    """A connection opens at once: only this destination is skipped, and its messages stay locked."""
    async with (
        pair() as world,
        Server(Script(answers_attach=False)) as server,
        Carrier(server.connection_string) as primary,
    ):
        await world.divert("silent", [message(1)])
        async with running(world.syphon(replace(QUICK, send_timeout_s=0.3), primary=primary)) as syphon:
            await until(lambda: bool(world.told(PumpPaused)))
            assert syphon.progress().blocked == 1
            assert not world.told(PrimaryUnreachable)
        assert len(world.told(DestinationSkipped)) == 1


async def test_a_probe_that_is_answered_busy_leaves_the_entity_alone() -> None:
    """The primary is there; its entity asks for ten seconds."""
    busy = Error("com.microsoft:server-busy", "slow down")
    async with pair() as world, Server(Script(refuse={"orders": busy})) as server:
        primary = Carrier(replace(world.primary.endpoint, port=1), connect_timeout_s=1.0)
        good = Carrier(server.connection_string)
        await world.divert("orders", [message(1)])
        async with running(world.syphon(primary=primary)) as syphon:
            await until(lambda: bool(world.told(PrimaryUnreachable)))
            primary._pool.connect = good._pool.connect
            await until(lambda: bool(world.told(PrimaryReachable)))
            await until(lambda: bool(world.told(DestinationSkipped)))
            assert "left alone for" in world.told(DestinationSkipped)[0].reason
            assert not syphon.progress().is_away
        await primary.close()
        await good.close()


async def test_probe_for_an_entity_of_another_key_wakes_the_pumps() -> None:
    """The connection string of the primary names one entity, and the first message is for another one."""
    async with pair(ORDERS, BILLS) as world:
        of_orders = replace(world.primary.endpoint, entity_path="orders")
        primary, good = Carrier(replace(of_orders, port=1), connect_timeout_s=1.0), Carrier(of_orders)
        await world.divert("bills", [message(1)])
        async with running(world.syphon(primary=primary)) as syphon:
            await until(lambda: bool(world.told(PrimaryUnreachable)))
            primary._pool.connect = good._pool.connect
            await until(lambda: bool(world.told(PrimaryReachable)))
            await until(lambda: bool(world.told(DestinationSkipped)))
            assert "is for EntityPath" in world.told(DestinationSkipped)[0].reason
            assert not syphon.progress().is_away
            await world.divert("orders", [message(2)])
            assert numbers(await world.arrived("orders", 1)) == [2]
        await primary.close()
        await good.close()


async def test_probe_that_fails_unexpectedly_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pumps wait for the probe: without it they would wait for ever, and nobody would be told."""

    async def fail(*given: object) -> None:
        raise RuntimeError("a bug in the probe")

    monkeypatch.setattr(presence, "_ask", fail)
    async with pair(ORDERS) as world:
        away = Carrier(replace(world.primary.endpoint, port=1), connect_timeout_s=1.0)
        await world.divert("orders", [message(1)])
        with pytest.raises(RuntimeError, match="a bug in the probe"):
            async with asyncio.timeout(20.0):
                await world.syphon(primary=away).run()
        assert await locked(world) == 0
        await away.close()


async def test_single_drain_without_the_primary_leaves_nothing_locked() -> None:
    """The next run, perhaps in a minute, finds everything."""
    async with pair(ORDERS, backlogs=3) as world:
        for queue in QUEUES:
            await world.divert("orders", [message(number) for number in range(50)], queue)
        away = Carrier(replace(world.primary.endpoint, port=1), connect_timeout_s=1.0)
        progress = await world.syphon(queues=QUEUES, primary=away).run_once(wait_s=0.1)
        assert (progress.moved, progress.is_away) == (0, True)
        [told] = world.told(PrimaryUnreachable)
        assert told.next_try_s is None and "next try" not in str(told)
        assert [await locked(world, queue) for queue in QUEUES] == [0, 0, 0]
        await away.close()


@pytest.mark.parametrize("hangs", [False, True], ids=["blocked", "on their way"])
async def test_stopping_leaves_nothing_locked(hangs: bool) -> None:
    """Messages that wait for a destination, over several passes, and messages whose send is not answered."""
    async with (
        pair(ORDERS, DISABLED) as world,
        Server(Script(outcome=None)) as server,
        Carrier(server.connection_string) as silent,
    ):
        settings = SyphonSettings(send_timeout_s=60.0) if hangs else QUICK
        syphon = world.syphon(settings, primary=silent if hangs else world.primary)
        async with running(syphon):
            await world.divert("bills", [message(number) for number in range(30)])
            await until(lambda: world.metered("receive") >= 30)
            if not hangs:
                await world.divert("orders", [message(1)])
                assert len(await world.arrived("orders", 1)) == 1
                await until(lambda: syphon.progress().blocked == 30)
            await asyncio.wait_for(syphon.stop(grace_s=0.5), 6.0)
        assert world.waiting() == 30
        assert await locked(world) == 0


@pytest.mark.parametrize(
    ("silence", "is_away"),
    [(Silence(0.98, 0.98), True), (Silence(0.5, 0.5), True), (Silence(0.98, math.inf), False), (None, False)],
    ids=str,
)
def test_silence_of_one_of_several_addresses_is_silence(silence: Silence | None, is_away: bool) -> None:
    """Each address of a host gets a part of `connect_timeout`, and an earlier address may have refused."""
    primary = Carrier(Endpoint("127.0.0.1", 1, tls=False), connect_timeout_s=1.0)
    error = TransportError("gone") if silence is None else Timeout("late", silence)
    assert presence.was_silent(error, primary, 15.0) is is_away
