"""Times at which bytes may leave on a slow line: a delay with jitter, a limit of bytes a second, never out of order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pairbus.faults.active import Active


class Pace:
    """One direction of one connection."""

    __slots__ = ("_dice", "_free_at", "_last_at")

    def __init__(self, dice: Callable[[], float]) -> None:
        self._dice = dice
        self._free_at = 0.0
        "Time at which the line has passed all bytes that were given to it."
        self._last_at = 0.0

    def leaves_at(self, size: int, faults: Sequence[Active], now: float) -> float:
        """Return the time at which `size` bytes that are ready now have passed the line."""
        at = now
        for one in faults:
            numbers = one.fault.arguments
            if "bytes_per_s" in numbers:
                self._free_at = max(self._free_at, now) + size / numbers["bytes_per_s"]
                at = max(at, self._free_at)
        for one in faults:
            numbers = one.fault.arguments
            if "delay_s" in numbers:
                at += numbers["delay_s"] + numbers["jitter_s"] * self._dice()
        self._last_at = max(at, self._last_at)
        return self._last_at
