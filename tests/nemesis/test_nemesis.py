"""A short storm finds nothing wrong, and each planted bug is found and named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from tests.nemesis.broken import BUGS
from tests.nemesis.judge import Judgement, judge
from tests.nemesis.plan import Plan, draw_plan
from tests.nemesis.record import read_round
from tests.nemesis.round import Round
from tests.nemesis.world import World

pytestmark = pytest.mark.slow

SEED = 3
STORM_S = 8.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Two good brokers, to begin with; what is planted in a client does not outlive its round."""
    with World("test") as made:
        yield made


def play(world: World, plan: Plan) -> tuple[Round, Judgement]:
    """Play a round and judge it."""
    this = Round(world, len(list(world.folder.glob("round-*"))), plan)
    asyncio.run(this.run())
    return this, judge(read_round(this.folder), in_order=plan.is_ordered, delayed=plan.delays)


def test_a_short_storm_loses_nothing(world: World) -> None:
    """`make nemesis` plays longer ones."""
    plan = draw_plan(random.Random(SEED), STORM_S)
    this, found = play(world, plan)
    assert found.is_good, found
    assert this.story.wrong == []
    assert found.ok > 100, "too little was sent: this proves nothing"


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if not bug.in_broker])
def test_a_bug_in_the_client_is_found(world: World, name: str) -> None:
    world.bug = name
    try:
        _, found = play(world, BUGS[name].plan)
    finally:
        world.bug = ""
    assert found.findings[BUGS[name].finding], found


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.in_broker])
def test_a_bug_in_the_broker_is_found(world: World, name: str) -> None:
    """Runs last, because the world has a broken primary from here on: the judge must find each bug by its own
    finding.
    """
    world.replace_primary(name)
    _, found = play(world, BUGS[name].plan)
    assert found.findings[BUGS[name].finding], found
