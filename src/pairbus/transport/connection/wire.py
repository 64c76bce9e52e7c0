"""A socket with the AMQP core behind it: bytes in → events to links, calls of links → bytes out.

Laws of this file.
 1. Output is written once per turn of the event loop, however many frames the turn made; only a turn that makes more
    than UNFLUSHED_MAX bytes writes earlier. Then the peer works while the rest is encoded, its answers come in several
    groups instead of all at once, and a full socket is noticed before the memory is full.
    A message of several frames is written frame by frame as the socket takes them, between the messages of others.
 2. The connection ends once: `lose` tells every link at once, and later calls get the same error.
 3. No code here waits, except `close`; callers that wait have a deadline of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from pairbus.amqp.connection import Connection, ConnectionSettings, Trace
from pairbus.amqp.errors import UNAUTHORIZED_ACCESS
from pairbus.amqp.events import (
    AmqpEvent,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Delivery,
    DeliveryAborted,
    Disposed,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
    SessionBegun,
    SessionEnded,
    SessionFlow,
    SettlementAnswered,
)
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.sasl import SaslClient
from pairbus.transport.connection.write_progress import WriteProgress
from pairbus.transport.errors import ConnectionLost, Refused, TransportError
from pairbus.transport.links.link_end import LinkEnd, end_of

UNFLUSHED_MAX = 128 * 1024  # bytes gathered in one turn before they are written; the socket's own limit is AHEAD_MAX
AHEAD_MAX = 32_768  # bytes that the socket has not taken: above it no more are written
FRAMES_A_TURN = 16  # of large messages, before the loop may do other work


class ByteTransport(Protocol):
    """Transport as a wire needs it: a socket, a TLS socket or a web socket."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Wire(asyncio.Protocol):
    """One connection. `loss` is None while it is good."""

    def __init__(self, settings: ConnectionSettings, sasl: SaslClient, trace: Trace | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.core = Connection(settings, sasl, trace=trace, paced=True)
        self.opened: asyncio.Future[None] = self.loop.create_future()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        "Future that is done when the socket is gone."
        self.loss: TransportError | None = None
        self.writable = True
        "True: the socket takes more bytes; False between pause_writing and resume_writing."
        self.links: set[LinkEnd] = set()
        self.hungry: dict[LinkEnd, None] = {}
        "Links with sends that wait for room, in the order in which they began to wait."
        self.progress = WriteProgress()
        self._is_feeding = False
        self._transport: ByteTransport | None = None
        self._flush_due = False
        self._unflushed = 0
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Wire {self.core!r} links={len(self.links)} {self.loss or 'good'}>"

    # ── the socket ──

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.progress.joined(transport)
        transport.set_write_buffer_limits(high=AHEAD_MAX)
        self.core.open()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._handle(self.core.receive_data(data, self.loop.time()))

    def eof_received(self) -> None:
        return None  # closes the transport, which leads to connection_lost

    def connection_lost(self, error: Exception | None) -> None:
        self.lose(ConnectionLost(f"the connection broke: {error}" if error else "the peer closed the socket"))
        self._transport = None
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._feed()

    # ── output ──

    def queued(self, size: int) -> None:
        """Note that the core has `size` more bytes of output, and have them written."""
        self._unflushed += size
        if self._unflushed > UNFLUSHED_MAX:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_due = False
        if self.core.has_output:
            self._write_out()
        if self.core.ring and self.writable:
            self._feed()

    def _write_out(self) -> None:
        self._unflushed = 0
        data = self.core.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)
            self.progress.wrote(len(data))

    def _feed(self) -> None:
        """Let links that wait send, then write frames of large messages as long as the socket takes them.

        One frame is always written: otherwise small messages that fill the socket each time would starve large ones.
        """
        if self._is_feeding or self.loss is not None:
            return
        self._is_feeding, events = True, list[AmqpEvent]()
        self._let_wait_send()
        for count in range(FRAMES_A_TURN):
            if (count and not self.writable) or not self.core.feed(events):
                break
            self._write_out()
        else:
            self.loop.call_soon(self.flush)
        self._is_feeding = False
        for event in events:
            for link in event.session.links:  # type: ignore[attr-defined]
                if (end := end_of(link)) is not None:
                    end.on_room()

    def _let_wait_send(self) -> None:
        """Serve the links that wait; a served link goes to the end of the line, so all share a slow socket."""
        for link in list(self.hungry):
            if not self.writable:
                break
            link.on_room()
            if link in self.hungry:
                del self.hungry[link]
                self.hungry[link] = None

    # ── the end ──

    def lose(self, error: TransportError) -> None:
        """End the connection: wake all callers that wait. Only the first reason counts."""
        if self.loss is not None:
            return
        self.loss = error
        if self._timer is not None:
            self._timer.cancel()
        if not self.opened.done():
            self.opened.set_exception(error.again(outcome_unknown=False))
            self.opened.exception()  # read here, so that asyncio does not log an error that no caller waits for
        links, self.links = self.links, set()
        for link in links:
            link.on_over(error)

    def hang_up(self) -> None:
        """Write the rest of the output, then close the socket."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def close(self, timeout_s: float) -> None:
        """Exchange closes with the peer within the time given, then hang up. Never raises for actions of the peer."""
        deadline = self.loop.time() + timeout_s
        if self.loss is None:
            await asyncio.gather(*(link.give_back(timeout_s) for link in self.links))
        self.lose(ConnectionLost("the connection was closed by this client"))
        try:
            if (
                self.core.state in (EndpointState.OPEN, EndpointState.OPENING)
                and self.opened.done()
                and not self.core.is_over
            ):
                self.core.close()
                self.flush()
            elif self._transport is not None:
                self.hang_up()
            if self._transport is not None:
                await asyncio.wait([self.ended], timeout=max(deadline - self.loop.time(), 0.0))
        finally:
            self.abort()
        if not self.ended.done():
            await asyncio.wait([self.ended], timeout=0.1)  # `abort` ends in the next turns of the loop

    # ── events ──

    def _handle(self, events: list[AmqpEvent]) -> None:
        for event in events:
            _HANDLERS[type(event)](self, event)
        if (self.core.has_output or self.core.ring) and not self._flush_due:
            self.flush()

    def _on_opened(self, event: ConnectionOpened) -> None:
        self._set_timer()
        if not self.opened.done():
            self.opened.set_result(None)

    def _on_closed(self, event: ConnectionClosed) -> None:
        error = event.error
        if error is None:
            self.lose(ConnectionLost("the peer closed the connection"))
        elif self.opened.done():
            self.lose(
                ConnectionLost(
                    f"the peer closed the connection: {error.condition}: {error.description or 'no reason'}",
                    condition=error.condition,
                )
            )
        else:
            self.lose(Refused(error.condition, error.description))
        self.hang_up()

    def _on_failed(self, event: ConnectionFailed) -> None:
        error = event.error
        if error.condition == UNAUTHORIZED_ACCESS and not self.opened.done():
            self.lose(Refused(error.condition, error.description))
        else:
            self.lose(ConnectionLost(f"{error.condition}: {error.description}"))
        self.hang_up()

    def _on_delivery(self, event: Delivery) -> None:
        if (end := end_of(event.link)) is not None:
            end.on_delivery(event)

    def _on_disposed(self, event: Disposed) -> None:
        if (end := end_of(event.deliveries[0].link)) is not None:
            end.on_disposed(event)

    def _on_flow(self, event: LinkFlow) -> None:
        if (end := end_of(event.link)) is not None:
            end.on_flow()

    def _on_drained(self, event: LinkDrained) -> None:
        if (end := end_of(event.link)) is not None:
            end.on_drained()

    def _on_attached(self, event: LinkAttached) -> None:
        if (end := end_of(event.link)) is not None:
            end.on_attached(event.attach)

    def _on_detached(self, event: LinkDetached) -> None:
        if (end := end_of(event.link)) is not None:
            end.on_detached(event.error)

    def _on_session_ended(self, event: SessionEnded) -> None:
        error = event.error
        for link in event.session.links:
            if (end := end_of(link)) is not None:
                end.on_detached(error)

    def _on_session_flow(self, event: SessionFlow) -> None:
        for link in event.session.links:
            if (end := end_of(link)) is not None:
                end.on_window()

    def _on_answered(self, event: SettlementAnswered) -> None:
        for link in event.session.links:
            if link.role and (end := end_of(link)) is not None:
                end.on_answered(event)

    # ── signs of life ──

    def _set_timer(self) -> None:
        due = self.core.next_timer()
        if due is not None and self.loss is None:
            self._timer = self.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        due = self.core.next_timer()
        if due is not None and due <= self.loop.time():
            self._handle(self.core.handle_timer(self.loop.time()))
        self._set_timer()


_HANDLERS: dict[type[AmqpEvent], Callable[[Wire, Any], None]] = {
    Delivery: Wire._on_delivery,
    DeliveryAborted: lambda wire, event: None,  # the next call that receives grants credit again
    Disposed: Wire._on_disposed,
    SettlementAnswered: Wire._on_answered,
    LinkFlow: Wire._on_flow,
    SessionFlow: Wire._on_session_flow,
    LinkDrained: Wire._on_drained,
    LinkAttached: Wire._on_attached,
    LinkDetached: Wire._on_detached,
    SessionBegun: lambda wire, event: None,  # links were attached right after the begin, without waiting for its answer
    SessionEnded: Wire._on_session_ended,
    ConnectionOpened: Wire._on_opened,
    ConnectionClosed: Wire._on_closed,
    ConnectionFailed: Wire._on_failed,
}
