"""A syphon with nothing to do, for a day of the virtual clock: what the meter shows is what the bill will say."""

from __future__ import annotations

import asyncio

from tests.sim.processes import SyphonProcess
from tests.sim.world import World

DAY_S = 86_400.0


def test_a_day_of_idle_polls_costs_each_queue_ninety_six_receives() -> None:
    """Polls of fifteen minutes, by default: ten queues cost 40 receives an hour, 960 a day, 28 800 in thirty days."""
    world, receives = World(1), dict[str, int]()

    def meter(side: str, entity: str, kind: str, count: int, size_bytes: int, outcome: str, /) -> None:
        assert (side, kind, outcome) == ("secondary", "empty receive", "ok")
        receives[entity] = receives.get(entity, 0) + count

    async def live() -> None:
        process = SyphonProcess(world, "syphon")
        process.syphon._shared.meter = meter
        process.start()
        await asyncio.sleep(DAY_S + 60.0)

    world.loop.run_until_complete(live())
    assert receives == dict.fromkeys((queue.path for queue in world.secondary.queues.values()), 96)
    world._end()
