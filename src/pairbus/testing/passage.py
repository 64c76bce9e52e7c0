"""One connection through the nemesis: two sockets, what passes between them, and what is done to it on the way.

Whatever the faults do, the order of a direction is kept, and a socket that is full stops the reading of the other one.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

from pairbus.amqp.errors import DETACH_FORCED
from pairbus.amqp.frames import frame
from pairbus.amqp.link import ranges
from pairbus.amqp.performatives import Attach, Begin, Close, Composite, Detach, Disposition, End, Error
from pairbus.amqp.transfers import disposition_frame
from pairbus.testing.conversation import DOWN, UP, Conversation, Direction, FollowedLink, Unit, settled_ids
from pairbus.testing.faults import Counts, Faults
from pairbus.testing.sockets import reset, reset_socket

HELD_BYTES_MAX = 16 << 20  # of stalled transfers, per connection; then the client is not read from
LINGER_S = 1.0  # after our FIN, for the peer's
_CUT = Error(DETACH_FORCED, "The link was cut between the client and the broker.")


class _Socket(asyncio.Protocol):
    """The client's socket (whose bytes go up) or the broker's."""

    def __init__(self, passage: Passage, direction: Direction) -> None:
        self._passage = passage
        self._direction = direction
        self.transport: asyncio.Transport | None = None
        self._pauses: set[str] = set()
        self._unread: list[bytes] = []
        self._late: deque[tuple[float, bytes | None]] = deque()
        "What must still wait before it is written, and until when; None is the end."
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._pauses:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self._pauses and self.transport is not None:  # uvloop reads once more when it is paused as early as above
            self._unread.append(data)
            self.transport.pause_reading()
        else:
            self._rest_after(len(data))
            self._passage.arrived(self._direction, data)

    def _rest_after(self, count: int) -> None:
        """Read nothing for as long as these bytes take on a thin line, so that the writer's socket fills up."""
        bytes_per_s = self._passage.bytes_per_s
        if bytes_per_s:
            self.pause("bandwidth")
            asyncio.get_running_loop().call_later(count / bytes_per_s, self.resume, "bandwidth")

    def eof_received(self) -> None:
        return None  # closes the transport, which leads to connection_lost

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._forget_late()
        self._passage.lost(self._direction, error)

    def pause_writing(self) -> None:
        self._passage.end(self._direction.other).pause("full")

    def resume_writing(self) -> None:
        self._passage.end(self._direction.other).resume("full")

    def pause(self, why: str) -> None:
        if not self._pauses and self.transport is not None:
            self.transport.pause_reading()
        self._pauses.add(why)

    def resume(self, why: str) -> None:
        if why in self._pauses:
            self._pauses.remove(why)
            if not self._pauses and self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
                unread, self._unread = self._unread, []
                for data in unread:
                    self._passage.arrived(self._direction, data)

    def write(self, data: bytes | None, latency_s: float) -> None:
        """Write now or later; None: close, behind all that was written before."""
        if not latency_s and not self._late:
            self._write(data)
            return
        due = asyncio.get_running_loop().time() + latency_s
        self._late.append((max(due, self._late[-1][0]) if self._late else due, data))
        if self._timer is None:
            self._wait()

    def _write(self, data: bytes | None) -> None:
        if self.transport is None:
            return
        if data is None:
            self.transport.close()
        else:
            self.transport.write(data)

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        while self._late and self._late[0][0] <= loop.time():
            self._write(self._late.popleft()[1])
        self._timer = loop.call_at(self._late[0][0], self._wait) if self._late else None

    def close(self) -> None:
        self._write(None)

    def write_late_now(self) -> None:
        late = [data for _, data in self._late]
        self._forget_late()
        for data in late:
            self._write(data)

    def _forget_late(self) -> None:
        self._late.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reset(self) -> None:
        if self.transport is not None:
            reset(self.transport)

    def finish(self) -> None:
        """FIN. A socket that is closed with unread bytes in it would be reset, so it is read until the peer's FIN."""
        self._forget_late()
        for why in list(self._pauses):
            self.resume(why)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()


