"""Times at which work falls due: two heaps that do not grow with cancelled times."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

SLACK = 1024  # stale entries that any heap may have: 1024 × 96 B, about 100 KB


class Agenda(Generic[Key]):
    """Keys with one time each. Setting a key again replaces its time; `None` removes it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._times: dict[Key, tuple[int, int]] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: Key) -> bool:
        return key in self._times

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._times))  # a copy: keys may be set meanwhile

    def set(self, key: Key, at_ms: int | None) -> None:
        if at_ms is None:
            self._times.pop(key, None)
            return
        # The turn makes every entry different from earlier ones of the same key, and keys need not be comparable.
        self._turn += 1
        self._times[key] = (at_ms, self._turn)
        heappush(self._heap, (at_ms, self._turn, key))
        if len(self._heap) > 2 * len(self._times) + SLACK:
            self._heap = [(at_ms, turn, key) for key, (at_ms, turn) in self._times.items()]
            heapify(self._heap)

    def next_ms(self) -> int | None:
        heap = self._heap
        while heap:
            at_ms, turn, key = heap[0]
            if self._times.get(key) == (at_ms, turn):
                return at_ms
            heappop(heap)
        return None

    def pop_due(self, now_ms: int, limit: int | None = None) -> list[Key]:
        """Remove and return the keys whose time is at or before `now_ms`, earliest first."""
        due: list[Key] = []
        while (limit is None or len(due) < limit) and (at_ms := self.next_ms()) is not None and at_ms <= now_ms:
            key = heappop(self._heap)[2]
            del self._times[key]
            due.append(key)
        return due


class ExpiryHeap(Generic[Key]):
    """Ends of the times to live of the messages that wait in a box, one tuple for each.

    A key is the row number, or begins with it. A message that is locked leaves its entry behind, and gets another one
    when it comes back. `live` counts the messages that really wait; the owner updates it, and calls `compact` when
    there are too many stale entries.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Key]] = []
        self.live = 0

    def add(self, expires_ms: int, key: Key) -> None:
        heappush(self._heap, (expires_ms, key))
        self.live += 1

    @property
    def crowded(self) -> bool:
        return len(self._heap) > self.live + self.live // 4 + SLACK

    def compact(self, waits: Callable[[Key], bool]) -> None:
        """Forget the entries of messages that do not wait. A sorted list is a heap."""
        self._heap.sort()
        self._heap = [entry for entry, _ in groupby(self._heap) if waits(entry[1])]

    def next_ms(self) -> int | None:
        """Return a time not later than the next end; earlier when the first entry is stale."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int, limit: int) -> list[Key]:
        """Return keys, without repetition, some of which may not wait any more."""
        heap, due = self._heap, dict[Key, None]()
        while heap and heap[0][0] <= now_ms and len(due) < limit:
            due[heappop(heap)[1]] = None
        return list(due)

    def due(self, now_ms: int) -> set[Key]:
        """Return the keys that are due and leave them here; some of them may not wait any more."""
        heap, keys, places = self._heap, set[Key](), [0]
        while places:  # an entry is not earlier than the one above it in the heap
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now_ms:
                keys.add(heap[place][1])
                places += (2 * place + 1, 2 * place + 2)
        return keys
