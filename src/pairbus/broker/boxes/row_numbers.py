"""Row numbers of waiting messages, eight bytes each."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice


class Numbers:
    """Ascending row numbers; they mostly come at the end, leave at the front, and come back there."""

    __slots__ = ("_array", "_at")

    def __init__(self) -> None:
        self._array = array("q")
        self._at = 0
        "Index of the first number; before it is room for numbers that come back."

    def __len__(self) -> int:
        return len(self._array) - self._at

    def __iter__(self) -> Iterator[int]:
        return islice(self._array, self._at, None)

    @property
    def first(self) -> int:
        return self._array[self._at]

    def add(self, n: int) -> None:
        numbers, at = self._array, self._at
        if len(numbers) == at or n > numbers[-1]:
            numbers.append(n)
        elif at and n < numbers[at]:
            self._at = at - 1
            numbers[at - 1] = n
        else:
            insort(numbers, n, lo=at)

    def take(self, count: int) -> list[int]:
        """Take out the first numbers."""
        taken = self._array[self._at : self._at + count].tolist()
        self._at += len(taken)
        if self._at > len(self._array) // 2:
            del self._array[: self._at]
            self._at = 0
        return taken

    def discard(self, n: int) -> bool:
        """Take out one number; False when it is not there."""
        at = bisect_left(self._array, n, lo=self._at)
        if at == len(self._array) or self._array[at] != n:
            return False
        del self._array[at]
        return True

    def __contains__(self, n: int) -> bool:
        at = bisect_left(self._array, n, lo=self._at)
        return at < len(self._array) and self._array[at] == n

    def first_from(self, seq: int, seq_of: Callable[[int], int]) -> int:
        """Return the first number whose sequence number is at least `seq`, found by binary search; 0: there is none."""
        at = bisect_left(self._array, seq, lo=self._at, key=seq_of)
        return self._array[at] if at < len(self._array) else 0

    def since(self, n: int, count: int) -> list[int]:
        """Return up to `count` numbers from `n` on."""
        at = bisect_left(self._array, n, lo=self._at)
        return self._array[at : at + count].tolist()
