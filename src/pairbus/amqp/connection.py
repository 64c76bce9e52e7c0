"""A connection without I/O: bytes in → events out; calls in → bytes out. Client and server are the same core.

    events = connection.receive_data(data, now)     # never raises, whatever the bytes are
    connection.…                                    # act on the events
    transport.write(connection.data_to_send())
    connection.next_timer() / connection.handle_timer(now)

Laws.
 1. `receive_data` returns events, whatever arrives. Bytes that break the protocol end in one ConnectionFailed, with the
    close that tells the peer already in the output; all bytes after them are ignored.
    Frames that the user still writes after our close are dropped: they may have been under way when the peer failed.
 2. The core never reads a clock: `now` is seconds on any monotonic clock of the user's.
 3. Memory is bounded by the settings: one frame, `channel_max` sessions, `link_max` links, `partial_bytes_max` bytes
    of messages that are not whole yet, `unsettled_max` deliveries per link.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from math import inf

from pairbus.amqp.errors import (
    DECODE_ERROR,
    FRAME_SIZE_TOO_SMALL,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    ProtocolError,
)
from pairbus.amqp.events import (
    AmqpEvent,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    SessionBegun,
    SessionEnded,
    SessionFlow,
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
from pairbus.amqp.lifecycle import EndpointState, Step, after
from pairbus.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    End,
    Error,
    Flow,
    Open,
    decode_performative,
)
from pairbus.amqp.pieces import PIECE_MAX
from pairbus.amqp.sasl import SaslClient, SaslServer
from pairbus.amqp.session import Session
from pairbus.amqp.settings import ConnectionSettings, Trace
from pairbus.amqp.transfers import decode_disposition

__all__ = ["Connection", "ConnectionSettings", "Trace"]


class _Phase(Enum):
    HEADER = auto()
    SASL = auto()
    FRAMES = auto()
    DEAD = auto()


class Connection:
    """One end of a connection: the server's with SaslServer, the client's with SaslClient or None (no SASL)."""

    def __init__(
        self,
        settings: ConnectionSettings,
        sasl: SaslServer | SaslClient | None,
        *,
        trace: Trace | None = None,
        paced: bool = False,
    ) -> None:
        self.settings = settings
        self.paced = paced
        "True: messages of several frames are not written at once; the user calls `feed` as its socket takes them."
        self.ring: deque[Session] = deque()
        "Sessions of a paced connection that have something to write and a window to write it into, each in turn."
        self.state = EndpointState.FRESH
        self.remote_open: Open | None = None
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self.transfer_size_max = MIN_MAX_FRAME_SIZE
        "The largest frame of a message; in a paced connection others wait for one frame at most."
        self.trace = trace
        self._sasl = sasl
        self._is_server = isinstance(sasl, SaslServer)
        self._phase = _Phase.HEADER
        self._expects_sasl = sasl is not None
        self._has_sent_init = False
        self._buffer = FrameBuffer(settings.max_frame_size)
        self._out: list[bytes] = []
        self._kept_back: list[bytes] = []
        "Frames that must wait until the protocol headers are exchanged and our open is sent."
        self._frames_out: list[bytes] | deque[bytes] = self._kept_back
        "Target of new frames: first `_kept_back`, then the output; after our close frames are dropped."
        self.partial_bytes = 0
        "Bytes held by links that wait for the rest of a message."
        self._sessions: dict[int, Session] = {}
        self._by_remote_channel: dict[int, Session] = {}
        self._ended_channels: set[int] = set()
        "Channels of the peer whose sessions have ended: frames on them are late, not wrong. At most `channel_max`."
        self.sessions_to_renew: list[Session] = []
        "Sessions whose window is renewed when all bytes that were read have been handled."
        self._last_received: float | None = None
        "Time of the last bytes from the peer; None until the first call that tells the time."
        self._last_sent = self.now = 0.0
        if not self._is_server:
            self._out.append(SASL_HEADER if sasl is not None else AMQP_HEADER)

    def __repr__(self) -> str:
        return f"<Connection {self.settings.container_id} {self.state.name} sessions={len(self._sessions)}>"

    @property
    def is_open(self) -> bool:
        return self.state is EndpointState.OPEN

    @property
    def is_over(self) -> bool:
        """True when bytes that arrive are no longer looked at."""
        return self._phase is _Phase.DEAD

    @property
    def last_received(self) -> float:
        """Time when bytes last came in, on the user's clock; minus infinity before the first."""
        return -inf if self._last_received is None else self._last_received

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    # ── calls of the user ──

    def open(self) -> None:
        """Send our open. A client need not wait for the SASL exchange: frames are kept back until it is over."""
        if self._phase is _Phase.DEAD:
            return
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
        if self.trace is not None:
            self.trace("->", 0, repr(performative))
        self._kept_back.insert(0, frame(0, performative.encode()))
        self._let_frames_go()

    def close(self, error: Error | None = None) -> None:
        """Send our close. Sessions and links go with the connection."""
        if self._phase is _Phase.DEAD:
            return
        self.state = after(self.state, Step.SENT_CLOSE, "connection")
        if error is not None and len(error.encode()) > self.remote_max_frame_size - 32:
            error = Error(error.condition, (error.description or "")[:80])
        self.send_performative(0, Close(error=error))
        self._cut()

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
        """Return all bytes to be written now; the output is empty afterwards."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self._last_sent = self.now
        return data

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    def feed(self, events: list[AmqpEvent]) -> bool:
        """Put one frame of a large message into the output, each session in turn; False when there is none.

        When a session has written all its frames, SessionFlow tells the user.
        """
        while self.ring:
            session = self.ring.popleft()
            if session.write_piece():
                if session.has_pieces:
                    self.ring.append(session)
                elif session.window_open:
                    events.append(SessionFlow(session))
                return True
        return False

    def next_timer(self) -> float | None:
        """Return the time at which `handle_timer` wants to be called, on the clock of `now`."""
        if self._phase is _Phase.DEAD:
            return None
        if self._last_received is None:
            return 0.0  # at once: we have not been told the time yet
        times = []
        if self.settings.idle_time_out_ms:
            times.append(self._last_received + self.settings.idle_time_out_ms * 1.5e-3)
        sign_due = self._sign_of_life_due()
        if sign_due is not None:
            times.append(sign_due)
        return min(times, default=None)

    def _sign_of_life_due(self) -> float | None:
        """Return the time of our next sign of life; None when none is allowed, before our open and after our close."""
        if self.state is EndpointState.OPEN and self.remote_open is not None and self.remote_open.idle_time_out:
            return self._last_sent + self.remote_open.idle_time_out * self.settings.sign_of_life_share * 1e-3
        return None

    def handle_timer(self, now: float) -> list[AmqpEvent]:
        """Send a sign of life when the peer wants one; give up on a peer that gave none."""
        self.now = now
        if self._phase is _Phase.DEAD:
            return []
        if self._last_received is None:
            self._last_received = now
        idle_s = self.settings.idle_time_out_ms * 1.5e-3
        if idle_s and now >= self._last_received + idle_s:
            return self._fail(ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"the peer was silent for {idle_s:.0f} s"))
        sign_due = self._sign_of_life_due()
        if sign_due is not None and now >= sign_due and not self._out:
            self.write(EMPTY_FRAME)
        return []

    # ── calls of sessions and links ──

    def write(self, data: bytes) -> None:
        self._frames_out.append(data)

    def write_all(self, pieces: list[bytes]) -> None:
        self._frames_out.extend(pieces)

    def send_performative(self, channel: int, performative: Composite) -> None:
        if self.trace is not None:
            self.trace("->", channel, repr(performative))
        self.send_frame(frame(channel, performative.encode()))

    def send_frame(self, data: bytes) -> None:
        """Write a frame that cannot be cut into smaller ones, unless the peer takes no frame of that size (2.8.15)."""
        if len(data) <= self.remote_max_frame_size or self.remote_open is None:
            self.write(data)
        elif self.state is EndpointState.OPEN:
            self.close(Error(FRAME_SIZE_TOO_SMALL, f"a frame of {len(data)} bytes would be needed"))

    def release(self, session: Session) -> None:
        if session.state is EndpointState.CLOSED and self._sessions.get(session.channel) is session:
            del self._sessions[session.channel]

    def check_room_for_link(self) -> None:
        count = sum(map(Session.link_count, self._sessions.values()))
        if count >= self.settings.link_max:
            raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"{count} links are attached")

    # ── frames of the peer ──

    def receive_data(self, data: bytes, now: float) -> list[AmqpEvent]:
        if not data:
            return []
        self.now = self._last_received = now
        events: list[AmqpEvent] = []
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
        if self.sessions_to_renew:
            for session in self.sessions_to_renew:
                session.renew_window()
            self.sessions_to_renew.clear()
        return events

    def _on_header(self, header: bytes) -> None:
        expected = SASL_HEADER if self._expects_sasl else AMQP_HEADER
        if header == AMQP_HEADER and self._is_server:
            expected = AMQP_HEADER  # a client that skips SASL is accepted too: tokens decide
        if self.trace is not None:
            self.trace("<-", 0, f"header {header!r}")
        if header != expected:
            self._phase = _Phase.DEAD
            if self._is_server:
                self._out.append(expected)  # tells the peer which protocol would have been right (2.2)
            raise ProtocolError(FRAMING_ERROR, f"protocol header {header!r}")
        if header == SASL_HEADER:
            self._phase = _Phase.SASL
            if isinstance(self._sasl, SaslServer):
                self._out.append(SASL_HEADER + frame(0, self._sasl.offer().encode(), SASL_FRAME))
            return
        self._phase = _Phase.FRAMES
        if self._is_server:
            self._out.append(AMQP_HEADER)
        self._let_frames_go()

    def _let_frames_go(self) -> None:
        if self._phase is _Phase.FRAMES and self.state not in (
            EndpointState.FRESH,
            EndpointState.OFFERED,
            EndpointState.WITHDRAWN,
        ):
            self._out += self._kept_back
            if self._frames_out is self._kept_back:
                self._frames_out = self._out
            self._kept_back.clear()

    def _receive_sasl(self, data: bytes) -> bytes:
        """Read SASL frames until the exchange is over; return the bytes behind them."""
        for frame_type, _, buf, start, end in self._buffer.frames(data):
            if frame_type != SASL_FRAME:
                raise ProtocolError(FRAMING_ERROR, f"frame type {frame_type} during SASL")
            performative, _ = decode_performative(buf[start:end], 0)
            if self.trace is not None:
                self.trace("<-", 0, repr(performative))
            if isinstance(self._sasl, SaslServer):
                outcome = self._sasl.answer(performative)
                self._out.append(frame(0, outcome.encode(), SASL_FRAME))
                if outcome.code:
                    self._phase = _Phase.DEAD
                    raise ProtocolError(NOT_ALLOWED, "SASL refused")
            else:
                assert self._sasl is not None, "without SASL its header is refused"
                init = self._sasl.answer(performative)
                if (init is None) is not self._has_sent_init:
                    raise ProtocolError(ILLEGAL_STATE, f"{performative.NAME} out of turn")
                if init is not None:
                    self._has_sent_init = True
                    self._out.append(frame(0, init.encode(), SASL_FRAME))
                    continue
                self._out.append(AMQP_HEADER)
            self._phase = _Phase.HEADER
            self._expects_sasl = False
            break
        return self._buffer.unread() if self._phase is _Phase.HEADER else b""

    def _receive_frames(self, data: bytes, events: list[AmqpEvent]) -> None:  # noqa: PLR0912 - one branch for each case
        sessions, closing, trace, buffer = self._by_remote_channel, EndpointState.CLOSING, self.trace, self._buffer
        for frame_type, channel, buf, start, end in buffer.frames(data):
            if frame_type != AMQP_FRAME:
                raise ProtocolError(FRAMING_ERROR, f"frame type {frame_type}")
            if end - start < 4:
                if start == end:
                    continue  # a sign of life
                raise ProtocolError(DECODE_ERROR, f"a frame with a body of {end - start} bytes")
            usual = buf[start + 1] == 0x53 and not buf[start]
            code = buf[start + 2] if usual else decode_performative(buf[start:end], 0)[0].CODE
            if self.state is closing and code != CLOSE:
                continue  # in flight when we sent our close
            if code in (TRANSFER, DISPOSITION):
                session = sessions.get(channel)
                if session is None:
                    self._check_late(channel, f"performative 0x{code:x}")
                    continue
                if session.state is closing:
                    continue  # in flight when we sent our end
                if code == TRANSFER:
                    if trace is not None:
                        trace("<-", channel, f"transfer of {end - start} B")
                        session.on_transfer(buf, start, end, events)
                        continue
                    buffer.position = session.on_transfers(buf, start, end, events)
                else:
                    disposition = decode_disposition(buf, start, end)
                    if trace is not None:
                        trace("<-", channel, repr(disposition))
                    session.on_disposition(disposition, events)
                continue
            if end - start > CONTROL_SIZE_MAX and self.remote_open is not None:
                raise ProtocolError(
                    RESOURCE_LIMIT_EXCEEDED,
                    f"performative 0x{code:x} of {end - start} bytes, {CONTROL_SIZE_MAX} allowed",
                )
            performative, _ = decode_performative(buf[start:end], 0)
            if trace is not None:
                trace("<-", channel, repr(performative))
            self._on_performative(channel, performative, events)
            if self._phase is _Phase.DEAD:
                return

    def _on_performative(self, channel: int, performative: Composite, events: list[AmqpEvent]) -> None:
        if isinstance(performative, Close):
            self._on_close(performative, events)
            return
        if isinstance(performative, Open):
            self._on_open(performative, events)
            return
        if self.remote_open is None:
            raise ProtocolError(ILLEGAL_STATE, f"{performative.NAME} before open")
        if isinstance(performative, Begin):
            self._on_begin(channel, performative, events)
            return
        session = self._by_remote_channel.get(channel)
        if session is None:
            self._check_late(channel, performative.NAME)
        elif isinstance(performative, End):
            self._on_end(channel, session, performative, events)
        elif session.state is EndpointState.CLOSING:
            return  # in flight when we sent our end
        elif isinstance(performative, Flow):
            session.on_flow(performative, events)
        elif isinstance(performative, Attach):
            session.on_attach(performative, events)
        elif isinstance(performative, Detach):
            session.on_detach(performative, events)
        else:
            raise ProtocolError(DECODE_ERROR, f"{performative.NAME} is no AMQP frame")

    def _check_late(self, channel: int, what: str) -> None:
        """Accept a late frame, on a channel whose session has ended; ProtocolError when the channel never had one."""
        if channel not in self._ended_channels:
            raise ProtocolError(NOT_ALLOWED, f"{what} on channel {channel} without a session")

    def _on_open(self, performative: Open, events: list[AmqpEvent]) -> None:
        self.state = after(self.state, Step.GOT_OPEN, "connection")
        if performative.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ProtocolError(NOT_ALLOWED, f"max-frame-size {performative.max_frame_size} < {MIN_MAX_FRAME_SIZE}")
        shortest = self.settings.idle_time_out_min_ms
        if 0 < (performative.idle_time_out or 0) < shortest:
            raise ProtocolError(NOT_ALLOWED, f"idle-time-out {performative.idle_time_out} < {shortest}")
        self.remote_open = performative
        self.remote_max_frame_size = min(performative.max_frame_size, OUTGOING_FRAME_SIZE_MAX)
        self.transfer_size_max = min(self.remote_max_frame_size, PIECE_MAX if self.paced else OUTGOING_FRAME_SIZE_MAX)
        events.append(ConnectionOpened(performative))

    def _on_close(self, performative: Close, events: list[AmqpEvent]) -> None:
        self.state = after(self.state, Step.GOT_CLOSE, "connection")
        if self.state is EndpointState.WITHDRAWN:
            self.open()
        if self.state is EndpointState.CLOSE_ASKED:
            self.close()
        self._phase = _Phase.DEAD
        events.append(ConnectionClosed(performative.error))

    def _on_begin(self, channel: int, begin: Begin, events: list[AmqpEvent]) -> None:
        if channel > self.settings.channel_max:
            raise ProtocolError(RESOURCE_LIMIT_EXCEEDED, f"channel {channel} > {self.settings.channel_max}")
        if channel in self._by_remote_channel:
            raise ProtocolError(NOT_ALLOWED, f"channel {channel} has a session already")
        if begin.remote_channel is not None:
            answered = self._sessions.get(begin.remote_channel)
            if answered is None or answered.state is EndpointState.FRESH or answered.remote_channel is not None:
                raise ProtocolError(NOT_ALLOWED, f"begin answers channel {begin.remote_channel}, which asked nothing")
            session = answered
        elif channel not in self._sessions and self.remote_open and channel <= self.remote_open.channel_max:
            session = self._sessions[channel] = Session(self, channel)
        else:
            session = self.new_session()
        session.remote_channel = channel
        session.on_begin(begin)
        self._by_remote_channel[channel] = session
        self._ended_channels.discard(channel)
        events.append(SessionBegun(session))

    def _on_end(self, channel: int, session: Session, end: End, events: list[AmqpEvent]) -> None:
        session.on_end()
        del self._by_remote_channel[channel]
        self._ended_channels.add(channel)
        if session.state is EndpointState.WITHDRAWN:
            session.begin()
        if session.state is EndpointState.CLOSE_ASKED:
            session.end()
        self.release(session)
        events.append(SessionEnded(session, end.error))

    def _fail(self, error: ProtocolError) -> list[AmqpEvent]:
        if self._phase is _Phase.FRAMES:
            if self.state in (EndpointState.FRESH, EndpointState.OFFERED):
                self.open()
            if self.state in (EndpointState.OPEN, EndpointState.OPENING):
                self.close(self.worded(Error(error.condition, error.description)))
        self._phase = _Phase.DEAD
        self._cut()
        return [ConnectionFailed(error)]

    def worded(self, error: Error) -> Error:
        """Give an error of the core the form that the user wants."""
        return error if self.settings.word_error is None else self.settings.word_error(error)

    def _cut(self) -> None:
        """Send no more frames, except those that are kept back."""
        for session in self._sessions.values():
            session.cut()
        self._frames_out = deque(maxlen=0)


TRANSFER, DISPOSITION, CLOSE = 0x14, 0x15, 0x18
CONTROL_SIZE_MAX = 16_384  # begin, attach, flow, detach, end, close; an attach is kept as long as its link
OUTGOING_FRAME_SIZE_MAX = 1 << 20  # a peer that allows frames of 4 GB still gets them in pieces
