"""A connection without I/O: bytes in → events out; calls in → bytes out. Client and server are the same core.

    events = connection.receive_data(data, now)     # never raises for what the bytes are
    connection.…                                    # act on the events
    transport.write(connection.data_to_send())
    connection.next_timer() / connection.handle_timer(now)

Laws.
 1. Whatever arrives, `receive_data` returns events; what breaks the protocol ends in one ConnectionFailed, with the
    close that tells the peer already in the output, and everything after it is ignored.
 2. The core never reads a clock: `now` is seconds on any monotonic clock of the user's.
 3. Memory is bounded by the settings: one frame, `channel_max` sessions, `handle_max` links each, one message of the
    link's size limit per link, `unsettled_max` deliveries per link.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from pairbus.amqp.errors import (
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    ProtocolError,
)
from pairbus.amqp.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Event,
    SessionBegun,
    SessionEnded,
)
from pairbus.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    EMPTY_FRAME,
    MIN_MAX_FRAME_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    FrameBuffer,
    frame,
)
from pairbus.amqp.lifecycle import State, Step, after
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
    decode_performative,
)
from pairbus.amqp.sasl import SaslClient, SaslServer
from pairbus.amqp.session import Session

Trace = Callable[[str, int, str], None]
"(direction '<-' or '->', channel, text): told of every frame when tracing is on."


@dataclass(frozen=True, slots=True)
class Settings:
    """What one end says of itself in open and begin, and the limits that it keeps."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = 65_536
    channel_max: int = 1023
    "Sessions per connection, less one: the JavaScript SDK opens one for each link."
    handle_max: int = 1023
    idle_time_out_ms: int = 240_000
    "Advertised; Python senders look only every 30 s, so less than 120 s breaks them."
    incoming_window: int = 8192
    unsettled_max: int = 65_536
    "Deliveries per link that are not settled; a reader that stops reading keeps far below it."
    properties: dict[Any, Any] | None = None


class _Phase(Enum):
    HEADER = auto()
    SASL = auto()
    FRAMES = auto()
    DEAD = auto()


