"""The faults of one namespace at work: the broker's reaction when `pairbus.faults` says that a fault meets an event.

A healthy namespace reads `acts` once for each run of messages. All other code here runs while a fault is on, on the
event loop, timed by the loop's own clock. Faults of whole connections are played by `pairbus.faults.play`, before the
port; here are those of operations (`operations.py`), of requests over HTTP (`http.py`) and of the disk (`disk.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.broker.outages.disk import DiskFaults
from pairbus.broker.outages.http import HttpFaults
from pairbus.broker.outages.operations import OperationFaults
from pairbus.broker.strict import Idle
from pairbus.errors import ConfigError, InvalidFault
from pairbus.faults import Active, Fault, Load, Place
from pairbus.faults.play.connections import ConnectionFaults
from pairbus.faults.play.switches import FaultSwitches

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

__all__ = ["NamespaceFaults"]


class NamespaceFaults(FaultSwitches):
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
        super().__init__(namespace.name, logging.getLogger("pairbus.broker"), loop=loop, dice=dice)
        self._namespace = namespace
        self.load = None if operations_per_s is None else Load(operations_per_s, dice, loop.time())
        self.acts = self.load is not None
        "True while a fault or a load limit is on; otherwise no fault needs to be asked."
        self._idle_before = namespace.strictness.idle
        self.on_change.append(self._note_change)
        self.connections = ConnectionFaults(self)
        self.http = HttpFaults(self, namespace.name, loop)
        self.operations = OperationFaults(self, namespace)
        self.disk = DiskFaults(self, namespace.store, loop)
        self.on_begin += [self.http.begin, self.operations.begin]
        self.on_change += [self.disk.changed, self._follow_idle]

    def add_fault(self, fault: Fault) -> Active:
        """Switch a fault on."""
        if "broker" not in fault.kind.at:
            raise InvalidFault(f"{fault.kind.name}: the broker cannot play it; pairbus proxy can")
        return super().add_fault(fault)

    def is_overloaded(self, entity: str, *, is_partitioned: bool) -> bool:
        """Return whether an operation is beyond the load that the namespace bears in a second."""
        if self.load is None:
            return False
        return not self.load.take(entity, is_partitioned=is_partitioned, now=self._loop.time())

    @property
    def idle(self) -> Idle | None:
        """Idle limits of senders and connections, by a fault or by the strict mode."""
        for active in self.faults.at(Place.IDLE):
            return Idle(active.fault.arguments["link_s"], active.fault.arguments["connection_s"])
        return self._namespace.strictness.idle

    def _note_change(self) -> None:
        self._namespace.changes.note()
        self.acts = bool(len(self.faults)) or self.load is not None

    def _follow_idle(self) -> None:
        """Tell all connections when other idle limits apply."""
        if self.idle != self._idle_before:
            self._idle_before = self.idle
            for peer in self._namespace.peers:
                peer.watch_idle(self._idle_before)
