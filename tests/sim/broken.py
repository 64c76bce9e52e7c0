"""Five ways to be wrong, each a small change of the genuine code, to see that the simulation notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pairbus.pairing.rotation import Rotation
from pairbus.spool import SpoolEntry
from pairbus.syphon.decide.at_home import AtHome
from pairbus.syphon.receive import Intake
from tests.sim.disk import Disk, SpoolModel
from tests.sim.links import SimSender
from tests.sim.processes import SyphonProcess
from tests.sim.wire import SimCarrier, Wire
from tests.sim.world import GENUINE, Variants

SYNC_S = 0.2


class _EagerSender(SimSender):
    """Says that a message is accepted as soon as it is sent."""

    def _transmit(self, payloads: list[bytes], timeout_s: float | None, silence_s: float | None) -> asyncio.Future[Any]:
        super()._transmit(payloads, timeout_s, silence_s)
        accepted = self.wire.loop.create_future()
        accepted.set_result(None)
        return accepted


class _EagerWire(Wire):
    sender_class = _EagerSender


class _EagerCarrier(SimCarrier):
    wire_class = _EagerWire


class CompletesFirst(SyphonProcess):
    """Completes messages in the backlog queue before the primary has accepted them."""

    carrier_class = _EagerCarrier


class SyncsLater(SpoolModel):
    """Reports success when the message is in memory; the disk has it a moment later."""

    def __init__(self, disk: Disk, stored: Callable[[], None]) -> None:
        super().__init__(disk, stored)
        self._unsynced: list[SpoolEntry] = []

    def _write(self, entries: Sequence[SpoolEntry]) -> None:
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
    yield Variants(syphon=CompletesFirst)


@contextmanager
def never_back() -> Iterator[Variants]:
    """A backlog queue that failed stays out of rotation, as it did in the original."""
    with patch.object(Rotation, "_heal", lambda rotation, now: []):
        yield GENUINE


@contextmanager
def syncs_later() -> Iterator[Variants]:
    yield Variants(spool=SyncsLater)


@contextmanager
def nothing_hidden() -> Iterator[Variants]:
    """A syphon takes what a queue gives for all that it has, whatever another one may have left locked."""
    with patch.object(Intake, "hidden_until", float("-inf")):
        yield GENUINE


@contextmanager
def forgets_what_is_at_home() -> Iterator[Variants]:
    """A syphon sends a message again whose completion was refused."""
    with patch.object(AtHome, "knows", lambda at_home, queue, message: False):
        yield GENUINE


BROKEN = {
    "completes first": (completes_first, 0),
    "never back": (never_back, 0),
    "syncs later": (syncs_later, 0),
    "nothing hidden": (nothing_hidden, 3000),
    "forgets what is at home": (forgets_what_is_at_home, 0),
}
"Wrong code, and the seed from which it is looked for: a rare fault is found sooner near a history that showed it once."
