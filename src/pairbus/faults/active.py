"""The faults that are switched on at one namespace or proxy, and the decision whether one of them meets an event.

Time is an argument, in seconds of any clock that does not go back; the dice are an argument, a number from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from pairbus.errors import FaultNotFound, InvalidFault
from pairbus.faults.fault import Fault
from pairbus.faults.kinds import Place

ACTIVE_MAX = 1000  # each event looks at all of them


class Active:
    """One fault that is switched on."""

    __slots__ = ("_texts", "fault", "id", "left", "until")

    def __init__(self, number: int, fault: Fault, now: float) -> None:
        self.id = number
        self.fault = fault
        self.until = None if fault.for_s is None else now + fault.for_s
        "Time at which the fault ends by itself; None: only when it is cleared."
        self.left = fault.count
        "Number of events that the fault still meets; None: any number."
        self._texts = None if fault.entity is None else fault.entity.lower().split("*")
        "Texts between the stars of the pattern; None: every entity."

    def __repr__(self) -> str:
        fault = self.fault
        where = "" if fault.entity is None else f" of {fault.entity}"
        return f"<Active {self.id} {fault.kind.name}{where} {','.join(fault.directions)}>"

    def is_over(self, now: float) -> bool:
        return self.until is not None and now >= self.until

    def concerns(self, entity: str) -> bool:
        """Return True when the pattern covers the entity. A `$` node, which is no entity, must be named."""
        pattern = self.fault.entity
        if entity.startswith("$") and (pattern is None or not pattern.startswith("$")):
            return False
        return self._texts is None or _matches(self._texts, entity.lower())

    def to_json(self, now: float) -> dict[str, Any]:
        left_s = None if self.until is None else round(max(self.until - now, 0.0), 3)
        return {"id": self.id, **self.fault.to_json(), "left_s": left_s, "left": self.left}


def _matches(texts: list[str], path: str) -> bool:
    """Return whether the path is these texts with anything between them.

    The first place that fits each text is as good as any later one, so nothing is tried twice.
    """
    first, last = texts[0], texts[-1]
    if len(texts) == 1:
        return path == first
    at, end = len(first), len(path) - len(last)
    if end < at or not path.startswith(first) or not path.endswith(last):
        return False
    for text in texts[1:-1]:
        text_at = path.find(text, at, end)
        if text_at < 0:
            return False
        at = text_at + len(text)
    return True


class Faults:
    """The set of faults that are switched on."""

    def __init__(self, dice: Callable[[], float]) -> None:
        self.dice = dice
        self._active: dict[int, Active] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._active)

    def items(self) -> list[Active]:
        """Return the faults in the order in which they were added."""
        return list(self._active.values())

    def at(self, place: Place) -> list[Active]:
        """Return the faults that act at a place."""
        return [one for one in self._active.values() if place in one.fault.kind.places]

    def add(self, fault: Fault, now: float) -> Active:
        """Switch a fault on."""
        if len(self._active) >= ACTIVE_MAX:
            raise InvalidFault(f"{ACTIVE_MAX} faults are active; clear some before you add more")
        self._last_id += 1
        active = self._active[self._last_id] = Active(self._last_id, fault, now)
        return active

    def clear(self, number: int | None = None) -> list[Active]:
        """Switch one fault off, or all of them; return those that ended."""
        if number is None:
            ended = self.items()
            self._active.clear()
            return ended
        if number not in self._active:
            known = ", ".join(map(str, self._active)) or "none"
            raise FaultNotFound(f"there is no fault {number}; active are: {known}")
        return [self._active.pop(number)]

    def expire(self, now: float) -> list[Active]:
        """Switch off the faults whose time is over, and return them."""
        ended = [one for one in self._active.values() if one.is_over(now)]
        for one in ended:
            del self._active[one.id]
        return ended

    def next_end(self) -> float | None:
        """Return the time at which the next fault ends by itself."""
        return min((one.until for one in self._active.values() if one.until is not None), default=None)

    def meet(
        self, place: Place, direction: str | None, entity: str, now: float, among: Container[str] | None = None
    ) -> Active | None:
        """Return the fault that meets an event, if any, and count it down. Each fault is drawn once at most.

        A fault whose count is used up is no longer in the set, unless its kind holds the events that it met.
        `among`: the kinds that can act now; None: all of them.
        """
        for one in self._active.values():
            fault = one.fault
            if (
                place not in fault.kind.places
                or (among is not None and fault.kind.name not in among)
                or (direction is not None and direction not in fault.directions)
                or one.left == 0
                or one.is_over(now)
                or not one.concerns(entity)
                or (fault.probability < 1 and self.dice() >= fault.probability)
            ):
                continue
            if one.left is not None:
                one.left -= 1
                if one.left == 0 and not fault.kind.holds:
                    del self._active[one.id]
            return one
        return None
