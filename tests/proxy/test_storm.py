"""Every fault of a proxy at random, one over the other, while clients send and receive through it."""

from __future__ import annotations

import asyncio
import random

import pytest

from pairbus.broker import QueueDescription
from pairbus.faults import KINDS
from tests.faults.test_storm import QUEUE, Traffic, fields_of
from tests.proxy.conftest import World, until

STORM_S = 3.0
PLAYED = [kind for kind in KINDS.values() if "proxy" in kind.at and kind.name not in ("dns", "certificate")]


@pytest.mark.parametrize("seed", [1, 2])
async def test_storm_of_faults_loses_nothing_and_heals(world: World, seed: int) -> None:
    """Accepted messages are received, the numbers of the sessions stay right, and traffic flows again at once."""
    await world.namespace.create(QueueDescription(QUEUE, lock_duration_ms=1000, max_delivery_count=1000))
    loop, bugs = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: bugs.append(context))
    chance, traffic = random.Random(seed), Traffic(world.connection_string)
    tasks = [loop.create_task(traffic.run(work)) for work in (traffic.send, traffic.send, traffic.receive)]
    ends = loop.time() + STORM_S
    while loop.time() < ends:
        kind = chance.choice(PLAYED)
        world.faults.add(kind.name, **fields_of(kind, chance))
        await asyncio.sleep(chance.uniform(0.01, 0.2))
        if chance.random() < 0.2:
            world.faults.clear()
    world.faults.clear()
    assert not world.faults.held.owns_any()
    before = len(traffic.accepted)
    await until(lambda: len(traffic.accepted) > before + 50)
    traffic.is_sent = True
    await until(lambda: traffic.accepted <= traffic.received)
    traffic.is_over = True
    await asyncio.gather(*tasks)
    assert traffic.failures > 0, "no request met a fault"
    assert bugs == []
    await world.check_whole()
