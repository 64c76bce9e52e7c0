"""The coordinator of transactions: a link on which a client declares and discharges them (AMQP 4.5)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pairbus.amqp.errors import INVALID_FIELD, NOT_ALLOWED, NOT_IMPLEMENTED, ProtocolError
from pairbus.amqp.events import Delivery
from pairbus.amqp.link import ReceiverLink
from pairbus.amqp.message import Message
from pairbus.amqp.performatives import ACCEPTED_BYTES, Declare, Declared, Discharge, from_described
from pairbus.amqp.types import Described
from pairbus.broker.refusal import Refusal
from pairbus.broker.wire.link_handler import LinkHandler, end_of
from pairbus.broker.wire.requests import RequestLink

CREDIT = 100
UNANSWERED = Refusal(NOT_ALLOWED, "A request in it was not answered yet, because the client reads too little.")
COMMAND_SIZE_MAX = 4096  # a declare or a discharge has some dozens of bytes


class CoordinatorLink(LinkHandler):
    """End of a link to the coordinator. Transactions that were declared on it are rolled back when it ends."""

    link: ReceiverLink

    def __repr__(self) -> str:
        return f"<CoordinatorLink {self.link!r}>"

    def grant(self) -> None:
        self.link.max_message_size = COMMAND_SIZE_MAX
        self.link.keep_credit(CREDIT)

    def on_delivery(self, delivery: Delivery, now_ms: int) -> None:
        """Carry out a command; a discharge is answered after the commit."""
        transactions = self.peer.transactions
        try:
            command = _command_of(delivery)
            if isinstance(command, Declare):
                txn_id = transactions.declare(self, now_ms, is_stranger=not self.peer.grants)
                self._answer(delivery, Declared(txn_id).encode())
            else:
                if any(isinstance(end, RequestLink) and end.has_waiting(command.txn_id) for end in self._handlers()):
                    transactions.fail(command.txn_id, UNANSWERED)
                answered = partial(self._discharged, delivery)
                transactions.discharge(command.txn_id, now_ms, answered, fail=command.fail)
        except (ProtocolError, Refusal) as error:
            self._discharged(delivery, Refusal(error.condition, error.description))

    def _handlers(self) -> Iterator[LinkHandler | None]:
        for link in self.peer.links():
            yield end_of(link)

    def _discharged(self, delivery: Delivery, refusal: Refusal | None) -> None:
        self._answer(delivery, ACCEPTED_BYTES if refusal is None else self.peer.refused(refusal))

    def _answer(self, delivery: Delivery, state: bytes) -> None:
        if not delivery.settled:
            self.link.settle(delivery.delivery_id, delivery.delivery_id, state, 1)
            self.peer.flush_soon()

    def close(self) -> None:
        self.peer.transactions.roll_back(self)


def _command_of(delivery: Delivery) -> Declare | Discharge:
    """Read the body of a message to the coordinator."""
    body = None if delivery.too_large else Message.decode(delivery.payload).body
    command = from_described(body) if isinstance(body, Described) else None
    if isinstance(command, Declare) and command.global_id is not None:
        raise Refusal(NOT_IMPLEMENTED, "A transaction cannot be part of a global one.")
    if not isinstance(command, Declare | Discharge):
        raise Refusal(INVALID_FIELD, "A message to the coordinator holds a declare or a discharge.")
    return command
