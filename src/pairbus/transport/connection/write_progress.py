"""Progress of our bytes: written to the transport, and gone from this machine's buffers.

The core's output, asyncio's buffer and the socket's queue are looked at only by `look`; a write costs one addition.
Linux tells how many bytes the peer's machine has not acknowledged (SIOCOUTQ) and how many it has (TCP_INFO). On other
systems the send buffer is made small and its content is given a moment to leave.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from pairbus.transport.times import ALLOWANCE_S

try:
    from fcntl import ioctl
except ImportError:  # Windows
    ioctl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pairbus.transport.connection.wire import ByteTransport

TELLS = sys.platform == "linux" and ioctl is not None
UNSENT_MAX = 32_768  # bytes that a socket takes before it has sent them; other messages must wait for these
FLUSHES_MAX = 1024
USER_TIMEOUT_MS = 20_000  # bytes that are not acknowledged in this time end the connection
KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_SIOCOUTQ = 0x5411
_ACKED_AT = 120  # tcpi_bytes_acked in struct tcp_info, since Linux 4.1
_LAST_ACK_AT = 56  # tcpi_last_ack_recv: milliseconds since the last acknowledgement


def tune(sock: socket.socket | None) -> None:
    """Let a socket notice a peer that is gone, and hold few bytes that it cannot send."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    _set(sock, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
    for name, value in KEEP_ALIVE:
        _set(sock, socket.IPPROTO_TCP, name, value)
    _set(sock, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS)
    _set(sock, socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", UNSENT_MAX)
    if not TELLS:
        _set(sock, socket.SOL_SOCKET, "SO_SNDBUF", UNSENT_MAX)


def _set(sock: socket.socket, level: int, name: str, value: int) -> None:
    option = getattr(socket, name, {"TCP_NOTSENT_LOWAT": 25}.get(name) if TELLS else None)
    if option is not None:
        sock.setsockopt(level, option, value)


class WriteProgress:
    """The bytes of one connection on their way out."""

    def __init__(self) -> None:
        self.flushes = 0
        "Number of writes of the core's output; a send remembers it as its mark."
        self.written = 0
        self.moved_at = 0.0
        "Time when bytes last left, or were last seen to have left where the system does not tell."
        self._ends: deque[int] = deque(maxlen=FLUSHES_MAX)
        self.under: asyncio.WriteTransport | None = None
        "The transport between TLS and the socket."
        self._transport: ByteTransport | None = None
        self._socket: Any = None
        self._seen = -1

    def joined(self, transport: ByteTransport) -> None:
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        tune(self._socket)

    def wrote(self, size: int) -> None:
        self.flushes += 1
        self.written += size
        self._ends.append(self.written)

    def look(self, now: float) -> int:
        """Return how many bytes have left; sets `moved_at` when there are more than at the last look."""
        left = self._left()
        seen, ago_s = self._acked(left)
        if seen != self._seen:
            self._seen = seen
            self.moved_at = max(now - ago_s, self.moved_at)
        return left

    def has_left(self, mark: int, left: int) -> bool:
        """Return True when all bytes of the core's output at the mark are among the first `left` bytes."""
        behind = self.flushes - mark
        if behind <= 0:
            return False
        ends = self._ends
        return left >= (ends[-behind] if behind <= len(ends) else ends[0])

    @property
    def allowance_s(self) -> float:
        """Extra time to wait for a peer, where the system does not tell when our bytes have left."""
        return 0.0 if TELLS and self._socket is not None else ALLOWANCE_S

    def _left(self) -> int:
        if self._transport is None:
            return self.written
        left = self.written - self._transport.get_write_buffer_size() - self._queued()
        return left if self.under is None else left - self.under.get_write_buffer_size()

    def _queued(self) -> int:
        """Return the bytes in the socket that the peer has not acknowledged; 0 if the system does not tell."""
        if not TELLS or self._socket is None or self._socket.fileno() < 0:
            return 0
        return int(struct.unpack("i", ioctl(self._socket.fileno(), _SIOCOUTQ, b"\0\0\0\0"))[0])

    def _acked(self, left: int) -> tuple[int, float]:
        """Return (bytes that the peer's machine has acknowledged, seconds since it did so last)."""
        if not TELLS or self._socket is None or self._socket.fileno() < 0:
            return left, 0.0
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
        if len(info) < _ACKED_AT + 8:
            return left, 0.0
        ago_s = float(struct.unpack_from("=I", info, _LAST_ACK_AT)[0]) / 1000
        return int(struct.unpack_from("=Q", info, _ACKED_AT)[0]), ago_s
