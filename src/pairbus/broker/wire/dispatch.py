"""Decides which receiver of a box gets the next message: receivers with credit take turns; a single one gets all."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pairbus.broker.boxes.box import Box
from pairbus.broker.boxes.holds import Hold
from pairbus.broker.entities.receivable import Receivable
from pairbus.broker.refusal import Refusal
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.outages import NamespaceFaults

logger = logging.getLogger("pairbus.broker")

STORE_PAUSE_S = 1.0
TURN_MAX = 256  # shares of a turn of the event loop (`Outlet.take`): one full queue cannot starve other connections


class Taker(Protocol):
    """One who takes messages of a box: a link (`Outlet`), or a request over HTTP that waits for one."""

    entity: Receivable
    box: Box
    hold: Hold | None

    @property
    def waits(self) -> bool:
        """True while it wants a message."""
        ...

    @property
    def has_budget(self) -> bool:
        """False while messages must be settled before it gets more."""
        ...

    @property
    def room(self) -> int:
        """Number of messages that it can get now. When the budget has no room, it is woken later."""
        ...

    def take(self, box: Box, limit: int, now_ms: int) -> int:
        """Take some messages of the box and return the share of a turn of the event loop; 0: the box has none."""
        ...

    def wake(self) -> None:
        """Note that it may get a message now."""
        ...

    def turn_away(self, refusal: Refusal) -> None:
        """End the wait with a refusal, not while messages are being handed out."""
        ...

    def end_drain(self) -> None:
        """Note that the box is empty, or that there is no room."""
        ...

    def meter_deliveries(self) -> None:
        """Tell the meter of the deliveries since the last time."""
        ...


class Dispatcher:
    """Hands the messages of one box to those who take from it."""

    def __init__(
        self,
        entity: Receivable,
        box: Box,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        on_locked: Callable[[Receivable], None],
        faults: NamespaceFaults,
        is_metered: bool = False,
    ) -> None:
        self.entity = entity
        self.box = box
        self.outlets: deque[Taker] = deque()
        self._loop = loop
        self._now_ms = now_ms
        self._on_locked = on_locked
        self._faults = faults
        self._is_metered = is_metered
        self._is_scheduled = False

    @property
    def has_waiting_receiver(self) -> bool:
        """True while somebody wants a message."""
        return any(outlet.waits for outlet in self.outlets)

    def add(self, outlet: Taker) -> None:
        self.outlets.append(outlet)

    def remove(self, outlet: Taker) -> None:
        if outlet in self.outlets:
            self.outlets.remove(outlet)
            self.wake()

    def wake(self, outlet: Taker | None = None) -> None:
        """Note that a message came, credit came or a window opened. Cheap, and safe to call from anywhere."""
        if not self._is_scheduled and self.outlets:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def wake_later(self) -> None:
        """Try again after a pause, because the store failed."""
        self._loop.call_later(STORE_PAUSE_S, self.wake)

    def _run(self) -> None:
        self._is_scheduled = False
        try:
            self._hand_out()
        except StoreError as error:
            logger.error("%s: messages cannot be read, the next try is in %s s: %s", self.entity, STORE_PAUSE_S, error)
            self._is_scheduled = True  # until then no wake reads again
            self._loop.call_later(STORE_PAUSE_S, self._run)
            self._on_locked(self.entity)  # messages that were handed out before the error have locks that end

    def _hand_out(self) -> None:
        outlets, box, now_ms = self.outlets, self.box, self._now_ms()
        idle = handed = 0
        exhausted = False
        acts, keeps = self._faults.acts, self._faults.operations.keeps
        while idle < len(outlets):
            outlet = outlets[0]
            if len(outlets) > 1:
                outlets.rotate(-1)
            room = outlet.room
            if not room or (acts and keeps(outlet, now_ms)):
                idle += 1
                if not outlet.has_budget:
                    outlet.end_drain()  # the receiver may be the one whose settlements would make room
                continue
            share = 1 if acts or len(outlets) > 1 else TURN_MAX - handed
            taken = outlet.take(box, min(room, share), now_ms)
            if not taken:
                exhausted = True
                break
            idle = 0
            handed += taken
            if handed >= TURN_MAX:
                self.wake()
                break
        if handed:
            self._on_locked(self.entity)
        if self._is_metered:
            for outlet in outlets:
                outlet.meter_deliveries()
        if exhausted or not box.available(now_ms):
            for outlet in outlets:
                outlet.end_drain()
