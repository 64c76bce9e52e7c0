"""The switches of one namespace or proxy: faults begin, end by themselves, and release what they hold when they end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Container
from typing import Any

from pairbus.faults.active import Active, Faults
from pairbus.faults.fault import Fault
from pairbus.faults.kinds import Place
from pairbus.faults.play.held_steps import HeldSteps


class FaultSwitches:
    """`add`, `list` and `clear`. The parts that play faults put their functions into `on_begin`, `on_change`, `on_end`.

    Ending a fault (cleared, expired, used up) heals at once: `held` knows the steps that each fault holds back.
    """

    def __init__(
        self,
        name: str,
        logger: logging.Logger,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        """Switch no fault on. `loop`: the event loop whose clock is used; None: the one that runs at each call."""
        self.faults = Faults(dice)
        self.held = HeldSteps()
        self.on_begin: list[Callable[[Active], None]] = []
        "Called with each fault that is switched on, after `on_change`."
        self.on_change: list[Callable[[], None]] = []
        "Called when the set of faults has changed."
        self.on_end: list[Callable[[Active], None]] = []
        "Called with each fault that has ended, after its steps were released."
        self._name = name
        self._logger = logger
        self._own_loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name} {self.faults.items()!r}>"

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._own_loop or asyncio.get_running_loop()

    def add(self, kind: str, **fields: Any) -> int:
        """Switch a fault on and return its number. Fields: entity, direction, for_s, probability, count, and those of
        its kind.

        InvalidFault names the wrong field and the accepted values, or the reason why the fault cannot be played here.
        """
        return self.add_fault(Fault.read({"kind": kind, **fields})).id

    def add_fault(self, fault: Fault) -> Active:
        """Switch a fault on."""
        active = self.faults.add(fault, self._loop.time())
        self._logger.info("%s: fault %d begins: %s", self._name, active.id, fault.to_json())
        self._changed()
        for begin in self.on_begin:
            begin(active)
        return active

    def clear(self, number: int | None = None) -> int:
        """Switch one fault off, or all of them, and return how many. FaultNotFound: none has this number."""
        ended = self.faults.clear(number)
        self._heal(ended)
        return len(ended)

    def close(self) -> None:
        """Switch all faults off and release all steps that they hold: the namespace or the proxy stops."""
        self.clear()
        self.held.release_all()

    def meet(
        self, place: Place, direction: str | None, entity: str = "", among: Container[str] | None = None
    ) -> Active | None:
        """Return the fault that meets an event now; a fault whose count is used up by it meets no further event."""
        if not len(self.faults):
            return None
        active = self.faults.meet(place, direction, entity, self._loop.time(), among)
        if active is not None and active.left == 0 and not active.fault.kind.holds:
            self._changed()
        return active

    def _changed(self) -> None:
        for change in self.on_change:
            change()
        if self._timer is not None:
            self._timer.cancel()
        ends = self.faults.next_end()
        self._timer = None if ends is None else self._loop.call_at(ends, self._expire)

    def _expire(self) -> None:
        self._heal(self.faults.expire(self._loop.time()))

    def _heal(self, ended: list[Active]) -> None:
        self._changed()
        for active in ended:
            self._logger.info("%s: fault %d ends: %s", self._name, active.id, active.fault.kind.name)
            self.held.release(active.id)
            for end in self.on_end:
                end(active)

    # Last in the class: the name hides the builtin from the annotations behind it.

    def list(self) -> list[dict[str, Any]]:
        """Return the faults that are on, as JSON: the fields of `add`, `id`, `left_s` and `left`."""
        now = self._loop.time()
        return [active.to_json(now) for active in self.faults.items()]
