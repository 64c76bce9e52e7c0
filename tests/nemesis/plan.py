"""The storm of one round, drawn before it begins: the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pairbus.faults import KINDS, FaultKind
from tests.nemesis.places import PATHS, PRIMARY, SIDES

PAUSE_S = (0.3, 2.0)  # pause between two steps
FAULT_S = (0.5, 7.0)
STOP_S = (0.5, 9.0)  # some stops are longer than locks last
DOWN_S = (0.1, 4.0)  # time between a kill and the next start
BYTES_PER_S = (3_000, 100_000)
ARGUMENT_S_MAX = 3.0
SENDERS, RECEIVERS, SYPHONS = ("sync", "aio"), ("left", "right"), ("one", "two")
"Names of the processes beside the brokers."
KILL, STOP = 0.15, 0.12  # probabilities that a step is a kill or a stop; all other steps are faults


@dataclass(frozen=True, slots=True)
class AddFault:
    at: float
    "Seconds after the beginning."
    side: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL, and a new start after a while."""

    at: float
    processes: tuple[str, ...]
    for_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """SIGSTOP, and SIGCONT after a while."""

    at: float
    processes: tuple[str, ...]
    for_s: float


Step = AddFault | Kill | Stop


@dataclass(frozen=True, slots=True)
class Plan:
    steps: Sequence[Step]
    storm_s: float
    senders: Sequence[str] = SENDERS
    receivers: Sequence[str] = RECEIVERS
    syphons: Sequence[str] = SYPHONS
    calls_least: int = 0
    "The storm lasts longer where a busy machine has not made so many calls."
    is_ordered: bool = False
    "Whether senders ask for the order of diverted messages; it is promised where one syphon runs."

    @property
    def delays(self) -> bool:
        """Whether messages become receivable, and get their numbers, later than they were sent."""
        return any(isinstance(step, AddFault) and step.fields["kind"] == "delay" for step in self.steps)


def draw_plan(source: random.Random, storm_s: float) -> Plan:
    """Draw a storm over both brokers and the processes around them."""
    is_ordered = source.random() < 0.4
    used = SYPHONS[: 1 if is_ordered else source.randint(1, len(SYPHONS))]
    steps: list[Step] = []
    at = source.uniform(0.5, 2.0)
    while at < storm_s:
        chance = source.random()
        if chance < KILL:
            steps.append(Kill(at, _victims(source, used), source.uniform(*DOWN_S)))
        elif chance < KILL + STOP:
            steps.append(Stop(at, _victims(source, used), source.uniform(*STOP_S)))
        else:
            side = PRIMARY if source.random() < 0.4 else source.choice(SIDES)
            steps.append(AddFault(at, side, draw_fault(source, side)))
        at += source.uniform(*PAUSE_S)
    return Plan(steps, storm_s, syphons=used, is_ordered=is_ordered)


def _victims(source: random.Random, syphons: Sequence[str]) -> tuple[str, ...]:
    kind = source.choice(("primary", "secondary", "both", "client", "client", "syphon"))
    if kind == "client":
        return (source.choice((*SENDERS, *RECEIVERS)),)
    if kind == "syphon":
        return (source.choice(syphons),)
    return SIDES if kind == "both" else (SIDES[kind == "secondary"],)


def draw_fault(source: random.Random, side: str, kinds: Sequence[FaultKind] = tuple(KINDS.values())) -> dict[str, Any]:
    """Draw a fault of any kind that a broker can play, with any of its fields, for the entities of one side."""
    kind = source.choice([kind for kind in kinds if "broker" in kind.at])
    fields: dict[str, Any] = {"kind": kind.name, "for_s": round(source.uniform(*FAULT_S), 2)}
    if kind.directions and source.random() < 0.5:
        fields["direction"] = source.choice(kind.directions)
    if kind.takes_entity and source.random() < 0.6:
        fields["entity"] = source.choice((*PATHS[side], "*", "$cbs"))
    if kind.takes_chance:
        chance = source.random()
        if chance < 0.35:
            fields["probability"] = round(source.uniform(0.05, 0.9), 2)
        elif chance < 0.6:
            fields["count"] = source.randint(1, 8)
    for argument in kind.arguments:
        if argument.name.endswith("bytes_per_s"):
            fields[argument.name] = source.randint(*BYTES_PER_S)
        else:
            most = min(max(argument.default, 0.3), ARGUMENT_S_MAX)
            fields[argument.name] = round(source.uniform(0.02, most), 3)
    return fields
