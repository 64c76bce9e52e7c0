"""Decides how many messages a link may have on their way to the handlers: in handlers, waiting, and promised as credit.

Slow handlers get nothing ahead: what waits here could be handled elsewhere. Fast handlers get as many messages ahead as
they handle in a quarter of a second, so that no round trip is waited for.
"""

from __future__ import annotations

AHEAD_S = 0.25
AHEAD_MAX = 256  # messages ahead of the handlers; 256 × 256 KiB are 64 MiB, also when all were promised as small ones
HELD_BYTES_MAX = 64 * 1024 * 1024  # of messages that are held, those in handlers included
SIZE_ASSUMED = 256 * 1024  # bytes of a message before the first one has come: the limit of the Standard tier
DECAY = 0.98  # of the largest size, for each message that is smaller
WEIGHT = 0.1  # of the last handler in the average duration


class Room:
    """The room of one link."""

    def __init__(self, slots: int, bytes_max: int = HELD_BYTES_MAX) -> None:
        self.slots = slots
        self._bytes_max = bytes_max
        self.held = 0
        "Messages that have arrived and are not settled."
        self.held_bytes = 0
        self._size = float(SIZE_ASSUMED)
        "Largest size of late."
        self._duration_s: float | None = None
        "Average duration of a handler."

    def take(self, size: int) -> None:
        self.held += 1
        self.held_bytes += size
        self._size = max(size, self._size * DECAY)

    def free(self, size: int) -> None:
        self.held -= 1
        self.held_bytes -= size

    def handled(self, duration_s: float) -> None:
        known = self._duration_s
        self._duration_s = duration_s if known is None else known + WEIGHT * (duration_s - known)

    @property
    def ahead(self) -> int:
        """Messages that may be held or promised beyond those in handlers."""
        if self._duration_s is None:
            return 0
        return int(min(self.slots * AHEAD_S / max(self._duration_s, 1e-6), AHEAD_MAX))

    @property
    def credit(self) -> int:
        """Messages that may still be promised. With nothing held it is at least 1: the largest message can come too."""
        by_count = self.slots + self.ahead - self.held
        by_bytes = int((self._bytes_max - self.held_bytes) / max(self._size, 1.0))
        return max(min(by_count, by_bytes), 0 if self.held else 1)
