"""A new connection, until its first bytes have shown its protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pairbus.broker.wire.peer import Peer

if TYPE_CHECKING:
    from pairbus.broker.wire.server import Port

FIRST_BYTES_DEADLINE_S = 10.0
WRITE_BUFFER_MAX = 1 << 20


class Door(asyncio.Protocol):
    """A new connection until its first bytes have shown its protocol; AMQP stays here, HTTP moves on."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._peer: Peer | None = None
        self._first = b""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # transports of uvloop are no subclasses of it
        transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        self._deadline = self._port.loop.call_later(FIRST_BYTES_DEADLINE_S, transport.abort)
        self._port.doors.add(self)
        if self._port.frozen_by:
            self.freeze()

    def data_received(self, data: bytes) -> None:
        if self._peer is not None:
            self._peer.data_received(data)
            return
        self._first += data
        if len(self._first) < 4 and b"AMQP".startswith(self._first):
            return
        self._decide()

    def _decide(self) -> None:
        assert self._transport is not None and self._deadline is not None
        self._deadline.cancel()
        first, self._first = self._first, b""
        if first.startswith(b"AMQP"):
            self._peer = Peer(self._port.namespace, self._transport, self._port.loop, self._port.trace)
            self._peer.data_received(first)
            return
        handler = self._port.http_handler(self._transport)
        self._port.doors.discard(self)
        self._transport.set_protocol(handler)
        handler.connection_made(self._transport)
        handler.data_received(first)

    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.pause_writing()

    def resume_writing(self) -> None:
        if self._peer is not None:
            self._peer.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._deadline is not None
        self._deadline.cancel()
        self._port.doors.discard(self)
        if self._peer is not None:
            self._peer.connection_lost()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def freeze(self) -> None:
        """Stop waiting for the first bytes; a peer freezes by itself."""
        if self._peer is None and self._transport is not None and self._deadline is not None:
            self._deadline.cancel()
            self._transport.pause_reading()

    def thaw(self) -> None:
        """Wait for the first bytes again."""
        if self._peer is None and self._transport is not None:
            self._deadline = self._port.loop.call_later(FIRST_BYTES_DEADLINE_S, self._transport.abort)
            self._transport.resume_reading()
