"""How sends ended: counters, ledger, events, and the warning about large messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pairbus import sdk
from pairbus.client.outgoing import BATCH_LIMIT, Order, Outgoing
from pairbus.client.state import PairState
from pairbus.client.verdicts import overhead_of
from pairbus.ledger import Tally, tallied
from pairbus.pairing.events import MaybeDuplicated, Spooled
from pairbus.pairing.failover import HEALTHY
from pairbus.pairing.policy import Kind
from pairbus.pairing.sending import Receipt, SenderState, Where
from pairbus.transport import Carrier

logger = logging.getLogger("pairbus")

SPOOL = "spool"  # what `Diverted.queue` says when no backlog queue took the message


class Origin:
    """One sender, as its sends see it."""

    __slots__ = ("counts", "link_name", "order", "path", "sender", "tally")

    def __init__(self, state: PairState, path: str, link_name: str | None) -> None:
        self.path = path
        self.link_name = link_name
        "The name of its AMQP link; None: the one that all senders of the path share."
        self.sender = SenderState(state.entity(path))
        self.counts = state.counters.entity(path)
        self.tally: Tally | None = state.meters.tally(path)
        self.order = Order() if state.options.ordered else None


class Results:
    """The books of one client's sends."""

    def __init__(self, state: PairState, primary: Carrier, clock: Callable[[], float]) -> None:
        self._state = state
        self._primary = primary
        self._clock = clock

    def direct(self, origin: Origin, count: int) -> None:
        """Count messages that the primary took without a plan."""
        entity = origin.sender.entity
        origin.counts.sent += count
        if entity.state is not HEALTHY or entity.busy_since is not None:
            self._state.pair.accepted(entity, self._clock())
            self._state.events.deliver()

    def meter_direct(self, origin: Origin, going: Outgoing) -> None:
        """Add an accepted send to the ledger's running sum, or as a row where it is billed by its size."""
        tally = origin.tally
        if tally is None:
            return
        size_bytes, billable = going.size()
        if billable != len(going):
            self._state.meters.send("primary", origin.path, going.payloads, None, "application")
            return
        now = time.monotonic()
        if now >= tally.until:
            tally.turn(now)
        tally.total += tallied(size_bytes, len(going))

    def planned(self, origin: Origin, going: Outgoing, receipt: Receipt) -> None:
        """Count and tell where a planned send ended."""
        state, entity = self._state, origin.sender.entity
        if receipt.unanswered is not None:
            for message_id, queue in going.doubted.items():
                state.events.publish(MaybeDuplicated.unanswered(entity.path, message_id, queue))
        if receipt.where is Where.PRIMARY:
            origin.counts.sent += len(going)
        elif receipt.where is Where.SPOOL:
            entity.spooled += len(going)
            state.pair.stored_away(entity, SPOOL, tuple(going.ids), outcome_unknown=bool(going.doubts))
            waiting = state.spool.waiting if state.spool.is_open else len(going)
            state.events.publish(Spooled(entity.path, len(going), waiting))
        state.events.deliver()

    def diverted(self, origin: Origin, going: Outgoing, *, outcome_unknown: bool) -> None:
        """Tell what backlog queues have stored. Where nobody would hear an event of it, it is only counted."""
        state, entity = self._state, origin.sender.entity
        untold, going.untold = going.untold, ()
        for queue, ids in untold:
            if state.events.is_heard:
                state.pair.stored_away(entity, queue, ids, outcome_unknown=outcome_unknown)
            else:
                entity.diverted += len(ids)
                state.counters.diverted(entity.path, queue, len(ids))
        if untold:
            state.events.deliver()

    def failed(self, origin: Origin, count: int, kind: Kind) -> None:
        """Count messages whose call ends with an error for its caller."""
        origin.counts.failed += count
        self._state.meters.failed(origin.path, count, kind)

    def failed_before(self, origin: Origin, count: int, error: BaseException) -> None:
        """Count a call that ended before its first attempt, because pairing failed."""
        failure = sdk.failure_of(error)
        self.failed(origin, count, Kind.INTERNAL if failure is None else failure.kind)

    def watch_size(self, origin: Origin, going: Outgoing) -> None:
        """Warn once for each entity when a message that fits the primary may not fit a backlog queue."""
        warned, limit = self._state.warned, self._primary.batch_limit(origin.path, origin.link_name) or BATCH_LIMIT
        needed = overhead_of(origin.path, self._state.options.ordered)
        size = max(map(len, going.payloads))
        if origin.path not in warned and limit - needed < size <= limit:
            warned.add(origin.path)
            logger.warning(
                "%s: a message of %d bytes fits the limit of %d, but not with the %d bytes that a backlog queue needs:"
                " while failed over it would be refused",
                origin.path,
                size,
                limit,
                needed,
            )
