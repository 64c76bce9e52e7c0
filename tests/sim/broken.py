"""Three ways to be wrong, each a small change of the genuine code, to see that the simulation notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pairbus.pairing.backlog import Rotation
from pairbus.pairing.relay import Item
from pairbus.spool import Entry
from pairbus.syphon import mover
from tests.sim.disk import Disk, SpoolModel
from tests.sim.world import GENUINE, Variants

SYNC_S = 0.2


class CompletesFirst(mover._Trip):
    """Completes the messages of a destination before it has accepted them."""

    async def bring(self, items: list[Item], *others: Any) -> None:
        await super()._complete(items)
        await super().bring(items, *others)

    async def _complete(self, items: list[Item]) -> list[Item]:
        return items


class SyncsLater(SpoolModel):
    """Reports success when the message is in memory; the disk has it a moment later."""

    def __init__(self, disk: Disk, stored: Callable[[], None]) -> None:
        super().__init__(disk, stored)
        self._unsynced: list[Entry] = []

    def _write(self, entries: Sequence[Entry]) -> None:
        self._unsynced += entries
        asyncio.get_running_loop().call_later(SYNC_S, self._sync)

    def _sync(self) -> None:
        if not self.is_dead and self._unsynced:
            super()._write(self._unsynced)
            self._unsynced.clear()
            if self.on_append is not None:
                self.on_append()


@contextmanager
def completes_first() -> Iterator[Variants]:
    with patch.object(mover, "_Trip", CompletesFirst):
        yield GENUINE


@contextmanager
def never_back() -> Iterator[Variants]:
    """A backlog queue that failed stays out of rotation, as it did in the original."""
    with patch.object(Rotation, "_heal", lambda rotation, now: []):
        yield GENUINE


@contextmanager
def syncs_later() -> Iterator[Variants]:
    yield Variants(spool=SyncsLater)


BROKEN = {"completes first": completes_first, "never back": never_back, "syncs later": syncs_later}
