"""The connections of one carrier: one while it has room, then more, and retired ones that take no new links.

Laws of this file.
 1. One connect at a time: later callers share it.
 2. A connection has room while it holds less than 900 tokens, of Azure's 1000, and the peer has channels.
 3. A retired connection takes no new link. It lives while links of it are used, and is closed when the last is gone.
 4. A connection on which the peer left the last opening of a link unanswered is silent. The next link is opened on
    another connection: the peer may keep a connection, with its heartbeats, and open no more links on it. One silent
    entity looks the same, so that there are SILENT_MAX of them at most beside the one in use; then links are opened on
    them in turns, and an answer makes one of them good again. A silent connection is closed when its last link is gone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from pairbus.transport.connection.client_connection import ClientConnection
from pairbus.transport.connection.shared_work import SharedWork
from pairbus.transport.connection.steps import Hearing
from pairbus.transport.errors import ConnectionLost, TransportError
from pairbus.transport.links.sender import Sender
from pairbus.transport.tasks import Tasks
from pairbus.transport.times import CLOSE_TIMEOUT_S, FRESH_S, LOOK_S

RETIRED_MAX = 3  # retired connections in use; then no connection is retired until one of them is closed
SILENT_MAX = 3  # silent connections with links, beside the one in use

T = TypeVar("T")


class Pool:
    """The connections, and the tasks that close links and connections that were left."""

    def __init__(self, where: str, connect: Callable[[Hearing], Awaitable[ClientConnection]]) -> None:
        self.connect = connect
        self._where = where
        self._connections: list[ClientConnection] = []
        self._retired: list[ClientConnection] = []
        self._left: list[Sender] = []
        "Links that were replaced while sends were in flight on them, or in their line."
        self._opening = SharedWork[None](where)
        self._endings = Tasks()
        self._look: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def good(self) -> list[ClientConnection]:
        """Return the connections that are not lost, oldest first; links may be opened on them if there is room."""
        self._connections = [connection for connection in self._connections if connection.loss is None]
        return self._connections

    @property
    def _best(self) -> list[ClientConnection]:
        """Return the connections that are not lost, silent ones last."""
        return sorted(self.good, key=lambda connection: connection.is_silent)

    def check(self) -> None:
        if self._closed:
            raise ConnectionLost(f"{self._where}: closed by this client")

    async def any(self, deadline: float) -> ClientConnection:
        """Return any connection, with or without room."""
        self.check()
        while not self.good:
            await self._opening.run(None, self._open, "the connection", deadline)
        return self._best[0]

    async def place(
        self,
        path: str,
        deadline: float,
        *,
        fresh: bool = False,
        silence_s: float = math.inf,
        hearing: Hearing | None = None,
    ) -> ClientConnection:
        """Return a connection with room for a link to the entity. `fresh`: one that was opened a moment ago."""
        self.check()
        now = asyncio.get_running_loop().time()
        while True:
            silent = [connection for connection in self.good if connection.is_silent]
            if silent:
                self._look_soon()
            may_use_silent = sum(connection.has_links for connection in silent) > SILENT_MAX
            for connection in self._best:
                if connection.is_silent and not may_use_silent:
                    continue
                if connection.has_room(path) and not (fresh and self.is_stale(connection, now)):
                    if connection.is_silent:  # the next link goes to another one, unless this one answers
                        self._connections.remove(connection)
                        self._connections.append(connection)
                    return connection
            for connection in [connection for connection in self.good if not connection.has_links]:
                self._retire(connection)  # it is silent, or holds as many tokens as it may, and none is used any more
            await self._opening.run(None, self._open, "the connection", deadline, silence_s=silence_s, hearing=hearing)

    async def attach(
        self,
        path: str,
        attach: Callable[[ClientConnection, float], Awaitable[T]],
        deadline: float,
        *,
        fresh: bool = False,
        silence_s: float = math.inf,
        hearing: Hearing | None = None,
    ) -> T:
        """Open a link on a connection with room; once more when an old connection turns out to be over, or full.

        `silence_s` and `hearing` as in `SharedWork.run`.
        """
        place = partial(self.place, path, deadline, fresh=fresh, silence_s=silence_s, hearing=hearing)
        loop = asyncio.get_running_loop()
        began = loop.time()
        connection = await place()
        try:
            return await attach(connection, max(deadline - loop.time(), 0.0))
        except TransportError:
            if not connection.is_full and (connection.loss is None or connection.opened_at >= began):
                raise
        connection = await place()
        return await attach(connection, max(deadline - loop.time(), 0.0))

    async def _open(self, hearing: Hearing) -> None:
        connection = await self.connect(hearing)
        if connection.loss is not None:  # closed as soon as it was opened, perhaps with a reason
            raise connection.loss.again(outcome_unknown=False)
        self._connections.append(connection)

    # ── leaving ──

    def is_stale(self, connection: ClientConnection, now: float) -> bool:
        """Return True when the connection is not fresh at `now`; with many retired ones, any connection is accepted."""
        return now - connection.opened_at > FRESH_S and self._may_retire

    @property
    def _may_retire(self) -> bool:
        """True when few retired connections are still in use."""
        self._retired = [retired for retired in self._retired if retired.loss is None]
        return len(self._retired) < RETIRED_MAX

    def retire_for(self, path: str, connection: ClientConnection | None) -> None:
        """Retire the connection of an entity's link, or the connection on which its next link would be opened."""
        if connection is None:
            connection = next((each for each in self._best if each.has_room(path)), None)
        now = asyncio.get_running_loop().time()
        if connection in self.good and connection is not None and self.is_stale(connection, now):
            self._retire(connection)

    def _retire(self, connection: ClientConnection) -> None:
        self._connections.remove(connection)
        self._retired.append(connection)
        self._look_soon()

    @property
    def left_names(self) -> set[str]:
        """Return the names of links that were left and are not closed yet."""
        return {sender.name for sender in self._left}

    def leave(self, sender: Sender) -> None:
        """Close the link when no send is in flight on it, or in its line, any more."""
        if sender.over is None:
            self._left.append(sender)
            self._look_soon()

    def end(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run a close without waiting for it."""
        self._endings.start(closing, f"{self._where}: closing a link or a connection")

    def _look_soon(self) -> None:
        if self._look is None and not self._closed:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_at_left)

    def _look_at_left(self) -> None:
        self._look = None
        for sender in [sender for sender in self._left if sender.is_idle]:
            self._left.remove(sender)
            self.end(sender.close())
        for connection in [each for each in self.good if each.is_silent and not each.has_links]:
            self._retire(connection)
        for connection in [connection for connection in self._retired if not connection.has_links]:
            self._retired.remove(connection)
            self.end(connection.close())
        self._retired = [connection for connection in self._retired if connection.loss is None]
        if self._left or self._retired or any(connection.is_silent for connection in self._connections):
            self._look_soon()

    async def drop(self) -> None:
        """Abandon every connection, without waiting for a peer that may be silent."""
        await self._close_all(0.0)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close for good."""
        self._closed = True
        await self._close_all(timeout_s)
        await self._endings.ended()

    async def _close_all(self, timeout_s: float) -> None:
        connections = [*self._connections, *self._retired]
        self._connections, self._retired, self._left = [], [], []
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._opening.cancel_all()
        await asyncio.gather(*[connection.close(timeout_s) for connection in connections])
