"""A link on which a client receives: deliveries under lock or deleted at once, and the settlements that come back."""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.amqp.errors import DETACH_FORCED, INVALID_FIELD, NOT_ALLOWED, ProtocolError
from pairbus.amqp.link import SenderLink, SentDelivery, ranges
from pairbus.amqp.performatives import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    Accepted,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from pairbus.amqp.session import Session
from pairbus.broker.boxes.box import Box
from pairbus.broker.boxes.holds import Hold
from pairbus.broker.budget import DELIVERY_COST, LOCK_COST
from pairbus.broker.entities.receivable import Outcome, Receivable
from pairbus.broker.refusal import MESSAGE_LOCK_LOST, Refusal, lock_lost, session_lock_lost
from pairbus.broker.store import StoredMessage
from pairbus.broker.wire.deliveries import encode_delivery, patch_of
from pairbus.broker.wire.link_handler import EntityLink

if TYPE_CHECKING:
    from pairbus.broker.wire.peer import Peer

logger = logging.getLogger("pairbus.broker")

SETTLED_BY_SENDER = 1  # snd-settle-mode of receive-and-delete
TURN_BYTES = 8 << 10  # larger messages take as much of a turn of the event loop as several small ones
DELIVERED_COST = LOCK_COST + DELIVERY_COST
UNSETTLED_MAX = 32_768  # deliveries per session that the client has not settled: 250 B each, 8 MB
TAKEN_BYTES_MAX = 4 << 20  # deleted by receive-and-delete and not yet sent on one link: they are in memory alone
LOST_SESSION_GRACE_S = 1.0
"""Time from the end of a session's lock to the detach of its link: a receiver that waits as long as the lock lasts then
ends its wait before it hears of the loss. It gets no message of the session any more, and others may have it."""
MODIFIED_BYTES = Modified().encode()
REJECTED_BYTES = Rejected().encode()  # without an error: with one, the SDKs read "the settlement failed"


