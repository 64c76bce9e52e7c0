"""Histories of processors that are decided by a number: none may break a promise, wrong code must, and a number must
replay."""

from __future__ import annotations

import pytest

from tests.sim.processors.broken import BROKEN
from tests.sim.processors.world import play
from tests.sim.replay import check_replay

SEEDS = range(50)
BROKEN_WITHIN = 200
REPLAYED = list(range(100, 120))

REGRESSIONS: dict[int, str] = {
    3: "nobody was told that the lock of a handled message ended before it could be completed",
    222: "asyncio complained when a handler that was cancelled had asked for a settlement that failed",
    780: "nobody was told that a processor was stopped before the answer to a completion",
    1267: "a message that was delivered four times at once stayed locked, and was never handled",
}
"Seeds that once broke a promise, and the fault."


def test_whatever_happens_no_processor_breaks_a_promise() -> None:
    """Every message is handled, dead-lettered with a reason or still there; nothing is handled again without a word,
    by two handlers at once under one lock, or after its lock was lost; after a stop nothing is locked."""
    broken = [play(seed) for seed in SEEDS]
    told = [f"seed {report.seed}: {line}" for report in broken for line in report.found]
    hint = "python -m tests.sim --only processor --seed N --trace tells it step by step"
    assert not told, "\n".join([*told[:20], hint])


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_once_went_wrong_in_a_processor_does_not_again(seed: int) -> None:
    assert play(seed).found == [], REGRESSIONS[seed]


@pytest.mark.parametrize("name", BROKEN)
def test_processor_that_is_wrong_is_found(name: str) -> None:
    """A checker that finds nothing in wrong code would find nothing in ours either."""
    broken, promise = BROKEN[name]
    with broken():
        caught = next((seed for seed in range(BROKEN_WITHIN) if _breaks(seed, promise)), None)
    assert caught is not None, f"{name}: not noticed in {BROKEN_WITHIN} seeds"
    assert play(caught).found == [], "the same history with the genuine code is fine"


def _breaks(seed: int, promise: str) -> bool:
    return any(line.startswith(f"{promise}: ") for line in play(seed).found)


def test_history_of_a_processor_replays_exactly() -> None:
    """The second run has another process and other hashes: else the seed that a failure prints is worth nothing."""
    check_replay(play, REPLAYED)
