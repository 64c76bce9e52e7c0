"""The waiting messages of all sessions of a box in one order, for a peek that walks over them page by page.

It is made when somebody first peeks over all sessions, and costs 16 bytes for each message until nobody does any more.
Messages that leave stay in it for a while: a page looks each of its messages up in its session.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pairbus.broker.boxes.due import SLACK

if TYPE_CHECKING:
    from pairbus.broker.boxes.sessions import MessageSession


class MergedSessions:
    """Ascending row numbers, each with its session; some have left."""

    def __init__(self, sessions: Iterable[MessageSession]) -> None:
        rows = sorted(((n, session) for session in sessions for n in session.waiting_numbers()), key=lambda row: row[0])
        self._numbers = array("q", [n for n, _ in rows])
        self._sessions = [session for _, session in rows]

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, n: int, session: MessageSession) -> None:
        """Add a message that waits now; one that comes back may still be there."""
        numbers = self._numbers
        if not numbers or n > numbers[-1]:
            numbers.append(n)
            self._sessions.append(session)
            return
        place = bisect_left(numbers, n)
        if numbers[place] != n:
            numbers.insert(place, n)
            self._sessions.insert(place, session)

    def first_from(self, seq: int, seq_of: Callable[[int], int]) -> int:
        """Return the lowest number whose sequence number is at least `seq`, found by halving; 0: there is none."""
        low, high = 0, len(self)
        while low < high:
            middle, before = (low + high) // 2, len(self)
            probe = self._next_waiting(middle)
            high = max(middle, high - before + len(self))
            if probe >= high:
                high = middle
            elif seq_of(self._numbers[probe]) < seq:
                low = probe + 1
            else:
                high = middle
        place = self._next_waiting(low)
        return self._numbers[place] if place < len(self) else 0

    def numbers_from(self, n: int, count: int) -> list[int]:
        """Return the `count` lowest numbers from `n` on, ascending."""
        place = bisect_left(self._numbers, n)
        page: list[int] = []
        while len(page) < count and (place := self._next_waiting(place)) < len(self):
            page.append(self._numbers[place])
            place += 1
        return page

    def _next_waiting(self, place: int) -> int:
        """Return the place of the first message from `place` on that waits. A long run of others is taken out, so that
        it is passed once."""
        numbers, sessions = self._numbers, self._sessions
        at = place
        while at < len(numbers) and not sessions[at].waits(numbers[at]):
            at += 1
        if at - place <= SLACK:
            return at
        del numbers[place:at]
        del sessions[place:at]
        return place
