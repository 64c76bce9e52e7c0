"""Histories that are decided by a number: none may break a promise, broken code must, and a number must replay."""

from __future__ import annotations

import pytest

from tests.sim.broken import BROKEN
from tests.sim.replay import check_replay
from tests.sim.world import play

SEEDS = range(50)
PART = 25
BROKEN_WITHIN = 1000
REPLAYED = list(range(100, 140))

REGRESSIONS: dict[int, str] = {
    208: "every send queued behind the spool, so that none took the trial, and the entity never came home",
    226: "the same, of a client that had no backlog queue at all",
    9940: "what a lost link had fetched came back behind later messages of the same lane",
    20014: "the same",
    24630: "the same",
    17964: "a link that could not be asked to take messages back was left open, and went on receiving",
    65684: "nobody was told of a copy in a backlog queue that had not answered, when the primary took the next attempt",
    5773: "a send of the spool that ended while its process died was never asked how",
    10908: "a syphon released messages by their lock tokens, which the simulated network did not understand",
    69452: "a message whose send had failed was stored ten seconds later, behind the next one of its lane: no fault",
}
"Seeds that once broke a promise, and the fault."


@pytest.mark.parametrize("first", SEEDS[::PART])
def test_whatever_happens_no_promise_is_broken(first: int) -> None:
    """No message is lost, misrouted or altered; only unknown outcomes duplicate; at the end all queues are drained."""
    broken = [play(seed) for seed in range(first, first + PART)]
    told = [f"seed {report.seed}: {line}" for report in broken for line in report.found]
    assert not told, "\n".join([*told[:20], "python -m tests.sim --seed N --trace tells it step by step"])


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_once_went_wrong_does_not_again(seed: int) -> None:
    assert play(seed).found == [], REGRESSIONS[seed]


@pytest.mark.parametrize("name", BROKEN)
def test_code_that_is_wrong_is_found(name: str) -> None:
    """A checker that finds nothing in wrong code would find nothing in ours either."""
    broken, first = BROKEN[name]
    with broken() as variants:
        seeds = range(first, first + BROKEN_WITHIN)
        caught = next((seed for seed in seeds if play(seed, variants).found), None)
    assert caught is not None, f"{name}: not noticed in {BROKEN_WITHIN} seeds"
    assert play(caught).found == [], "the same history with the genuine code is fine"


def test_a_seed_replays_exactly_in_another_process_and_with_other_hashes() -> None:
    """Otherwise the seed that a failure prints is worth nothing. Earlier histories must not matter."""
    check_replay(play, REPLAYED)
