"""A new connection, until its first bytes have shown its protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pairbus.broker.wire.peer import Peer
from pairbus.faults.play.cable import Cable

if TYPE_CHECKING:
    from pairbus.broker.wire.server import Port

FIRST_BYTES_DEADLINE_S = 10.0
WRITE_BUFFER_MAX = 1 << 20
LATE_BYTES_MAX = 1 << 20  # bytes to one peer that wait on a slow line; beyond it no more are written for the peer


class Door:
    """The protocol of a cable until its first bytes have come; then a peer takes the cable, or HTTP the transport."""

    def __init__(self, port: Port) -> None:
        faults = port.namespace.faults.connections.cables
        self.cable = Cable(faults, late_bytes_max=LATE_BYTES_MAX, opened=self._opened)
        self.cable.protocol = self
        self._port = port
        self._first = b""
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def _transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self.cable.transport)

    def _opened(self) -> None:
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX)
        self._wait()

    def _wait(self) -> None:
        self._deadline = self._port.loop.call_later(FIRST_BYTES_DEADLINE_S, self._time_is_over)

    def _time_is_over(self) -> None:
        if self.cable.is_frozen:  # the client may have sent its first bytes
            self._wait()
        else:
            self.cable.abort()

    def data_received(self, data: bytes) -> None:
        self._first += data
        if len(self._first) < 4 and b"AMQP".startswith(self._first):
            return
        assert self._deadline is not None
        self._deadline.cancel()
        if self._first.startswith(b"AMQP"):
            peer = self.cable.protocol = Peer(self._port.namespace, self.cable, self._port.loop, self._port.trace)
            peer.data_received(self._first)
            return
        self.cable.leave()
        handler = self.cable.protocol = self._port.http_handler(self._transport)  # for bytes that the cable kept
        self._transport.set_protocol(handler)
        handler.connection_made(self._transport)
        handler.data_received(self._first)

    def pause_writing(self) -> None:
        """Do nothing: nothing is written before the first bytes have come."""

    def resume_writing(self) -> None:
        """Do nothing, see `pause_writing`."""

    def connection_lost(self, error: Exception | None) -> None:
        assert self._deadline is not None
        self._deadline.cancel()
