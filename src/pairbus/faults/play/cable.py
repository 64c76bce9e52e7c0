"""A cable stands between the transport of one connection and its protocol; faults freeze cables and slow them.

Bytes keep their order in each direction, and faults lose none: those that must wait are handed over, or written, when
they are due or when the faults end. While no fault is on, a cable only passes the bytes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, cast

from pairbus.faults.active import Active
from pairbus.faults.pace import Pace
from pairbus.faults.play.held_steps import run_all

FROZEN, THIN, PROTOCOL, HANDING_OVER = "frozen", "thin", "the protocol", "handing over"
"Reasons not to read from the transport."


class CableTransport(Protocol):
    """The transport under a cable: TCP, TLS or a web socket."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class CableProtocol(Protocol):
    """The protocol above a cable."""

    def data_received(self, data: bytes) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...


class CableFaults:
    """The faults that meet the bytes of one port's connections. The lists are changed in place: each cable has them."""

    def __init__(self, dice: Callable[[], float]) -> None:
        self.dice = dice
        self.open: set[Cable] = set()
        "Cables that are open."
        self.frozen_by: set[object] = set()
        self.thin: list[Active] = []
        "Faults that limit the bytes a second."
        self.late: list[Active] = []
        "Faults that delay bytes."
        self.slow: list[Active] = []
        "All of both."

    def slow_by(self, faults: Sequence[Active]) -> None:
        """Slow the cables by these faults alone. Bytes that wait for a fault that is not among them get new times."""
        before = list(self.slow)
        self.slow[:] = faults
        self.thin[:] = [active for active in faults if "bytes_per_s" in active.fault.arguments]
        self.late[:] = [active for active in faults if "delay_s" in active.fault.arguments]
        if any(active not in self.slow for active in before):
            run_all([cable.pace_anew for cable in list(self.open)])

    def freeze(self, key: object) -> None:
        """Freeze every cable, also those that open later, until `thaw` with the same key."""
        self.frozen_by.add(key)
        for cable in list(self.open):
            cable.freeze(key)

    def thaw(self, key: object) -> None:
        self.frozen_by.discard(key)
        run_all([partial(cable.thaw, key) for cable in list(self.open)])


