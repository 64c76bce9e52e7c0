"""The links of a carrier on which messages are sent: found by path and name, opened when needed, bounded in number."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from pairbus.transport.client import Connection
from pairbus.transport.errors import TransportError
from pairbus.transport.pool import Pool
from pairbus.transport.sender import Sender
from pairbus.transport.shared import Shared

OPENING_TIMEOUT_S = 60.0  # of an opening that goes on for others, and for the next caller when all have left

Key = tuple[str, str | None]
"The path in lower case and the name of the link, None when the transport names it."
Start = Callable[[Sender], asyncio.Future[None]]
"Begins one send on a link."
Begun = asyncio.Future[asyncio.Future[None]]


class Senders:
    """One link for each key. Those that nobody used for longest make room for new ones."""

    def __init__(self, pool: Pool, where: str, links_max: int, timeout_s: float) -> None:
        self.links: OrderedDict[Key, tuple[Sender, Connection]] = OrderedDict()
        self._pool = pool
        self._links_max = links_max
        self._timeout_s = timeout_s
        self._order_from = links_max // 2
        "With fewer links the order of their use does not matter yet, and is not kept."
        self._opening = Shared[tuple[Key, bool]](where)
        "By key, and whether the link is to be on a fresh connection."
        self._waiting: dict[tuple[Key, bool], list[tuple[Begun, Start]]] = {}
        "Sends that wait for a link, in the order in which they are to be begun."

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

    async def opened(self, path: str, key: Key, deadline: float, *, fresh: bool) -> Sender:
        """Open the link, or wait for the opening that is under way."""
        self._pool.check()
        young = self._young(key) if fresh else None
        if young is not None:
            return young
        return await self._opening.run((key, fresh), lambda: self._open(path, key, fresh), f"sender {path}", deadline)

    async def send(self, path: str, key: Key, start: Start, deadline: float, *, fresh: bool) -> None:
        """Open the link and send. Sends that wait for one link are begun in their order when it is there."""
        self._pool.check()
        young = self._young(key) if fresh else None
        if young is not None:
            await start(young)
            return
        begun: Begun = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((key, fresh), []).append((begun, start))
        try:
            sender = await self.opened(path, key, deadline, fresh=fresh)
            await (begun.result() if begun.done() else start(sender))
        finally:
            _leave(begun)

    def forget(self, key: Key) -> None:
        """Close the link, and give up its opening."""
        for fresh in (False, True):
            self._opening.cancel((key, fresh))
        if key in self.links:
            self._close(key)

    def clear(self) -> None:
        """Forget every link: the connections go."""
        self.links.clear()
        self._opening.cancel_all()

    # ── opening ──

    async def _open(self, path: str, key: Key, fresh: bool) -> Sender:
        async def attach(connection: Connection, left_s: float) -> tuple[Sender, Connection]:
            return await connection.sender(path, timeout_s=left_s, name=key[1]), connection

        before = self.links.get(key)
        if fresh:
            self._pool.retire_for(path, None if before is None else before[1])
        try:
            deadline = asyncio.get_running_loop().time() + OPENING_TIMEOUT_S
            sender, connection = await self._pool.attach(path, attach, deadline, fresh=fresh)
        finally:
            waiting = self._waiting.pop((key, fresh), [])
        sender.timeout_s = self._timeout_s
        if before is not None and before is self.links.get(key):
            self._pool.leave(before[0])
        else:
            self._make_room()
        self.links[key] = sender, connection
        self.links.move_to_end(key)
        for begun, start in waiting:
            _begin(begun, start, sender)
        return sender

    def _make_room(self) -> None:
        while len(self.links) >= self._links_max:
            idle = next((key for key, link in self.links.items() if not link[0].in_flight), None)
            if idle is None:
                return
            self._close(idle)

    def _close(self, key: Key) -> None:
        sender, _ = self.links.pop(key)
        if sender.over is None:
            self._pool.end(sender.close())


def _begin(begun: Begun, start: Start, sender: Sender) -> None:
    if begun.done():
        return  # the caller has left
    try:
        begun.set_result(start(sender))
    except TransportError as error:
        begun.set_exception(error)


def _leave(begun: Begun) -> None:
    """Let go of a send: it is over, or its caller does not wait for it any more."""
    if begun.cancel() or begun.cancelled() or begun.exception() is not None:
        return
    send = begun.result()
    if not send.cancel() and not send.cancelled():
        send.exception()
