"""A client object and a server object joined by a fake link, and a strict reader of all that either writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import AmqpEvent, ConnectionOpened, Delivery, LinkAttached, LinkDetached, SessionBegun
from pairbus.amqp.frames import AMQP_HEADER, SASL_HEADER, FrameBuffer
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.link import ReceiverLink, SenderLink
from pairbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
    decode_performative,
)
from pairbus.amqp.sasl import SaslClient, SaslServer
from pairbus.amqp.session import Session
from pairbus.amqp.types import decode


class StrictReader:
    """Asserts that a byte stream is legal output of one end: order, channels, handles, frame sizes, delivery ids, and
    that performatives are whole.
    """

    def __init__(self, max_frame_size: int = 1 << 32) -> None:
        self.max_frame_size = max_frame_size
        self.frames: list[tuple[int, Composite, bytes]] = []
        "(channel, performative, payload) of every frame so far."
        self._buffer = FrameBuffer(1 << 32)
        self._held = b""
        self._in_sasl = self._is_headed = False
        self._is_open = self._is_closed = False
        self._handles: dict[int, set[int]] = {}
        self._next_delivery_id: dict[int, int] = {}
        self._unfinished: dict[tuple[int, int], int] = {}

    def read(self, data: bytes) -> None:
        held, at = self._held + data, 0
        while len(held) - at >= 8:
            if not self._is_headed:
                header = held[at : at + 8]
                assert header in (AMQP_HEADER, SASL_HEADER), header
                self._is_headed, self._in_sasl = True, header == SASL_HEADER
                at += 8
                continue
            assert not self._is_closed, "a frame after close"
            size = int.from_bytes(held[at : at + 4], "big")
            if len(held) - at < size:
                break
            ((frame_type, channel, buf, start, end),) = self._buffer.frames(held[at : at + size])
            at += size
            assert frame_type == (1 if self._in_sasl else 0)
            if start < end:
                self._on_frame(channel, buf[start:end], size)
            else:
                assert self._is_open, "an empty frame before open"
        self._held = held[at:]

    def _on_frame(self, channel: int, body: bytes, size: int) -> None:
        performative, end = decode_performative(body, 0)
        self.frames.append((channel, performative, body[end:]))
        if performative.IS_WHOLE:
            values = decode(body, 0)[0].value
            assert len(values) == len(performative.ROWS), f"{performative} with {len(values)} fields"
        assert end == len(body) or isinstance(performative, Transfer), "bytes behind a performative"
        if self._in_sasl:
            assert isinstance(performative, SaslMechanisms | SaslInit | SaslOutcome)
            if isinstance(performative, SaslInit | SaslOutcome):
                self._in_sasl = self._is_headed = False
            return
        assert not self._is_closed, f"{performative} after close"
        if isinstance(performative, Open):
            assert not self._is_open
            self._is_open = True
            return
        assert self._is_open, f"{performative} before open"
        assert size <= self.max_frame_size, f"frame of {size} bytes, {performative}"
        if isinstance(performative, Close):
            self._is_closed = True
        elif isinstance(performative, Begin):
            assert channel not in self._handles, f"channel {channel} begun twice"
            self._handles[channel] = set()
            self._next_delivery_id[channel] = 0
        else:
            self._on_session_frame(channel, performative)

    def _on_session_frame(self, channel: int, performative: Composite) -> None:
        handles = self._handles.get(channel)
        assert handles is not None, f"{performative} on channel {channel}, which is not begun"
        if isinstance(performative, End):
            del self._handles[channel]
        elif isinstance(performative, Attach):
            assert performative.handle not in handles
            handles.add(performative.handle)
        elif isinstance(performative, Detach):
            handles.remove(performative.handle)
            self._unfinished.pop((channel, performative.handle), None)
        elif isinstance(performative, Transfer):
            assert performative.handle in handles
            begun = self._unfinished.pop((channel, performative.handle), None)
            if begun is None:
                begun = performative.delivery_id
                assert begun == self._next_delivery_id[channel]
                self._next_delivery_id[channel] = (begun + 1) & 0xFFFFFFFF
            assert performative.delivery_id in (None, begun)
            if performative.more and not performative.aborted:
                self._unfinished[channel, performative.handle] = begun
        elif isinstance(performative, Flow):
            assert performative.handle is None or performative.handle in handles
        else:
            assert isinstance(performative, Disposition), performative


Answer = Callable[[Connection, AmqpEvent], None]


def answer_as_server(connection: Connection, event: AmqpEvent) -> None:
    """A server that takes everything and says nothing of its own."""
    if isinstance(event, ConnectionOpened):
        connection.open()
    elif isinstance(event, SessionBegun):
        event.session.begin()
    elif isinstance(event, LinkAttached):
        event.link.attach(source=event.attach.source, target=event.attach.target, max_message_size=1 << 20)
        if isinstance(event.link, ReceiverLink):
            event.link.grant(100)
    elif isinstance(event, LinkDetached) and event.link.state is EndpointState.CLOSE_ASKED:
        event.link.detach(closed=event.closed)


def answer_nothing(connection: Connection, event: AmqpEvent) -> None:
    """The test answers by hand."""


class Pair:
    """Client and server core. `pump` carries bytes both ways until both have no more output."""

    def __init__(
        self, client: dict[str, Any] | None = None, server: dict[str, Any] | None = None, answer: Answer | None = None
    ) -> None:
        self.client = Connection(ConnectionSettings("client", **(client or {})), SaslClient())
        self.server = Connection(ConnectionSettings("server", **(server or {})), SaslServer())
        self.answer = answer or answer_as_server
        self.now = 1000.0
        self.at_client: list[AmqpEvent] = []
        self.at_server: list[AmqpEvent] = []
        self.from_client = StrictReader(self.server.settings.max_frame_size)
        self.from_server = StrictReader(self.client.settings.max_frame_size)

    def pump(self) -> None:
        while self.client.has_output or self.server.has_output:
            self.client_speaks()
            self.server_speaks()

    def client_speaks(self) -> list[AmqpEvent]:
        data = self.client.data_to_send()
        self.from_client.read(data)
        events = self.server.receive_data(data, self.now)
        self.at_server += events
        for event in events:
            self.answer(self.server, event)
        return events

    def server_speaks(self) -> list[AmqpEvent]:
        data = self.server.data_to_send()
        self.from_server.read(data)
        events = self.client.receive_data(data, self.now)
        self.at_client += events
        return events

    def begin(self) -> Session:
        """Open the connection if it is fresh, and begin one more session."""
        if self.client.state is EndpointState.FRESH:
            self.client.open()
        session = self.client.new_session()
        session.begin()
        self.pump()
        assert session.state is EndpointState.OPEN
        return session

    def sender(self, session: Session | None = None, name: str = "to") -> tuple[SenderLink, ReceiverLink]:
        """A link on which the client sends: (client's end, server's end)."""
        session = session or self.begin()
        link = session.new_sender(name)
        link.attach(source=Source("here"), target=Target("there"))
        self.pump()
        far = self.far_end(link.session, name)
        assert isinstance(far, ReceiverLink)
        return link, far

    def receiver(self, session: Session | None = None, name: str = "from") -> tuple[ReceiverLink, SenderLink]:
        """A link on which the client receives: (client's end, server's end)."""
        session = session or self.begin()
        link = session.new_receiver(name)
        link.attach(source=Source("there"), target=Target("here"))
        self.pump()
        far = self.far_end(link.session, name)
        assert isinstance(far, SenderLink)
        return link, far

    def far_end(self, session: Session, name: str) -> Any:
        far_session = next(s for s in self.server.sessions if s.remote_channel == session.channel)
        return next(link for link in far_session.links if link.name == name)

    def deliveries(self, events: list[AmqpEvent] | None = None) -> list[Delivery]:
        return [event for event in (self.at_server if events is None else events) if isinstance(event, Delivery)]


def refuse_links(connection: Connection, event: AmqpEvent) -> None:
    """A server that has nothing."""
    if isinstance(event, LinkAttached):
        event.link.refuse(Error("amqp:not-found", "nothing of that name"))
    else:
        answer_as_server(connection, event)
