"""Due times of the entities of a namespace: one timer for all of them, and the deletion of idle ones."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from pairbus.broker.boxes.due import Agenda
from pairbus.broker.catalog import Catalog
from pairbus.broker.catalog_writer import CatalogWriter
from pairbus.broker.entities.entity import Entity
from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker")

TURN_MAX = 64  # entities with due work in one turn of the loop: some milliseconds, in which no client is served
TIMER_MAX_S = 30.0
"""Longest time without a look at the clock. The loop's time stands still while the machine sleeps, and does not follow
a clock that is set: due work is late by no more than this after either."""


class Timetable:
    """Times at which each entity next has work to do."""

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        writer: CatalogWriter,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        used_ms: Callable[[Entity], int],
        is_forwarding: Callable[[], bool],
    ) -> None:
        """Make a timetable. `used_ms(entity)`: time of its last use that it cannot see itself; `is_forwarding()`:
        messages are moving on."""
        self._name = name
        self._catalog = catalog
        self._writer = writer
        self._loop = loop
        self._now_ms = now_ms
        self._used_ms = used_ms
        self._is_forwarding = is_forwarding
        self._agenda: Agenda[Entity] = Agenda()
        self._changed: set[Entity] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._deletions: set[asyncio.Future[None]] = set()
        "Deletions of entities that were idle too long."
        self._is_stopping = False

    def stop(self) -> None:
        """Stop, before the store is closed: work that falls due from now on is left to the next start."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()

    def changed(self, holder: Entity) -> None:
        """Note that the next due time of the entity may have changed."""
        if holder.closed or self._is_stopping:
            return
        if not self._changed:
            self._loop.call_soon(self._arm)
        self._changed.add(holder)

    def forget(self, holder: Entity) -> None:
        """Forget an entity that is deleted or replaced."""
        self._agenda.set(holder, None)
        self._changed.discard(holder)

    def _arm(self) -> None:
        if self._is_stopping:
            return
        for holder in self._changed:
            times = [at for at in (holder.next_due_ms(), holder.idle_until_ms) if at is not None]
            self._agenda.set(holder, min(times, default=None))
        self._changed.clear()
        at_ms = self._agenda.next_ms()
        if at_ms is None or (self._timer_ms is not None and self._timer_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        delay_s = min(max(at_ms - self._now_ms(), 0) / 1000, TIMER_MAX_S)
        self._timer = self._loop.call_later(delay_s, self.run_due)

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_ms = None

    def run_due(self) -> None:
        """Do the work that has fallen due by now in some entities, and set the timer for the rest.

        When more are due, their turn comes behind what else the loop has to do.
        """
        self._drop_timer()
        now_ms = self._now_ms()
        due = deque(self._agenda.pop_due(now_ms, TURN_MAX))
        try:
            while due:
                self._run(due.popleft(), now_ms)
        finally:  # after a bug in one entity, which the loop reports, the others have their turn soon
            for holder in due:
                self.changed(holder)
            if not self._changed:
                self._loop.call_soon(self._arm)

    def _run(self, holder: Entity, now_ms: int) -> None:
        if self._is_idle(holder):
            deletion = self._writer.to_its_end(self._delete_idle(holder))
            self._deletions.add(deletion)
            deletion.add_done_callback(self._deletions.discard)
            return
        try:
            holder.run_due(now_ms)
        finally:
            self.changed(holder)

    async def catch_up(self) -> None:
        """Do all work that has fallen due, and the work that follows from it, and return when it is committed.

        StoreError: some of the work could not be stored, and is tried again as after any other failure.
        """
        self._drop_timer()  # its delay was computed before the clock was moved
        while not self._is_stopping:
            self._arm()
            next_ms = self._agenda.next_ms()
            if next_ms is not None and next_ms <= self._now_ms():
                self.run_due()
            elif not self._is_catching_up():
                return
            if self._deletions:
                await asyncio.wait(list(self._deletions))
            await self._writer.commit()

    def _is_catching_up(self) -> bool:
        """Return whether due work is being committed or forwarded."""
        return (
            bool(self._deletions)
            or self._is_forwarding()
            or any(holder.is_catching_up for holder in self._catalog.holders())
        )

    def _is_idle(self, holder: Entity) -> bool:
        """Return whether the entity was not used for its auto-delete time."""
        now_ms = self._now_ms()
        if holder.idle_until_ms is None or holder.idle_until_ms > now_ms:
            return False
        holder.touch(self._used_ms(holder))
        return holder.idle_until_ms <= now_ms

    async def _delete_idle(self, holder: Entity) -> None:
        kind = holder.description.KIND
        try:
            if await self._writer.delete_if(holder, self._is_idle):
                logger.info("%s: %s '%s' had been idle for its auto-delete time", self._name, kind, holder.path)
            else:
                self.changed(holder)  # the entity was used, updated, deleted or replaced since it fell due
        except StoreError as error:
            logger.error("%s: the idle %s '%s' could not be deleted: %s", self._name, kind, holder.path, error)
            holder.touch(self._now_ms())  # tried again after the same idle time, not in a tight loop
