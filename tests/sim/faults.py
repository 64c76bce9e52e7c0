"""Faults of a world, and when they come. Every fault ends by itself, and by `heal` at the latest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.sim.broker import Namespace, Queue

if TYPE_CHECKING:
    from tests.sim.world import World

TROUBLES = ("busy", "full", "internal", "unauthorized", "disabled", "missing", "detach", "small")


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    lasts_s: float
    kind: str
    begin: Callable[[], None]
    end: Callable[[], None]


def plan(world: World, dice: Random, horizon_s: float) -> list[Fault]:
    """Mostly an outage of the primary, often with trouble in the secondary meanwhile, and whatever else happens."""
    found = []
    share = dice.choice((0.0, 0.3, 0.8) if world.options.spool_dir is None else (0.3, 0.9, 0.9))
    "Share of the trouble that is the secondary's."
    if dice.random() < 0.85:
        at, lasts_s = dice.random() * 0.4 * horizon_s, dice.uniform(0.2, 1.0) * horizon_s
        found.append(_outage(world, dice, world.primary, at, lasts_s))
        if dice.random() < share:
            at += dice.uniform(-0.1, 0.5) * lasts_s
            found.append(_outage(world, dice, world.secondary, max(at, 0.0), dice.uniform(0.1, 0.8) * horizon_s))
    for _ in range(dice.choice((0, 0, 1, 2, 4))):
        namespace = world.secondary if dice.random() < share else world.primary
        lasts_s = dice.choice((0.1, 1.0, 4.0, 12.0, 40.0)) * dice.uniform(0.5, 1.5)
        found.append(_fault(world, dice, namespace, dice.random() * horizon_s, lasts_s))
    if dice.random() < 0.4:
        found.append(_crash(world, dice, horizon_s))
    if dice.random() < 0.1:
        at, lasts_s = dice.random() * horizon_s, dice.random() * horizon_s
        found.append(Fault(at, lasts_s, "an operator's hand", world.force_away, world.force_home))
    if dice.random() < 0.1:
        found.append(Fault(dice.random() * horizon_s, 0.0, "a syphon is replaced", world.replace_syphon, lambda: None))
    if dice.random() < 0.15:
        found.append(_full_disk(world, dice.random() * horizon_s, dice.choice((5.0, 90.0, 300.0))))
    return found


def _full_disk(world: World, at: float, lasts_s: float) -> Fault:
    """The secondary hands out messages, and cannot store what became of them."""
    queues = list(world.secondary.queues.values())

    def begin() -> None:
        for queue in queues:
            queue.stores_nothing = True

    def end() -> None:
        for queue in queues:
            queue.stores_nothing = False

    return Fault(at, lasts_s, "the secondary's disk is full", begin, end)


def _outage(world: World, dice: Random, namespace: Namespace, at: float, lasts_s: float) -> Fault:
    """Mostly of a kind that lets entities fail over."""
    kind = dice.choice(("refuse", "silent", "deaf", "full", "internal", "any"))
    if kind == "any":
        return _fault(world, dice, namespace, at, lasts_s)
    if kind in TROUBLES:
        return _trouble(world, list(namespace.queues.values()), kind, at, lasts_s)
    return _of_namespace(world, namespace, kind, dice, at, lasts_s)


def _fault(world: World, dice: Random, namespace: Namespace, at: float, lasts_s: float) -> Fault:
    kind = dice.choice(("refuse", "refuse", "silent", "deaf", "cut", "slow", "entity", "entity", "all"))
    if kind == "entity":
        queue = dice.choice(list(namespace.queues.values()))
        return _trouble(world, [queue], dice.choice(TROUBLES), at, lasts_s)
    if kind == "all":
        return _trouble(world, list(namespace.queues.values()), dice.choice(TROUBLES), at, lasts_s)
    return _of_namespace(world, namespace, kind, dice, at, lasts_s)


def _crash(world: World, dice: Random, horizon_s: float) -> Fault:
    """At any time, or right at one of the moments at which something has been stored and not yet been told."""
    down_s = dice.choice((0.1, 5.0, 50.0))
    at = dice.random() * horizon_s
    if dice.random() < 0.4:
        return Fault(at, 0.0, "crash", lambda: world.crash_one(down_s), lambda: None)
    kinds = ("syphon", "direct") if world.options.spool_dir is None else ("spool", "spool", "syphon")
    kind, countdown = dice.choice(kinds), dice.randrange(1, 6)
    return Fault(at / 2, 0.0, f"crash at {kind}", lambda: world.crash_at(kind, countdown, down_s), lambda: None)


def _trouble(world: World, queues: list[Queue], trouble: str, at: float, lasts_s: float) -> Fault:
    world.unreliable.update(queue.path for queue in queues)
    if trouble in ("busy", "small"):
        world.unreliable.update(world.secondary.queues)  # after these answers a sender tries no other queue

    def begin() -> None:
        if trouble == "small" or (trouble == "missing" and lasts_s > world.options.missing_destination_grace):
            world.may_dead_letter = True
        for queue in queues:
            queue.trouble = trouble

    def end() -> None:
        for queue in queues:
            queue.trouble = None
            queue.dispatch()

    return Fault(at, lasts_s, f"{[queue.path for queue in queues]} {trouble}", begin, end)


def _of_namespace(world: World, namespace: Namespace, kind: str, dice: Random, at: float, lasts_s: float) -> Fault:
    world.unreliable.update(namespace.queues)

    def cut_all() -> None:
        for wire in world.net.wires_to(namespace):
            wire.cut("reset by peer")

    def refuse() -> None:
        namespace.refuses = True
        cut_all()

    def accept() -> None:
        namespace.refuses = False

    def silence() -> None:
        namespace.is_silent = True

    def speak() -> None:
        if namespace.is_silent:
            namespace.is_silent = False
            for wire in world.net.wires_to(namespace):
                wire.silence_ends()

    def deafen() -> None:
        namespace.drops_answers = True

    def answer() -> None:
        namespace.drops_answers = False

    def slow_down() -> None:
        namespace.slowness = dice.choice((10.0, 100.0, 400.0))

    def speed_up() -> None:
        namespace.slowness = 1.0

    begin, end = {
        "refuse": (refuse, accept),
        "silent": (silence, speak),
        "deaf": (deafen, answer),
        "cut": (cut_all, lambda: None),
        "slow": (slow_down, speed_up),
    }[kind]
    return Fault(at, lasts_s, f"{namespace.name} {kind}", begin, end)
