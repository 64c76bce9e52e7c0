"""Request and response over a pair of links, as `$cbs` and `$management` use them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED, RESOURCE_LIMIT_EXCEEDED, ProtocolError
from pairbus.amqp.events import Delivery, TransactionalDelivery
from pairbus.amqp.link import ReceiverLink, SenderLink, address_of
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import ACCEPTED_BYTES, Accepted, TransactionalState
from pairbus.amqp.types import Int, Symbol
from pairbus.broker.entities.transactions import Transaction, Transactions
from pairbus.broker.refusal import TIMEOUT, Refusal
from pairbus.broker.wire.link_handler import LinkHandler

if TYPE_CHECKING:
    from pairbus.broker.wire.peer import Peer

logger = logging.getLogger("pairbus.broker")

CREDIT = 100
SERVER_TIMEOUT = "com.microsoft:server-timeout"
SERVER_TIMEOUT_MAX_MS = 24 * 60 * 60 * 1000  # longer times mean: no time-out
UNSENT_MAX = 256  # answers that wait for credit on one link; a client that asks on without reading loses the rest
UNSENT_BYTES_MAX = 1 << 20
"""Bytes of answers that wait on one connection: then its requests are refused. So it may have these, the answers to
requests whose commits were under way, and one more; the sum over all connections is the account `leaving`."""

TURN_BYTES_MAX = 1 << 20  # bytes of answers in one turn of the event loop: about 5 ms of work

SendReply = Callable[[dict[str, Any], Any], None]
"(application properties, body value): sends the answer to one request."


class OwnTransaction(NamedTuple):
    """Transaction of the client that a request belongs to."""

    txn_id: bytes
    transactions: Transactions

    def find(self, now_ms: int) -> Transaction:
        """Return the transaction, or raise the Refusal."""
        return self.transactions.find(self.txn_id, now_ms)

    def fail(self, refusal: Refusal) -> None:
        """Note that the request was refused."""
        self.transactions.fail(self.txn_id, refusal)


class Node(Protocol):
    """Node that answers requests; one for each peer and address."""

    address: str

    @property
    def entity(self) -> str:
        """Path of the entity that the node belongs to, or the node's own address."""
        ...

    def right_of(self, request: Message) -> str:
        """Return the right that the request needs."""
        ...

    def refuse(self, reply: SendReply, refusal: Refusal) -> None:
        """Refuse a request."""
        ...

    def on_request(
        self, request: Message, reply: SendReply, now_ms: int, transaction: OwnTransaction | None = None
    ) -> None:
        """Answer a request; `transaction`: the one that the client has sent it in."""
        ...


