"""A rate over the last minute, from a total that grows. Time is an argument."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
SAMPLE_S = 5.0


class Rate:
    """Samples of a total: at most one in five seconds, for a minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, total: int, now: float) -> None:
        """Note the total unless the last sample is young. When a total has fallen, it and the rate begin anew."""
        if self._samples and total < self._samples[-1][1]:
            self._samples.clear()
        while len(self._samples) > 1 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append((now, total))

    def per_s(self, total: int, now: float) -> tuple[float, float]:
        """Return the rate, and the seconds over which it was measured."""
        self.add(total, now)
        then, before = self._samples[0]
        passed_s = now - then
        return ((total - before) / passed_s if passed_s > 0 else 0.0), passed_s
