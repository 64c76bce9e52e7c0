"""Close and fault: every state of one side × every state of the other."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.pairing.side_states import OTHER_SIDE_S, PairSide, SideState, SideStates, SideToFault

OPEN, CLOSED, FAULTED = SideState.OPEN, SideState.CLOSED, SideState.FAULTED


def states_after(primary: SideState, secondary: SideState) -> SideStates:
    both = SideStates()
    sides: list[tuple[PairSide, SideState]] = [("primary", primary), ("secondary", secondary)]
    for side, state in sides:
        if state is not OPEN:
            both.end(side, state, f"{side} went")
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
    primary: SideState, secondary: SideState, faulted: PairSide | None
) -> None:
    both = states_after(primary, secondary)
    assert both.side_to_fault(100.0) is None, "the grace begins when the syphon notices"
    assert both.side_to_fault(100.0 + OTHER_SIDE_S - 0.01) is None
    fault = both.side_to_fault(100.0 + OTHER_SIDE_S)
    assert (fault and fault.side) == faulted


def test_the_reason_names_the_side_that_went_first() -> None:
    both = states_after(CLOSED, OPEN)
    both.side_to_fault(0.0)
    assert both.side_to_fault(5.0) == SideToFault("secondary", "the primary is closed: primary went")


def test_a_side_that_closes_within_the_grace_is_not_faulted() -> None:
    """Closing a paired client closes both sides one after the other."""
    both = states_after(CLOSED, OPEN)
    both.side_to_fault(0.0)
    both.end("secondary", CLOSED, "closed too")
    assert both.side_to_fault(100.0) is None
    assert not both.has_faulted


def test_a_side_ends_once() -> None:
    both = states_after(CLOSED, OPEN)
    assert not both.end("primary", FAULTED, "later")
    assert both.of("primary") is CLOSED
    assert both.reason == "primary went"
    assert both.end("secondary", FAULTED, "the syphon's word")
    assert both.has_faulted


@pytest.mark.parametrize("side", ["other", "", None])
def test_there_are_two_sides(side: Any) -> None:
    both = SideStates()
    with pytest.raises(ValueError, match=f"side is {side!r}; it must be one of primary, secondary"):
        both.end(side, FAULTED, "a slip")
    assert not both.has_faulted