class AnswerTurns:
    """Bytes of answers in one turn of the event loop, of all clients: when they are many, requests wait for the next.

    A hundred clients that ask for a megabyte each would otherwise keep all others waiting for a second.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = TURN_BYTES_MAX
        self._is_scheduled = False
        self._waiting: deque[RequestLink] = deque()

    @property
    def is_over(self) -> bool:
        """True until the next turn."""
        return self._left <= 0

    def count(self, size: int) -> None:
        self._left -= size
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def line_up(self, link: RequestLink) -> None:
        """Let a link whose requests wait go on in its turn."""
        if link not in self._waiting:
            self._waiting.append(link)

    def _begin(self) -> None:
        self._is_scheduled = False
        self._left = TURN_BYTES_MAX
        while self._waiting and not self.is_over:
            link = self._waiting.popleft()
            link.resume(link.peer.namespace.now_ms())
        if self._waiting:
            self.count(0)


class RequestLink(LinkHandler):
    """Link on which the client sends requests."""

    link: ReceiverLink

    def __init__(self, peer: Peer, link: ReceiverLink, node: Node) -> None:
        super().__init__(peer, link)
        self.node = node
        self._waiting: deque[Delivery] = deque()
        "Requests of a client that does not read, whose answers would only wait in memory; or that wait for their turn."

    def on_delivery(self, delivery: Delivery, now_ms: int) -> None:
        self._waiting.append(delivery)
        self.resume(now_ms)

    def has_waiting(self, txn_id: bytes) -> bool:
        """Return whether a request of the transaction waits."""
        return any(isinstance(each, TransactionalDelivery) and each.txn_id == txn_id for each in self._waiting)

    def on_readable(self, now_ms: int) -> None:
        self.resume(now_ms)

    def resume(self, now_ms: int) -> None:
        """Answer the requests that wait, while the client reads and the turn is not over."""
        turns = self.peer.namespace.answer_turns
        while self._waiting and not self.peer.is_choked and not turns.is_over:
            self._answer(self._waiting.popleft(), now_ms)
        if not self._waiting or self.peer.is_over:
            self.peer.wait_for_turn(False)
        elif self.peer.is_choked:
            self.peer.stop_reading_until_read()
        else:
            self.peer.wait_for_turn(True)
            turns.line_up(self)

    def _answer(self, delivery: Delivery, now_ms: int) -> None:
        outcome = ACCEPTED_BYTES
        transaction = None
        if isinstance(delivery, TransactionalDelivery):
            outcome = TransactionalState(delivery.txn_id, Accepted()).encode()
            transaction = OwnTransaction(delivery.txn_id, self.peer.transactions)
        try:
            if self.peer.answer_bytes > UNSENT_BYTES_MAX:
                raise ProtocolError(
                    RESOURCE_LIMIT_EXCEEDED,
                    f"{self.peer.answer_bytes} bytes of answers wait for credit: read them, then ask again.",
                )
            if delivery.too_large:
                limit = self.link.max_message_size
                raise ProtocolError(
                    MESSAGE_SIZE_EXCEEDED, f"A request to {self.node.address} has at most {limit} bytes."
                )
            request = Message.decode(delivery.payload)
            reply = Answering(self, request, transaction)
            faults = self.peer.namespace.faults
            if not faults.acts or faults.operations.request(self, request, reply):
                self.node.on_request(request, reply, now_ms, transaction)
                reply.expect_within(request.property(SERVER_TIMEOUT))
        except ProtocolError as error:
            refusal = Refusal(error.condition, error.description)
            outcome = self.peer.refused(refusal)
            if transaction is not None:
                transaction.fail(refusal)
        if not delivery.settled:
            self.link.settle(delivery.delivery_id, delivery.delivery_id, outcome, 1)
        self.peer.flush()  # at once: whether the next request is answered depends on how much the socket takes

    def resume_request(self, request: Message, reply: Answering) -> None:
        """Go on with a request after a stall, as if it came now."""
        self.node.on_request(request, reply, self.peer.namespace.now_ms(), reply.transaction)
        self.peer.flush_soon()

    def response_link(self, reply_to: Any) -> ResponseLink | None:
        """Return the link of the address that the request names, otherwise the one that listens to the same node."""
        listening = [
            link.context
            for link in self.link.session.links
            if isinstance(link.context, ResponseLink) and link.context.node.address == self.node.address
        ]
        for response in listening:
            if reply_to is not None and response.reply_address == reply_to:
                return response
        return listening[-1] if listening else None

    def close(self) -> None:
        self._waiting.clear()
        self.peer.namespace.faults.held.forget(self)


class Answering:
    """The way back for the answer to one request. After its deadline no answer is sent, and never a second one."""

    def __init__(self, link: RequestLink, request: Message, transaction: OwnTransaction | None) -> None:
        self.transaction = transaction
        "Transaction that the request belongs to."
        self._link = link
        self._properties = request.properties or Properties()
        self.is_lost = False
        "True when a fault drops the answer, with the connection."
        self._is_over = False
        self._deadline: asyncio.TimerHandle | None = None

    def expect_within(self, timeout_ms: Any) -> None:
        """Answer with a time-out when there was no answer in time. The client no longer waits then."""
        if not self._is_over and isinstance(timeout_ms, int) and 0 < timeout_ms <= SERVER_TIMEOUT_MAX_MS:
            self._deadline = self._link.peer.call_later(timeout_ms / 1000, self._time_out)

    def _time_out(self) -> None:
        answer = {
            "statusCode": Int(408),
            "statusDescription": "The operation did not complete within the time that the client allotted to it.",
            "errorCondition": Symbol(TIMEOUT),
        }
        self(answer, {})
        self._link.peer.flush_soon()

    def __call__(self, application_properties: dict[str, Any], body: Any) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self.is_lost:
            self._link.peer.cut()
            return
        link = self._link.response_link(self._properties.reply_to)
        if link is None:
            logger.info("%s: an answer on %s has no link to go to", self._link.peer, self._link.node.address)
            return
        for code, text in (("statusCode", "statusDescription"), ("status-code", "status-description")):
            if application_properties.get(code, 0) >= 400:
                words = self._link.peer.text_of(application_properties[text])
                application_properties = {**application_properties, text: words}
        answer = Message(
            properties=Properties(correlation_id=self._properties.message_id),
            application_properties=application_properties,
            value=body,
            has_value=True,
        )
        link.send(answer.encode())


class ResponseLink(LinkHandler):
    """Link on which the client receives the answers."""

    link: SenderLink

    def __init__(self, peer: Peer, link: SenderLink, node: Node) -> None:
        super().__init__(peer, link)
        self.node = node
        self.reply_address = address_of(link.remote_attach.target) if link.remote_attach is not None else None
        self._unsent: deque[bytes] = deque()
        self._tag = 0

    def send(self, payload: bytes) -> None:
        self._unsent.append(payload)
        self.peer.namespace.answer_turns.count(len(payload))
        self.peer.answer_bytes += len(payload)
        self.pump()
        if len(self._unsent) > UNSENT_MAX:
            self._next()

    def _next(self) -> bytes:
        payload = self._unsent.popleft()
        self.peer.answer_bytes -= len(payload)
        return payload

    def on_window(self) -> None:
        self.pump()

    def pump(self) -> None:
        """Send answers while the client has credit and reads."""
        while self._unsent and self.link.sendable and not self.peer.is_choked:
            self._tag += 1
            self.link.send(self._next(), self._tag.to_bytes(4, "big"), settled=True)
            self.peer.flush_soon()

    def close(self) -> None:
        while self._unsent:
            self._next()
