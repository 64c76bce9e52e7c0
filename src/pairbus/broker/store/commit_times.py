"""Durations of commits, for the page of metrics."""

from __future__ import annotations

import time

from pairbus.telemetry.metrics.text import Histogram

# Seconds. A commit to a solid-state disk takes a millisecond; a checkpoint holds one up for about 70.
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class CommitTimes:
    """Durations of the commits of one store, one after the other, by the machine's own clock."""

    def __init__(self) -> None:
        self.durations = Histogram(BOUNDS)
        self.failures = 0
        self._began: float | None = None

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self, *, is_durable: bool) -> None:
        if self._began is not None:
            self.durations.observe(time.perf_counter() - self._began)
            self._began = None
        self.failures += not is_durable

    def under_way_s(self) -> float:
        """Return how long the commit under way has taken so far."""
        return 0.0 if self._began is None else time.perf_counter() - self._began
