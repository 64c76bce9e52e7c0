"""Follows the conversation of two AMQP peers: bytes of either direction in, whole frames with their meaning out.

Laws of this file.
 1. The bytes that go in come out, in their order: a frame leaves when it is whole.
 2. No bytes are refused. Bytes that cannot be read (TLS, HTTP, nonsense) come out without a meaning; a direction whose
    frames can no longer be told apart is passed on unread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.frames import AMQP_FRAME, HEADER_SIZE
from pairbus.amqp.link import address_of
from pairbus.amqp.performatives import Attach, Begin, Composite, Detach, Disposition, End, Flow, decode_performative
from pairbus.amqp.transfers import decode_transfer

FRAME_SIZE_MAX = 64 << 20  # a larger number is not a size; the largest frames of the SDKs have 1 MiB
PING_CONTENT_TYPE = b"application/vnd.ms-servicebus-ping"
TRANSFER = 0x14
_AUTHORITY = re.compile(r"[a-z]+://[^/]*", re.IGNORECASE)


class Direction(Enum):
    UP = "client to broker"
    DOWN = "broker to client"

    @property
    def other(self) -> Direction:
        return Direction.DOWN if self is Direction.UP else Direction.UP


UP, DOWN = Direction.UP, Direction.DOWN


def path_of(address: str | None) -> str:
    """Return the path of an address in lower case: `amqps://host/Orders` → `orders`."""
    return _AUTHORITY.sub("", address or "", count=1).strip("/").lower()


def is_node(path: str) -> bool:
    """Return True for `$cbs` or an entity's `$management`, which carry no messages of users."""
    return path == "$cbs" or path.endswith("/$management")


@dataclass(eq=False, slots=True)
class FollowedLink:
    """A link between the client and the broker."""

    name: str
    path: str
    channel: int
    "The client's channel."
    client_sends: bool
    handles: dict[Direction, int] = field(default_factory=dict)
    "Handle that each side uses; removed when that side has detached."
    unfinished: dict[Direction, int] = field(default_factory=dict)
    "Id of the delivery that has more frames to come, by the side that sends it."
    is_known: bool = False
    "For the proxy: True when the broker has got the attach."
    is_cut: bool = False
    "For the proxy: True when no more frames of this link may pass."
    used_at: float = 0.0
    "For the proxy: time when the client last sent a message on the link."


@dataclass(slots=True)
class Unit:
    """A protocol header or a whole frame."""

    raw: bytes
    performative: Composite | None = None
    "Performative; None for headers, signs of life, transfers and frames that cannot be read."
    link: FollowedLink | None = None
    is_transfer: bool = False
    delivery_id: int | None = None
    "Delivery id of a transfer that begins a delivery."
    is_ping: bool = False
    is_settled: bool = False
    "True for a transfer that expects no answer."
    has_more: bool = False
    "True for a transfer whose delivery goes on in the next one."


