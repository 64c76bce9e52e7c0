"""Speed of a syphon without a limit, and before it has moved anything."""

from __future__ import annotations

from pairbus.syphon.decide.pace import BATCH_MAX, BatchSize, Budget


def test_a_budget_without_a_limit_holds_nothing_back() -> None:
    """Also after a refusal: the destination is left alone elsewhere, and there is no rate to halve."""
    budget = Budget(None)
    budget.busy(1.0)
    assert budget.rate_per_s(2.0) is None and budget.take(10**6, 2.0) == 0.0
    assert repr(budget) == "<Budget unlimited>"


def test_a_batch_that_moved_nothing_says_nothing_about_the_speed() -> None:
    """A destination that is skipped, or a clock that stands still, must not make the next batch a single message."""
    size = BatchSize()
    size.moved(0, 30.0)
    size.moved(50, 0.0)
    assert size.next() == BATCH_MAX
    size.moved(1, 1.0)
    assert size.next() == 30, "half of a lock of 60 s, one message a second"
