"""One socket of a passage: reading from it, and writing to it at the right time.

Faults never change the order of the bytes that are written, and a socket that is full stops the reading of the other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from pairbus.faults import Active, Pace
from pairbus.proxy.conversation import Direction
from pairbus.proxy.sockets import reset

LATE_BYTES_MAX = 16 << 20  # of a slow line, each way; beyond it the proxy stops reading for it


class WireOwner(Protocol):
    """The passage, as its sockets use it."""

    def end(self, direction: Direction) -> ProxyWire:
        """Return the socket whose bytes go in that direction."""
        ...

    def lines(self, direction: Direction) -> Sequence[Active]:
        """Return the faults that slow the bytes of that direction."""
        ...

    def arrived(self, direction: Direction, data: bytes) -> None: ...

    def lost(self, direction: Direction, error: Exception | None) -> None: ...


class ProxyWire(asyncio.Protocol):
    """The client's socket (whose bytes go up) or the target's."""

    def __init__(self, owner: WireOwner, direction: Direction, dice: Callable[[], float]) -> None:
        self._owner = owner
        self._direction = direction
        "Direction of the bytes that are read here."
        self.transport: asyncio.Transport | None = None
        self._has_ended = False
        "True when the peer will read no more bytes: it has ended its side, or the socket is being closed."
        self._pauses: set[object] = set()
        self._frozen_by: set[object] = set()
        "Reasons to write no bytes now."
        self._unread: list[bytes] = []
        self._dice = dice
        self._width, self._delay = Pace(dice), Pace(dice)
        self._thin_timer: asyncio.TimerHandle | None = None
        self._late: deque[tuple[float, bytes | None]] = deque()
        "(time, bytes) that must wait until then before they are written; None is the end."
        self._late_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    # ── reading ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._pauses:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._pauses and self.transport is not None:  # uvloop reads once more when it is paused as early as above
            self._unread.append(data)
            self.transport.pause_reading()
            return
        if self._slowing(self._direction, "bytes_per_s"):
            # The bytes arrive when the line has passed them, and no more are read before: the writer's socket fills up.
            self.pause("thin")
            self._unread.append(data)
            self._rest()
        else:
            self._owner.arrived(self._direction, data)

    def _rest(self) -> None:
        """Read again when the thin line has passed the bytes that are not read yet."""
        thin, loop = self._slowing(self._direction, "bytes_per_s"), asyncio.get_running_loop()
        at = self._width.leaves_at(sum(map(len, self._unread)), thin, loop.time())
        self._thin_timer = loop.call_at(at, self.resume, "thin")

    def _slowing(self, direction: Direction, number: str) -> list[Active]:
        """Return the faults with such a number that slow a direction."""
        return [one for one in self._owner.lines(direction) if number in one.fault.arguments]

    def eof_received(self) -> None:
        # Returning None closes the transport, which leads to connection_lost. Bytes written until then would be
        # dropped, with a warning in the log for every one after the fifth.
        self._has_ended = True

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._forget_late()
        self._owner.lost(self._direction, error)

    def pause_writing(self) -> None:
        self._owner.end(self._direction.other).pause("full")

    def resume_writing(self) -> None:
        self._owner.end(self._direction.other).resume("full")

    def pause(self, why: object) -> None:
        """Stop reading until `resume` for the same reason."""
        if not self._pauses and self.transport is not None:
            self.transport.pause_reading()
        self._pauses.add(why)

    def resume(self, why: object) -> None:
        if why not in self._pauses:
            return
        self._pauses.remove(why)
        if not self._pauses and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
            unread, self._unread = self._unread, []
            for data in unread:
                self._owner.arrived(self._direction, data)

    # ── writing ──

    def freeze(self, why: object) -> None:
        """Stop reading and writing until `thaw` for the same reason."""
        self._frozen_by.add(why)
        self.pause(why)
        self._cancel_timer()

    def thaw(self, why: object) -> None:
        self._frozen_by.discard(why)
        if not self._frozen_by:
            self._write_due()
        self.resume(why)

    def write(self, data: bytes | None) -> None:
        """Write now, or later when the line is slow; None: close, after all bytes that were written before."""
        lines = self._slowing(self._direction.other, "delay_s")
        if not lines and not self._late and not self._frozen_by:
            self._write(data)
            return
        now = asyncio.get_running_loop().time()
        size = 0 if data is None else len(data)
        self._late.append((self._delay.leaves_at(size, lines, now), data))
        self._late_bytes += size
        if self._late_bytes > LATE_BYTES_MAX:
            self._owner.end(self._direction.other).pause("late")
        self._write_due()

    def _write(self, data: bytes | None) -> None:
        if self.transport is None or self._has_ended:
            return
        if data is None:
            self._has_ended = True
            self.transport.close()
        else:
            self.transport.write(data)

    def _write_due(self) -> None:
        """Write the bytes whose time has come, and set a timer for the rest."""
        self._cancel_timer()
        loop = asyncio.get_running_loop()
        while self._late and not self._frozen_by and self._late[0][0] <= loop.time():
            data = self._late.popleft()[1]
            self._late_bytes -= 0 if data is None else len(data)
            self._write(data)
        if not self._late:
            self._owner.end(self._direction.other).resume("late")
        elif not self._frozen_by:
            self._timer = loop.call_at(self._late[0][0], self._write_due)

    def pace_anew(self) -> None:
        """Give the bytes that wait new times, because a fault that slowed the line has ended."""
        self._width, self._delay = Pace(self._dice), Pace(self._dice)
        if self._thin_timer is not None:
            self._thin_timer.cancel()
        if self._slowing(self._direction, "bytes_per_s") and "thin" in self._pauses:
            self._rest()
        else:
            self.resume("thin")
        lines, now = self._slowing(self._direction.other, "delay_s"), asyncio.get_running_loop().time()
        self._late = deque((self._delay.leaves_at(len(data or b""), lines, now), data) for _, data in self._late)
        if not self._frozen_by:
            self._write_due()

    def _forget_late(self) -> None:
        self._late.clear()
        self._late_bytes = 0
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ── ending ──

    def close(self) -> None:
        self._write(None)

    def reset(self) -> None:
        """End the socket with RST: the peer gets an error, not an end."""
        self._forget_late()
        if self.transport is not None:
            reset(self.transport)

    def finish(self) -> None:
        """End with FIN. A socket closed with unread bytes would be reset, so it is read until the peer's FIN."""
        self._forget_late()
        self._frozen_by.clear()
        for why in list(self._pauses):
            self.resume(why)
        if self.transport is not None and not self.transport.is_closing():
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:  # TLS has its own end
                self.transport.close()
