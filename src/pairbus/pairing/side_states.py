"""The states of the two sides: when one side of a pair is closed or faulted, the other side is faulted too.

This happens only where the syphon runs: it notices that a side was closed or faulted, and when the other side is still
open `OTHER_SIDE_S` later, faults it. A lost connection faults no side.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

PairSide = Literal["primary", "secondary"]
OTHER_SIDE_S = 5.0


class SideState(Enum):
    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


# New state of the open side, by the state of the other one.
SUFFERS: dict[SideState, SideState | None] = {
    SideState.OPEN: None,
    SideState.CLOSED: SideState.FAULTED,
    SideState.FAULTED: SideState.FAULTED,
}


@dataclass(frozen=True, slots=True)
class SideToFault:
    side: PairSide
    reason: str


class SideStates:
    """The states of the two sides of one pair."""

    def __init__(self) -> None:
        self._states: dict[PairSide, SideState] = {"primary": SideState.OPEN, "secondary": SideState.OPEN}
        self._noticed_at: dict[PairSide, float] = {}
        self.first: PairSide | None = None
        "The side that ended first."
        self.reason = ""
        "Reason why that side ended."
        self.has_faulted = False
        "True when a side is faulted; asked at every send."

    def of(self, side: PairSide) -> SideState:
        return self._states[side]

    def end(self, side: PairSide, state: SideState, reason: str) -> bool:
        """Close or fault a side; True when it was open before."""
        assert state is not SideState.OPEN
        if side not in self._states:
            raise ValueError(f"side is {side!r}; it must be one of {', '.join(self._states)}")
        if self._states[side] is not SideState.OPEN:
            return False
        self._states[side] = state
        self.has_faulted = self.has_faulted or state is SideState.FAULTED
        if self.first is None:
            self.first, self.reason = side, reason
        return True

    def side_to_fault(self, now: float) -> SideToFault | None:
        """Return the side to fault, `OTHER_SIDE_S` after the first call that finds the other one ended."""
        pairs: tuple[tuple[PairSide, PairSide], ...] = (("primary", "secondary"), ("secondary", "primary"))
        for side, other in pairs:
            if SUFFERS[self._states[side]] is None or self._states[other] is not SideState.OPEN:
                continue
            noticed_at = self._noticed_at.setdefault(side, now)
            if now >= noticed_at + OTHER_SIDE_S:
                return SideToFault(other, f"the {side} is {self._states[side].value}: {self.reason}")
        return None
