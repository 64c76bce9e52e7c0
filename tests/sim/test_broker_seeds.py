"""Histories of a broker that are decided by a number: none may break a promise, broken brokers must, and a number must
replay."""

from __future__ import annotations

import pytest

from tests.sim.brokers.broken import BROKEN
from tests.sim.brokers.world import play
from tests.sim.replay import check_replay

SEEDS = range(50)
PART = 25
BROKEN_WITHIN = 1000
REPLAYED = list(range(200, 210))

REGRESSIONS: dict[int, str] = {
    550: "a payload went with the row that its last message had in the source of a forwarding",
    619: "the same",
}
"Seeds that once broke a promise, and the fault."


@pytest.mark.parametrize("first", SEEDS[::PART])
def test_whatever_happens_no_broker_breaks_a_promise(first: int) -> None:
    """No message is lost, invented, altered, misrouted, repeated, out of order, or with two receivers at once."""
    broken = [play(seed) for seed in range(first, first + PART)]
    told = [f"seed {report.seed}: {line}" for report in broken for line in report.found]
    hint = "python -m tests.sim --only broker --seed N --trace tells it step by step"
    assert not told, "\n".join([*told[:20], hint])


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_once_went_wrong_in_a_broker_does_not_again(seed: int) -> None:
    assert play(seed).found == [], REGRESSIONS[seed]


@pytest.mark.parametrize("name", BROKEN)
def test_broker_that_is_wrong_is_found(name: str) -> None:
    """A checker that finds nothing in a wrong broker would find nothing in ours either."""
    broken, promise, seed = BROKEN[name]
    assert seed < BROKEN_WITHIN
    with broken():
        found = play(seed).found
    assert [line for line in found if line.startswith(f"{promise}: ")], f"{name}: not noticed, or as {found}"
    assert play(seed).found == [], "the same history with the genuine broker is fine"


def test_history_of_a_broker_replays_exactly() -> None:
    """The second run has another process and other hashes: else the seed that a failure prints is worth nothing."""
    check_replay(play, REPLAYED)
