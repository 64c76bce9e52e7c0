"""The port to which clients connect, and their passages."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from pairbus.proxy.joint import ProxyTarget
from pairbus.proxy.passage import Passage
from pairbus.proxy.sockets import HOST, bound

BACKLOG = 256
TAKEN_PORT_S = 1.0  # until the next try to take a port that another program took
CONNECTIONS_MAX = 5000  # two file descriptors each
THIN_BUFFER_BYTES = 64 << 10  # receive buffer of the system for a client on a thin line
logger = logging.getLogger("pairbus.proxy")


class ProxyPort:
    """A listening socket that can be shut and keeps its port meanwhile."""

    def __init__(self, accepted: Callable[[socket.socket], None]) -> None:
        """Make a closed port. `accepted` gets each client: it calls `welcome`, or keeps the socket, or closes it."""
        self.host = HOST
        self.number = 0
        self.passages: set[Passage] = set()
        self._accepted = accepted
        self._holder: socket.socket | None = None
        "Socket that keeps the port while connections are refused: bound, and never listening."
        self._listener: socket.socket | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()

    def open(self, host: str, number: int) -> None:
        """Take the port, 0 for any free one, and listen. OSError when it is not free."""
        self._holder = bound(number, host)
        self.host, self.number = host, int(self._holder.getsockname()[1])
        try:
            self.listen()
        except OSError:  # another program listens there
            self._holder.close()
            self._holder = None
            raise

    async def close(self) -> None:
        """Accept no more connections, and reset those that are open."""
        self.shut()
        self.reset_all()
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        self.reset_all()
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    def listen(self) -> None:
        """Accept connections; does nothing when it does already, or is closed."""
        if self._listener is None and self._holder is not None:
            listener = bound(self.number, self.host)
            try:
                listener.listen(BACKLOG)
            except OSError:
                listener.close()
                raise
            self._listener = listener
            asyncio.get_running_loop().add_reader(listener, self._accept)

    def listen_again(self) -> None:
        """Accept connections; while that fails, because another program has the port, try again every second."""
        try:
            self.listen()
        except OSError as error:
            logger.error("port %d cannot be opened again yet: %s", self.number, error.strerror)
            self._listen_later(TAKEN_PORT_S)

    def _listen_later(self, delay_s: float) -> None:
        self._retry = asyncio.get_running_loop().call_later(delay_s, self.listen_again)

    def shut(self) -> None:
        """Refuse connections, and keep the port."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

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

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # the client left before
            return
        except OSError as error:  # out of file descriptors: try again in a moment, not at once
            logger.warning("a connection could not be accepted: %s", error)
            self.shut()
            self._listen_later(0.1)
            return
        if len(self.passages) >= CONNECTIONS_MAX and len(self.open_passages()) >= CONNECTIONS_MAX:
            logger.warning("%d connections are open; one more was turned away", CONNECTIONS_MAX)
            client.close()
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._accepted(client)
