"""Sessions: windows, delivery ids, handles; a session owns its links (AMQP 2.5).

A session is over when our end, or our close of the connection, has been sent. From then on frames of its links are
dropped: a user who answers late (a commit was under way) does no harm.

Windows count transfer frames. Deliveries that do not fit the peer's window or one frame wait in `_outgoing`; users of
the core ask `window_open` or `room` before they send, so that at most the last delivery or run of a link ever waits.

Frames of the peer on a handle whose link has ended are late, not wrong: they count for the window and mean nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pairbus.amqp.errors import (
    HANDLE_IN_USE,
    ILLEGAL_STATE,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    WINDOW_VIOLATION,
    ProtocolError,
)
from pairbus.amqp.events import (
    AmqpEvent,
    Disposed,
    LinkAttached,
    LinkDetached,
    SessionEnded,
    SessionFlow,
    SettlementAnswered,
)
from pairbus.amqp.lifecycle import EndpointState, Step, after
from pairbus.amqp.link import MASK, SENDER, Link, ReceiverLink, SenderLink, SentDelivery
from pairbus.amqp.performatives import (
    Attach,
    Begin,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Received,
    TransactionalState,
)
from pairbus.amqp.pieces import OutgoingDelivery
from pairbus.amqp.transfers import FIRST_HEAD_MAX, decode_transfer, disposition_frame, mould_of

if TYPE_CHECKING:
    from pairbus.amqp.connection import Connection

NOTHING: deque[OutgoingDelivery] = deque()
"Empty deque, shared by all sessions that never had an outgoing delivery; a deque takes 0.7 KB."
_L = TypeVar("_L", bound=Link)


class Session:
    """One session. Made by the connection, for the peer's begin or for `Connection.new_session`."""

    def __init__(self, connection: Connection, channel: int) -> None:
        settings = connection.settings
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.state = EndpointState.FRESH
        self.unsettled_max = settings.unsettled_max
        self.asks_settlement = False
        "True: we have sent an unsettled settlement, so the sending peer's dispositions are answers to it."
        self._window = settings.incoming_window
        self._window_low = self._window // 3 if settings.checks_window else self._window >> 1
        "Rest of the window at which the window is renewed."
        self._incoming_window = settings.incoming_window
        self._next_incoming_id = 0
        self._next_outgoing_id = settings.next_outgoing_id
        self._next_delivery_id = 0
        self._remote_window = 0
        self._handle_max = settings.handle_max
        self._remote_handle_max = 0xFFFFFFFF
        self._by_name: dict[tuple[str, bool], Link] = {}
        self._by_handle: dict[int, Link] = {}
        self._by_remote_handle: dict[int, Link] = {}
        self._ended_handles: frozenset[int] = frozenset()
        "Handles of the peer whose links have ended; at most `handle_max`."
        self._sent: dict[int, SentDelivery] = {}
        self._outgoing = NOTHING
        self._dropped: frozenset[int] = frozenset()
        "Deliveries of links that ended before the last frame was written; at most one for each link."
        self.is_over = False
        self._write = connection.write

    def __repr__(self) -> str:
        return f"<Session {self.channel} {self.state.name} links={len(self._by_handle)} unsettled={len(self._sent)}>"

    @property
    def links(self) -> list[Link]:
        return list(self._by_handle.values())

    def link_count(self) -> int:
        return len(self._by_handle)

    @property
    def window_open(self) -> bool:
        return self._remote_window > 0 and not self._outgoing

    @property
    def room(self) -> int:
        """Number of frames that can go out at once."""
        return 0 if self._outgoing else self._remote_window

    @property
    def has_pieces(self) -> bool:
        """True when a delivery waits for its turn and the peer's window is open."""
        return self._remote_window > 0 and bool(self._outgoing)

    @property
    def has_waiting(self) -> bool:
        """True while a delivery waits for the peer's window."""
        return bool(self._outgoing)

    def outgoing_ids(self) -> frozenset[int]:
        """Return the ids of deliveries whose last frame was not written: the peer cannot have accepted them."""
        return self._dropped.union(delivery.delivery_id for delivery in self._outgoing)

    @property
    def sent_unsettled(self) -> int:
        return len(self._sent)

    # ── calls of the user ──

    def begin(self) -> None:
        """Send our begin: the first frame of a client, the answer of a server."""
        if self.state is EndpointState.CLOSED:
            return
        self.state = after(self.state, Step.SENT_OPEN, f"session {self.channel}")
        self._incoming_window = self._window
        self.send_performative(
            Begin(
                remote_channel=self.remote_channel,
                next_outgoing_id=self._next_outgoing_id,
                incoming_window=self._incoming_window,
                outgoing_window=self.connection.settings.outgoing_window,
                handle_max=self._handle_max,
            )
        )

    def end(self, error: Error | None = None) -> None:
        """Send our end. The links go with the session; no detach is needed."""
        if self.state is EndpointState.CLOSED:
            return
        self.state = after(self.state, Step.SENT_CLOSE, f"session {self.channel}")
        self.send_performative(End(error=error))
        self.cut()
        self.connection.release(self)

    def cut(self) -> None:
        """Send no more frames on this session."""
        self.is_over = True
        self._write = _say_nothing
        self._remote_window = 0
        for link in self._by_handle.values():
            link.cut()

    def new_sender(self, name: str) -> SenderLink:
        return self._add_link(SenderLink(self, name, self._free_handle()))

    def new_receiver(self, name: str) -> ReceiverLink:
        return self._add_link(ReceiverLink(self, name, self._free_handle()))

    def settle_sent(self, first: int, last: int, state: bytes) -> None:
        """Answer the peer's unsettled disposition of our deliveries first … last: they are settled with `state`."""
        self.send_disposition(SENDER, first, last, True, state)

    def answer_sent(self, delivery_id: int, state: bytes) -> None:
        """Answer the peer's transactional disposition of one delivery of ours, which stays unsettled."""
        self.send_disposition(SENDER, delivery_id, delivery_id, False, state)

    def settle_kept(self, delivery_id: int, state: bytes) -> None:
        """Settle a delivery that stayed unsettled with a transactional state, unless its link is gone."""
        if self.drop_kept(delivery_id):
            self.settle_sent(delivery_id, delivery_id, state)

    def drop_kept(self, delivery_id: int) -> bool:
        """Forget a delivery that stayed unsettled; False: it was settled, or its link is gone."""
        return self._sent.pop(delivery_id, None) is not None

    # ── calls of links ──

    def send_performative(self, performative: Composite) -> None:
        if not self.is_over:
            self.connection.send_performative(self.channel, performative)

    def send_disposition(self, role: bool, first: int, last: int, settled: bool, state: bytes) -> None:
        if self.is_over:
            return
        if self.connection.trace is not None:
            self.connection.trace("->", self.channel, f"disposition {role=} {first=} {last=} {settled=} {state=}")
        self.connection.send_frame(disposition_frame(self.channel, role, first, last, settled, state))

    def send_flow(self, link: Link | None = None, *, echo: bool = False) -> None:
        flow = Flow(
            next_incoming_id=self._next_incoming_id if self.remote_channel is not None else None,
            incoming_window=self._incoming_window,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=self.connection.settings.outgoing_window,
            echo=echo,
        )
        if link is not None:
            flow.handle = link.handle
            # a receiver that has not seen the sender's attach does not know its count yet (2.7.4)
            flow.delivery_count = None if link.role and link.remote_attach is None else link.delivery_count
            flow.link_credit = max(link.credit, 0)
            flow.drain = link.drain
        self.send_performative(flow)

    def send_transfer(
        self, link: SenderLink, payload: bytes, tag: bytes, message_format: int, settled: bool, state: bytes = b""
    ) -> int:
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & MASK
        if not settled:
            self._sent[delivery_id] = SentDelivery(link, delivery_id, tag)
        if self.connection.trace is not None:
            self.connection.trace("->", self.channel, f"transfer {delivery_id} of {len(payload)} B on {link.name}")
        size, limit = len(payload), self.connection.transfer_size_max
        if size + FIRST_HEAD_MAX <= limit and self._remote_window > 0 and not self._outgoing and not state:
            self._remote_window -= 1  # almost every message: without one more call
            self._next_outgoing_id = (self._next_outgoing_id + 1) & MASK
            self._write(link.heads.first(delivery_id, tag, message_format, settled, False, size))
            self._write(payload)
        elif not self.is_over:
            if self._outgoing is NOTHING:
                self._outgoing = deque()
            self._outgoing.append(OutgoingDelivery(link, delivery_id, tag, message_format, settled, payload, state))
            self._write_outgoing()
        return delivery_id

    def send_transfers(self, link: SenderLink, payloads: Sequence[bytes], tags: Sequence[bytes]) -> None:
        """Send unsettled deliveries that mostly fit one frame each, and the peer's window together."""
        connection, count = self.connection, len(payloads)
        fits = max(map(len, payloads)) + FIRST_HEAD_MAX <= connection.transfer_size_max and count <= self.room
        if not fits or connection.trace is not None:
            for payload, tag in zip(payloads, tags, strict=True):
                self.send_transfer(link, payload, tag, 0, False)
            return
        first = self._next_delivery_id
        ids = range(first, first + count) if first + count <= MASK else [(first + i) & MASK for i in range(count)]
        self._sent.update([(each, SentDelivery(link, each, tag)) for each, tag in zip(ids, tags, strict=True)])
        self._next_delivery_id = (first + count) & MASK
        self._remote_window -= count
        self._next_outgoing_id = (self._next_outgoing_id + count) & MASK
        connection.write_all(link.heads.run(ids, tags, payloads))

    def _write_outgoing(self) -> None:
        if self.connection.paced:
            if self.has_pieces and self not in self.connection.ring:
                self.connection.ring.append(self)
        else:
            while self.write_piece():
                pass

    def write_piece(self) -> bool:
        """Write the next frame of the outgoing deliveries; False when there is none, or no window for it."""
        if not self.has_pieces:
            return False
        head, piece, more = self._outgoing[0].next_frame(self.connection.transfer_size_max)
        self._remote_window -= 1
        self._next_outgoing_id = (self._next_outgoing_id + 1) & MASK
        self._write(head)
        self._write(piece)
        if not more:
            self._outgoing.popleft()
        return True

    def abort(self, delivery_id: int) -> bool:
        """Take back a delivery whose last frame is not written; False when it is too late."""
        for delivery in self._outgoing:
            if delivery.delivery_id == delivery_id:
                delivery.aborted = True
                self._sent.pop(delivery_id, None)
                return True
        return False

    def forget_output(self, link: Link) -> None:
        """Drop the deliveries of a link that is being detached, also those that wait for the window."""
        if self._outgoing:
            self._dropped |= {delivery.delivery_id for delivery in self._outgoing if delivery.link is link}
            self._outgoing = deque(delivery for delivery in self._outgoing if delivery.link is not link)

    def release(self, link: Link) -> None:
        """Free the name and the handle of a link that both ends have detached."""
        if link.state is EndpointState.CLOSED:
            self._by_handle.pop(link.handle, None)
            if self._by_name.get((link.name, link.role)) is link:  # a new link may have taken the name already
                del self._by_name[link.name, link.role]
            self._forget_sent(link)

    # ── frames of the peer ──

    def on_begin(self, begin: Begin) -> None:
        self.state = after(self.state, Step.GOT_OPEN, f"session {self.channel}")
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = 0 if self.is_over else begin.incoming_window
        self._remote_handle_max = begin.handle_max

    def on_end(self) -> None:
        self.state = after(self.state, Step.GOT_CLOSE, f"session {self.channel}")

    def _break_off(self, condition: str, description: str, events: list[AmqpEvent]) -> None:
        """End the session, not the connection, because the peer went beyond one of the session's limits."""
        self.end(self.connection.worded(Error(condition, description)))
        events.append(SessionEnded(self, None))

    def on_attach(self, attach: Attach, events: list[AmqpEvent]) -> None:
        link_max = self.connection.settings.session_link_max
        if link_max is not None and len(self._by_handle) >= link_max and self.state is EndpointState.OPEN:
            self._break_off(RESOURCE_LIMIT_EXCEEDED, f"The session has {link_max} links, the most it can have.", events)
            return
        if attach.handle > self._handle_max:
            raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"handle {attach.handle} > {self._handle_max}")
        holder = self._by_remote_handle.get(attach.handle)
        if holder is not None:
            if holder.state is EndpointState.CLOSING and holder.name == attach.name:
                # The Python SDK answers a refusal with the same attach once more and only then with its detach, as
                # after a detach without closing (2.6.6). The link is already on its way out.
                return
            raise ProtocolError(HANDLE_IN_USE, f"handle {attach.handle} is attached already")
        link = self._by_name.get((attach.name, not attach.role))
        if (
            link is None
            or link.state not in (EndpointState.OPENING, EndpointState.CLOSING)
            or link.remote_attach is not None
        ):
            kind: type[Link] = ReceiverLink if attach.role is SENDER else SenderLink
            self.connection.check_room_for_link()
            link = self._add_link(kind(self, attach.name, self._free_handle(attach.handle)))
        link.on_attach(attach)
        self._by_remote_handle[attach.handle] = link
        self._ended_handles -= {attach.handle}
        if link.state is not EndpointState.CLOSING:
            events.append(LinkAttached(link, attach))

    def _free_handle(self, wanted: int = 0) -> int:
        taken = self._by_handle
        if wanted not in taken and wanted <= self._remote_handle_max:
            return wanted
        limit = min(self._remote_handle_max, self._handle_max)
        for handle in range(min(limit, len(taken)) + 1):
            if handle not in taken:
                return handle
        raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"session {self.channel} has no free handle")

    def _add_link(self, link: _L) -> _L:
        self._by_handle[link.handle] = link
        self._by_name[link.name, link.role] = link
        return link

    def on_flow(self, flow: Flow, events: list[AmqpEvent]) -> None:
        # A peer that has not seen our begin cannot name an id: it means the first one (2.5.6).
        first = self.connection.settings.next_outgoing_id
        seen = first if flow.next_incoming_id is None else flow.next_incoming_id
        on_their_way = (self._next_outgoing_id - seen) & MASK
        if on_their_way > 0x7FFFFFFF:
            on_their_way = 0  # the peer counts more than we sent: only its window is of use
        was_open = self.window_open
        self._remote_window = max(flow.incoming_window - on_their_way, 0)
        if self._outgoing:
            self._write_outgoing()
        link = None if flow.handle is None else self._link(flow.handle)
        if link is not None and link.state in (
            EndpointState.OPEN,
            EndpointState.OFFERED,
        ):  # credit may come before our attach goes
            link.on_flow(flow, events)
        if flow.echo and self.state is EndpointState.OPEN:
            self.send_flow(link if link is not None and link.state is EndpointState.OPEN else None)
        if self.window_open and not was_open:
            events.append(SessionFlow(self))

    def on_transfers(self, buf: bytes, pos: int, end: int, events: list[AmqpEvent]) -> int:
        """Read the transfer at `pos` of a frame that ends at `end`, and the transfers behind it that are like it.

        Return the position behind the frames that were read. A run stops before every frame that needs more than
        counting: a window or credit to be renewed, a limit, a frame that is not whole.
        """
        self.on_transfer(buf, pos, end, events)
        if self.is_over:
            return end
        if buf[end + 4 : end + 16] != buf[pos - 4 : pos + 8]:
            return end
        mould = mould_of(buf, pos, end)
        if mould is None:
            return end
        link = self._by_remote_handle.get(mould.handle)
        if link is None or not (link.state is EndpointState.OPEN or link.state is EndpointState.OFFERED):
            return end
        count_max = self._incoming_window - self._window_low - 1
        before = len(events)
        end = link.on_run(mould, buf, end, count_max, self.connection.settings.max_frame_size, events)  # type: ignore[attr-defined]
        count = len(events) - before
        self._next_incoming_id = (self._next_incoming_id + count) & MASK
        self._incoming_window -= count
        return end

    def on_transfer(self, buf: bytes, pos: int, end: int, events: list[AmqpEvent]) -> None:
        handle, delivery_id, tag, message_format, settled, more, aborted, state, at = decode_transfer(buf, pos, end)
        self._next_incoming_id = (self._next_incoming_id + 1) & MASK
        self._incoming_window -= 1
        if self._incoming_window <= self._window_low and self.state is EndpointState.OPEN:
            if not self.connection.settings.checks_window:
                self.renew_window()
            elif self._incoming_window < 0:
                self._break_off(WINDOW_VIOLATION, f"More transfers than the window of {self._window} allows.", events)
                return
            elif self._incoming_window == self._window_low:
                self.connection.sessions_to_renew.append(self)
        link = self._by_remote_handle.get(handle)
        if link is None and handle in self._ended_handles:
            return
        if link is None or link.role is SENDER:
            raise ProtocolError(UNATTACHED_HANDLE, f"transfer on handle {handle}")
        if link.state is EndpointState.OPEN or link.state is EndpointState.OFFERED:
            # A transfer of a peer that does not wait for our attach is read as well: it must not matter whether its
            # bytes come together with its attach, before the user could answer.
            link.on_transfer(delivery_id, tag, message_format, settled, more, aborted, state, buf[at:end], events)  # type: ignore[attr-defined]

    def renew_window(self) -> None:
        """Let the peer send on, unless the session is over."""
        self._incoming_window = self._window
        self.send_flow()

    def on_disposition(self, disposition: Disposition, events: list[AmqpEvent]) -> None:
        first, sent = disposition.first, self._sent
        last = first if disposition.last is None else disposition.last
        span = (last - first) & MASK
        if span > 0x7FFFFFFF:
            raise ProtocolError(ILLEGAL_STATE, f"disposition from {first} back to {disposition.last}")
        if disposition.role is SENDER:  # about messages that we received; not awaited by receivers that settle at once
            if self.asks_settlement:
                events.append(SettlementAnswered(self, first, last, disposition.settled, disposition.state))
            return
        state = disposition.state
        if not disposition.settled and (state is None or isinstance(state, Received)):
            return  # only the receiver's progress: no outcome yet
        ids: Iterable[int]
        if span == 0:
            ids = (first,)
        elif span < len(sent):
            ids = range(first, last + 1) if first <= last else [(first + step) & MASK for step in range(span + 1)]
        else:  # a wide range costs no more than the deliveries that are not settled
            ids = [i for i in sent if (i - first) & MASK <= span]
        # The roll-back of a transaction leaves its deliveries as they were.
        take = sent.get if type(state) is TransactionalState and not disposition.settled else sent.pop
        deliveries = [delivery for delivery_id in ids if (delivery := take(delivery_id, None)) is not None]
        if deliveries:
            events.append(Disposed(self, deliveries, disposition.settled, state))

    def on_detach(self, detach: Detach, events: list[AmqpEvent]) -> None:
        link = self._link(detach.handle)
        if link is None:
            return  # late: SDKs detach a second time while they close
        del self._by_remote_handle[detach.handle]
        self._ended_handles |= {detach.handle}
        link.on_detach()
        # Dispositions of the peer for deliveries of this link are ignored from now on; the user decides about the
        # deliveries. The Python SDK sends such ones on a broken link, and then settles in another way.
        self._forget_sent(link)
        events.append(LinkDetached(link, detach.closed, detach.error))

    def _forget_sent(self, link: Link) -> None:
        if isinstance(link, SenderLink) and self._sent:
            self._sent = {i: sent for i, sent in self._sent.items() if sent.link is not link}

    def _link(self, remote_handle: int) -> Link | None:
        """Return the link with this handle of the peer; None when the link has ended."""
        link = self._by_remote_handle.get(remote_handle)
        if link is None and remote_handle not in self._ended_handles:
            raise ProtocolError(UNATTACHED_HANDLE, f"handle {remote_handle} is not attached")
        return link


def _say_nothing(data: bytes) -> None:
    """Drop a frame: takes the place of the writer in a session that is over."""
