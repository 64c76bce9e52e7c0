"""Loads of one queue on their way home. Messages that arrive meanwhile gather, and go with the next load: otherwise
few messages of a queue with many destinations could share a send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from pairbus.syphon.decide.pace import BatchSize
from pairbus.syphon.decide.relay import Item
from pairbus.syphon.trip import Trip

AHEAD = 2  # loads under way at once
LOAD_BYTES = 4 << 20

Move = Callable[[Trip, list[Item]], Coroutine[None, None, None]]


class Loads:
    """Loads of one pump: messages of one link, of one batch or of several."""

    def __init__(self, move: Move, size: BatchSize) -> None:
        self._move = move
        self._size = size
        self._under_way: set[asyncio.Task[None]] = set()
        self._failed: list[asyncio.Task[None]] = []
        self._trip: Trip | None = None
        self._items: list[Item] = []
        self._bytes = 0

    async def add(self, trip: Trip, items: list[Item]) -> None:
        """Add messages; return when there is room for more."""
        if self._trip is None or len(self._items) + len(items) > self._size.load or not self._trip.joined_by(trip):
            await self._depart()
            self._trip = trip
        self._items += items
        self._bytes += sum([len(item.payload) for item in items])
        if len(self._under_way) < AHEAD or len(self._items) >= self._size.load or self._bytes >= LOAD_BYTES:
            await self._depart()

    async def all_home(self) -> None:
        """Wait for all loads. Raises the error of any of them."""
        await self._depart()
        while self._under_way:
            await asyncio.wait(self._under_way)
        self._raise()

    async def cancel(self) -> None:
        self._trip, self._items = None, []
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _depart(self) -> None:
        """Let the gathered messages go, as soon as fewer than AHEAD loads are under way."""
        while self._trip is not None and len(self._under_way) >= AHEAD:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        self._go()
        self._raise()

    def _go(self) -> None:
        trip, items = self._trip, self._items
        if trip is not None:
            self._trip, self._items, self._bytes = None, [], 0
            task = asyncio.create_task(self._move(trip, items))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            if task.exception() is not None:
                self._failed.append(task)
            self._go()

    def _raise(self) -> None:
        for task in self._failed:
            task.result()
