"""The delay before the next attempt."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_ATTEMPTS = 10
"""Attempts with a `Backoff` when `max_attempts` is not given: the max delivery count that an entity has unless it was
created with another one. A key without the Manage claim cannot ask the entity for its own."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow from attempt to attempt, in seconds."""

    first: float = 1.0
    "Delay after the first attempt."
    factor: float = 2.0
    "Each delay is so many times as long as the one before."
    max: float = 300.0
    "Longest delay."
    jitter: float = 0.2
    "Share of a delay, from 0 to 1, that is taken off by chance: messages that failed together come back one by one."

    def __post_init__(self) -> None:
        for name, least, most in (
            ("first", 0.0, math.inf),
            ("factor", 1.0, math.inf),
            ("max", 0.0, math.inf),
            ("jitter", 0.0, 1.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise ValueError(f"{name} is {value!r}; it must be a number from {least:g} to {most:g}")
        if math.inf in (self.first, self.factor, self.max):
            raise ValueError("first, factor and max must be finite numbers")

    def delay_s(self, attempt: int, chance: float) -> float:
        """Return the delay after attempt number `attempt`, from 1 on. `chance`: a random number from 0 to 1."""
        if not self.first or not self.max:
            return 0.0
        # Before the power: it would overflow after some thousand attempts.
        steps_to_max = math.log(max(self.max / self.first, 1.0), self.factor) if self.factor > 1 else math.inf
        steps = attempt - 1
        delay_s = self.max if steps >= steps_to_max else min(self.first * self.factor**steps, self.max)
        return delay_s * (1.0 - self.jitter * chance)
