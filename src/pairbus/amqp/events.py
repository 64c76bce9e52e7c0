"""Events that the core tells its user. They come in the order in which their bytes arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.performatives import Attach, Error, Open

if TYPE_CHECKING:
    from pairbus.amqp.link import Link, ReceiverLink, SenderLink, SentDelivery
    from pairbus.amqp.session import Session


class AmqpEvent:
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ConnectionOpened(AmqpEvent):
    """The peer's open. A server answers with `Connection.open`."""

    open: Open


@dataclass(frozen=True, slots=True)
class ConnectionClosed(AmqpEvent):
    """The peer's close. It has been answered; no more events follow."""

    error: Error | None


@dataclass(frozen=True, slots=True)
class ConnectionFailed(AmqpEvent):
    """The peer broke the protocol, failed SASL or fell silent. Send the rest of the output, then close the socket."""

    error: ProtocolError


@dataclass(frozen=True, slots=True)
class SessionBegun(AmqpEvent):
    """The peer's begin: a new session at a server (answer with `Session.begin`), or the answer to ours."""

    session: Session


@dataclass(frozen=True, slots=True)
class SessionEnded(AmqpEvent):
    """The peer's end, which has been answered, or ours because the peer went beyond a limit: the links are gone."""

    session: Session
    error: Error | None


@dataclass(frozen=True, slots=True)
class LinkAttached(AmqpEvent):
    """The peer's attach: a new link (answer with `attach` or `refuse`), or the answer to ours."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class LinkDetached(AmqpEvent):
    """The peer's detach. Answer with `Link.detach(closed=event.closed)` unless ours was sent before."""

    link: Link
    closed: bool
    error: Error | None


@dataclass(frozen=True, slots=True)
class LinkFlow(AmqpEvent):
    """The peer changed credit or asks for a drain on a link on which we send. May come before we have attached."""

    link: SenderLink


@dataclass(frozen=True, slots=True)
class LinkDrained(AmqpEvent):
    """The sender has used up or given back all credit of a link on which we receive."""

    link: ReceiverLink


@dataclass(frozen=True, slots=True)
class SessionFlow(AmqpEvent):
    """The peer's window for our transfers has opened after it had been shut."""

    session: Session


class Delivery(AmqpEvent):
    """A whole message has arrived. Plain slots, not frozen: one is made for every message."""

    __slots__ = ("delivery_id", "link", "message_format", "payload", "settled", "tag", "too_large")

    def __init__(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, message_format: int, settled: bool, payload: bytes
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.payload = payload
        self.too_large = False
        "True: the message was larger than the link allows; its bytes were not kept and it must be rejected."

    def __repr__(self) -> str:
        return f"<Delivery {self.delivery_id} on {self.link.name} {len(self.payload)} B>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delivery) and self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return self.delivery_id, self.tag, self.message_format, self.settled, self.payload, self.too_large


class TransactionalDelivery(Delivery):
    """A whole message that belongs to a transaction. A class of its own, so that other deliveries need no check."""

    __slots__ = ("txn_id",)

    def __init__(  # noqa: PLR0917 - those of a delivery, and one more
        self,
        link: ReceiverLink,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        txn_id: bytes,
    ) -> None:
        super().__init__(link, delivery_id, tag, message_format, settled, payload)
        self.txn_id = txn_id

    def _key(self) -> tuple[Any, ...]:
        return *super()._key(), self.txn_id


@dataclass(frozen=True, slots=True)
class DeliveryAborted(AmqpEvent):
    """The peer has taken a delivery back before it was whole. The credit for it is spent (2.6.14)."""

    link: ReceiverLink


@dataclass(slots=True)
class Disposed(AmqpEvent):
    """The peer's outcome of deliveries that we sent. When not settled, answer with `Session.settle_sent`.

    With an unsettled transactional state the deliveries stay unsettled on our side too, because the transaction may be
    rolled back: answer with `Session.answer_sent`, and with `Session.settle_kept` when the outcome is final.

    Not frozen, which would cost a microsecond: receivers settle messages one by one.
    """

    session: Session
    deliveries: list[SentDelivery]
    settled: bool
    state: Any


@dataclass(frozen=True, slots=True)
class SettlementAnswered(AmqpEvent):
    """The sending peer's answer to settlements that we sent unsettled (`ReceiverLink.settle`)."""

    session: Session
    first: int
    last: int
    settled: bool
    state: Any
