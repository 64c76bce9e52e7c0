"""Faults of the connection itself: connections that are refused, swallowed, slow or of low bandwidth."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pairbus.broker.outages.held import run_all
from pairbus.broker.outages.swallowed import SwallowedConnections, reset
from pairbus.faults import CONTACT, Active, Pace, Place

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace
    from pairbus.broker.outages import NamespaceFaults
    from pairbus.broker.wire.peer import Peer


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request over HTTP that is being answered. When it began a fault itself, its answer leaves all the same."""

    connection: object
    begun: set[int] = field(default_factory=set)
    "Numbers of the faults that it began."


answered_request: ContextVar[HttpRequest | None] = ContextVar("answered_request", default=None)
"Request that is being answered in this context."


LATE_BYTES_MAX = 1 << 20  # bytes to one peer that wait on a slow line; beyond it no more are written for the peer


class Listening(Protocol):
    """A port, as the faults of the connection see it."""

    def refuse(self, is_refusing: bool) -> None:
        """Stop listening and cut every connection, or listen again."""
        ...

    def freeze(self, key: int) -> None:
        """Stop reading from the open connections and writing to them, until `thaw` with the same key."""
        ...

    def thaw(self, key: int) -> None: ...

    def welcome(self, client: socket.socket) -> None:
        """Go on with a connection that was accepted."""
        ...


class SlowLine:
    """Bytes of one connection that pass a slow line: each direction keeps its order."""

    def __init__(self, dice: Callable[[], float]) -> None:
        self._dice = dice
        self.out, self.into = Pace(dice), Pace(dice)
        self.late: deque[tuple[float, bytes]] = deque()
        "(time, bytes to the peer) that must wait until then."
        self.late_bytes = 0
        self.leaving: asyncio.TimerHandle | None = None
        self.unread: list[bytes] = []
        "Bytes from the peer that the line is passing; meanwhile the peer is not read from."
        self.arriving: asyncio.TimerHandle | None = None

    def begin_anew(self) -> None:
        """Forget the times of the bytes that wait."""
        self.out, self.into = Pace(self._dice), Pace(self._dice)
        for timer in (self.leaving, self.arriving):
            if timer is not None:
                timer.cancel()
        self.leaving = self.arriving = None


