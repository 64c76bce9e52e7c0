"""The port to which clients connect, and their passages."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from pairbus.faults.play.listening_port import ListeningPort
from pairbus.proxy.joint import ProxyTarget
from pairbus.proxy.passage import Passage

HOST = "127.0.0.1"
CONNECTIONS_MAX = 5000  # two file descriptors each
THIN_BUFFER_BYTES = 64 << 10  # receive buffer of the system for a client on a thin line
logger = logging.getLogger("pairbus.proxy")


class ProxyPort:
    """The listening port of a proxy, and the connections that came to it."""

    def __init__(self, accepted: Callable[[socket.socket], None]) -> None:
        """Make a closed port. `accepted` gets each client: it calls `welcome`, or keeps the socket, or closes it."""
        self.passages: set[Passage] = set()
        self._accepted = accepted
        self._listener = ListeningPort(self._accept, failed=_not_accepted, taken=_not_ours)
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def host(self) -> str:
        return self._listener.host

    @property
    def number(self) -> int:
        return self._listener.number

    def open(self, host: str, number: int) -> None:
        """Take the port, 0 for any free one, and listen. ConfigError when it is not free."""
        self._listener.open(host, number)
        self._listener.accept_clients()

    async def close(self) -> None:
        """Accept no more connections, and reset those that are open."""
        self._listener.close()
        self.reset_all()
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        self.reset_all()

    def refuse(self, is_refusing: bool) -> None:
        """Refuse connections and keep the port, or listen again."""
        self._listener.refuse(is_refusing)

    def reset_all(self) -> None:
        for passage in self.open_passages():
            passage.reset()

    def open_passages(self) -> list[Passage]:
        """Return the connections that are not gone."""
        self.passages = {passage for passage in self.passages if not passage.is_gone}
        return list(self.passages)

    def welcome(
        self, client: socket.socket, passage: Passage, target: ProxyTarget | None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Join an accepted client with the target (see `Passage.open`)."""
        self.passages.add(passage)
        task = asyncio.ensure_future(passage.open(client, target, tls))
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, client))

    def _opened(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if task.cancelled():  # perhaps before it began
            client.close()

    def _accept(self, client: socket.socket) -> None:
        if len(self.passages) >= CONNECTIONS_MAX and len(self.open_passages()) >= CONNECTIONS_MAX:
            logger.warning("%d connections are open; one more was turned away", CONNECTIONS_MAX)
            client.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._accepted(client)


def _not_accepted(error: OSError) -> None:
    logger.warning("a connection could not be accepted: %s", error)


def _not_ours(number: int, error: OSError) -> None:
    logger.error("port %d cannot be opened again yet: %s", number, error.strerror)
