"""Duplicate detection: which message ids were accepted within the window.

An id counts as known from acceptance on, before its commit: it is *claimed*. A second send of a claimed id cannot be
answered yet (if the commit fails, the message was never stored), so it waits for the claim to be resolved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pairbus.broker.budget import REMEMBERED_COST, Share

PURGE_MAX = 1000  # ids forgotten in one call: below a millisecond
PURGE_PAUSE_MS = 1000  # one `Forget` write a second is enough


class Claim:
    """Ids of one uncommitted send, and the sends that wait for its result."""

    __slots__ = ("ids", "parked")

    def __init__(self, ids: Sequence[tuple[str, int]]) -> None:
        self.ids = ids
        self.parked: list[Any] = []


class DuplicateWindow:
    def __init__(self, index: Share) -> None:
        """Make a window. `index` is where the ids count against the budget."""
        self._index = index
        # Ordered by insertion, which is the order of the ends unless the window was changed. Then some ids are kept
        # longer than needed, but none counts longer, because every look compares the end.
        self._until_ms: OrderedDict[str, int] = OrderedDict()
        self._claims: dict[str, Claim] = {}
        self._purge_ms = 0

    def __len__(self) -> int:
        return len(self._until_ms)

    def recover(self, remembered: Iterable[tuple[str, int]]) -> None:
        for message_id, until_ms in sorted(remembered, key=lambda pair: pair[1]):
            self._until_ms[message_id] = until_ms
        self._index.take(REMEMBERED_COST * len(self._until_ms))

    def claim_on(self, ids: Iterable[str]) -> Claim | None:
        """Return the first claim that holds one of these ids."""
        claims = self._claims
        return next((claims[message_id] for message_id in ids if message_id in claims), None) if claims else None

    def fresh(self, ids: Iterable[str], now_ms: int) -> list[bool]:
        """Return for each id whether it is new: neither known nor earlier in the list. A missing id is always new."""
        seen: set[str] = set()
        answers = []
        for message_id in ids:
            new = not message_id or (message_id not in seen and self._until_ms.get(message_id, 0) <= now_ms)
            seen.add(message_id)
            answers.append(new)
        return answers

    def claim(self, ids: Sequence[tuple[str, int]]) -> Claim:
        """Take (id, until_ms) pairs that are about to be committed."""
        claim = Claim(ids)
        for message_id, _ in ids:
            self._claims[message_id] = claim
        return claim

    def resolve(self, claim: Claim, *, committed: bool) -> None:
        before = len(self._until_ms)
        for message_id, until_ms in claim.ids:
            del self._claims[message_id]
            if committed:
                self._until_ms[message_id] = until_ms
                self._until_ms.move_to_end(message_id)
        self._index.take(REMEMBERED_COST * (len(self._until_ms) - before))

    def next_ms(self) -> int | None:
        """Return when `purge` has work to do."""
        if not self._until_ms:
            return None
        return max(self._purge_ms, next(iter(self._until_ms.values())))

    def purge(self, now_ms: int) -> int | None:
        """Forget some ids whose time is over; return the latest of their ends (for a `Forget`), or None without any."""
        last_ms = None
        for _ in range(PURGE_MAX):
            until_ms = next(iter(self._until_ms.values()), None)
            if until_ms is None or until_ms > now_ms:
                self._purge_ms = now_ms + PURGE_PAUSE_MS
                break
            self._until_ms.popitem(last=False)
            self._index.give(REMEMBERED_COST)
            last_ms = max(until_ms, last_ms or 0)
        return last_ms

    def run_due(self, now_ms: int, forget: Callable[[int], None]) -> None:
        """Call `purge` when its time has come; `forget(until_ms)` writes the result."""
        next_ms = self.next_ms()
        if next_ms is not None and next_ms <= now_ms:
            until_ms = self.purge(now_ms)
            assert until_ms is not None, "the first end was due"
            forget(until_ms)

    def leave_budget(self) -> None:
        """Count the ids against the budget no more: their entity has come to its end."""
        self._index.close()

    def ends(self) -> list[int]:
        """Return when each id expires, ascending."""
        return sorted(self._until_ms.values())
