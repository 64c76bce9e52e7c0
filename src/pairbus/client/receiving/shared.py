"""The connection, the meters and the end that all receivers of one engine have in common."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pairbus.client.state import PairState
from pairbus.ledger.rows import MeterKind, billing_groups
from pairbus.pairing.events import ReceivingInterrupted, ReceivingResumed
from pairbus.transport import Carrier
from pairbus.transport.tasks import Tasks
from pairbus.transport.tokens.credential import Credential

if TYPE_CHECKING:
    from pairbus.client.receiving.entity_receiver import EntityReceiver


@dataclass(eq=False, slots=True)
class Interruption:
    """The time in which nothing comes from an entity, as far as its receivers know."""

    began: float
    receivers: set[EntityReceiver] = field(default_factory=set)
    "Receivers that were interrupted, and have not received since."
    is_over: bool = False
    "True: one of them has received again."


class Receiving:
    """The receivers of one engine. On a carrier of their own a flood of deliveries delays no answer to a send."""

    def __init__(self, state: PairState, credential: Credential | None = None) -> None:
        self.state = state
        self._credential = credential
        "Credential for another loop than that of the client; None: that of the primary."
        self.loop = asyncio.get_running_loop()
        self.tasks = Tasks()
        self._carrier: Carrier | None = None
        self._receivers: set[EntityReceiver] = set()
        self._outages: dict[str, Interruption] = {}
        "Interruptions by path."
        state.receivers = self.describe

    @property
    def carrier(self) -> Carrier:
        """The way to the primary, made when it is needed first."""
        if self._carrier is None:
            self._carrier = self.state.primary.new_carrier(self.state.options.connect_timeout, self._credential)
        return self._carrier

    def add(self, receiver: EntityReceiver) -> None:
        self._receivers.add(receiver)

    def discard(self, receiver: EntityReceiver) -> None:
        self._receivers.discard(receiver)
        self.resumed(receiver, by_itself=False)

    def describe(self) -> list[dict[str, Any]]:
        """Return the facts about receivers for the control socket, one row for each path; any thread may ask.

        A path is interrupted as long as one receiver of it is. Receivers of processors are left out: these tell more.
        """
        by_path: dict[str, list[EntityReceiver]] = {}
        for receiver in list(self._receivers):
            if receiver.when_interrupted is None:
                by_path.setdefault(receiver.options.path, []).append(receiver)
        return [_described(path, receivers) for path, receivers in sorted(by_path.items())]

    def check(self) -> None:
        """Raise when receivers of this client must end."""
        self.state.check_receiver()

    # ── outages ──

    def interrupted(self, receiver: EntityReceiver, reason: str) -> None:
        """Tell the first interruption of an entity; many receivers of it may be interrupted at once."""
        path = receiver.options.path
        outage = self._outages.get(path)
        if outage is None or (outage.is_over and receiver not in outage.receivers):
            outage = self._outages[path] = Interruption(self.loop.time())
            self.state.events.tell(ReceivingInterrupted(path, reason))
        outage.receivers.add(receiver)

    def resumed(self, receiver: EntityReceiver, *, by_itself: bool = True) -> None:
        """Tell that an entity can be received from again: with the first answer, not when its receivers are closed."""
        path = receiver.options.path
        outage = self._outages.get(path)
        if outage is None:
            return
        outage.receivers.discard(receiver)
        if by_itself and not outage.is_over:
            outage.is_over = True
            self.state.events.tell(ReceivingResumed(path, self.loop.time() - outage.began))
        if not outage.receivers:
            del self._outages[path]

    # ── meters ──

    @property
    def is_metered(self) -> bool:
        return self.state.meters.ledger is not None

    def count(self, path: str, kind: MeterKind, count: int = 1, size_bytes: int = 0, outcome: str = "ok") -> None:
        self.state.meters.count("primary", path, kind, size_bytes, count=count, outcome=outcome)

    def count_received(self, path: str, sizes: list[int]) -> None:
        if self.is_metered:
            for count, size_bytes in billing_groups(sizes):
                self.count(path, "receive", count, size_bytes)

    # ── the end ──

    def end(self) -> None:
        """End all receivers of a faulted client at once: calls that wait raise its error.

        The loop may stand now, between two functions that it runs; then they end when it goes on.
        """
        with suppress(RuntimeError):  # the loop has been closed
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for receiver in list(self._receivers):
            receiver.leave()

    async def close(self, timeout_s: float) -> None:
        """Close all receivers, so that nothing stays locked, and then the connection."""
        closing = [self.tasks.start(receiver.close(), f"closing {receiver!r}") for receiver in self._receivers]
        if closing:
            _, late = await asyncio.wait(closing, timeout=timeout_s)
            for each in late:
                each.cancel()
        if self._carrier is not None:
            await self._carrier.close()
        await self.tasks.ended()


def _described(path: str, receivers: list[EntityReceiver]) -> dict[str, Any]:
    outages = [(each.outage_began, reason) for each in receivers if (reason := each.outage) is not None]
    began, outage = min(outages, default=(0.0, None))
    outage_s = None if outage is None else time.monotonic() - began
    return {"path": path, "count": len(receivers), "outage": outage, "outage_s": outage_s}
