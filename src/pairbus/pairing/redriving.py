"""Dead letters on their way back: which may go now, and under which id.

A destination that detects duplicates accepts a message whose id it remembers, and drops it. The entity that a dead
letter came from remembers its id while its window lasts: completed after such a send, the letter would be gone.

Law of this file. A letter that the destination may remember is not sent under its own id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pairbus.pairing.envelope import Home, Memory, Spoiled, redriven

WINDOW_MAX_S = 7 * 86_400.0  # the service's longest: what is not known may be this
CLOCKS_APART_S = 60.0  # between the service's clock, which counts the window, and ours


DEAD_LETTERS = "/$DeadLetterQueue"


def queue_of_dead_letters(path: str) -> str:
    """The queue or subscription whose dead letters are meant, also by the path of the dead-letter queue itself."""
    path = path.rstrip("/")
    return path[: -len(DEAD_LETTERS)] if path.lower().endswith(DEAD_LETTERS.lower()) else path


@dataclass(frozen=True, slots=True)
class Redriving:
    """The destination of dead letters. Pickled for the executors of Spark."""

    path: str
    "The entity that gets them."
    origin: str
    "Namespace and queue that they lie in: letters of two queues never get the same new id."
    duplicate_window_s: float | None
    "For how long the entity remembers message ids; 0: it does not detect duplicates; None: not known."
    new_ids: bool = False
    "Messages whose ids the destination may remember go under another id; otherwise they stay."

    def open(self, payload: bytes, now_ms: int) -> Home | Spoiled:
        window_s = WINDOW_MAX_S if self.duplicate_window_s is None else self.duplicate_window_s
        if not window_s:
            return redriven(payload, self.path)
        window_ms = int((window_s + CLOCKS_APART_S) * 1000)
        return redriven(payload, self.path, Memory(now_ms, window_ms, self.origin if self.new_ids else None))

    def opener(self, wall_ms: Callable[[], int]) -> Callable[[bytes], Home | Spoiled]:
        return lambda payload: self.open(payload, wall_ms())
