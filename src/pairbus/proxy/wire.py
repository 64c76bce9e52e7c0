"""One socket of a passage, over a cable that faults slow and freeze. While it is full, the other one is not read."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from pairbus.faults import Active
from pairbus.faults.play.abort import reset_transport
from pairbus.faults.play.cable import Cable, CableFaults
from pairbus.proxy.conversation import Direction

LATE_BYTES_MAX = 16 << 20  # of a slow cable, each way; beyond it the proxy stops reading for it


class WireOwner(Protocol):
    """The passage, as its sockets use it."""

    def end(self, direction: Direction) -> ProxyWire:
        """Return the socket whose bytes go in that direction."""
        ...

    def arrived(self, direction: Direction, data: bytes) -> None: ...

    def lost(self, direction: Direction, error: Exception | None) -> None: ...


class ProxyWire:
    """The client's socket (whose bytes go up) or the target's."""

    def __init__(self, owner: WireOwner, direction: Direction, faults: CableFaults, slow_writing: list[Active]) -> None:
        self._owner = owner
        self._direction = direction
        "Direction of the bytes that are read here."
        self.cable = Cable(faults, late_bytes_max=LATE_BYTES_MAX, slow_writing=slow_writing)
        self.cable.protocol = self
        self._is_ending = False
        "True when the socket is being closed."

    @property
    def is_open(self) -> bool:
        return self.cable.is_open

    # ── from the cable ──

    def data_received(self, data: bytes) -> None:
        self._owner.arrived(self._direction, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.lost(self._direction, error)

    def pause_writing(self) -> None:
        self._owner.end(self._direction.other).pause("full")

    def resume_writing(self) -> None:
        self._owner.end(self._direction.other).resume("full")

    # ── operations ──

    def pause(self, why: object) -> None:
        """Stop reading until `resume` for the same reason."""
        self.cable.pause(why)

    def resume(self, why: object) -> None:
        self.cable.resume(why)

    def write(self, data: bytes | None) -> None:
        """Write now, or later when the cable is slow; None: close, after all bytes that were written before."""
        if not self.is_open or self._is_ending or self.cable.has_peer_ended:
            return
        if data is None:
            self._is_ending = True
            self.cable.close()
        else:
            self.cable.write(data)

    def close(self) -> None:
        self.write(None)

    def reset(self) -> None:
        """End the socket with RST: the peer gets an error, not an end."""
        self.cable.drop_late()
        if self.is_open:
            reset_transport(self._transport)

    def finish(self) -> None:
        """End with FIN. A socket closed with unread bytes would be reset, so it is read until the peer's FIN."""
        self.cable.read_on_anyway()
        if self.is_open and not self.cable.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:  # TLS has its own end
                self._transport.close()

    @property
    def _transport(self) -> asyncio.Transport:
        return cast(asyncio.Transport, self.cable.transport)
