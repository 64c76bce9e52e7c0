"""Decides when the lock of a message, or of a session, is renewed, and when it counts as lost.

Laws of this file.
 1. A lock is renewed at half of its rest. A renewal that fails is repeated at half of what is left then.
 2. A lock whose handler runs longer than `limit_s` is not renewed any more, and is lost at its end.
 3. Clocks differ. A rest that no lock can have is not believed: the lock is then taken for a short one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

LOCK_MAX_S = 300.0  # the longest lock of the service
CLOCKS_S = 30.0  # difference of clocks that is not worth a doubt
ASSUMED_S = 10.0  # rest of a lock when the clocks cannot be compared; 5 s is the shortest lock of the service
LEAST_S = 0.25  # between two tries to renew a lock

K = TypeVar("K", bound=Hashable)


def rest_s(locked_until_s: float | None, wall_s: float) -> float:
    """Return how long a lock lasts that ends at `locked_until_s`; both are seconds since 1970, by different clocks."""
    if locked_until_s is None:
        return ASSUMED_S
    left_s = locked_until_s - wall_s
    return left_s if 0.0 < left_s <= LOCK_MAX_S + CLOCKS_S else ASSUMED_S


class ServiceClock:
    """The service's clock, as far as messages tell that it is ahead of ours: a lock would seem longer than it is.

    A message was stored before it is received, so its time cannot lie in the future.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def saw(self, stored_s: float, wall_s: float) -> None:
        """Note the time at which the service stored a message that has just arrived."""
        self._ahead_s = max(self._ahead_s, stored_s - wall_s)

    def now(self, wall_s: float) -> float:
        return wall_s + self._ahead_s


@dataclass(slots=True)
class HeldLock:
    """One lock that this process holds. Times are those of the loop's clock."""

    ends_at: float
    renew_at: float
    limit_at: float = math.inf
    "From then on it is not renewed any more."
    is_asked: bool = False
    "A renewal is under way."

    def next_at(self) -> float:
        return self.ends_at if self.is_asked or self.renew_at >= self.limit_at else min(self.renew_at, self.ends_at)


@dataclass(slots=True)
class Due(Generic[K]):
    """The locks with which something is to be done now."""

    renew: list[K] = field(default_factory=list)
    lost: list[K] = field(default_factory=list)


class HeldLocks(Generic[K]):
    """The locks of one processor, or of one session."""

    def __init__(self) -> None:
        self._locks: dict[K, HeldLock] = {}
        self.next_at = math.inf
        "Time of the next call of `due`; perhaps too early, never too late."

    def __len__(self) -> int:
        return len(self._locks)

    def __contains__(self, key: K) -> bool:
        return key in self._locks

    def add(self, key: K, left_s: float, now: float) -> None:
        lock = self._locks[key] = HeldLock(now + left_s, now + left_s / 2)
        self.next_at = min(self.next_at, lock.next_at())

    def discard(self, key: K) -> None:
        self._locks.pop(key, None)

    def limit(self, key: K, limit_at: float) -> None:
        """Set the time from which on a lock is not renewed any more; infinite: there is no limit."""
        lock = self._locks.get(key)
        if lock is not None:
            lock.limit_at = limit_at
            self.next_at = min(self.next_at, lock.next_at())

    def renewed(self, key: K, left_s: float, now: float) -> None:
        lock = self._locks.get(key)
        if lock is not None:
            lock.ends_at, lock.renew_at, lock.is_asked = now + left_s, now + left_s / 2, False
            self.next_at = min(self.next_at, lock.next_at())

    def not_renewed(self, key: K, now: float) -> None:
        """Note that a renewal failed, and that it may succeed later."""
        lock = self._locks.get(key)
        if lock is not None:
            lock.renew_at, lock.is_asked = now + max((lock.ends_at - now) / 2, LEAST_S), False
            self.next_at = min(self.next_at, lock.next_at())

    def due(self, now: float) -> Due[K]:
        """Return the locks that must be renewed now, which are asked for then, and those that are lost by time."""
        due: Due[K] = Due()
        for key, lock in self._locks.items():
            if lock.ends_at <= now:
                due.lost.append(key)
            elif not lock.is_asked and lock.renew_at <= now and lock.renew_at < lock.limit_at:
                lock.is_asked = True
                due.renew.append(key)
        for key in due.lost:
            del self._locks[key]
        self.next_at = min((lock.next_at() for lock in self._locks.values()), default=math.inf)
        return due
