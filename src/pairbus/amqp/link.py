"""Links: attach and detach, credit, drain, and messages made of several transfers (AMQP 2.6).

Credit is spent when a delivery starts, and a released delivery does not give it back (2.6.7). A receiver here does not
enforce the credit that it granted: the Python SDK's sender ignores credit. Memory is bounded instead by the limit on
unsettled deliveries, the size limit of the link, and the reader that stops reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pairbus.amqp.errors import ILLEGAL_STATE, RESOURCE_LIMIT_EXCEEDED, TRANSFER_LIMIT_EXCEEDED, ProtocolError
from pairbus.amqp.events import AmqpEvent, Delivery, DeliveryAborted, LinkDrained, LinkFlow, TransactionalDelivery
from pairbus.amqp.lifecycle import EndpointState, Step, after
from pairbus.amqp.performatives import (
    Attach,
    Coordinator,
    Detach,
    Error,
    Flow,
    Source,
    Target,
    TransactionalState,
)
from pairbus.amqp.transfers import TransferHeads, TransferMould

if TYPE_CHECKING:
    from pairbus.amqp.session import Session

MASK = 0xFFFFFFFF  # delivery counts and ids are serial numbers of 32 bits (RFC 1982)
SENDER, RECEIVER = False, True


class SentDelivery:
    """A delivery of ours that the peer has not settled yet."""

    __slots__ = ("delivery_id", "link", "tag")

    def __init__(self, link: SenderLink, delivery_id: int, tag: bytes) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag

    def __repr__(self) -> str:
        return f"<SentDelivery {self.delivery_id} on {self.link.name}>"


class Link:
    """State that both ends of a link share."""

    role: bool

    def __init__(self, session: Session, name: str, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        "Our handle; the peer's is `remote_handle`."
        self.remote_handle: int | None = None
        self.state = EndpointState.FRESH
        self.credit = 0
        self.delivery_count = 0
        self.drain = False
        self.remote_attach: Attach | None = None
        self.context: object = None
        "The end of the link that the user of the core keeps here, and reads back with its own type (`end_of`)."

    def __repr__(self) -> str:
        kind = "ReceiverLink" if self.role else "SenderLink"
        return f"<{kind} {self.name} {self.state.name} credit={self.credit}>"

    @property
    def is_open(self) -> bool:
        return self.state is EndpointState.OPEN and not self.session.is_over

    def attach(
        self,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        snd_settle_mode: int = 2,
        rcv_settle_mode: int = 0,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        """Send our attach: the first frame of a client, the answer of a server."""
        if self.state is EndpointState.CLOSED:
            return
        self.state = after(self.state, Step.SENT_OPEN, f"link {self.name}")
        self._on_attaching(max_message_size)
        self.session.send_performative(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                snd_settle_mode=snd_settle_mode,
                rcv_settle_mode=rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=self.delivery_count if self.role is SENDER else None,
                max_message_size=max_message_size,
                properties=properties,
            )
        )

    def refuse(self, error: Error, *, bare: bool = False) -> None:
        """Refuse a peer's attach: send an attach without termini, then a closing detach (2.6.3).

        `bare`: the attach has only name, handle and role.
        """
        attach = self.remote_attach
        assert attach is not None
        if bare and self.state is EndpointState.OFFERED:
            self.state = after(self.state, Step.SENT_OPEN, f"link {self.name}")
            self.session.send_performative(Attach(name=self.name, handle=self.handle, role=self.role))
        else:
            self.attach(snd_settle_mode=attach.snd_settle_mode, rcv_settle_mode=attach.rcv_settle_mode)
        self.detach(error)

    def detach(self, error: Error | None = None, *, closed: bool = True) -> None:
        """Send our detach; as an answer, with the same `closed`, or the peer must attach again (2.6.6)."""
        if self.state is EndpointState.CLOSED:
            return
        self.state = after(self.state, Step.SENT_CLOSE, f"link {self.name}")
        self.session.send_performative(Detach(handle=self.handle, closed=closed, error=error))
        self.cut()
        self.session.release(self)

    def cut(self) -> None:
        """Forget messages that are half sent or half received, because the link, session or connection ends."""
        self.session.forget_output(self)

    def on_attach(self, attach: Attach) -> None:
        self.state = after(self.state, Step.GOT_OPEN, f"link {self.name}")
        self.remote_attach = attach
        self.remote_handle = attach.handle

    def on_detach(self) -> None:
        self.state = after(self.state, Step.GOT_CLOSE, f"link {self.name}")
        self.cut()
        self.session.release(self)

    def on_flow(self, flow: Flow, events: list[AmqpEvent]) -> None:
        raise AssertionError("every link is a sender or a receiver")

    def _on_attaching(self, max_message_size: int | None) -> None:
        raise AssertionError("every link is a sender or a receiver")

    def send_flow(self, *, echo: bool = False) -> None:
        self.session.send_flow(self, echo=echo)


class SenderLink(Link):
    """The end that sends messages."""

    role = SENDER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.heads = TransferHeads(session.channel, handle)
        self.granted = 0
        "The credit that the receiver's last flow named."
        self.seen_count = 0
        "Delivery count in that flow: number of our deliveries that the receiver had seen then."
        self._initial_delivery_count = 0

    def _on_attaching(self, max_message_size: int | None) -> None:
        self._initial_delivery_count = self.delivery_count

    @property
    def sendable(self) -> bool:
        """True when one more delivery can go out now without waiting for credit or for the session's window."""
        return self.credit > 0 and self.state is EndpointState.OPEN and self.session.window_open

    @property
    def room(self) -> int:
        """Number of deliveries of one frame each that can go out now."""
        return min(self.credit, self.session.room) if self.state is EndpointState.OPEN else 0

    def send_run(self, payloads: Sequence[bytes], tags: Sequence[bytes]) -> None:
        """Send several whole messages, unsettled. The caller has looked at `room`."""
        assert self.state is EndpointState.OPEN, self
        self.credit -= len(payloads)
        self.delivery_count = (self.delivery_count + len(payloads)) & MASK
        self.session.send_transfers(self, payloads, tags)

    def send(self, payload: bytes, tag: bytes, *, message_format: int = 0, settled: bool = False) -> int:
        """Send one whole message and return its delivery id. The caller has looked at `sendable`."""
        assert self.state is EndpointState.OPEN, self
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & MASK
        return self.session.send_transfer(self, payload, tag, message_format, settled)

    def send_in(self, txn_id: bytes, payload: bytes, tag: bytes, *, message_format: int = 0) -> int:
        """Send one whole message, unsettled, in a transaction; as `send`."""
        assert self.state is EndpointState.OPEN, self
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & MASK
        state = TransactionalState(txn_id).encode()
        return self.session.send_transfer(self, payload, tag, message_format, False, state)

    def drained(self) -> None:
        """Give back the rest of the credit, because there is no more to send (2.6.7)."""
        self.delivery_count = (self.delivery_count + self.credit) & MASK
        self.credit = 0
        self.send_flow()
        self.drain = False

    def on_flow(self, flow: Flow, events: list[AmqpEvent]) -> None:
        # A receiver that has not seen our attach yet cannot name a count: it means the one in the attach (2.6.7).
        seen = self._initial_delivery_count if flow.delivery_count is None else flow.delivery_count
        on_their_way = (self.delivery_count - seen) & MASK
        if on_their_way > 0x7FFFFFFF:
            on_their_way = 0  # the receiver counts more than we sent: only its credit is of use
        self.seen_count = seen
        self.granted = flow.link_credit or 0
        self.credit = max(self.granted - on_their_way, 0)
        self.drain = flow.drain
        events.append(LinkFlow(self))


