"""Throttling, minutes of it: the genuine plan, pings and syphon wait for it on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

from pairbus.pairing.commands import Where
from tests.sim import faults
from tests.sim.world import World

SEEDS = range(20)
THROTTLED_S = 30.0
Plan = Callable[[World, Random, float], list[faults.Fault]]


def busy_home(world: World, dice: Random, horizon_s: float) -> list[faults.Fault]:
    """Every entity of the primary, from the first moment on."""
    return [faults._trouble(world, list(world.primary.queues.values()), "busy", 0.0, THROTTLED_S)]


def busy_away(world: World, dice: Random, horizon_s: float) -> list[faults.Fault]:
    """The primary is full for longer than every backlog queue is throttled."""
    home, away = (list(namespace.queues.values()) for namespace in (world.primary, world.secondary))
    lasts_s = 2 * THROTTLED_S
    return [faults._trouble(world, home, "full", 0.0, lasts_s), faults._trouble(world, away, "busy", 0.0, THROTTLED_S)]


def played(seed: int, plan: Plan, **options: Any) -> tuple[World, list[str]]:
    """Run one history with these faults and no others; return its world and every step."""
    told: list[str] = []
    world = World(seed, tell=told.append)
    for name, value in {"spool_dir": None, "failover_interval": 0, "busy_counts_after": None, **options}.items():
        setattr(world.options, name, value)
    world.is_paired = True
    with patch.object(faults, "plan", plan):
        assert world.run() == []
    return world, told


def times(told: list[str], words: str) -> list[float]:
    return [float(line.split(maxsplit=1)[0]) for line in told if words in line]


def test_throttling_of_the_primary_is_waited_out_and_diverts_nothing() -> None:
    """Ten seconds at a time while the caller's time allows it; with less than that left the error comes at once."""
    waited = refused = 0
    for seed in SEEDS:
        world, told = played(seed, busy_home)
        calls = world.history.calls.values()
        assert {call.receipt for call in calls} <= {Where.PRIMARY, None}, f"seed {seed}"
        assert not [line for line in told if "ToBacklog" in line], f"seed {seed}"
        waited += len(times(told, "Pause(seconds=10.0)"))
        refused += sum(call.receipt is None for call in calls)
    assert waited > 20 and refused > 20


def test_endless_throttling_is_an_outage_when_the_operator_says_so() -> None:
    """Throttling counts only after it has lasted as long as the option says."""
    diverted, limit_s = 0, 15.0
    for seed in SEEDS:
        _, told = played(seed, busy_home, busy_counts_after=limit_s)
        first = times(told, "busy")
        for at in times(told, "ToBacklog"):
            diverted += 1
            assert at >= first[0] + limit_s, f"seed {seed}"
    assert diverted > 10


def test_a_throttled_backlog_queue_is_waited_for_and_stays_in_rotation() -> None:
    """Another queue of the same namespace would refuse too; a caller that has ten seconds waits for this one."""
    waited = stored = 0
    for seed in SEEDS:
        world, told = played(seed, busy_away)
        waited += len(times(told, "Pause(seconds=10.0)"))
        stored += sum(call.receipt is Where.BACKLOG for call in world.history.calls.values())
        assert not [line for line in told if "out of rotation" in line], f"seed {seed}"
    assert waited > 10 and stored > 10


def test_pings_leave_a_throttled_entity_alone_for_ten_seconds() -> None:
    """The next ping waits as long as the service asks, with any ping interval."""

    def plan(world: World, dice: Random, horizon_s: float) -> list[faults.Fault]:
        home = list(world.primary.queues.values())
        full = faults._trouble(world, home, "full", 0.0, 5.0)
        return [full, faults._trouble(world, home, "busy", 5.1, THROTTLED_S)]

    gaps: list[float] = []
    for seed in SEEDS:
        _, told = played(seed, plan, ping="message", ping_primary_interval=1, healthy_pings_required=1)
        by_entity: dict[str, float] = {}
        for line in told:
            if "ping failed" in line and "busy" in line:
                at, rest = float(line.split(maxsplit=1)[0]), line.split(maxsplit=1)[1]
                name = rest.split(" ping failed")[0]
                if name in by_entity:
                    gaps.append(at - by_entity[name])
                by_entity[name] = at
    assert len(gaps) > 10 and min(gaps) >= 10.0, sorted(gaps)[:5]
