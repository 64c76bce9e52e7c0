"""Progress messages of a long recovery."""

from __future__ import annotations

import time
from collections.abc import Callable


class PacedTelling:
    """Filter that lets a sentence through about once a second, and none in the first second."""

    def __init__(self, say: Callable[[str], None] | None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock_s = clock_s
        self._next_s = clock_s() + 1

    def tell(self, sentence: str, *, at_once: bool = False) -> None:
        if self._say is not None and (at_once or self._clock_s() >= self._next_s):
            self._next_s = self._clock_s() + 1
            self._say(sentence)
