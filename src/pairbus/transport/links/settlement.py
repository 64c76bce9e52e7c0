"""Received messages, and their settlements: the peer is asked, and answers for each delivery."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from pairbus.amqp.errors import ILLEGAL_STATE
from pairbus.amqp.events import Delivery, SettlementAnswered
from pairbus.amqp.link import MASK, ranges
from pairbus.amqp.performatives import ACCEPTED_BYTES, Accepted, Composite, Error, Modified, Rejected
from pairbus.amqp.types import Symbol
from pairbus.pairing.policy import Silence
from pairbus.transport.errors import Refused, Timeout, TransportError, leaves_open

DEAD_LETTER = "com.microsoft:dead-letter"

COMPLETED, DEFERRED = Accepted(), Modified(delivery_failed=True, undeliverable_here=True)


def abandoned(properties: Mapping[str, Any] | None = None) -> Modified:
    changed = None if properties is None else {Symbol(name): value for name, value in properties.items()}
    return Modified(True, False, changed)


def dead_lettered(reason: str | None, description: str | None) -> Rejected:
    info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): description}
    return Rejected(error=Error(DEAD_LETTER, None, info))


class ReceivedMessage:
    """One message as it was received: encoded sections, not decoded."""

    __slots__ = ("delivery_id", "message_format", "payload", "settled", "tag")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery_id = delivery.delivery_id
        self.tag = delivery.tag
        self.payload = delivery.payload
        self.message_format = delivery.message_format
        self.settled = delivery.settled

    @property
    def lock_token(self) -> UUID:
        """The tag as the GUID that `$management` knows; ValueError when the tag is not a GUID."""
        return UUID(bytes_le=self.tag)

    def __repr__(self) -> str:
        return f"<Received {self.delivery_id} {len(self.payload)} B tag={self.tag.hex()}>"


class DeliveryIds(tuple[int, ...]):
    """Delivery ids of messages, in any order."""

    __slots__ = ()


Deliveries = Iterable[ReceivedMessage] | range | DeliveryIds
"Messages, or their delivery ids."


class PendingSettlement:
    """One call that waits for the peer's answers for its deliveries. Its future may be cancelled: then nobody waits."""

    __slots__ = ("began", "deadline", "done", "leaves_open", "left", "outcome", "refused", "refused_ids", "state")

    def __init__(
        self, done: asyncio.Future[None], outcome: Composite, state: bytes, left: int, began: float, deadline: float
    ) -> None:
        self.done = done
        self.outcome = outcome
        self.state = state
        "The outcome, encoded."
        self.left = left
        self.began = began
        self.deadline = deadline
        self.refused: Refused | None = None
        "The first refusal."
        self.leaves_open = False
        "True: a delivery that was refused may have been settled nevertheless."
        self.refused_ids: list[int] = []

    def answer(self, delivery_id: int, refused: Refused | None) -> None:
        if refused is not None:
            self.refused = self.refused or refused
            self.leaves_open |= refused.outcome_unknown
            self.refused_ids.append(delivery_id)
        self.left -= 1
        if self.left or self.done.done():
            return
        if self.refused is None:
            self.done.set_result(None)
        else:
            refused = self.refused
            self.done.set_exception(
                Refused(
                    refused.condition,
                    refused.description,
                    outcome_unknown=self.leaves_open,
                    delivery_ids=tuple(self.refused_ids),
                )
            )

    def fail(self, error: TransportError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Settlements:
    """The settlements of one link that wait for the peer's answers, and one timer for the deadlines of all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, what: str) -> None:
        self._loop = loop
        self._what = what
        self._pending: dict[int, PendingSettlement] = {}
        "Settlements by delivery id."
        self._unsent: dict[bytes, list[int]] = {}
        "Encoded outcomes that this turn of the loop asks for, each with the ids."
        self._look_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, ids: list[int], outcome: Composite, timeout_s: float) -> asyncio.Future[None]:
        """Have the peer asked with the next `unsent`. The future ends with its answers, or with the time."""
        pending = self._pending
        twice = [i for i in ids if i in pending and not pending[i].done.done()]
        if twice or len(set(ids)) != len(ids):
            raise ValueError(f"{self._what}: a delivery is settled twice: {twice[:3] or ids[:3]}")
        now, done = self._loop.time(), self._loop.create_future()
        if not ids:
            done.set_result(None)
            return done
        state = ACCEPTED_BYTES if isinstance(outcome, Accepted) else outcome.encode()
        settlement = PendingSettlement(done, outcome, state, len(ids), now, now + timeout_s)
        for i in ids:
            pending[i] = settlement
        self._unsent.setdefault(state, []).extend(ids)
        if settlement.deadline < self._look_at:
            self._look_from(settlement.deadline)
        return done

    def unsent(self) -> list[tuple[bytes, int, int]]:
        """Return what the peer has not been asked yet: (encoded outcome, first and last id). Nobody wants the rest."""
        unsent, self._unsent = self._unsent, {}
        return [
            (state, first, last)
            for state, ids in unsent.items()
            for first, last in ranges(sorted({i for i in ids if self._is_wanted(i, state)}))
        ]

    def _is_wanted(self, delivery_id: int, state: bytes) -> bool:
        """Tell whether a caller waits for this outcome: it may have left, or the link may be over."""
        settlement = self._pending.get(delivery_id)
        return settlement is not None and settlement.state == state and not settlement.done.done()

    def answered(self, event: SettlementAnswered) -> None:
        first, span, pending = event.first, (event.last - event.first) & MASK, self._pending
        ids: Iterable[int] = (
            [(first + offset) & MASK for offset in range(span + 1)]
            if span < len(pending)
            else [i for i in pending if (i - first) & MASK <= span]
        )
        for i in ids:
            settlement = pending.pop(i, None)
            if settlement is not None:
                settlement.answer(i, refusal(settlement.outcome, event.state))

    def end(self, reason: TransportError) -> None:
        """End all with the link: whether the peer has settled them is not known."""
        pending, self._pending = self._pending, {}
        for settlement in set(pending.values()):
            settlement.fail(reason.again(outcome_unknown=True))
        if self._timer is not None:
            self._timer.cancel()

    # ── deadlines ──

    def _look_from(self, when: float) -> None:
        """Look at the deadlines no later than `when`."""
        if self._timer is not None:
            self._timer.cancel()
        self._look_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now = max(self._loop.time(), self._look_at)  # the loop may call a little early, by the resolution of its clock
        self._look_at, self._timer = math.inf, None
        for i, settlement in list(self._pending.items()):
            if settlement.done.done() or settlement.deadline <= now:
                del self._pending[i]
                silence = Silence(now - settlement.began, math.inf)
                text = f"{self._what}: the settlement was not answered in time"
                settlement.fail(Timeout(text, silence, outcome_unknown=True))
        if self._pending:
            self._look_from(min(settlement.deadline for settlement in self._pending.values()))


def ids_of(deliveries: Deliveries) -> list[int]:
    """Return the delivery ids in ascending order; ValueError when messages are settled already."""
    if isinstance(deliveries, range | DeliveryIds):
        return sorted(deliveries)
    deliveries = list(deliveries)
    if any(message.settled for message in deliveries):
        raise ValueError("messages of receive-and-delete mode are settled already")
    return sorted(message.delivery_id for message in deliveries)


def refusal(asked: Composite, answered: object) -> Refused | None:
    """Return the refusal of a settlement; None when the peer did it: it repeats the kind of outcome, or names none."""
    if answered is None:
        return None
    if isinstance(answered, Rejected) and answered.error is not None and answered.error.condition != DEAD_LETTER:
        error = answered.error
        return Refused(error.condition, error.description, outcome_unknown=leaves_open(error.condition))
    if type(answered) is type(asked):
        return None
    return Refused(ILLEGAL_STATE, f"{asked.NAME} was asked, {getattr(answered, 'NAME', answered)} was done")
