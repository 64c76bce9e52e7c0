"""Drain of a spool by `pairbus spool drain`: its ways to send, and its progress line."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

from pairbus.cli.pipeline.backlogs import carrier_of
from pairbus.cli.standard import ProgressLine, one_line, say
from pairbus.client.sides import Side
from pairbus.ledger import Ledger
from pairbus.pairing.events import Event, SpoolForwarded, SpoolRefused
from pairbus.pairing.policy import Failure, FailurePolicy, Kind, Reaction
from pairbus.pairing.rotation import Rotation, queue_path
from pairbus.spool import Spool
from pairbus.spool.forwarder import Forwarder
from pairbus.spool.lanes import PRIMARY, Way

CLIENT = "spool-drain"
"Client in the rows of the ledger."
LEDGER_CLOSE_S = 2.0
OUT_FOR_GOOD_S = 1e9  # a backlog queue that fails during a drain is not tried again in it


class DrainWays:
    """Ways of a drain: the primary as long as it takes messages, then backlog queues, then none."""

    def __init__(self, queues: list[str]) -> None:
        self._rotation = Rotation(queues, OUT_FOR_GOOD_S, random.randrange)
        self._policy = FailurePolicy()
        self._refusing: set[str] = set()
        self._kept: str | None = None

    def way(self, path: str, now: float) -> Way | None:
        if path.lower() not in self._refusing:
            return PRIMARY
        self._kept, _ = self._rotation.pick(self._kept, now)
        return None if self._kept is None else Way(self._kept)

    def accepted(self, path: str, way: Way, count: int, now: float) -> None:
        """Keep the way, because it works."""

    def failed(self, path: str, way: Way, failure: Failure, now: float) -> None:
        if way.queue is not None:
            if failure.kind is not Kind.BUSY:
                self._rotation.failed(way.queue, failure.text, now)
        elif self._rotation.queues and self._policy.reaction(failure) is Reaction.COUNT:
            self._refusing.add(path.lower())


class SpoolDrain:
    """Drain of spools into one pair. Progress is one line that is written over on a terminal, and silent elsewhere."""

    def __init__(
        self,
        primary: Side,
        secondary: Side | None,
        primary_name: str,
        backlog_queue_count: int,
        patience_s: float,
        ledger: Path | None = None,
    ) -> None:
        self.forwarded = 0
        self._primary = primary
        self._secondary = secondary
        self._queues = (
            [] if secondary is None else [queue_path(primary_name, index) for index in range(backlog_queue_count)]
        )
        self._patience_s = patience_s
        self._ledger = None if ledger is None else Ledger(ledger, client=CLIENT)
        self._line = ProgressLine()

    def close(self) -> None:
        """Write the last rows of the ledger."""
        if self._ledger is not None:
            self._ledger.close(LEDGER_CLOSE_S)

    def run(self, spool: Spool) -> dict[str, str]:
        """Drain a spool; return why messages are left, by their path in lower case."""
        try:
            reasons = asyncio.run(self._run(spool))
        finally:
            self._line.clear()
        return {path.lower(): reason for path, reason in reasons.items()}

    async def _run(self, spool: Spool) -> dict[str, str]:
        async with AsyncExitStack() as open_carriers:
            primary = await open_carriers.enter_async_context(carrier_of(self._primary))
            secondary = None
            if self._secondary is not None:
                secondary = await open_carriers.enter_async_context(carrier_of(self._secondary))
            meter = None if self._ledger is None else self._ledger.meter
            ways = DrainWays(self._queues)
            forwarder = Forwarder(spool, ways, primary, secondary, publish=self._tell, meter=meter)
            return await forwarder.drain_once(self._patience_s)

    def _tell(self, event: Event) -> None:
        if self._ledger is not None:
            self._ledger.record(event, time.time())
        if isinstance(event, SpoolForwarded):
            self.forwarded += event.count
            self._line.show(f"forwarded {self.forwarded}, {event.waiting} waiting")
        elif isinstance(event, SpoolRefused):
            self._line.clear()
            say(one_line(str(event)))