class ReceiverLink(Link):
    """The end that receives messages."""

    role = RECEIVER

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.max_message_size = 0
        "0: no limit of its own. Larger messages arrive as deliveries that are `too_large` and carry no bytes."
        self.auto_credit = 0
        "Credit that the sender is kept supplied with; 0: the user grants it by hand."
        self.unsettled = 0
        self._partial: bytearray | None = None
        "Bytes of a message that is not whole yet."
        self._partial_is_too_large = False
        self._partial_head: tuple[int, bytes, int, bool] = (0, b"", 0, False)
        self._partial_state: TransactionalState | None = None

    def _on_attaching(self, max_message_size: int | None) -> None:
        self.max_message_size = max_message_size or 0

    @property
    def arrived_bytes(self) -> int:
        """Bytes of a message that has arrived in part; 0: there is none."""
        return len(self._partial or b"")

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Set the credit that the sender has from now on."""
        self.credit = credit
        self.drain = drain
        self.send_flow()

    def keep_credit(self, credit: int) -> None:
        """Grant `credit` now and top it up whenever half of it is used."""
        self.auto_credit = credit
        self.grant(credit)

    def settle(self, first: int, last: int, state: bytes, count: int, *, settled: bool = True) -> None:
        """Settle the `count` deliveries of this link among the ids first … last, with an encoded outcome.

        Not `settled`: the sender is asked to settle them; its answer arrives as SettlementAnswered.
        """
        self.unsettled -= count
        if not settled:
            self.session.asks_settlement = True
        self.session.send_disposition(RECEIVER, first, last, settled, state)

    def on_attach(self, attach: Attach) -> None:
        super().on_attach(attach)
        self.delivery_count = attach.initial_delivery_count or 0

    def on_flow(self, flow: Flow, events: list[AmqpEvent]) -> None:
        # The credit in a sender's flow is the sender's own view and is ignored, but such a flow answers a drain.
        if self.drain and flow.drain and flow.delivery_count is not None:
            self.delivery_count = flow.delivery_count
            self.credit = flow.link_credit or 0
            if self.credit == 0:
                self.drain = False
                events.append(LinkDrained(self))

    def on_transfer(  # noqa: PLR0913, PLR0917 - the fields of a transfer
        self,
        delivery_id: int | None,
        tag: bytes | None,
        message_format: int | None,
        settled: bool,
        more: bool,
        aborted: bool,
        state: TransactionalState | None,
        payload: bytes,
        events: list[AmqpEvent],
    ) -> None:
        if self._partial is None:
            if delivery_id is None or tag is None:
                raise ProtocolError(ILLEGAL_STATE, f"link {self.name}: a delivery starts without id or tag")
            self.delivery_count = (self.delivery_count + 1) & MASK
            self.credit -= 1
            if self.credit <= self.auto_credit >> 1 and self.auto_credit:
                self.grant(self.auto_credit)
            if aborted:
                events.append(DeliveryAborted(self))
                return
            if not more:
                self._deliver(delivery_id, tag, message_format or 0, settled, payload, False, state, events)
                return
            self._partial = bytearray()
            self._partial_is_too_large = False
            self._partial_head = (delivery_id, tag, message_format or 0, settled)
            self._partial_state = state
        elif delivery_id is not None and delivery_id != self._partial_head[0]:
            raise ProtocolError(ILLEGAL_STATE, f"link {self.name}: delivery {delivery_id} inside another")
        elif settled and not self._partial_head[3]:  # any frame of the delivery may have `settled` (2.7.5)
            self._partial_head = (*self._partial_head[:3], True)
        if state is not None:  # any frame may have it
            self._partial_state = state
        if aborted:
            self._drop_partial()
            events.append(DeliveryAborted(self))
            return
        self._add_to_partial(self._partial, payload)
        if not more:
            whole = bytes(self._partial)
            self._drop_partial()
            self._deliver(*self._partial_head, whole, self._partial_is_too_large, self._partial_state, events)

    def on_run(
        self, mould: TransferMould, buf: bytes, pos: int, count_max: int, frame_size_max: int, events: list[AmqpEvent]
    ) -> int:
        """Do `on_transfer` for at most `count_max` frames from `pos` on, and return the position behind them.

        They fit the mould of the frame before them, which was the last of its delivery.
        """
        unpack, head_size, before, between, behind, _, message_format, settled = mould
        if self.auto_credit:
            count_max = min(count_max, self.credit - (self.auto_credit >> 1) - 1)
        if not settled:
            count_max = min(count_max, self.session.unsettled_max - self.unsettled)
        if self.max_message_size:
            frame_size_max = min(frame_size_max, head_size + self.max_message_size)
        count, total, add = 0, len(buf), events.append
        while count < count_max and pos + head_size <= total:
            size, head, delivery_id, tag_head, tag, tail = unpack(buf, pos)
            stop = pos + size
            if head != before or tag_head != between or tail != behind or stop > total:
                break
            if not head_size <= size <= frame_size_max:
                break
            add(Delivery(self, delivery_id, tag, message_format, settled, buf[pos + head_size : stop]))
            pos = stop
            count += 1
        self.delivery_count = (self.delivery_count + count) & MASK
        self.credit -= count
        if not settled:
            self.unsettled += count
        return pos

    def _add_to_partial(self, partial: bytearray, payload: bytes) -> None:
        """Keep the bytes of a message until it is whole; a message beyond the limit is only marked as too large."""
        connection = self.session.connection
        if self._partial_is_too_large or 0 < self.max_message_size < len(partial) + len(payload):
            self._partial_is_too_large = True
            connection.partial_bytes -= len(partial)
            partial.clear()
            return
        if connection.partial_bytes + len(payload) > connection.settings.partial_bytes_max:
            raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"{connection.partial_bytes} bytes of unfinished messages")
        connection.partial_bytes += len(payload)
        partial += payload

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self.session.connection.partial_bytes -= len(self._partial)
            self._partial = None

    def cut(self) -> None:
        super().cut()
        self._drop_partial()

    def _deliver(  # noqa: PLR0917 - the fields of a transfer
        self,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        too_large: bool,
        state: TransactionalState | None,
        events: list[AmqpEvent],
    ) -> None:
        if not settled:
            self.unsettled += 1
            if self.unsettled > self.session.unsettled_max:
                raise ProtocolError(TRANSFER_LIMIT_EXCEEDED, f"link {self.name}: {self.unsettled} unsettled deliveries")
        if state is None:
            delivery = Delivery(self, delivery_id, tag, message_format, settled, payload)
        else:
            delivery = TransactionalDelivery(self, delivery_id, tag, message_format, settled, payload, state.txn_id)
        if too_large or 0 < self.max_message_size < len(payload):
            delivery.too_large = True
            delivery.payload = b""
        events.append(delivery)


def address_of(terminus: Source | Target | Any) -> str | None:
    """Return the address of a source or target; None when it has none that is text."""
    address = getattr(terminus, "address", None)
    return address if isinstance(address, str) else None


def ranges(ids: list[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each consecutive run of delivery ids in ascending order; ids wrap around at 32 bits."""
    if not ids:
        return []
    if (ids[-1] - ids[0]) & MASK == len(ids) - 1:
        return [(ids[0], ids[-1])]
    runs = [(ids[0], ids[0])]
    for delivery_id in ids[1:]:
        if delivery_id == (runs[-1][1] + 1) & MASK:
            runs[-1] = (runs[-1][0], delivery_id)
        else:
            runs.append((delivery_id, delivery_id))
    return runs
