"""A link on which a client sends: accepted means committed.

The messages that arrive in one read are one *run*: they go to the entity in one call, are committed together and
accepted as a range. For senders this changes nothing: each message is accepted after its commit, or refused, and a
batch stays whole because a run does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED, ProtocolError
from pairbus.amqp.events import Delivery, TransactionalDelivery
from pairbus.amqp.link import MASK, ReceiverLink, ranges
from pairbus.amqp.performatives import ACCEPTED_BYTES, Accepted, TransactionalState
from pairbus.broker.entities.destination import Destination
from pairbus.broker.entities.draft import Draft, check_session_ids
from pairbus.broker.monitoring.meter import sizes_of
from pairbus.broker.refusal import Refusal, refusal_of
from pairbus.broker.strict import check_envelope
from pairbus.broker.wire.draft_reader import DraftReader
from pairbus.broker.wire.link_handler import EntityLink
from pairbus.broker.wire.messages import drafts_of
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.wire.peer import Peer

CREDIT = 1000
Sizes = tuple[list[int], list[int]] | None
"Bytes of the messages, and of the pings, that are answered together; None without a meter."
BATCH_ENVELOPE_SIZE = 1024  # the SDKs do not count the envelope of a batch against the limit


class Inlet(EntityLink):
    """One sending client on one queue or topic."""

    link: ReceiverLink
    entity: Destination

    def __init__(self, peer: Peer, link: ReceiverLink, entity: Destination, path: str) -> None:
        super().__init__(peer, link, entity, path)
        self.used_ms = peer.namespace.real_ms()
        "Time of the last message, by the machine's clock."
        self._run: list[Delivery] = []
        self._reader = DraftReader()
        self._needs_session = entity.requires_session
        self._stalled_bytes = self._stalled_count = 0
        self.lost_ids: set[int] = set()
        "Deliveries whose answer a fault drops, with the connection."
        self._settled_count = 0
        "Sends that were settled, or taken back, since the last grant of credit, when credit is granted by hand."
        self._checks_envelopes = (
            peer.strictness.checks_envelopes and entity.description.enable_partitioning and self._needs_session
        )

    # ── credit and limits ──

    def grant(self) -> None:
        """Give the first credit, at once or after a while."""
        credit = self.peer.strictness.credit
        if credit is None:
            self.link.keep_credit(CREDIT)
        else:
            self.peer.call_later(credit.delay_s, partial(self._grant_more, credit.first))

    def _grant_more(self, count: int) -> None:
        if self.link.is_open:
            self.link.grant(self.link.credit + count)
            self.peer.flush_soon()

    def _return_credit(self, count: int) -> None:
        """Grant credit for settled sends in portions, when credit is granted by hand."""
        credit = self.peer.strictness.credit
        if credit is not None:
            self._settled_count += count
            if self._settled_count >= credit.refill:
                self._grant_more(self._settled_count)
                self._settled_count = 0

    @property
    def batch_size_max(self) -> int:
        """Bytes of one batch, without the envelope."""
        limit = self.peer.strictness.batch_size_max
        return self.entity.message_size_max if limit is None else min(limit, self.entity.message_size_max)

    # ── messages ──

    def on_delivery(self, delivery: Delivery, now_ms: int) -> None:
        """Add the message to the run."""
        if not self._run:
            self.peer.submit_later(self)
        self._run.append(delivery)

    def on_aborted(self) -> None:
        """Note that the client has taken a send back, which used up credit."""
        self._return_credit(1)

    def submit(self, now_ms: int) -> None:
        """End the run and offer it to the entity; messages that cannot be taken at all are refused at once."""
        run, self._run = self._run, []
        self.used_ms = self.peer.namespace.real_ms()
        faults = self.peer.namespace.faults
        self._take(faults.operations.messages(self, run) if faults.acts else run, now_ms)

    def _take(self, run: list[Delivery], now_ms: int) -> None:
        drafts: list[Draft] = []
        ids: list[int] = []
        sizes: list[int] | None = None if self.peer.namespace.meter is None else []
        size, size_max, read = 0, self.entity.message_size_max, self._reader.draft_of
        for delivery in run:
            payload = delivery.payload
            try:
                if delivery.message_format == 0 and not delivery.too_large and len(payload) <= size_max:
                    draft = read(payload)
                    if self._needs_session:
                        check_session_ids([draft], self.entity.path)
                    drafts.append(draft)
                else:
                    drafts += self._drafts_of(delivery)
            except (ProtocolError, Refusal) as error:
                self.refuse(delivery, Refusal(error.condition, error.description))
                continue
            size += len(payload)
            if sizes is not None:
                sizes += [len(payload)] if delivery.message_format == 0 else sizes_of(payload)
            if delivery.settled:
                self._return_credit(1)
            else:
                ids.append(delivery.delivery_id)
        if drafts:
            if self.peer.namespace.faults.acts:
                self.peer.namespace.faults.operations.postpone(self.entity.path, drafts, now_ms)
            self._offer(drafts, ids, size, sizes, now_ms)

    def on_transactional(self, delivery: TransactionalDelivery, now_ms: int) -> None:
        """Take a message into its transaction: it is sent when that is discharged."""
        self.used_ms = self.peer.namespace.real_ms()
        faults = self.peer.namespace.faults
        if not faults.acts or faults.operations.messages(self, [delivery]):
            self._enlist(delivery, now_ms)

    def _enlist(self, delivery: TransactionalDelivery, now_ms: int) -> None:
        try:
            transaction = self.peer.transactions.find(delivery.txn_id, now_ms)
            drafts = [draft for draft in self._drafts_of(delivery) if not draft.is_ping]
            if self.peer.namespace.faults.acts:
                self.peer.namespace.faults.operations.postpone(self.entity.path, drafts, now_ms)
            transaction.send(self.entity, drafts)
        except (ProtocolError, Refusal) as error:
            self.refuse(delivery, Refusal(error.condition, error.description))
            return
        sizes = [len(delivery.payload)] if delivery.message_format == 0 else sizes_of(delivery.payload)
        if delivery.settled:
            self._return_credit(1)
        ids = [] if delivery.settled else [delivery.delivery_id]
        self._answer(ids, None, (sizes, []), TransactionalState(delivery.txn_id, Accepted()).encode())

    def _drafts_of(self, delivery: Delivery) -> list[Draft]:
        """Read a delivery in the general way: a batch, a message in a transaction, or one that is too large."""
        limit = self.entity.message_size_max
        if delivery.too_large or (delivery.message_format == 0 and len(delivery.payload) > limit):
            raise Refusal(MESSAGE_SIZE_EXCEEDED, f"The message is larger than the {limit} bytes of this link.")
        if len(delivery.payload) > self.batch_size_max + BATCH_ENVELOPE_SIZE:
            raise Refusal(MESSAGE_SIZE_EXCEEDED, f"The batch is larger than the {self.batch_size_max} bytes allowed.")
        drafts = drafts_of(delivery.payload, delivery.message_format, self._reader.draft_of)
        if self._checks_envelopes:
            check_envelope(delivery.payload)
        if self._needs_session:
            check_session_ids(drafts, self.entity.path)
        return drafts

    def _offer(self, drafts: list[Draft], ids: list[int], size: int, each: list[int] | None, now_ms: int) -> None:
        """Send drafts to the entity in one call; `ids` are answered after the commit, or now when it refuses."""
        sizes: Sizes = None if each is None else (each, [])
        pings = [draft for draft in drafts if draft.is_ping]
        if pings:
            if each is not None:
                of_pings = [one for one, draft in zip(each, drafts, strict=True) if draft.is_ping]
                sizes = [one for one, draft in zip(each, drafts, strict=True) if not draft.is_ping], of_pings
            drafts = [draft for draft in drafts if not draft.is_ping]
        try:
            if drafts:
                self.entity.send(drafts, now_ms, partial(self._committed, ids, size, sizes))
            else:
                # A ping is accepted when the entity and the disk take messages now, and is not stored.
                self.entity.check_room()
                self.entity.check_memory()
                self.peer.namespace.store.probe(partial(self._ponged, ids, size, sizes))
        except Refusal as refusal:
            self._answer(ids, refusal, sizes)
        else:
            self.peer.arrivals.take(size, len(ids))

    def _ponged(self, ids: list[int], size: int, sizes: Sizes, error: StoreError | None) -> None:
        self._committed(ids, size, sizes, None if error is None else refusal_of(error))

    def _committed(self, ids: list[int], size: int, sizes: Sizes, refusal: Refusal | None) -> None:
        self.peer.arrivals.give(size, len(ids))
        self._answer(ids, refusal, sizes)

    def _answer(self, ids: list[int], refusal: Refusal | None, sizes: Sizes, success: bytes = ACCEPTED_BYTES) -> None:
        meter = self.peer.namespace.meter
        if meter is not None and sizes is not None:
            of_messages, of_pings = sizes
            if of_messages:
                meter.messages(self.entity.path, "send", of_messages, refusal)
            if of_pings:
                meter.messages(self.entity.path, "ping", of_pings, refusal)
        if self.lost_ids and not self.lost_ids.isdisjoint(ids):
            self.peer.cut()
            return
        outcome = success if refusal is None else self.peer.refused(refusal)
        one_by_one = self.peer.strictness.answers_one_by_one
        for first, last in [(each, each) for each in ids] if one_by_one else ranges(ids):
            self.link.settle(first, last, outcome, ((last - first) & MASK) + 1)
        self._return_credit(len(ids))
        self.peer.flush_soon()

    def refuse(self, delivery: Delivery, refusal: Refusal) -> None:
        """Refuse a delivery. The meter counts one operation; a transaction that it belongs to fails."""
        if isinstance(delivery, TransactionalDelivery):
            self.peer.transactions.fail(delivery.txn_id, refusal)
        if delivery.settled:
            self._return_credit(1)
        ids = [] if delivery.settled else [delivery.delivery_id]
        self._answer(ids, refusal, ([len(delivery.payload)], []))

    # ── stalls ──

    def stall(self, delivery: Delivery) -> None:
        """Keep the delivery unread until `resume`."""
        self._stalled_bytes += len(delivery.payload)
        self._stalled_count += 1
        self.peer.arrivals.take(len(delivery.payload), 1)

    def resume(self, delivery: Delivery) -> None:
        """Go on with a delivery after a stall, as if it came now."""
        self._stalled_bytes -= len(delivery.payload)
        self._stalled_count -= 1
        self.peer.arrivals.give(len(delivery.payload), 1)
        now_ms = self.peer.namespace.now_ms()
        if isinstance(delivery, TransactionalDelivery):
            self._enlist(delivery, now_ms)
        else:
            self._take([delivery], now_ms)
        self.peer.namespace.changed(self.entity)
        self.peer.flush_soon()

    def close(self) -> None:
        """Drop deliveries that a stall keeps: their sender no longer waits for an answer."""
        self.peer.arrivals.give(self._stalled_bytes, self._stalled_count)
        self._stalled_bytes = self._stalled_count = 0
        self.peer.namespace.faults.held.forget(self)
