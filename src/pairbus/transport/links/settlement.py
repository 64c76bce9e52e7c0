"""Received messages, and the results of settlements: the peer's answer for each delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from pairbus.amqp.errors import ILLEGAL_STATE
from pairbus.amqp.events import Delivery
from pairbus.amqp.performatives import Composite, Rejected
from pairbus.transport.errors import Refused, leaves_open

DEAD_LETTER = "com.microsoft:dead-letter"


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
    """One call that waits for the peer's answers for its deliveries."""

    __slots__ = ("done", "leaves_open", "left", "outcome", "refused", "refused_ids")

    def __init__(self, done: asyncio.Future[None], outcome: Composite, left: int) -> None:
        self.done = done
        self.outcome = outcome
        self.left = left
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
