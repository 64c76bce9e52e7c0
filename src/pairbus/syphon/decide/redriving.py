"""Decides which dead letters may go back now, and under which ids.

A destination that detects duplicates accepts a message whose id it remembers, and drops it. The entity that a dead
letter came from remembers its id while its window lasts: a letter that is completed after such a send would be lost.

Law of this file. A letter that the destination may remember is not sent under its own id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pairbus.backlog.envelope import Home, Memory, Spoiled, redriven

WINDOW_MAX_S = 7 * 86_400.0  # the longest window of the service, assumed when the window is not known
CLOCKS_APART_S = 60.0  # largest difference between the service's clock, which counts the window, and ours


DEAD_LETTERS = "/$DeadLetterQueue"


def queue_of_dead_letters(path: str) -> str:
    """Return the queue or subscription that has the dead letters; the path may be that of its dead-letter queue."""
    path = path.rstrip("/")
    return path[: -len(DEAD_LETTERS)] if path.lower().endswith(DEAD_LETTERS.lower()) else path


def entity_of_dead_letters(path: str) -> str:
    """Return the entity to which the messages of a dead-letter queue were sent: for a subscription, its topic."""
    segments = path.strip("/").split("/")
    while segments and segments[-1].startswith("$"):
        segments.pop()
    if len(segments) > 2 and segments[-2].lower() == "subscriptions":
        segments = segments[:-2]
    return "/".join(segments)


@dataclass(frozen=True, slots=True)
class Redriving:
    """The destination of dead letters. Pickled for the executors of Spark."""

    path: str
    "The entity that gets the dead letters."
    origin: str
    "Namespace and queue of the letters: letters of two queues never get the same new id."
    duplicate_window_s: float | None
    "Seconds for which the entity remembers message ids; 0: it does not detect duplicates; None: not known."
    new_ids: bool = False
    "True: messages whose ids the destination may remember are sent with a new id; False: they stay."

    def open(self, payload: bytes, now_ms: int) -> Home | Spoiled:
        window_s = WINDOW_MAX_S if self.duplicate_window_s is None else self.duplicate_window_s
        if not window_s:
            return redriven(payload, self.path)
        window_ms = int((window_s + CLOCKS_APART_S) * 1000)
        return redriven(payload, self.path, Memory(now_ms, window_ms, self.origin if self.new_ids else None))

    def opener(self, wall_ms: Callable[[], int]) -> Callable[[bytes], Home | Spoiled]:
        return lambda payload: self.open(payload, wall_ms())
