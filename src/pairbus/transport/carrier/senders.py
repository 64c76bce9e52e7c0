"""The links of a carrier on which messages are sent: found by path and name, opened when needed, limited in number.

Callers of one path share one link, whose deliveries cannot be interleaved (AMQP 2.6.14). While a large message of one
caller occupies it, the others send on a spare link to the same path. The sends of one caller reach the wire in their
order: a caller changes the link only when none of its sends waits, and stays on a spare link until its last send ended.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pairbus.transport.carrier.pool import Pool
from pairbus.transport.connection.client_connection import ClientConnection
from pairbus.transport.connection.shared_work import SharedWork
from pairbus.transport.connection.steps import Hearing
from pairbus.transport.errors import TransportError
from pairbus.transport.links.sender import Sender
from pairbus.transport.times import OPENING_TIMEOUT_S

SPARES_MAX = 3  # spare links of one path, used while large messages occupy the first link and earlier spares

Key = tuple[str, str | None, int]
"(path in lower case, name of the link or None when the transport names it, number of a spare link or 0)"
Start = Callable[[Sender], asyncio.Future[None]]
"Function that begins one send on a link."
Begun = asyncio.Future[asyncio.Future[None]]
"Future that is done when a send has begun; its result is the future of the send."


class PendingStart(NamedTuple):
    """A send that waits for its link to be opened."""

    begun: Begun
    start: Start
    deadline: float
    silence_s: float
    by: object
    "The caller, whose sends keep their order."


class Senders:
    """One link for each key. The least recently used links are closed for new ones."""

    def __init__(self, pool: Pool, where: str, links_max: int, timeout_s: float) -> None:
        self.links: OrderedDict[Key, tuple[Sender, ClientConnection]] = OrderedDict()
        self.limits: OrderedDict[str, tuple[int, int]] = OrderedDict()
        "Path in lower case → largest batch and largest message of its last link; known also while no link is open."
        self._pool = pool
        self._links_max = links_max
        self._timeout_s = timeout_s
        self._order_from = links_max // 2
        "Number of links from which on the order of their use is kept."
        self._opening = SharedWork[tuple[Key, bool]](where)
        "Openings under way, by (key, True for a fresh connection)."
        self._waiting: dict[tuple[Key, bool], list[PendingStart]] = {}
        "(key, True for a fresh connection) → sends that wait for the link, in their order."
        self.on_spares: dict[tuple[str, str | None, object], tuple[Key, int]] = {}
        "(path, name, caller) → the spare link that the caller uses, and the number of its sends that have not ended."

    def known(self, key: Key) -> Sender | None:
        """Return the link if there is a good one."""
        known = self.links.get(key)
        if known is None or known[0].over is not None:
            return None
        if len(self.links) > self._order_from:
            self.links.move_to_end(key)
        return known[0]

    def _young(self, key: Key) -> Sender | None:
        """Return the link if it is good and need not be replaced by one on a fresh connection."""
        sender = self.known(key)
        stale = sender is not None and self._pool.is_stale(self.links[key][1], asyncio.get_running_loop().time())
        return None if stale else sender

    async def opened(self, path: str, key: Key, deadline: float, *, fresh: bool, silence_s: float = math.inf) -> Sender:
        """Open the link, or wait for the opening that is under way, while the peer is not silent for `silence_s`."""
        self._pool.check()
        young = self._young(key) if fresh else None
        if young is not None:
            return young
        return await self._opening.run(
            (key, fresh), partial(self._open, path, key, fresh), f"sender {path}", deadline, silence_s=silence_s
        )

    def key_for(self, key: Key, by: object) -> Key:
        """Return the key of the link for a caller's next send: of a spare link, when large messages are in the way."""
        path, name, _ = key
        used = self.on_spares.get((path, name, by))
        if used is not None:
            return used[0]
        for number in range(SPARES_MAX + 1):
            link = self.known((path, name, number))
            if link is None or not link.is_taken_up(by):
                return path, name, number
        return key

    def open_spare(self, path: str, key: Key) -> None:
        """Begin to open the first spare link: its attach is then sent before the frames of a large message."""
        spare = (key[0], key[1], 1)
        if self.known(spare) is None:
            self._opening.begin((spare, False), partial(self._open, path, spare, False))

    async def send_on_spare(
        self, path: str, key: Key, start: Start, deadline: float, silence_s: float, by: object
    ) -> None:
        """Send on a spare link, opened if needed, and keep the caller there until its last send has ended."""
        caller = (key[0], key[1], by)
        self.on_spares[caller] = key, self.on_spares.get(caller, (key, 0))[1] + 1
        try:
            known = self.known(key)
            if known is None:
                await self.send(path, key, start, deadline, silence_s, fresh=False, by=by)
            else:
                await start(known)
        finally:
            count = self.on_spares[caller][1] - 1
            if count:
                self.on_spares[caller] = key, count
            else:
                del self.on_spares[caller]

    async def send(
        self, path: str, key: Key, start: Start, deadline: float, silence_s: float, *, fresh: bool, by: object = None
    ) -> None:
        """Open the link and send. Sends that wait for one link are begun in their order when it is there."""
        self._pool.check()
        young = self._young(key) if fresh else None
        if young is not None:
            await start(young)
            return
        begun: Begun = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((key, fresh), []).append(PendingStart(begun, start, deadline, silence_s, by))
        try:
            sender = await self.opened(path, key, deadline, fresh=fresh, silence_s=silence_s)
            await (begun.result() if begun.done() else start(sender))
        finally:
            _leave(begun)

    def forget(self, path: str, name: str | None) -> None:
        """Leave the link and its spares, and give up their openings."""
        for key in [(path, name, number) for number in range(SPARES_MAX + 1)]:
            for fresh in (False, True):
                self._opening.cancel((key, fresh))
            if key in self.links:
                self._replace(key)

    def clear(self) -> None:
        """Forget every link, because the connections end."""
        self.links.clear()
        self._opening.cancel_all()

    # ── opening ──

    async def _open(self, path: str, key: Key, fresh: bool, hearing: Hearing) -> Sender:
        async def attach(connection: ClientConnection, left_s: float) -> tuple[Sender, ClientConnection]:
            name = self._link_name(key)
            return await connection.sender(path, timeout_s=left_s, name=name, hearing=hearing), connection

        before = self.links.get(key)
        if fresh:
            self._pool.retire_for(path, None if before is None else before[1])
        try:
            deadline = asyncio.get_running_loop().time() + OPENING_TIMEOUT_S
            sender, connection = await self._pool.attach(path, attach, deadline, fresh=fresh, hearing=hearing)
        finally:
            waiting = self._waiting.pop((key, fresh), [])
        sender.timeout_s = self._timeout_s
        sender.when_silent = partial(self._fell_silent, key, sender)
        replaced = self.links.get(key)  # not always `before`: a fresh and a plain opening may run at the same time
        if replaced is not None:
            self._pool.leave(replaced[0])
        else:
            self._make_room()
        self.links[key] = sender, connection
        self.links.move_to_end(key)
        self._remember_limits(key[0], sender)
        for begun, start, until, silence_s, by in waiting:
            if sender.large and key[2] == 0 and (spare := self.key_for(key, by)) != key:
                start = partial(self._start_on_spare, path, spare, start, until, silence_s, by)
            _begin(begun, start, sender)
        return sender

    def _start_on_spare(
        self, path: str, key: Key, start: Start, deadline: float, silence_s: float, by: object, _: Sender
    ) -> asyncio.Future[None]:
        """Start a send that waited for the link behind a large message of another caller."""
        return asyncio.ensure_future(self.send_on_spare(path, key, start, deadline, silence_s, by))

    def _remember_limits(self, path: str, sender: Sender) -> None:
        self.limits[path] = sender.batch_limit, sender.max_message_size
        self.limits.move_to_end(path)
        if len(self.limits) > self._links_max:
            self.limits.popitem(last=False)

    def _make_room(self) -> None:
        while len(self.links) >= self._links_max:
            idle = next((key for key, link in self.links.items() if link[0].is_idle), None)
            if idle is None:
                return
            self._close(idle)

    def _close(self, key: Key) -> None:
        sender, _ = self.links.pop(key)
        if sender.over is None:
            self._pool.end(sender.close())

    def _fell_silent(self, key: Key, link: Sender) -> None:
        """Let the next send open a new link: the peer may have lost its end of this one, and pings, which open links of
        their own, would not notice."""
        known = self.links.get(key)
        if known is not None and known[0] is link:
            self._replace(key)

    def _replace(self, key: Key) -> None:
        """Take a link out of use; sends that are in flight on it, or in its line, end there."""
        if key[1] is not None and self.links[key][0].is_idle:
            self._close(key)  # at once: the next link may then have the same name
        else:
            sender, _ = self.links.pop(key)
            self._pool.leave(sender)

    def _link_name(self, key: Key) -> str | None:
        """Return the name of a new link. The peer ends a link when another one is attached under its name, so the names
        of a spare link, and of a link beside one that was left with sends on it, end with a number."""
        _, name, number = key
        if name is None:
            return None
        while (wanted := f"{name}-{number}" if number else name) in self._pool.left_names:
            number += SPARES_MAX + 1
        return wanted


def _begin(begun: Begun, start: Start, sender: Sender) -> None:
    if begun.done():
        return  # the caller has left
    try:
        begun.set_result(start(sender))
    except TransportError as error:
        begun.set_exception(error)


def _leave(begun: Begun) -> None:
    """Drop a send that is over, or whose caller no longer waits for it."""
    if begun.cancel() or begun.cancelled() or begun.exception() is not None:
        return
    send = begun.result()
    if not send.cancel() and not send.cancelled():
        send.exception()
