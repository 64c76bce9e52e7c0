"""Bytes that one client has sent: messages that are not committed yet, and messages of which only a part has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pairbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from pairbus.broker.budget import Share, Shelf

if TYPE_CHECKING:
    from pairbus.broker.wire.peer import Peer

HELD_BYTES_MAX = 16 << 20  # per connection, of messages received but not yet committed
HELD_COUNT_MAX = 8192


class PeerWire(Protocol):
    """The line of a peer, over TCP, TLS or a web socket."""

    @property
    def is_frozen(self) -> bool: ...

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class Unfinished:
    """Bytes of messages of which only a part has come from one client."""

    def __init__(self, peer: Peer, shelf: Shelf) -> None:
        self.size = 0
        self._peer = peer
        self._shelf = shelf

    def note(self, size: int) -> None:
        self.size = size
        self._shelf.note_size(self, size)

    def held_bytes(self) -> int:
        return self.size

    def give_up(self) -> None:
        """End the connection, because memory is short and nothing has come for longer than from others."""
        text = f"{self.size} bytes of unfinished messages were dropped: the broker has no more memory for such."
        self._peer.close(RESOURCE_LIMIT_EXCEEDED, text)


class Arrivals:
    """Messages received from one client and not yet committed: when they are many, it is not read from."""

    def __init__(self, share: Share, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._share = share
        self._pause = pause
        self._resume = resume
        self._bytes = self._count = 0
        self._is_paused = False

    def take(self, size: int, count: int) -> None:
        self._bytes += size
        self._count += count
        self._share.take(size)
        if self._bytes > HELD_BYTES_MAX or self._count > HELD_COUNT_MAX or not self._share.may_take:
            self._is_paused = True
            self._pause()
            self._read_when_free()

    def give(self, size: int, count: int) -> None:
        self._bytes -= size
        self._count -= count
        self._share.give(size)
        if self._is_paused:
            self._read_when_free()

    def close(self) -> None:
        """Return everything, at the end of the client."""
        self._share.close()

    def _read_when_free(self) -> None:
        """Read again when enough of what the client sent is committed, and the budget has room."""
        if not self._share.may_take:
            self._share.when_free(self._read_when_free)
        elif self._bytes <= HELD_BYTES_MAX // 2 and self._count <= HELD_COUNT_MAX // 2:
            self._is_paused = False
            self._resume()
