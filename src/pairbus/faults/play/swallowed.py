"""Connections that black holes keep: accepted, never read, and not closed.

A client that gives up closes its end. Its socket is then closed here too, because each one that is kept is a file
descriptor: without any left, not even the control socket could accept a connection.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
from collections.abc import Callable
from functools import partial

from pairbus.faults.play.abort import reset
from pairbus.faults.play.held_steps import HeldSteps

SWALLOWED_MAX = 1000  # sockets of all namespaces and proxies of this process
SWEEP_S = 1.0
_LEFT = getattr(
    select, "POLLRDHUP", 0
)  # the peer has closed; other systems than Linux say POLLHUP, which needs no flag
_of_process: set[socket.socket] = set()


def _limit() -> int:
    """Return how many sockets may be kept: a quarter of the file descriptors that this process may open."""
    if sys.platform == "win32":
        return SWALLOWED_MAX
    import resource

    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return SWALLOWED_MAX if allowed == resource.RLIM_INFINITY else min(SWALLOWED_MAX, allowed // 4)


class SwallowedConnections:
    """Connections that the black holes of one namespace, or of one proxy, keep."""

    def __init__(self, held: HeldSteps, decide: Callable[[socket.socket], None]) -> None:
        """Keep no connection yet. `decide` gets each one when its black hole has ended."""
        self._held = held
        self._decide = decide
        self._kept: dict[int, socket.socket] = {}
        "Sockets by their file descriptors."
        self._sweeping: asyncio.TimerHandle | None = None

    def keep(self, number: int, client: socket.socket) -> None:
        """Keep a connection until the fault ends; reset it when too many are kept."""
        limit = _limit()
        if len(_of_process) >= limit:
            self._close_left()
        if len(_of_process) >= limit:
            reset(client)
            return
        _of_process.add(client)
        self._kept[client.fileno()] = client
        self._held.add(number, client, partial(self._let_go, client))
        if self._sweeping is None:
            self._sweep()

    def reset_all(self) -> None:
        """Reset every connection that is kept."""
        for client in list(self._kept.values()):
            self._forget(client)
            reset(client)

    def _let_go(self, client: socket.socket) -> None:
        self._forget(client)
        self._decide(client)

    def _forget(self, client: socket.socket) -> None:
        self._held.forget(client)
        del self._kept[client.fileno()]
        _of_process.discard(client)

    def _sweep(self) -> None:
        """Close the sockets of clients that left, every second while any is kept."""
        self._close_left()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if self._kept else None

    def _close_left(self) -> None:
        if sys.platform == "win32":  # has no poll: sockets are kept until the fault ends
            return
        # A read could not tell: bytes that the client sent before it left come first, and must stay unread.
        poll = select.poll()
        for descriptor in self._kept:
            poll.register(descriptor, _LEFT)
        for descriptor, _ in poll.poll(0):
            client = self._kept[descriptor]
            self._forget(client)
            client.close()
