"""Results of sends: counters, ledger, events, the warning about large messages, and the error for the caller."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.backlog.envelope import Envelope, overhead
from pairbus.client.errors import (
    BacklogMessageTooLarge,
    ClientClosed,
    PairedMessagingFactoryError,
    PartlySent,
    SendAvailabilityBacklogError,
    tell_outcome,
)
from pairbus.client.outgoing import BATCH_LIMIT, Order, Outgoing, sizes_of
from pairbus.client.state import PairState
from pairbus.ledger import Tally, tallied
from pairbus.pairing.commands import Receipt, Unsent, Where
from pairbus.pairing.events import MaybeDuplicated, Spooled
from pairbus.pairing.plan import IN_PRIMARY, SenderState
from pairbus.pairing.policy import Failure, Kind
from pairbus.sdk.failures import failure_of
from pairbus.transport import Carrier

logger = logging.getLogger("pairbus")

COUNTER_MAX = (1 << 63) - 1  # no number or time takes more bytes than this
SPOOL = "spool"  # `Diverted.queue` when no backlog queue took the message


class Origin:
    """Facts of a sender that its sends need."""

    __slots__ = ("counts", "link_name", "order", "path", "sender", "tally")

    def __init__(self, state: PairState, path: str, link_name: str | None) -> None:
        self.path = path
        self.link_name = link_name
        "Name of its AMQP link; None: all senders of the path share one."
        self.sender = SenderState(state.pair.entity(path, time.monotonic()))
        self.counts = state.counters.entity(path)
        self.tally: Tally | None = state.meters.tally(path)
        self.order = Order() if state.options.ordered else None


class Results:
    """Counters, ledger and events of the sends of one client."""

    def __init__(self, state: PairState, primary: Carrier, clock: Callable[[], float]) -> None:
        self._state = state
        self._primary = primary
        self._clock = clock

    def meter_primary(self, origin: Origin, outgoing: Outgoing) -> None:
        """Add an accepted send to the ledger's running sum, or as a row where it is billed by its size."""
        tally = origin.tally
        if tally is None:
            return
        size_bytes, billable = sizes_of(outgoing.payloads)
        if billable != len(outgoing):
            self._state.meters.send("primary", origin.path, outgoing.payloads, None, "application")
            return
        now = time.monotonic()
        if now >= tally.until:
            tally.begin_second(now)
        tally.total += tallied(size_bytes, len(outgoing))

    def stored(self, origin: Origin, outgoing: Outgoing, receipt: Receipt) -> None:
        """Count a send that ended well, and tell it as an event unless it went to the primary at once."""
        if receipt is IN_PRIMARY:
            origin.counts.sent += len(outgoing)
            return
        state, entity = self._state, origin.sender.entity
        if receipt.unanswered is not None:
            for message_id, queue in outgoing.doubted.items():
                state.events.publish(MaybeDuplicated.unanswered(entity.path, message_id, queue))
        if receipt.where is Where.PRIMARY:
            origin.counts.sent += len(outgoing)
        elif receipt.where is Where.SPOOL:
            entity.spooled += len(outgoing)
            state.pair.note_diverted(entity, SPOOL, tuple(outgoing.ids), outcome_unknown=bool(outgoing.doubts))
            waiting = state.spool.waiting if state.spool.is_open else len(outgoing)
            state.events.publish(Spooled(entity.path, len(outgoing), waiting))
        state.events.deliver()

    def diverted(self, origin: Origin, outgoing: Outgoing, *, outcome_unknown: bool) -> None:
        """Tell which messages backlog queues have stored; without a reader of events they are only counted."""
        state, entity = self._state, origin.sender.entity
        untold, outgoing.untold = outgoing.untold, ()
        for queue, ids in untold:
            if state.events.is_heard:
                state.pair.note_diverted(entity, queue, ids, outcome_unknown=outcome_unknown)
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
        failure = failure_of(error)
        self.failed(origin, count, Kind.INTERNAL if failure is None else failure.kind)

    def watch_size(self, origin: Origin, outgoing: Outgoing) -> None:
        """Warn once for each entity when a message that fits the primary may not fit a backlog queue."""
        warned, limit = self._state.warned, self._primary.message_limit(origin.path) or BATCH_LIMIT
        needed = overhead_of(origin.path, self._state.options.ordered)
        size = max(map(len, outgoing.payloads))
        is_news = self._state.pair.enabled and origin.path not in warned
        if is_news and limit - needed < size <= limit:
            warned.add(origin.path)
            logger.warning(
                "%s: a message of %d bytes fits the limit of %d, but not with the %d bytes that a backlog queue needs:"
                " while failed over it would be refused",
                origin.path,
                size,
                limit,
                needed,
            )


def error_of(unsent: Unsent, path: str, outgoing: Outgoing, *, ordered: bool) -> BaseException:
    """Return the SDK's own error of the primary, or an error that says why the backlog failed as well."""
    failure, places = unsent.failure, outgoing.may_be_in
    if outgoing.stored_ids:
        return _because(_partly_sent(path, outgoing, failure.text), failure)
    if unsent.where is Where.PRIMARY or (failure.error is not None and failure.kind is Kind.INVALID):
        error = failure.error or OperationTimeoutError(message=failure.text)
        tell_outcome(error, places)
        return error
    if failure.kind is Kind.TOO_LARGE:
        return _because(BacklogMessageTooLarge(path, overhead_of(path, ordered), failure.text, places), failure)
    is_spool = unsent.where is Where.SPOOL
    return _because(SendAvailabilityBacklogError(path, failure.text, places, is_spool=is_spool), failure)


def ended_meanwhile(ended: ClientClosed | PairedMessagingFactoryError, path: str, outgoing: Outgoing) -> BaseException:
    """Return the error of a send whose client was closed or faulted between two attempts."""
    if outgoing.stored_ids:
        return _partly_sent(path, outgoing, str(ended))
    return ended.unanswered_by(outgoing.may_be_in) if outgoing.doubts else ended


def overhead_of(path: str, ordered: bool) -> int:
    """Return the bytes that a backlog message needs at most, with the mark of an unknown outcome and a number."""
    order = ("0" * 32, COUNTER_MAX) if ordered else (None, None)
    return overhead(Envelope(path, COUNTER_MAX, *order))


def _partly_sent(path: str, outgoing: Outgoing, reason: str) -> PartlySent:
    return PartlySent(path, outgoing.stored_ids, list(outgoing.ids), reason, outgoing.may_be_in)


def _because(error: BaseException, failure: Failure) -> BaseException:
    error.__cause__ = failure.error
    return error
