"""The one next step that `pairbus status` names. A table: the first row whose condition holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.cli.pair.status_clients import HEALTHY, HELD_OVER

if TYPE_CHECKING:
    from pairbus.cli.pair.status_facts import CountChange, Status

NOTHING = "nothing to do"
Look = tuple["Status", "CountChange | None"]


def next_step(status: Status, change: CountChange | None) -> str:
    """Return what an operator does next."""
    look = status, change
    return next((step(look) for holds, step in STEPS if holds(look)), NOTHING)


def _paths(look: Look, *, held: bool) -> str:
    paths = {each.path for each in look[0].entities if each.state != HEALTHY and (each.state == HELD_OVER) is held}
    return " ".join(sorted(paths))


def _waits(look: Look) -> bool:
    return look[0].counts[0] > 0


def _shrinks(look: Look) -> bool:
    return look[1] is not None and look[1].messages < 0


def _stuck(look: Look) -> str:
    """Return the reason of a syphon that does not move, in its own words."""
    return next((str(each) for each in look[0].syphons if "error" in each.facts or each.facts["blocked"]), "")


STEPS: tuple[tuple[Callable[[Look], bool], Callable[[Look], str]], ...] = (
    (
        lambda look: look[0].secondary.error is not None,
        lambda look: (
            f"bring {look[0].secondary.name} back: without the secondary nothing can be diverted or moved home"
        ),
    ),
    (
        lambda look: not look[0].queues and bool(look[0].other_primaries),
        lambda look: (
            f"name the primary as its clients do: --primary-name {look[0].other_primaries[0]}; for another pair, create"
            f" its backlog queues: pairbus pair create --primary-name {look[0].primary_name}"
        ),
    ),
    (
        lambda look: not look[0].queues,
        lambda look: f"create the backlog queues: pairbus pair create --primary-name {look[0].primary_name}",
    ),
    (
        lambda look: look[0].primary.error is not None,
        lambda look: f"wait for {look[0].primary.name}: clients and syphons go back to it by themselves",
    ),
    (
        lambda look: bool(_paths(look, held=True)),
        lambda look: f"when the primary may be used again: pairbus client force-healthy {_paths(look, held=True)}",
    ),
    (
        lambda look: bool(_paths(look, held=False)),
        lambda look: (
            f"find out why {look[0].primary.name} does not take messages for {_paths(look, held=False)}; clients ping"
            " it, and go back by themselves"
        ),
    ),
    (
        lambda look: _waits(look) and not look[0].syphons and _shrinks(look),
        lambda _: "wait: a syphon that is not seen from here moves the messages home",
    ),
    (
        lambda look: _waits(look) and not look[0].syphons,
        lambda look: f"start a syphon, unless one runs elsewhere: pairbus syphon --primary-name {look[0].primary_name}",
    ),
    (
        lambda look: _waits(look) and bool(_stuck(look)),
        lambda look: f"look at the syphon that does not move everything: {_stuck(look)}",
    ),
    (_waits, lambda _: "wait: the syphon moves the messages home"),
    (
        lambda look: look[0].counts[1] > 0,
        lambda look: (
            "look at the dead letters, then re-drive them: pairbus message peek --dead-letter "
            + next(queue.path for queue in look[0].queues if queue.counts[1])
        ),
    ),
    (
        lambda look: bool(look[0].missing),
        lambda look: f"create the missing backlog queues: pairbus pair create --primary-name {look[0].primary_name}",
    ),
    (lambda look: bool(look[0].problems), lambda look: f"solve the problem: {look[0].problems[0]}"),
    (
        lambda look: not look[0].is_exact,
        lambda _: "look with a key that has the Manage claim: the counts are not exact",
    ),
)
