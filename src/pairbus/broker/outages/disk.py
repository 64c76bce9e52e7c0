"""Faults of the disk: a store asks before it commits a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.broker.store import Store
from pairbus.errors import StoreError, StoreFull
from pairbus.faults import Place

if TYPE_CHECKING:
    from pairbus.broker.outages import NamespaceFaults


class DiskFaults:
    """Fails or slows the commits of one store."""

    def __init__(self, owner: NamespaceFaults, store: Store) -> None:
        self._owner = owner
        self._store = store

    def changed(self) -> None:
        """Ask before each commit while there is a fault of the disk, and not otherwise."""
        faults = self._owner.faults
        self._store.hindrance = self._hinder if faults.at(Place.COMMIT) or faults.at(Place.STORE) else None

    def _hinder(self, takes_room: bool) -> tuple[float, StoreError | None]:
        """(how much longer the commit takes, why it fails). Without room settlements and deletions still go on."""
        slow = self._owner.meet(Place.COMMIT, None, "")
        is_full = takes_room and self._owner.meet(Place.STORE, None, "") is not None
        delay_s = 0.0 if slow is None else slow.fault.arguments["delay_s"]
        return delay_s, StoreFull("The disk is full (by a fault that was switched on).") if is_full else None