class Passage:
    """One client, one connection to the target."""

    def __init__(self, faults: Faults, counts: Counts, changed: Callable[[], None]) -> None:
        self.is_ending = False
        self.has_lost_bytes = False
        "They will never arrive, so neither end can go on when the network is well again."
        self._faults = faults
        self._counts = counts
        self._changed = changed
        self._conversation = Conversation()
        self._sockets = {UP: _Socket(self, UP), DOWN: _Socket(self, DOWN)}
        self._is_swallowing = False
        self._is_cut_off = False
        self._held: list[tuple[FollowedLink, Unit]] = []
        self._held_bytes = 0
        self._unsaid: list[tuple[FollowedLink, tuple[Composite, ...]]] = []

    @property
    def is_gone(self) -> bool:
        return self.is_ending and all(each.transport is None for each in self._sockets.values())

    @property
    def bytes_per_s(self) -> float:
        return self._faults.bytes_per_s

    def end(self, direction: Direction) -> _Socket:
        """The one whose bytes go in that direction."""
        return self._sockets[direction]

    async def open(self, client: socket.socket, host: str, port: int) -> None:
        """Join the client that has been accepted with the target; a target that is not there resets it."""
        loop = asyncio.get_running_loop()
        if self._faults.is_stalled:
            self.stall()
        if self._faults.is_black_hole:
            self.swallow()
            self.has_lost_bytes = True
        else:
            try:
                await loop.create_connection(lambda: self._sockets[DOWN], host, port)
            except BaseException as error:
                reset_socket(client)
                self.is_ending = True
                if isinstance(error, OSError):
                    return  # a target that is not there
                raise
        await loop.connect_accepted_socket(lambda: self._sockets[UP], client)
        if self._is_cut_off:  # the target, or a fault, was quicker than the client's socket
            self.cut()
        elif self.is_ending:
            self.reset()

    # ── faults that are thrown at the whole connection ──

    def reset(self) -> None:
        self.is_ending = True
        for each in self._sockets.values():
            each.reset()

    def cut(self) -> None:
        self._is_swallowing = self.is_ending = self._is_cut_off = True
        for each in self._sockets.values():
            each.finish()
            asyncio.get_running_loop().call_later(LINGER_S, each.close)

    def swallow(self) -> None:
        self._is_swallowing = True

    def stall(self) -> None:
        for each in self._sockets.values():
            each.pause("stall")

    def heal(self) -> None:
        """Everything that waits goes on; where bytes were swallowed, that is the end."""
        if self.is_ending:
            return
        if self.has_lost_bytes:
            self.reset()
            return
        self._is_swallowing = False
        for each in self._sockets.values():
            each.resume("stall")
            each.write_late_now()
        held, self._held, self._held_bytes = self._held, [], 0
        self._sockets[UP].resume("held")
        for link, unit in held:
            if UP in link.handles:
                self._forward(UP, unit)

    def cut_links(self, path: str) -> None:
        """Do to the links that are attached to the path what the faults say is done to it."""
        links = [link for link in self._conversation.links() if link.path == path and not link.is_cut]
        if not links:
            return
        if self._faults.cuts(path) != "detach":
            self.reset()
            return
        for link in links:
            link.is_cut = True
            if DOWN in link.handles:
                self._say(link, Detach(handle=link.handles[DOWN], closed=True, error=_CUT))

    # ── what passes ──

    def lost(self, direction: Direction, error: Exception | None) -> None:
        """One socket is gone: so is the other, in the same way."""
        other = self._sockets[direction.other]
        if not self._is_cut_off:
            if error is not None or self.is_ending or self._is_swallowing:
                other.reset()
            else:
                other.write(None, self._faults.latency_s)
        self.is_ending = True
        self._changed()

    def arrived(self, direction: Direction, data: bytes) -> None:
        if self._is_swallowing:
            self.has_lost_bytes = True
            return
        for unit in self._conversation.read(direction, data):
            self._pass(direction, unit)
            if self.is_ending:
                break
        self._changed()

    def _pass(self, direction: Direction, unit: Unit) -> None:
        link = unit.link
        if isinstance(unit.what, Disposition) and direction is DOWN:
            self._pass_answer(unit, unit.what)
        elif link is not None and link.is_cut:
            # The client has heard a detach already. Its own still goes to the broker, who knows of the link.
            if direction is UP and isinstance(unit.what, Detach) and DOWN in link.handles:
                self._forward(UP, unit)
        elif link is None or direction is DOWN:
            if direction is UP and isinstance(unit.what, End | Close):
                channel = int.from_bytes(unit.raw[6:8], "big")
                self._drop_held(lambda other: isinstance(unit.what, Close) or other.channel == channel)
            self._forward(direction, unit)
            if self._unsaid and isinstance(unit.what, Begin):
                self._say_unsaid()
        elif not self._is_cut(link, unit) and not self._is_held(link, unit):
            self._forward(UP, unit)

    def _is_cut(self, link: FollowedLink, unit: Unit) -> bool:
        how = self._faults.cuts(link.path) if isinstance(unit.what, Attach) else None
        if how == "reset":
            self.reset()
        elif how == "stall":
            self._hold(link, unit)
        elif how == "detach":
            link.is_cut = True
            handle = self._conversation.free_handle(link)
            refusal = Attach(name=link.name, handle=handle, role=link.client_sends)
            self._say(link, refusal, Detach(handle=handle, closed=True, error=_CUT))
        return how is not None

    def _is_held(self, link: FollowedLink, unit: Unit) -> bool:
        waits = any(other is link for other, _ in self._held)
        if isinstance(unit.what, Detach):
            attach_waits = any(other is link and isinstance(held.what, Attach) for other, held in self._held)
            self._drop_held(lambda other: other is link)
            return attach_waits  # the broker has never heard of the link
        if waits or (unit.is_transfer and self._faults.holds(link.path)):
            self._hold(link, unit)
            return True
        return False

    def _hold(self, link: FollowedLink, unit: Unit) -> None:
        self._held.append((link, unit))
        self._held_bytes += len(unit.raw)
        if unit.delivery_id is not None:
            self._counts.of(link.path).transfers_held += 1
        if self._held_bytes > HELD_BYTES_MAX:
            self._sockets[UP].pause("held")

    def _drop_held(self, of_link: Callable[[FollowedLink], bool]) -> None:
        """The client has taken back the link: what waits on it would be said on one that is not there."""
        self._held = [(link, unit) for link, unit in self._held if not of_link(link)]
        self._held_bytes = sum(len(unit.raw) for _, unit in self._held)

    def _pass_answer(self, unit: Unit, disposition: Disposition) -> None:
        """The broker's word on what the client sent, or on what the client settled."""
        channel = self._conversation.client_channel(unit)
        unsettled = self._conversation.deliveries(channel, UP if disposition.role else DOWN)
        ids = settled_ids(disposition, unsettled)
        kept = []
        for delivery_id in ids:
            link = unsettled.pop(delivery_id) if disposition.settled else unsettled[delivery_id]
            counts = self._counts.of(link.path)
            if link.is_cut or self._faults.drops_answer(link.path, to_settlement=not disposition.role):
                counts.answers_dropped += 1
            else:
                counts.answers += 1
                kept.append(delivery_id)
        if len(kept) == len(ids):
            self._forward(DOWN, unit)
            return
        own_channel = int.from_bytes(unit.raw[6:8], "big")
        state = disposition.state.encode() if disposition.state is not None else b"\x40"
        for first, last in ranges(kept):
            raw = disposition_frame(own_channel, disposition.role, first, last, disposition.settled, state)
            self._forward(DOWN, Unit(raw))

    def _forward(self, direction: Direction, unit: Unit) -> None:
        self._counts.passed(direction, unit)
        self._sockets[direction.other].write(unit.raw, self._faults.latency_s)

    def _say(self, link: FollowedLink, *performatives: Composite) -> None:
        """Words to the client in the broker's name; not before the broker has begun the session itself."""
        channel = self._conversation.broker_channel(link.channel)
        if channel is None:
            self._unsaid.append((link, performatives))
            return
        for performative in performatives:
            self._sockets[UP].write(frame(channel, performative.encode()), self._faults.latency_s)

    def _say_unsaid(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for link, performatives in unsaid:
            self._say(link, *performatives)
