"""The speed of a syphon: its budget, the size of its batches, its pauses. Time is an argument, in seconds."""

from __future__ import annotations

PAUSE_MAX_S = 120.0
PASS_MAX_S = 60.0  # longest pass, also when messages are left in the queue
CHANCE_S = 15.0  # a pass that skips a destination ends after this time, so that the destination is tried again
# Share of the maximum that comes back each second: a halved budget is whole after ten seconds without a refusal.
RECOVERY_PER_S = 0.05
RATE_MIN_SHARE = 1 / 64  # smallest share of the maximum, reached after six refusals in a row
BATCH_MAX = 100
SHIPMENT_MAX = 1000
SHIPMENT_S = 0.5
BURST_S = 0.1  # seconds of the budget that a pause may save
PIECE_S = 0.25  # seconds of the budget that are sent at once
LOCK_S = 60.0  # lock of a backlog queue, until a message has told it
LOCK_MAX_S = 300.0  # the longest lock of the service


class Budget:
    """Limits the messages a second of all pumps of a syphon. It holds in any second: a pause is not made up for.

    Live traffic needs the namespace too, so a refusal as busy halves the rate, which then recovers slowly.
    """

    def __init__(self, max_per_s: float | None) -> None:
        self._max_per_s = max_per_s
        self._rate_per_s = max_per_s or 0.0
        self._tokens = max((max_per_s or 0.0) * BURST_S, 1.0)
        self._at_s: float | None = None
        self._halved_at = float("-inf")

    def __repr__(self) -> str:
        return "<Budget unlimited>" if self._max_per_s is None else f"<Budget {self._rate_per_s:.1f} a second>"

    def rate_per_s(self, now: float) -> float | None:
        """Return the messages a second that are allowed at present; None: any number."""
        if self._max_per_s is None:
            return None
        self._advance(now, self._max_per_s)
        return self._rate_per_s

    def take(self, count: int, now: float) -> float:
        """Spend `count` messages; return the seconds to wait before they may be sent."""
        if self._max_per_s is None:
            return 0.0
        self._advance(now, self._max_per_s)
        self._tokens -= count
        return max(-self._tokens / self._rate_per_s, 0.0)

    def busy(self, now: float, asked_at: float = float("inf")) -> None:
        """Halve the rate, because a send at `asked_at` was refused; sends before the last refusal do not count."""
        if self._max_per_s is not None and asked_at > self._halved_at:
            self._halved_at = now
            self._advance(now, self._max_per_s)
            self._rate_per_s = max(self._rate_per_s / 2, self._max_per_s * RATE_MIN_SHARE)

    def _advance(self, now: float, max_per_s: float) -> None:
        passed_s = 0.0 if self._at_s is None else max(now - self._at_s, 0.0)
        self._at_s = now
        self._rate_per_s = min(self._rate_per_s + RECOVERY_PER_S * max_per_s * passed_s, max_per_s)
        self._tokens = min(self._tokens + self._rate_per_s * passed_s, max(self._rate_per_s * BURST_S, 1.0))


class Pauses:
    """Decides the pause between passes of one pump: the interval, doubled by every pass that delivers nothing."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s = interval_s

    def after(self, delivered: bool) -> float:
        if delivered:
            self._next_s = self._interval_s
            return self._interval_s
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, PAUSE_MAX_S)
        return pause_s


class BatchSize:
    """Number of messages of one queue that may be held: those that can be moved in half of their lock.

    At most the messages that a budget allows in a quarter of a second go together. `batches`: number of batches that
    are held at once.
    """

    def __init__(self, most: int = BATCH_MAX, batches: int = 1) -> None:
        self._most = most
        self._batches = batches
        self._per_s: float | None = None
        "Messages moved a second; the last batches count most."
        self._allowed_per_s: float | None = None
        self._lock_s = LOCK_S
        self._longest_s = float("-inf")
        "Longest rest of any lock, which is that of a fresh lock."

    def moved(self, count: int, took_s: float) -> None:
        if count and took_s > 0:
            rate = count / took_s
            self._per_s = rate if self._per_s is None else 0.5 * self._per_s + 0.5 * rate

    def locked_for(self, lock_s: float) -> None:
        """Note the rest of a lock when its message arrives; perhaps 0, because a delivery can be late.

        Clocks differ: when even the longest lock is impossible, it is taken for a fresh one, and others are compared
        with it.
        """
        self._longest_s = max(self._longest_s, lock_s)
        is_clock_good = 1.0 <= self._longest_s <= LOCK_MAX_S
        self._lock_s = max(lock_s if is_clock_good else LOCK_S - (self._longest_s - lock_s), 0.0)

    @property
    def lock_s(self) -> float:
        return self._lock_s

    @property
    def lock_longest_s(self) -> float:
        """Longest time that a message can be locked from now on. The rest of a lock is a lower limit only."""
        return max(self._longest_s, LOCK_S) if self._longest_s <= LOCK_MAX_S else LOCK_S

    def next(self, allowed_per_s: float | None = None) -> int:
        """Return the size of the next batch. `allowed_per_s`: this queue's share of the budget."""
        self._allowed_per_s = allowed_per_s
        limit = self._limit
        return self._most if limit is None else max(1, min(self._most, limit))

    @property
    def shipment(self) -> int:
        """Number of messages that may go together; a syphon that is stopped waits for them."""
        limit, batch = self._limit, self.next(self._allowed_per_s)
        if limit is None or self._per_s is None:
            return batch
        return max(batch, min(SHIPMENT_MAX, int(self._per_s * SHIPMENT_S), limit))

    @property
    def _limit(self) -> int | None:
        """Return the limit for each of the batches that are in hand at once."""
        rates = [rate for rate in (self._per_s, self._allowed_per_s) if rate is not None]
        if not rates:
            return None
        limit = min(rates) * self._lock_s / 2 / self._batches
        return int(limit if self._allowed_per_s is None else min(limit, self._allowed_per_s * PIECE_S))
