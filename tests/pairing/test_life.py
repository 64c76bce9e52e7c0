"""Close and fault: every state of one side × every state of the other."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.pairing.life import GRACE_S, FaultedSide, Life, LifeSide, Lives

OPEN, CLOSED, FAULTED = Life.OPEN, Life.CLOSED, Life.FAULTED


def lives(primary: Life, secondary: Life) -> Lives:
    both = Lives()
    sides: list[tuple[LifeSide, Life]] = [("primary", primary), ("secondary", secondary)]
    for side, life in sides:
        if life is not OPEN:
            both.ended(side, life, f"{side} went")
    return both


@pytest.mark.parametrize(
    ("primary", "secondary", "faulted"),
    [
        (OPEN, OPEN, None),
        (OPEN, CLOSED, "primary"),
        (OPEN, FAULTED, "primary"),
        (CLOSED, OPEN, "secondary"),
        (FAULTED, OPEN, "secondary"),
        (CLOSED, CLOSED, None),
        (CLOSED, FAULTED, None),
        (FAULTED, CLOSED, None),
        (FAULTED, FAULTED, None),
    ],
)
def test_the_side_that_is_still_open_after_the_grace_is_faulted(
    primary: Life, secondary: Life, faulted: LifeSide | None
) -> None:
    both = lives(primary, secondary)
    assert both.notice(100.0) is None, "the grace begins when the syphon notices"
    assert both.notice(100.0 + GRACE_S - 0.01) is None
    fault = both.notice(100.0 + GRACE_S)
    assert (fault and fault.side) == faulted


def test_the_reason_names_the_side_that_went_first() -> None:
    both = lives(CLOSED, OPEN)
    both.notice(0.0)
    assert both.notice(5.0) == FaultedSide("secondary", "the primary is closed: primary went")


def test_a_side_that_closes_within_the_grace_is_not_faulted() -> None:
    """Closing a paired client closes both sides one after the other."""
    both = lives(CLOSED, OPEN)
    both.notice(0.0)
    both.ended("secondary", CLOSED, "closed too")
    assert both.notice(100.0) is None
    assert not both.faulted


def test_a_side_ends_once() -> None:
    both = lives(CLOSED, OPEN)
    assert not both.ended("primary", FAULTED, "later")
    assert both.of("primary") is CLOSED
    assert both.reason == "primary went"
    assert both.ended("secondary", FAULTED, "the syphon's word")
    assert both.faulted


@pytest.mark.parametrize("side", ["other", "", None])
def test_there_are_two_sides(side: Any) -> None:
    both = Lives()
    with pytest.raises(ValueError, match=f"side is {side!r}; it must be one of primary, secondary"):
        both.ended(side, FAULTED, "a slip")
    assert not both.faulted
