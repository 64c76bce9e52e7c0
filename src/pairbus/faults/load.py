"""Throttling by load: a number of operations a second, and a small reserve of unused ones."""

from __future__ import annotations

from collections.abc import Callable

PARTITIONS = 16
"Number of budgets of a partitioned entity: each partition is on a node of its own, with a budget of its own."
RESERVE_S = 1.0
"Seconds for which unused operations are kept: a short burst after a pause is not throttled."
ENTITIES_MAX = 10_000  # partitioned entities whose budgets are kept; 16 numbers each


class OperationBudget:
    """A token bucket: operations become available at a steady rate."""

    __slots__ = ("_at", "_left", "_rate")

    def __init__(self, per_s: float, now: float) -> None:
        self._rate = per_s
        self._left = max(per_s * RESERVE_S, 1.0)
        self._at = now

    def take(self, now: float) -> bool:
        """Spend one operation; False when none is left."""
        full = max(self._rate * RESERVE_S, 1.0)
        self._left = min(self._left + max(now - self._at, 0.0) * self._rate, full)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Load:
    """The operations a second that a namespace allows.

    Entities without partitions share one budget. A partitioned entity has several, and an operation uses a random one:
    it is refused less often, as on the service.
    """

    def __init__(self, per_s: float, dice: Callable[[], float], now: float) -> None:
        self.per_s = per_s
        self._dice = dice
        self._shared = OperationBudget(per_s, now)
        self._partitions: dict[str, list[OperationBudget]] = {}

    def take(self, entity: str, *, is_partitioned: bool, now: float) -> bool:
        """Spend one operation on the entity; False when it has to be refused."""
        if not is_partitioned:
            return self._shared.take(now)
        budgets = self._partitions.get(entity)
        if budgets is None:
            if len(self._partitions) >= ENTITIES_MAX:
                self._partitions.pop(next(iter(self._partitions)))
            budgets = self._partitions[entity] = [OperationBudget(self.per_s, now) for _ in range(PARTITIONS)]
        return budgets[min(int(self._dice() * PARTITIONS), PARTITIONS - 1)].take(now)
