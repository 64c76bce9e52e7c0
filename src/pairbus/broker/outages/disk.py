"""Faults of the disk: a store asks before it commits a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pairbus.broker.store import Done, Store
from pairbus.errors import StoreFull
from pairbus.faults import Active, Place

if TYPE_CHECKING:
    from pairbus.broker.outages import NamespaceFaults


class DiskFaults:
    """Faults that fail or slow the commits of one store."""

    def __init__(self, owner: NamespaceFaults, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._store = store
        self._loop = loop

    def changed(self) -> None:
        """Hinder commits while there is a fault of the disk, and not otherwise."""
        faults = self._owner.faults
        self._store.hindrance = self._hinder if faults.at(Place.COMMIT) or faults.at(Place.STORE) else None

    def _hinder(self, takes_room: bool, done: Done) -> None:
        """Let a commit go on late, or tell why it fails. On a full disk settlements and deletions still go on."""
        slow = self._owner.meet(Place.COMMIT, None, "")
        is_full = takes_room and self._owner.meet(Place.STORE, None, "") is not None
        error = StoreFull("The disk is full (by a fault that was switched on).") if is_full else None
        if slow is None:
            self._loop.call_soon(done, error)
        else:
            WaitingCommit(self._owner, slow, partial(done, error), self._loop)


class WaitingCommit:
    """A commit on a slow disk: it goes on when its time is over, or when the fault is cleared before."""

    def __init__(
        self, owner: NamespaceFaults, slow: Active, step: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._owner = owner
        self._step = step
        self._timer = loop.call_later(slow.fault.arguments["delay_s"], self._go_on)
        owner.held.add(slow.id, self, self._go_on)

    def _go_on(self) -> None:
        self._timer.cancel()
        self._owner.held.forget(self)
        self._step()
