"""Steps that faults hold back, and how they go on when the faults end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

Step = Callable[[], None]


def run_all(steps: Iterable[Step]) -> None:
    """Run every step. A step that fails keeps no other from running: the event loop reports the failure."""
    for step in steps:
        try:
            step()
        except Exception as failure:
            context = {"message": "a step after the end of a fault failed", "exception": failure}
            asyncio.get_running_loop().call_exception_handler(context)


class HeldSteps:
    """Steps that wait for the end of a fault, by the number of the fault and by their owner."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[object, list[Step]]] = {}

    def add(self, number: int, owner: object, step: Step) -> None:
        """Run `step` when the fault ends, unless its owner is forgotten before."""
        self._steps.setdefault(number, {}).setdefault(owner, []).append(step)

    def owns_any(self) -> bool:
        """Return whether any step waits."""
        return bool(self._steps)

    def owns(self, owner: object) -> bool:
        """Return whether some fault holds a step of this owner."""
        return any(owner in owners for owners in self._steps.values())

    def forget(self, owner: object) -> None:
        """Drop all steps of an owner that is gone."""
        for number, owners in list(self._steps.items()):
            owners.pop(owner, None)
            if not owners:
                del self._steps[number]

    def release_all(self) -> None:
        """Run every step, also those of faults whose count was used up."""
        for number in list(self._steps):
            self.release(number)

    def release(self, number: int) -> None:
        """Run the steps of a fault that has ended, in the order in which they came."""
        for steps in self._steps.pop(number, {}).values():
            run_all(steps)