class Connection:
    """One end of a connection: a server's with SaslServer, a client's with SaslClient or None (no SASL)."""

    def __init__(self, settings: Settings, sasl: SaslServer | SaslClient | None, *, trace: Trace | None = None) -> None:
        self.settings = settings
        self.state = State.FRESH
        self.remote_open: Open | None = None
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self.trace = trace
        self._sasl = sasl
        self._is_server = isinstance(sasl, SaslServer)
        self._phase = _Phase.HEADER
        self._expects_sasl = sasl is not None
        self._buffer = FrameBuffer(settings.max_frame_size)
        self._out: list[bytes] = []
        self._sessions: dict[int, Session] = {}
        self._by_remote_channel: dict[int, Session] = {}
        self._last_received = self._last_sent = 0.0
        self._now = 0.0
        self._pending_open: Open | None = None
        if not self._is_server:
            self.write(SASL_HEADER if sasl is not None else AMQP_HEADER)

    def __repr__(self) -> str:
        return f"<Connection {self.settings.container_id} {self.state.name} sessions={len(self._sessions)}>"

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def is_over(self) -> bool:
        """Nothing that arrives will be looked at any more."""
        return self._phase is _Phase.DEAD

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    # ── what the user does ──

    def open(self) -> None:
        """Send our open: at once for a server, behind the SASL exchange for a client."""
        settings = self.settings
        self.state = after(self.state, Step.SENT_OPEN, "connection")
        performative = Open(
            container_id=settings.container_id,
            hostname=settings.hostname,
            max_frame_size=settings.max_frame_size,
            channel_max=settings.channel_max,
            idle_time_out=settings.idle_time_out_ms or None,
            properties=settings.properties,
        )
        if self._phase is _Phase.FRAMES:
            self.send_performative(0, performative)
        else:
            self._pending_open = performative

    def close(self, error: Error | None = None) -> None:
        self.state = after(self.state, Step.SENT_CLOSE, "connection")
        self.send_performative(0, Close(error=error))

    def new_session(self) -> Session:
        channel_max = self.settings.channel_max
        if self.remote_open is not None:
            channel_max = min(channel_max, self.remote_open.channel_max)
        for channel in range(channel_max + 1):
            if channel not in self._sessions:
                session = self._sessions[channel] = Session(self, channel)
                return session
        raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"all {channel_max + 1} channels are in use")

    def data_to_send(self) -> bytes:
        """Everything to be written now; the output is empty afterwards."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self._last_sent = self._now
        return data

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    def next_timer(self) -> float | None:
        """When `handle_timer` wants to be called, on the clock of `now`."""
        if self._phase is _Phase.DEAD:
            return None
        times = []
        if self.settings.idle_time_out_ms:
            times.append(self._last_received + self.settings.idle_time_out_ms * 1.5e-3)
        if self.remote_open is not None and self.remote_open.idle_time_out and self.state is not State.CLOSED:
            times.append(self._last_sent + self.remote_open.idle_time_out * 0.5e-3)
        return min(times, default=None)

    def handle_timer(self, now: float) -> list[Event]:
        """Send a sign of life when the peer wants one; give up on a peer that gave none."""
        self._now = now
        idle_s = self.settings.idle_time_out_ms * 1.5e-3
        if idle_s and now >= self._last_received + idle_s and self._phase is not _Phase.DEAD:
            return self._fail(ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"the peer was silent for {idle_s:.0f} s"))
        remote = self.remote_open
        if remote is not None and remote.idle_time_out and now >= self._last_sent + remote.idle_time_out * 0.5e-3:
            self.write(EMPTY_FRAME)
        return []

    # ── what sessions and links do ──

    def write(self, data: bytes) -> None:
        self._out.append(data)

    def send_performative(self, channel: int, performative: Composite) -> None:
        if self.trace is not None:
            self.trace("->", channel, repr(performative))
        self.write(frame(channel, performative.encode()))

    def release(self, session: Session) -> None:
        if session.state is State.CLOSED:
            self._sessions.pop(session.channel, None)

    # ── what the peer says ──

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        self._now = self._last_received = now
        events: list[Event] = []
        try:
            while data and self._phase is not _Phase.DEAD:
                if self._phase is _Phase.HEADER:
                    header, data = self._buffer.take_header(data)
                    if header is not None:
                        self._on_header(header)
                elif self._phase is _Phase.SASL:
                    data = self._receive_sasl(data)
                else:
                    self._receive_frames(data, events)
                    data = b""
        except ProtocolError as error:
            events += self._fail(error)
        except (IndexError, struct.error) as error:  # a performative that ends before its fields do
            events += self._fail(ProtocolError(DECODE_ERROR, f"cut short: {error}"))
        return events

    def _on_header(self, header: bytes) -> None:
        expected = SASL_HEADER if self._expects_sasl else AMQP_HEADER
        if header == AMQP_HEADER and self._is_server:
            expected = AMQP_HEADER  # a client that skips SASL is as welcome: tokens decide
        if self.trace is not None:
            self.trace("<-", 0, f"header {header!r}")
        if header != expected:
            self._phase = _Phase.DEAD
            if self._is_server:
                self.write(expected)  # tells the peer which protocol would have been right (2.2)
            raise ProtocolError(FRAMING_ERROR, f"protocol header {header!r}")
        if header == SASL_HEADER:
            self._phase = _Phase.SASL
            if isinstance(self._sasl, SaslServer):
                self.write(SASL_HEADER + frame(0, self._sasl.offer().encode(), SASL_FRAME))
            return
        self._phase = _Phase.FRAMES
        if self._is_server:
            self.write(AMQP_HEADER)
        if self._pending_open is not None:
            self.send_performative(0, self._pending_open)
            self._pending_open = None

    def _receive_sasl(self, data: bytes) -> bytes:
        """Read SASL frames until the exchange is over; what follows them is given back."""
        for frame_type, _, buf, start, end in self._buffer.frames(data):
            if frame_type != SASL_FRAME:
                raise ProtocolError(FRAMING_ERROR, f"frame type {frame_type} during SASL")
            performative, _ = decode_performative(buf[start:end], 0)
            if self.trace is not None:
                self.trace("<-", 0, repr(performative))
            if isinstance(self._sasl, SaslServer):
                outcome = self._sasl.answer(performative)
                self.write(frame(0, outcome.encode(), SASL_FRAME))
                if outcome.code:
                    self._phase = _Phase.DEAD
                    raise ProtocolError(NOT_ALLOWED, "SASL refused")
            elif self._sasl is not None:
                init = self._sasl.answer(performative)
                if init is not None:
                    self.write(frame(0, init.encode(), SASL_FRAME))
                    continue
                self.write(AMQP_HEADER)
            self._phase = _Phase.HEADER
            self._expects_sasl = False
            break
        return self._buffer.unread() if self._phase is _Phase.HEADER else b""

    def _receive_frames(self, data: bytes, events: list[Event]) -> None:
        by_channel = self._by_remote_channel
        for frame_type, channel, buf, start, end in self._buffer.frames(data):
            if self.state is State.CLOSING:
                if start < end and buf[start : start + 3] == b"\x00\x53\x18":
                    self._on_close(buf[start:end], events)
                continue
            if frame_type != AMQP_FRAME:
                raise ProtocolError(FRAMING_ERROR, f"frame type {frame_type}")
            if start == end:
                continue  # a sign of life
            if buf[start + 2] == 0x14 and buf[start : start + 2] == b"\x00\x53":
                session = by_channel.get(channel)
                if session is None:
                    raise ProtocolError(NOT_ALLOWED, f"transfer on channel {channel} without a session")
                if self.trace is not None:
                    self.trace("<-", channel, f"transfer of {end - start} B")
                if session.state is State.OPEN:
                    session.on_transfer(buf, start, end, events)
                continue
            performative, _ = decode_performative(buf[start:end], 0)
            if self.trace is not None:
                self.trace("<-", channel, repr(performative))
            self._on_performative(channel, performative, buf[start:end], events)
            if self._phase is _Phase.DEAD:
                return

    def _on_performative(self, channel: int, performative: Composite, body: bytes, events: list[Event]) -> None:
        if isinstance(performative, Open):
            self._on_open(performative, events)
            return
        if isinstance(performative, Close):
            self._on_close(body, events)
            return
        if self.remote_open is None:
            raise ProtocolError(ILLEGAL_STATE, f"{performative.NAME} before open")
        if isinstance(performative, Begin):
            self._on_begin(channel, performative, events)
            return
        session = self._by_remote_channel.get(channel)
        if session is None:
            if isinstance(performative, Detach):
                return  # the Python SDK ends its session before it detaches its management link
            raise ProtocolError(NOT_ALLOWED, f"{performative.NAME} on channel {channel} without a session")
        if isinstance(performative, End):
            self._on_end(channel, session, performative, events)
        elif session.state is State.CLOSING:
            return  # in flight when we sent our end
        elif isinstance(performative, Disposition):
            session.on_disposition(performative, events)
        elif isinstance(performative, Flow):
            session.on_flow(performative, events)
        elif isinstance(performative, Attach):
            session.on_attach(performative, events)
        elif isinstance(performative, Detach):
            session.on_detach(performative, events)
        else:
            raise ProtocolError(DECODE_ERROR, f"{performative.NAME} is no AMQP frame")

    def _on_open(self, performative: Open, events: list[Event]) -> None:
        self.state = after(self.state, Step.GOT_OPEN, "connection")
        if performative.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ProtocolError(NOT_ALLOWED, f"max-frame-size {performative.max_frame_size} < {MIN_MAX_FRAME_SIZE}")
        self.remote_open = performative
        self.remote_max_frame_size = min(performative.max_frame_size, OUTGOING_FRAME_SIZE_MAX)
        events.append(ConnectionOpened(performative))

    def _on_close(self, body: bytes, events: list[Event]) -> None:
        close, _ = decode_performative(body, 0)
        self.state = after(self.state, Step.GOT_CLOSE, "connection")
        if self.state is State.WITHDRAWN:
            self.state = after(self.state, Step.SENT_OPEN, "connection")
        if self.state is State.CLOSE_ASKED:
            self.close()
        self._phase = _Phase.DEAD
        events.append(ConnectionClosed(close.error if isinstance(close, Close) else None))

    def _on_begin(self, channel: int, begin: Begin, events: list[Event]) -> None:
        if channel > self.settings.channel_max:
            raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"channel {channel} > {self.settings.channel_max}")
        if channel in self._by_remote_channel:
            raise ProtocolError(NOT_ALLOWED, f"channel {channel} has a session already")
        if begin.remote_channel is not None:
            answered = self._sessions.get(begin.remote_channel)
            if answered is None or answered.remote_channel is not None:
                raise ProtocolError(NOT_ALLOWED, f"begin answers channel {begin.remote_channel}, which asked nothing")
            session = answered
        elif channel not in self._sessions:
            session = self._sessions[channel] = Session(self, channel)
        else:
            session = self.new_session()
        session.remote_channel = channel
        session.on_begin(begin)
        self._by_remote_channel[channel] = session
        events.append(SessionBegun(session))

    def _on_end(self, channel: int, session: Session, end: End, events: list[Event]) -> None:
        session.on_end()
        del self._by_remote_channel[channel]
        if session.state is State.WITHDRAWN:
            session.begin()
        if session.state is State.CLOSE_ASKED:
            session.end()
        self.release(session)
        events.append(SessionEnded(session, end.error))

    def _fail(self, error: ProtocolError) -> list[Event]:
        if self._phase is _Phase.FRAMES:
            if self.state is State.OFFERED:
                self.open()
            if self.state in (State.OPEN, State.OPENING):
                self.close(Error(error.condition, error.description))
        self._phase = _Phase.DEAD
        return [ConnectionFailed(error)]


OUTGOING_FRAME_SIZE_MAX = 1 << 20  # a peer that allows frames of 4 GB still gets them in pieces