class _Splitter:
    """Bytes in, headers and whole frames out."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.has_begun = False
        self.is_opaque = False

    def split(self, data: bytes) -> Iterator[bytes]:
        self._held += data
        held = self._held
        if not self.has_begun and not held.startswith(b"AMQP"[: len(held)]):
            self.is_opaque = True  # the first bytes of AMQP are its header
        while len(held) >= HEADER_SIZE and not self.is_opaque:
            self.has_begun = True
            size = HEADER_SIZE if held.startswith(b"AMQP") else int.from_bytes(held[:4], "big")
            if not HEADER_SIZE <= size <= FRAME_SIZE_MAX:
                self.is_opaque = True
            elif len(held) < size:
                return
            else:
                whole = bytes(held[:size])
                del held[:size]
                yield whole
        if self.is_opaque and held:
            rest = bytes(held)
            held.clear()
            yield rest


class _Session:
    def __init__(self) -> None:
        self.by_name: dict[tuple[str, bool], FollowedLink] = {}
        self.by_handle: dict[tuple[Direction, int], FollowedLink] = {}
        self.deliveries: dict[Direction, dict[int, FollowedLink]] = {UP: {}, DOWN: {}}
        "Unsettled deliveries, by the side that sent them."


class Conversation:
    """One connection."""

    def __init__(self) -> None:
        self._splitters = {UP: _Splitter(), DOWN: _Splitter()}
        self._sessions: dict[int, _Session] = {}
        self._client_channels: dict[int, int] = {}
        "The broker's channel → the client's."

    @property
    def is_amqp(self) -> bool:
        """True when the client has begun with AMQP, and can be followed."""
        return self._splitters[UP].has_begun and not self._splitters[UP].is_opaque

    def links(self) -> list[FollowedLink]:
        return [link for session in self._sessions.values() for link in session.by_name.values()]

    def deliveries(self, channel: int, sender: Direction) -> dict[int, FollowedLink]:
        """Return the deliveries that one side sent on the client's `channel` and the other has not settled."""
        session = self._sessions.get(channel)
        return session.deliveries[sender] if session is not None else {}

    def free_handle(self, link: FollowedLink) -> int:
        """Return a handle that the broker does not use on the link's session."""
        handles = {handle for side, handle in self._sessions[link.channel].by_handle if side is DOWN}
        return next(handle for handle in range(len(handles) + 1) if handle not in handles)

    def broker_channel(self, client_channel: int) -> int | None:
        """Return the broker's channel of a session; None while the broker has not answered the client's begin."""
        return next((mine for mine, theirs in self._client_channels.items() if theirs == client_channel), None)

    def client_channel(self, unit: Unit) -> int:
        """Return the client's channel of a frame of the broker."""
        channel = int.from_bytes(unit.raw[6:8], "big")
        return self._client_channels.get(channel, channel)

    def read(self, direction: Direction, data: bytes) -> Iterator[Unit]:
        splitter = self._splitters[direction]
        for raw in splitter.split(data):
            if splitter.is_opaque or raw.startswith(b"AMQP") or raw[5] != AMQP_FRAME or len(raw) < 12:
                yield Unit(raw)
            else:
                yield self._frame(direction, raw)

    def _frame(self, direction: Direction, raw: bytes) -> Unit:
        start, channel = raw[4] * 4, int.from_bytes(raw[6:8], "big")
        if direction is DOWN:
            channel = self._client_channels.get(channel, channel)
        try:
            if raw[start : start + 3] == b"\x00\x53\x14":
                return self._transfer(direction, channel, raw, start)
            performative, _ = decode_performative(raw[start:], 0)
            return Unit(raw, performative, self._note(direction, channel, raw, performative))
        except (ProtocolError, IndexError):
            return Unit(raw)

    def _transfer(self, direction: Direction, channel: int, raw: bytes, start: int) -> Unit:
        handle, delivery_id, _, _, settled, more, _, _, payload_at = decode_transfer(raw, start, len(raw))
        session = self._sessions.get(channel)
        link = session.by_handle.get((direction, handle)) if session is not None else None
        if session is None or link is None:
            return Unit(raw, is_transfer=True)
        begins = delivery_id is not None and link.unfinished.get(direction) != delivery_id
        if not more:
            link.unfinished.pop(direction, None)
        elif begins and delivery_id is not None:
            link.unfinished[direction] = delivery_id
        if begins and not settled and delivery_id is not None:
            session.deliveries[direction][delivery_id] = link
        is_ping = begins and PING_CONTENT_TYPE in raw[payload_at : payload_at + 1024]
        return Unit(raw, None, link, True, delivery_id if begins else None, is_ping, bool(settled), bool(more))

    def _note(self, direction: Direction, channel: int, raw: bytes, performative: Composite) -> FollowedLink | None:
        if isinstance(performative, Begin):
            if direction is UP:
                self._sessions[channel] = _Session()
                before = self.broker_channel(channel)
                if before is not None:
                    del self._client_channels[before]
            elif performative.remote_channel is not None:
                self._client_channels[int.from_bytes(raw[6:8], "big")] = performative.remote_channel
            return None
        session = self._sessions.get(channel)
        if session is None:
            return None
        if isinstance(performative, Attach):
            return _attached(session, direction, channel, performative)
        if isinstance(performative, End):
            if direction is UP:
                del self._sessions[channel]
            return None
        if isinstance(performative, Flow | Detach) and performative.handle is not None:
            link = session.by_handle.get((direction, performative.handle))
            if link is not None and isinstance(performative, Detach):
                _detached(session, direction, link)
            return link
        return None


def _attached(session: _Session, direction: Direction, channel: int, attach: Attach) -> FollowedLink | None:
    client_sends = attach.role is (direction is DOWN)
    key = attach.name, client_sends
    link = session.by_name.get(key)
    if direction is UP and (link is None or UP in link.handles or link.is_cut):
        path = path_of(address_of(attach.target if client_sends else attach.source))
        link = session.by_name[key] = FollowedLink(attach.name, path, channel, client_sends)
    if link is not None:
        link.handles[direction] = attach.handle
        session.by_handle[direction, attach.handle] = link
    return link


def _detached(session: _Session, direction: Direction, link: FollowedLink) -> None:
    handle = link.handles.pop(direction, None)
    if handle is not None and session.by_handle.get((direction, handle)) is link:
        del session.by_handle[direction, handle]
    key = link.name, link.client_sends
    if not link.handles and session.by_name.get(key) is link:
        del session.by_name[key]
    if direction is DOWN:  # the broker sends no more dispositions for the link's deliveries
        for unsettled in session.deliveries.values():
            for delivery_id in [each for each, other in unsettled.items() if other is link]:
                del unsettled[delivery_id]


def settled_ids(disposition: Disposition, unsettled: dict[int, FollowedLink]) -> list[int]:
    """Return the unsettled deliveries that a disposition names, in the order of its range."""
    last = disposition.first if disposition.last is None else disposition.last
    if last == disposition.first:
        return [last] if last in unsettled else []
    span = (last - disposition.first) & 0xFFFFFFFF
    settled = [i for i in unsettled if (i - disposition.first) & 0xFFFFFFFF <= span]
    return sorted(settled, key=lambda i: (i - disposition.first) & 0xFFFFFFFF)
