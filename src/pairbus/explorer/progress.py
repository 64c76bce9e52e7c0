"""Tells the progress of verbs that take long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """Counts of one run of a verb. The same object is passed to the callback at each step, and returned at the end."""

    done: int = 0
    "Messages that were sent, moved, deleted, received or written."
    passed: int = 0
    "Messages that were looked at and not chosen."
    total: int | None = None
    "Messages to do, where that is known."
    left: int | None = None
    "Messages that were chosen and are still in the entity; None: not known, or the verb leaves all messages there."
    uncompleted: int = 0
    "Messages whose copy was accepted, but which could not be completed: they exist twice."
    notes: list[str] = field(default_factory=list)
    "Facts for the user: why messages are left, which steps were not possible."
    tell: Callable[[Progress], None] | None = None
    "Called after each step; it must not block."

    def step(self, *, done: int = 0, passed: int = 0) -> None:
        """Count messages and call `tell`."""
        self.done += done
        self.passed += passed
        if self.tell is not None:
            self.tell(self)

    def note(self, text: str) -> None:
        """Add a fact, once."""
        if text not in self.notes:
            self.notes.append(text)