class Outlet(EntityLink):
    """One receiving client on one box."""

    link: SenderLink
    entity: Receivable

    def __init__(self, peer: Peer, link: SenderLink, entity: Receivable, box: Box, path: str) -> None:
        super().__init__(peer, link, entity, path)
        self.box = box
        self.hold: Hold | None = None
        "Hold on the session that the link receives, where the box has sessions."
        attach = link.remote_attach
        self._takes_for_good = attach is not None and attach.snd_settle_mode == SETTLED_BY_SENDER
        self._unsettled_max = peer.strictness.unsettled_max
        self.lost_ids: set[int] = set()
        "Deliveries whose settlement gets no answer, because a fault drops it with the connection."
        self._completing: list[SentDelivery] = []
        self._completing_in: tuple[Session, bool] | None = None
        self._sizes: list[int] = []
        "Bytes of each message that was delivered since the meter was last told."
        self._asked_at: int | None = None
        "Delivery count of the receiver when it gave credit, for the meter; None: it has asked for no message."
        self._unsettled: set[bytes] | None = None if self._unsettled_max is None else set()
        "Lock tokens of deliveries that the client has not settled on this link, where their number is limited."
        self._taken_sizes: deque[int] = deque()
        "Bytes of each message whose deletion is being committed; they will need credit when they leave."
        self._taken_bytes = 0
        self._unsettled_count = 0
        "Deliveries that the client has not settled: they count against the budget."

    def lead_to(self, entity: Receivable, box: Box) -> None:
        """Receive from another entity from now on: the one that replaced the first in a reset."""
        self.entity, self.box = entity, box

    # ── deliveries ──

    @property
    def waits(self) -> bool:
        """True while the client has given credit."""
        return bool(self.link.credit)

    @property
    def has_budget(self) -> bool:
        """False while the client must settle messages, or wait for others to settle theirs, before it gets more."""
        return self.peer.locked.room > 0

    @property
    def room(self) -> int:
        """Number of messages that this receiver can get now. When the budget has no room, it is woken later."""
        peer = self.peer
        is_over = self.hold is not None and self.hold.is_over
        if peer.is_choked or is_over or self._taken_bytes >= TAKEN_BYTES_MAX:
            return 0
        free = peer.locked.room
        if free <= 0:
            peer.locked.when_free(peer.wake_receivers)
            return 0
        room = min(self.link.room - len(self._taken_sizes), UNSETTLED_MAX - self.link.session.sent_unsettled)
        if room * DELIVERED_COST * 2 > free:  # what is taken is no longer free: the share may grow by half of that
            room = min(room, 1 + free // (DELIVERED_COST * 2))
        if self._unsettled is not None and self._unsettled_max is not None:
            room = min(room, max(1, self._unsettled_max + 1 - len(self._unsettled)))
        return max(room, 0)

    def take(self, box: Box, limit: int, now_ms: int) -> int:
        """Deliver some messages of the box, `limit` at most, and return the share of a turn of the event loop: 1 for
        each message, or for each `TURN_BYTES` where they are larger. 0: the box has none."""
        session = None if self.hold is None else self.hold.session
        if self._takes_for_good:
            message = box.take_next(now_ms, self._taken, session)
            if message is None:
                return 0
            self._taken_sizes.append(message.size)
            self._taken_bytes += message.size
            self.peer.locked.take(message.size)
            return 1 + message.size // TURN_BYTES
        share = self.peer.locked
        locks = box.lock_next(limit, now_ms, session, share)
        if not locks:
            return 0
        payloads = [encode_delivery(lock.message, lock.until_ms, lock.token) for lock in locks]
        for lock in locks:
            lock.message.body = b""  # as `drop_body`: it is in the store, and each message passes here
        tokens = [lock.token for lock in locks]
        self._unsettled_count += len(locks)
        share.take(DELIVERY_COST * len(locks))
        self.link.send_run(payloads, tokens)
        sizes = [len(payload) for payload in payloads]
        size = sum(sizes)
        self._delivered(sizes, size)
        if self.link.drain and not self.link.credit:
            self.end_drain()
        if self._unsettled is not None:
            self._unsettled.update(tokens)
            self._limit_unsettled(self._unsettled, now_ms)
        return max(len(locks), size // TURN_BYTES)

    def _limit_unsettled(self, unsettled: set[bytes], now_ms: int) -> None:
        """Detach the link when it has too many unsettled deliveries; those that `$management` settled, or whose lock
        has ended, do not count."""
        assert self._unsettled_max is not None
        if len(unsettled) <= self._unsettled_max:
            return
        unsettled.intersection_update([token for token in unsettled if self.box.locks.held(token, now_ms)])
        if len(unsettled) > self._unsettled_max:
            self._unsettled = None
            self.peer.call_later(0, self._force_detach)  # not while messages are being handed out

    def turn_away(self, refusal: Refusal) -> None:
        """Detach the link, not while messages are being handed out."""
        self.peer.call_later(0, partial(self.peer.detach, self.link, refusal))

    def _force_detach(self) -> None:
        text = f"The link '{self.link.name}' is force detached: more than {self._unsettled_max} unsettled deliveries."
        self.peer.detach(self.link, Refusal(DETACH_FORCED, text))

    def _taken(self, message: StoredMessage | None) -> None:
        """Deliver a message whose deletion is durable; None: it could not be deleted and stays."""
        size = self._taken_sizes.popleft()
        self._taken_bytes -= size
        self.peer.locked.give(size)
        if message is None:
            self.peer.namespace.wake_later(self.box)
            return
        if self.link.is_open and not self.peer.is_over:
            payload = encode_delivery(message)
            [tag] = self.box.locks.new_tokens(1)
            self.link.send(payload, tag, settled=True)
            self._delivered([len(payload)], len(payload))
        else:
            logger.info("%s: message %d was taken by a receiver that is gone", self.entity.path, message.seq)
        self.wake()

    def wake(self) -> None:
        """Note that this receiver may get a message now, or that it has got all that its credit allows."""
        if self.link.drain and not self.link.credit:
            self.end_drain()
        self.peer.namespace.wake(self.box, self)

    def session_lost(self) -> None:
        """Note that the lock of its session has ended."""
        self.peer.call_later(LOST_SESSION_GRACE_S, self._detach_without_session)

    def _detach_without_session(self) -> None:
        assert self.hold is not None
        if not self.peer.is_over and self.hold.is_over:  # a reset may have given it a new session meanwhile
            self.peer.detach(self.link, session_lock_lost(self.hold.session.id))

    def _delivered(self, sizes: list[int], size: int) -> None:
        if self.peer.namespace.meter is not None:
            self._sizes += sizes
        self.peer.flush_soon(size)

    def end_drain(self) -> None:
        """Answer a receiver that asked to drain, because the box is empty or the credit is used up (2.6.7).

        Not before the messages themselves: some wait for a commit, or for the window of the session.
        """
        link = self.link
        if link.drain and link.is_open and not self._taken_sizes and not link.session.has_waiting:
            self._ask_is_over(link.delivery_count)
            link.drained()
            self.peer.flush_soon()

    # ── the meter ──

    def meter_deliveries(self) -> None:
        """Tell the meter of the deliveries since the last time; they are counted one by one and told together."""
        meter = self.peer.namespace.meter
        if self._sizes and meter is not None:
            sizes, self._sizes = self._sizes, []
            meter.messages(self.entity.path, "receive", sizes)

    def on_flow(self) -> None:
        """Note that the receiver gives credit, or takes it back: its previous request for messages is over."""
        link = self.link
        had_asked = self._asked_at is not None
        self._ask_is_over(link.seen_count)
        if link.granted and not (link.drain and had_asked):  # a drain asks for no more, unless it is the first request
            self._asked_at = link.seen_count
        self.wake()

    def on_window(self) -> None:
        self.wake()

    def _ask_is_over(self, count: int) -> None:
        asked_at, self._asked_at = self._asked_at, None
        meter = self.peer.namespace.meter
        if asked_at == count and meter is not None:
            meter.count(self.entity.path, "empty receive")

    def _meter_settled(self, count: int, refusal: Refusal | None) -> None:
        meter = self.peer.namespace.meter
        if count and meter is not None:
            meter.count(self.entity.path, "complete", count, 0, refusal)

    # ── settlements ──

    def on_disposed(
        self, session: Session, deliveries: list[SentDelivery], settled: bool, state: Any, now_ms: int
    ) -> None:
        """Settle messages as the client says: completions are gathered until `submit`, others are written now."""
        self.wake()  # unsettled deliveries may have held it back
        if settled or not isinstance(state, TransactionalState):  # otherwise the deliveries stay unsettled
            self._give_room(len(deliveries))
        faults = self.peer.namespace.faults
        if faults.acts:
            deliveries = faults.operations.settlements(self, session, deliveries, settled, state)
        self._settle(session, deliveries, settled, state, now_ms)

    def _give_room(self, count: int) -> None:
        """Count deliveries against the budget no more."""
        count = min(count, self._unsettled_count)
        self._unsettled_count -= count
        self.peer.locked.give(DELIVERY_COST * count)

    def refuse(self, session: Session, delivery: SentDelivery, settled: bool, state: Any, refusal: Refusal) -> None:
        """Refuse a settlement; the message stays locked. A transaction that it belongs to fails."""
        if isinstance(state, TransactionalState):
            self._refuse_in(session, delivery.delivery_id, settled, state, refusal)
            return
        self._settled(session, delivery.delivery_id, settled, b"", refusal)

    def resume(self, session: Session, delivery: SentDelivery, settled: bool, state: Any) -> None:
        """Go on with a settlement after a stall, as if it came now."""
        now_ms = self.peer.namespace.now_ms()
        self._settle(session, [delivery], settled, state, now_ms)
        self.submit(now_ms)
        self.peer.namespace.changed(self.entity)
        self.wake()

    def _settle(self, session: Session, deliveries: list[SentDelivery], settled: bool, state: Any, now_ms: int) -> None:
        if self._unsettled is not None:
            self._unsettled.difference_update([delivery.tag for delivery in deliveries])
        if isinstance(state, Accepted):
            self._complete(session, deliveries, settled, now_ms)
            return
        if isinstance(state, TransactionalState):
            self._enlist(session, deliveries, settled, state, now_ms)
            return
        self.peer.namespace.changed(self.entity)
        outcome, patch, answer = self._read(state)
        for delivery in deliveries:
            answered = partial(self._settled, session, delivery.delivery_id, settled, answer)
            if isinstance(outcome, Refusal):
                answered(outcome)
                continue
            try:
                self.entity.settle(self.box, delivery.tag, outcome, now_ms, answered, patch=patch)
            except Refusal as refusal:
                answered(refusal)

    def _enlist(
        self,
        session: Session,
        deliveries: list[SentDelivery],
        settled: bool,
        state: TransactionalState,
        now_ms: int,
    ) -> None:
        """Take settlements into their transaction: they happen when that is discharged. A roll-back leaves deliveries
        that the client has not settled as they are."""
        outcome, patch, answer = self._read(state.outcome)
        provisional = state.encode()
        for delivery in deliveries:
            delivery_id = delivery.delivery_id
            committed = None if settled else partial(self._settle_kept, session, delivery_id, answer)
            try:
                transaction = self.peer.transactions.find(state.txn_id, now_ms)
                if state.outcome is None:
                    raise Refusal(INVALID_FIELD, "A settlement in a transaction has an outcome.")
                if isinstance(outcome, Refusal):
                    raise outcome
                transaction.settle(
                    self.entity, self.box, delivery.tag, outcome, now_ms, patch=patch, on_committed=committed
                )
            except Refusal as refusal:
                self._refuse_in(session, delivery_id, settled, state, refusal)
                continue
            self._meter_settled(1, None)
            if delivery_id in self.lost_ids:
                self.peer.cut()
            elif not settled:
                session.answer_sent(delivery_id, provisional)
                self.peer.flush_soon()

    def _refuse_in(
        self, session: Session, delivery_id: int, settled: bool, state: TransactionalState, refusal: Refusal
    ) -> None:
        """Refuse a settlement in a transaction, which fails by that."""
        self.peer.transactions.fail(state.txn_id, refusal)
        if session.drop_kept(delivery_id):
            self._give_room(1)
        self._settled(session, delivery_id, settled, b"", refusal)

    def _settle_kept(self, session: Session, delivery_id: int, answer: bytes) -> None:
        """Settle a delivery whose transaction is committed."""
        self._give_room(1)
        session.settle_kept(delivery_id, answer)
        self.peer.flush_soon()

    def _complete(self, session: Session, deliveries: list[SentDelivery], settled: bool, now_ms: int) -> None:
        """Complete the messages whose completions arrived in one read: one run, like deliveries to an inlet."""
        if self._completing_in != (session, settled):
            if self._completing:
                self.submit(now_ms)
            self._completing_in = (session, settled)
        if not self._completing:
            self.peer.submit_later(self)
        self._completing += deliveries

    def submit(self, now_ms: int) -> None:
        """Complete the messages of the run in one write; `_completed` answers when it is durable."""
        if not self._completing or self._completing_in is None:
            return
        deliveries, self._completing = self._completing, []
        done = partial(self._completed, *self._completing_in, deliveries)
        self.entity.complete_many(self.box, [delivery.tag for delivery in deliveries], now_ms, done)

    def _read(self, state: Any) -> tuple[Outcome | Refusal, bytes, bytes]:
        """Return (the outcome that the client wants, changed properties, the state that confirms it)."""
        try:
            if isinstance(state, Accepted):
                return Outcome.COMPLETE, b"", ACCEPTED_BYTES
            if state is None or isinstance(state, Released):  # settled without a state: no confirmation is sent
                return Outcome.RELEASE, b"", RELEASED_BYTES
            if isinstance(state, Modified):
                outcome = Outcome.DEFER if state.undeliverable_here else Outcome.ABANDON
                return outcome, patch_of(state.message_annotations or {}), MODIFIED_BYTES
            if isinstance(state, Rejected):
                info = dict(state.error.info or {}) if state.error is not None else {}
                if state.error is not None and "DeadLetterErrorDescription" not in info and state.error.description:
                    info["DeadLetterErrorDescription"] = state.error.description
                return Outcome.DEAD_LETTER, patch_of(info), REJECTED_BYTES
        except ProtocolError as error:
            return Refusal(error.condition, error.description), b"", b""
        return Refusal(NOT_ALLOWED, f"Deliveries cannot be settled with {state!r:.80}."), b"", b""

    def _lost(self, refusal: Refusal) -> Refusal:
        """Name the session as the reason when its lock has ended, and with it the locks of its messages."""
        if refusal.condition == MESSAGE_LOCK_LOST and self.hold is not None and self.hold.is_over:
            return session_lock_lost(self.hold.session.id)
        return refusal

    def _completed(
        self,
        session: Session,
        settled: bool,
        deliveries: list[SentDelivery],
        lost: list[bytes],
        error: Refusal | None,
    ) -> None:
        self._meter_settled(len(deliveries) - len(lost), None)
        if lost:
            self._meter_settled(len(lost), error or lock_lost())
        if settled:
            return
        if self.lost_ids and not self.lost_ids.isdisjoint([delivery.delivery_id for delivery in deliveries]):
            self.peer.cut()
            return
        if not lost:
            # One read may bring several dispositions in any order; ranges need ascending ids.
            ids = sorted([delivery.delivery_id for delivery in deliveries])
            one_by_one = self.peer.strictness.answers_one_by_one
            for first, last in [(each, each) for each in ids] if one_by_one else ranges(ids):
                session.settle_sent(first, last, ACCEPTED_BYTES)
        else:
            gone = set(lost)
            refusal = self.peer.refused(self._lost(error or lock_lost()))
            for delivery in deliveries:
                state = refusal if delivery.tag in gone else ACCEPTED_BYTES
                session.settle_sent(delivery.delivery_id, delivery.delivery_id, state)
        self.peer.flush_soon()

    def _settled(
        self, session: Session, delivery_id: int, settled: bool, answer: bytes, refusal: Refusal | None
    ) -> None:
        self._meter_settled(1, refusal)
        if delivery_id in self.lost_ids:
            self.peer.cut()
        elif not settled:
            session.settle_sent(
                delivery_id, delivery_id, answer if refusal is None else self.peer.refused(self._lost(refusal))
            )
            self.peer.flush_soon()

    def close(self) -> None:
        self._give_room(self._unsettled_count)
        self.meter_deliveries()
        self._ask_is_over(self.link.delivery_count)
        self.peer.namespace.faults.held.forget(self)
        self.peer.namespace.stop_listening(self)
        if self.hold is not None and self.entity.sessions is not None:
            self.entity.sessions.release(self.hold)