class Cable(asyncio.Protocol):
    """One connection: a protocol for the transport, and a transport for the protocol."""

    __slots__ = (
        "_arriving",
        "_faults",
        "_frozen_by",
        "_full",
        "_into",
        "_late",
        "_late_bytes",
        "_late_bytes_max",
        "_leaving",
        "_opened",
        "_out",
        "_pauses",
        "_slow_writing",
        "_thin",
        "_unread",
        "has_peer_ended",
        "is_open",
        "protocol",
        "transport",
    )

    def __init__(
        self,
        faults: CableFaults,
        *,
        late_bytes_max: int,
        slow_writing: list[Active] | None = None,
        opened: Callable[[], None] | None = None,
    ) -> None:
        """Make the cable of a connection that is to open; it must get a `protocol` before.

        `late_bytes_max`: when more bytes wait to be written, the protocol is asked to write no more.
        `slow_writing`: the faults that slow the bytes that are written; None: all that slow cables.
        `opened` is called when the transport is there.
        """
        self.protocol: CableProtocol
        "The protocol that the bytes are for; it may change."
        self.transport: CableTransport
        "The transport, from the moment when the cable opens."
        self.is_open = False
        self.has_peer_ended = False
        "True when the peer has ended its side: it reads no more bytes."
        self._faults = faults
        self._opened = opened
        self._thin = faults.thin
        self._slow_writing = faults.slow if slow_writing is None else slow_writing
        self._late_bytes_max = late_bytes_max
        self._into, self._out = Pace(faults.dice), Pace(faults.dice)
        self._pauses: set[object] = set()
        "Reasons not to read; bytes that come nevertheless are kept in `_unread`."
        self._unread: list[bytes] = []
        self._arriving: asyncio.TimerHandle | None = None
        self._frozen_by: set[object] = set()
        self._late: deque[tuple[float, bytes | None]] = deque()
        "(time, bytes) that must wait until then before they are written; None closes the connection."
        self._late_bytes = 0
        self._leaving: asyncio.TimerHandle | None = None
        self._full: set[str] = set()
        "Reasons why the protocol should write no more."

    @property
    def is_frozen(self) -> bool:
        return bool(self._frozen_by)

    # ── from the transport ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.open_on(cast(CableTransport, transport))

    def open_on(self, transport: CableTransport) -> None:
        """Begin to pass bytes of a transport that is open."""
        self.transport = transport
        self.is_open = True
        self._faults.open.add(self)
        for key in self._faults.frozen_by:
            self.freeze(key)
        if self._pauses:
            transport.pause_reading()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened()

    def data_received(self, data: bytes) -> None:
        if self._thin or self._pauses:
            self._keep(data)
        else:
            self.protocol.data_received(data)

    def _keep(self, data: bytes) -> None:
        """Keep bytes until a thin cable has passed them, or until the cable is read from again."""
        self._unread.append(data)
        if self._thin:
            # No more bytes are read before: the buffer of the writer's socket fills up, as on a real cable.
            self.pause(THIN)
            self._arrive_at(len(data))
        elif self.is_open:
            self.transport.pause_reading()  # uvloop reads once more when it is paused as early as in `connection_made`

    def _arrive_at(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        if self._arriving is not None:
            self._arriving.cancel()
        self._arriving = loop.call_at(self._into.leaves_at(size, self._thin, loop.time()), self._arrived)

    def _arrived(self) -> None:
        self._arriving = None
        self.resume(THIN)

    def eof_received(self) -> None:
        # Returning None closes the transport, which leads to connection_lost. Bytes written until then would be
        # dropped, with a warning in the log for every one after the fifth.
        self.has_peer_ended = True

    def pause_writing(self) -> None:
        self._fill("socket")

    def resume_writing(self) -> None:
        self._make_room("socket")

    def connection_lost(self, error: Exception | None) -> None:
        self.leave()
        self.protocol.connection_lost(error)

    def leave(self) -> None:
        """Drop the bytes that wait, and have nothing more to do with the transport."""
        self.is_open = False
        self._faults.open.discard(self)
        self._unread.clear()
        self.drop_late()
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    # ── reading ──

    def pause(self, why: object) -> None:
        """Stop reading until `resume` for the same reason."""
        if not self._pauses and self.is_open:
            self.transport.pause_reading()
        self._pauses.add(why)

    def resume(self, why: object) -> None:
        if why not in self._pauses:
            return
        self._pauses.discard(why)
        if not self._pauses:
            if self._unread:
                # Not now: the caller may be the protocol, in the midst of other bytes.
                self._pauses.add(HANDING_OVER)
                asyncio.get_running_loop().call_soon(self._hand_over)
            else:
                self._read_on()

    def pause_reading(self) -> None:
        """Stop reading, as a transport does for its protocol."""
        self.pause(PROTOCOL)

    def resume_reading(self) -> None:
        self.resume(PROTOCOL)

    def _hand_over(self) -> None:
        """Hand kept bytes to the protocol, unless there is a new reason not to."""
        self._pauses.discard(HANDING_OVER)
        if self._pauses or not self.is_open:
            return
        unread, self._unread = self._unread, []
        try:
            for data in unread:
                self.protocol.data_received(data)
        except BaseException:  # as a transport does when it hands over the bytes itself
            self.abort()
            raise
        if not self._pauses and not self.transport.is_closing():
            self.transport.resume_reading()  # also when the protocol has left the transport to another one

    def _read_on(self) -> None:
        if self.is_open and not self.transport.is_closing():
            self.transport.resume_reading()

    # ── writing ──

    def write(self, data: bytes) -> None:
        """Write now, or later when a fault demands it."""
        if self._slow_writing or self._late or self._frozen_by:
            self._write_later(data)
        else:
            self.transport.write(data)

    def _write_later(self, data: bytes | None) -> None:
        size = 0 if data is None else len(data)
        self._late.append((self._out.leaves_at(size, self._slow_writing, asyncio.get_running_loop().time()), data))
        self._late_bytes += size
        if self._late_bytes > self._late_bytes_max:
            self._fill("late")
        self._write_due()

    def _write_due(self) -> None:
        """Write the bytes whose time has come, and set a timer for the rest."""
        loop = asyncio.get_running_loop()
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        while self._late and not self._frozen_by and self._late[0][0] <= loop.time():
            data = self._late.popleft()[1]
            if data is None:
                self.transport.close()
            else:
                self._late_bytes -= len(data)
                with suppress(RuntimeError):  # uvloop's error for a closed connection; asyncio drops the bytes
                    self.transport.write(data)
        if self._late and not self._frozen_by:
            self._leaving = loop.call_at(self._late[0][0], self._write_due)
        if self._late_bytes <= self._late_bytes_max // 2:
            self._make_room("late")

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the peer has not got yet."""
        return self._late_bytes + self.transport.get_write_buffer_size()

    def _fill(self, why: str) -> None:
        is_first = not self._full
        self._full.add(why)
        if is_first and self.is_open:
            self.protocol.pause_writing()

    def _make_room(self, why: str) -> None:
        if why in self._full:
            self._full.discard(why)
            if not self._full and self.is_open:
                self.protocol.resume_writing()

    # ── faults ──

    def freeze(self, key: object) -> None:
        """Stop reading and writing until `thaw` with the same key, as if the cable swallowed all bytes."""
        if not self._frozen_by:
            self.pause(FROZEN)
            self._fill("frozen")
            if self._leaving is not None:
                self._leaving.cancel()
                self._leaving = None
        self._frozen_by.add(key)

    def thaw(self, key: object) -> None:
        """Go on where the connection froze: no byte was lost."""
        if key in self._frozen_by:
            self._frozen_by.discard(key)
            if not self._frozen_by:
                self._write_due()
                self.resume(FROZEN)
                self._make_room("frozen")

    def pace_anew(self) -> None:
        """Give the bytes that wait new times, because a fault that slowed the cable has ended."""
        self._into, self._out = Pace(self._faults.dice), Pace(self._faults.dice)
        if THIN in self._pauses:
            self._arrive_at(sum(map(len, self._unread)))
        now = asyncio.get_running_loop().time()
        self._late = deque(
            (self._out.leaves_at(len(data or b""), self._slow_writing, now), data) for _, data in self._late
        )
        self._write_due()

    # ── ending ──

    def is_closing(self) -> bool:
        return not self.is_open or self.transport.is_closing()

    def close(self) -> None:
        """Close the connection after all bytes that were written before."""
        if self._late or self._frozen_by:
            self._write_later(None)
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection now; bytes that wait are lost."""
        self.drop_late()
        if self.is_open:
            self.transport.abort()

    def read_on_anyway(self) -> None:
        """Read whatever comes from now on, and drop all bytes that wait: the connection is being ended."""
        self.drop_late()
        self._frozen_by.clear()
        self._unread.clear()
        if self._pauses:
            self._pauses.clear()
            self._read_on()

    def drop_late(self) -> None:
        """Drop the bytes that wait to be written."""
        self._late.clear()
        self._late_bytes = 0
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
