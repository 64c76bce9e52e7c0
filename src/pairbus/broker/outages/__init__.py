"""The faults of one namespace at work: the broker's reaction when `pairbus.faults` says that a fault meets an event.

A healthy namespace reads `acts` once for each run of messages. All other code here runs while a fault is on, on the
event loop, timed by the loop's own clock. Ending a fault (cleared, expired, used up) heals at once: each fault knows
the steps that it holds back (`HeldSteps`), and releases them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.broker.outages.contact import ContactFaults
from pairbus.broker.outages.disk import DiskFaults
from pairbus.broker.outages.held import HeldSteps
from pairbus.broker.outages.operations import OperationFaults
from pairbus.broker.strict import Idle
from pairbus.errors import ConfigError, InvalidFault
from pairbus.faults import Active, Fault, Faults, Load, Place

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

__all__ = ["NamespaceFaults"]

logger = logging.getLogger("pairbus.broker")


class NamespaceFaults:
    """The switches of one namespace: `add`, `list`, `clear`."""

    def __init__(
        self,
        namespace: Namespace,
        loop: asyncio.AbstractEventLoop,
        *,
        operations_per_s: float | None = None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        if operations_per_s is not None and not operations_per_s > 0:
            raise ConfigError(f"operations per second is {operations_per_s}; accepted is a number above 0")
        self._namespace = namespace
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.faults = Faults(dice)
        self.load = None if operations_per_s is None else Load(operations_per_s, dice, loop.time())
        self.acts = self.load is not None
        "True while a fault or a load limit is on; otherwise no fault needs to be asked."
        self._idle_before = namespace.strictness.idle
        self.held = HeldSteps()
        self.contact = ContactFaults(self, namespace, loop)
        self.operations = OperationFaults(self, namespace)
        self.disk = DiskFaults(self, namespace.store, loop)

    def __repr__(self) -> str:
        return f"<NamespaceFaults of {self._namespace.name} {self.faults.items()!r}>"

    # ── the switches ──

    def add(self, kind: str, **fields: Any) -> int:
        """Switch a fault on and return its number. Fields: entity, direction, for_s, probability, count, and those of
        its kind.

        InvalidFault names the wrong field and the accepted values.
        """
        return self.add_fault(Fault.read({"kind": kind, **fields})).id

    def add_fault(self, fault: Fault) -> Active:
        """Switch a fault on."""
        if "broker" not in fault.kind.at:
            raise InvalidFault(f"{fault.kind.name}: the broker cannot play it; pairbus proxy can")
        one = self.faults.add(fault, self._loop.time())
        logger.info("%s: fault %d begins: %s", self._namespace.name, one.id, fault.to_json())
        self._changed()
        self.contact.begin(one)
        self.operations.begin(one)
        return one

    def clear(self, number: int | None = None) -> int:
        """Switch one fault off, or all of them, and return how many. FaultNotFound: none has this number."""
        ended = self.faults.clear(number)
        self._heal(ended)
        return len(ended)

    def close(self) -> None:
        """Release all held steps: the namespace stops, and closes its connections like a healthy one."""
        self.clear()
        self.held.release_all()

    # ── deciding ──

    def meet(self, place: Place, direction: str | None, entity: str) -> Active | None:
        """Return the fault that meets an event now; a fault whose count is used up by it meets no further event."""
        one = self.faults.meet(place, direction, entity, self._loop.time())
        if one is not None and one.left == 0 and not one.fault.kind.holds:
            self._changed()
        return one

    async def until_end(self, one: Active) -> None:
        """Wait until the fault has ended."""
        ended = self._loop.create_future()
        self.held.add(one.id, ended, partial(_resolve, ended))
        try:
            await ended
        finally:
            self.held.forget(ended)

    def is_overloaded(self, entity: str, *, is_partitioned: bool) -> bool:
        """Return whether an operation is beyond the load that the namespace bears in a second."""
        if self.load is None:
            return False
        return not self.load.take(entity, is_partitioned=is_partitioned, now=self._loop.time())

    # ── beginning and ending ──

    def _changed(self) -> None:
        """Update all parts that depend on the whole set of faults."""
        self._namespace.changes.note()
        self.acts = bool(len(self.faults)) or self.load is not None
        self.contact.changed()
        self.disk.changed()
        if self.idle != self._idle_before:
            self._idle_before = self.idle
            for peer in self._namespace.peers:
                peer.watch_idle(self._idle_before)
        if self._timer is not None:
            self._timer.cancel()
        ends = self.faults.next_end()
        self._timer = None if ends is None else self._loop.call_at(ends, self._expire)

    @property
    def idle(self) -> Idle | None:
        """Idle limits of senders and connections, by a fault or by the strict mode."""
        for one in self.faults.at(Place.IDLE):
            return Idle(one.fault.arguments["link_s"], one.fault.arguments["connection_s"])
        return self._namespace.strictness.idle

    def _expire(self) -> None:
        self._heal(self.faults.expire(self._loop.time()))

    def _heal(self, ended: list[Active]) -> None:
        self._changed()
        for one in ended:
            logger.info("%s: fault %d ends: %s", self._namespace.name, one.id, one.fault.kind.name)
            self.held.release(one.id)

    # Last in the class: the name hides the builtin from the annotations behind it.

    def list(self) -> list[dict[str, Any]]:
        """Return the faults that are on, as JSON: the fields of `add`, `id`, `left_s` and `left`."""
        now = self._loop.time()
        return [one.to_json(now) for one in self.faults.items()]


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