class ContactFaults:
    """Faults that act on new and open connections."""

    def __init__(self, owner: NamespaceFaults, namespace: Namespace, loop: asyncio.AbstractEventLoop) -> None:
        self.port: Listening | None = None
        "Listening port; None until the namespace listens."
        self._owner = owner
        self._namespace = namespace
        self._loop = loop
        self._lines: list[Active] = []
        "Faults that slow the line."
        self._slow: dict[Peer, SlowLine] = {}
        self._is_refusing = False
        self._swallowed = SwallowedConnections(owner.held, self._decide_again)

    # ── beginning and ending ──

    def begin(self, one: Active) -> None:
        """Begin a fault: a black hole that meets every connection freezes the open ones as well."""
        request = answered_request.get()
        if request is not None:
            request.begun.add(one.id)
        if one.fault.kind.name == "black-hole" and one.fault.is_certain and self.port is not None:
            self.port.freeze(one.id)
            self._owner.held.add(one.id, self, partial(self.port.thaw, one.id))

    def changed(self) -> None:
        """Note that the set of faults has changed."""
        certain = {one.fault.kind.name for one in self._owner.faults.at(Place.CONNECT) if one.fault.is_certain}
        if self.port is not None and self._is_refusing is not ("refuse" in certain):
            self._is_refusing = not self._is_refusing
            self.port.refuse(self._is_refusing)
            if self._is_refusing:
                self._swallowed.reset_all()
        lines, self._lines = self._lines, self._owner.faults.at(Place.WIRE)
        if any(one not in self._lines for one in lines):
            run_all([partial(self._pace_anew, peer, line) for peer, line in list(self._slow.items())])

    # ── new connections ──

    def accepts(self, client: socket.socket) -> bool:
        """Return whether a connection that was just accepted may go on; otherwise it is reset, or kept in silence."""
        one = self._owner.meet(Place.CONNECT, CONTACT, "")
        if one is None:
            return True
        if one.fault.kind.name == "refuse":
            reset(client)
        else:
            # No byte is read, so none is lost: when the black hole ends, the client goes on as if it came then.
            self._swallowed.keep(one.id, client)
        return False

    def _decide_again(self, client: socket.socket) -> None:
        """Go on with a connection whose black hole has ended, unless another fault meets it."""
        if self.port is None:  # the broker stops
            client.close()
        elif self.accepts(client):
            self.port.welcome(client)

    async def http_is_open(self) -> None:
        """Wait while a black hole that the request did not begin itself swallows the bytes of open connections."""
        request = answered_request.get()
        begun = set() if request is None else request.begun
        while holes := [
            one
            for one in self._owner.faults.at(Place.CONNECT)
            if one.fault.kind.name == "black-hole" and one.fault.is_certain and one.id not in begun
        ]:
            await self._owner.until_end(holes[0])

    async def http_is_late(self, size: int) -> None:
        """Wait as long as an answer of `size` bytes takes on a slow line."""
        if self._lines:
            now = self._loop.time()
            await asyncio.sleep(Pace(self._owner.faults.dice).leaves_at(size, self._lines, now) - now)

    # ── slow lines ──

    def write(self, peer: Peer, data: bytes) -> None:
        """Write to the peer's wire, as late as the line demands."""
        line = self._slow.get(peer)
        if line is None and not self._lines:
            peer.write_now(data)
            return
        if line is None:
            line = self._slow[peer] = SlowLine(self._owner.faults.dice)
        line.late.append((line.out.leaves_at(len(data), self._lines, self._loop.time()), data))
        line.late_bytes += len(data)
        if line.late_bytes > LATE_BYTES_MAX:
            peer.pause_writing("late")
        if line.leaving is None:
            line.leaving = self._loop.call_at(line.late[0][0], self._leave, peer, line)

    def _leave(self, peer: Peer, line: SlowLine) -> None:
        """Write the bytes whose time has come."""
        now = self._loop.time()
        while line.late and line.late[0][0] <= now:
            data = line.late.popleft()[1]
            line.late_bytes -= len(data)
            peer.write_now(data)
        line.leaving = self._loop.call_at(line.late[0][0], self._leave, peer, line) if line.late else None
        if line.late_bytes <= LATE_BYTES_MAX // 2:
            peer.resume_writing("late")

    def read(self, peer: Peer, data: bytes) -> bool:
        """Keep bytes of the peer until the line has passed them; False: the peer may handle them now."""
        if not (thin := self._thin()):
            return False
        line = self._slow.setdefault(peer, SlowLine(self._owner.faults.dice))
        peer.rest()
        line.unread.append(data)
        if line.arriving is not None:
            line.arriving.cancel()
        at_s = line.into.leaves_at(len(data), thin, self._loop.time())
        line.arriving = self._loop.call_at(at_s, self._arrive, peer, line)
        return True

    def _arrive(self, peer: Peer, line: SlowLine) -> None:
        line.arriving = None
        unread, line.unread = line.unread, []
        peer.go_on(unread)

    def _pace_anew(self, peer: Peer, line: SlowLine) -> None:
        """Give the bytes that wait new times, because a fault that slowed the line has ended."""
        line.begin_anew()
        now, thin = self._loop.time(), self._thin()
        if not self._lines:
            self._slow.pop(peer, None)
        line.late = deque((line.out.leaves_at(len(data), self._lines, now), data) for _, data in line.late)
        self._leave(peer, line)
        if line.unread:
            at_s = line.into.leaves_at(sum(map(len, line.unread)), thin, now)
            if thin:
                line.arriving = self._loop.call_at(at_s, self._arrive, peer, line)
            else:
                self._arrive(peer, line)

    def _thin(self) -> list[Active]:
        """Return the faults that limit the bandwidth."""
        return [one for one in self._lines if "bytes_per_s" in one.fault.arguments]

    def forget(self, peer: Peer) -> None:
        """Forget a connection that is gone, with the bytes that wait for it."""
        line = self._slow.pop(peer, None)
        if line is not None:
            line.begin_anew()
            line.late.clear()
            line.unread.clear()
