"""Storms are drawn from the whole table of faults, and the same seed gives the same storm."""

from __future__ import annotations

import random

from pairbus.faults import KINDS, Fault
from tests.nemesis.places import SIDES
from tests.nemesis.plan import AddFault, Kill, Stop, draw_fault, draw_plan


def test_every_fault_that_is_drawn_is_one() -> None:
    """And every kind that a broker can play is drawn: a new row of the table needs nothing here."""
    source = random.Random(1)
    drawn = [draw_fault(source, side) for _ in range(1000) for side in SIDES]
    kinds = {Fault.read(fields).kind.name for fields in drawn}
    assert kinds == {kind.name for kind in KINDS.values() if "broker" in kind.at}
    assert {direction for fields in drawn if (direction := fields.get("direction"))} == {
        direction for kind in KINDS.values() for direction in kind.directions
    }


def test_every_process_is_stopped_and_killed_in_some_storm() -> None:
    hurt: dict[type, set[str]] = {Kill: set(), Stop: set()}
    for seed in range(200):
        for step in draw_plan(random.Random(seed), 30.0).steps:
            if not isinstance(step, AddFault):
                hurt[type(step)] |= set(step.processes)
    everybody = {*SIDES, "sync", "aio", "left", "right", "one", "two"}
    assert hurt == {Kill: everybody, Stop: everybody}


def test_the_same_seed_gives_the_same_storm() -> None:
    assert draw_plan(random.Random(7), 30.0) == draw_plan(random.Random(7), 30.0)
