"""Close and fault: when one side of a pair is closed or faulted, the other side is faulted too.

This happens only where the syphon runs: it notices that a side was closed or faulted, and when the other side is still
open `GRACE_S` later, faults it. Losing a connection is never a fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

LifeSide = Literal["primary", "secondary"]
GRACE_S = 5.0


class Life(Enum):
    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


# New state of the open side, by the state of the other one.
SUFFERS: dict[Life, Life | None] = {
    Life.OPEN: None,
    Life.CLOSED: Life.FAULTED,
    Life.FAULTED: Life.FAULTED,
}


@dataclass(frozen=True, slots=True)
class FaultedSide:
    """The side to fault now, and the reason."""

    side: LifeSide
    reason: str


class Lives:
    """The two sides of one pair."""

    def __init__(self) -> None:
        self._lives: dict[LifeSide, Life] = {"primary": Life.OPEN, "secondary": Life.OPEN}
        self._noticed: dict[LifeSide, float] = {}
        self.first: LifeSide | None = None
        "The side that ended first."
        self.reason = ""
        "Reason why that side ended."
        self.faulted = False
        "True when a side is faulted; asked at every send."

    def of(self, side: LifeSide) -> Life:
        return self._lives[side]

    def ended(self, side: LifeSide, life: Life, reason: str) -> bool:
        """Note that a side was closed or faulted; True when it was open before."""
        assert life is not Life.OPEN
        if side not in self._lives:
            raise ValueError(f"side is {side!r}; it must be one of {', '.join(self._lives)}")
        if self._lives[side] is not Life.OPEN:
            return False
        self._lives[side] = life
        self.faulted = self.faulted or life is Life.FAULTED
        if self.first is None:
            self.first, self.reason = side, reason
        return True

    def notice(self, now: float) -> FaultedSide | None:
        """Return the side to fault, when the grace is over; called by the syphon again and again."""
        pairs: tuple[tuple[LifeSide, LifeSide], ...] = (("primary", "secondary"), ("secondary", "primary"))
        for side, other in pairs:
            suffers = SUFFERS[self._lives[side]]
            if suffers is None or self._lives[other] is not Life.OPEN:
                continue
            since = self._noticed.setdefault(side, now)
            if now >= since + GRACE_S:
                return FaultedSide(other, f"the {side} is {self._lives[side].value}: {self.reason}")
        return None
