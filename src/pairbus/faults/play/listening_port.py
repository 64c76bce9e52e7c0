"""A port on which connections are accepted or refused; while they are refused, the port stays ours."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from pairbus.errors import ConfigError

BACKLOG = 1024  # connections that wait to be accepted
TAKEN_PORT_S = 1.0  # until the next try to take a port that another program took
RETRY_S = 0.1  # after a connection could not be accepted, perhaps because no file descriptor was free


class ListeningPort:
    """One address and port number: listens from `open` on, accepts from `accept_clients` on."""

    def __init__(
        self,
        accepted: Callable[[socket.socket], None],
        *,
        failed: Callable[[OSError], None],
        taken: Callable[[int, OSError], None],
    ) -> None:
        """Make a closed port. `accepted` gets each client.

        `failed`: a connection could not be accepted. `taken`: (port, error), another program has the port at present.
        """
        self.host = ""
        self.number = 0
        self._accepted = accepted
        self._failed = failed
        self._taken = taken
        self._socket: socket.socket | None = None
        "Bound to the port: it listens, or keeps the port while connections are refused. None: another program has it."
        self._is_open = self._is_refusing = self._is_accepting = False
        self._retry: asyncio.TimerHandle | None = None

    def open(self, host: str, number: int) -> None:
        """Take the port, 0 for any free one, and listen. ConfigError when it is not free."""
        listener = None
        try:
            listener = bound(host, number)
            listener.listen(BACKLOG)
        except OSError as error:
            if listener is not None:
                listener.close()
            other = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "address"
            raise ConfigError(f"cannot listen on {host}:{number}: {error.strerror}; choose another {other}") from error
        self._socket, self._is_open = listener, True
        self.host, self.number = host, int(listener.getsockname()[1])

    def accept_clients(self) -> None:
        """Accept the clients that came since `open`, and those that come."""
        if self._socket is not None and not self._is_accepting:
            self._is_accepting = True
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def refuse(self, is_refusing: bool) -> None:
        """Refuse connections and keep the port, or listen again: at once, unless another program has the port."""
        if self._is_open and is_refusing is not self._is_refusing:
            self._is_refusing = is_refusing
            if is_refusing:
                self._stop()
            self._follow()

    def close(self) -> None:
        self._is_open = False
        self._stop()

    def _stop(self) -> None:
        """Close the socket, with the connections that nobody has accepted yet."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._socket is not None:
            if self._is_accepting:
                asyncio.get_running_loop().remove_reader(self._socket)
                self._is_accepting = False
            self._socket.close()
            self._socket = None

    def _follow(self) -> None:
        """Bind, and listen unless connections are refused; while that fails, try again every second."""
        self._retry = None
        try:
            if self._socket is None:
                self._socket = bound(self.host, self.number)
            if not self._is_refusing:
                self._socket.listen(BACKLOG)
        except OSError as error:  # another program took the port, or shares the address (SO_REUSEADDR) and listens
            self._taken(self.number, error)
            self._retry = asyncio.get_running_loop().call_later(TAKEN_PORT_S, self._follow)
        else:
            if not self._is_refusing:
                self.accept_clients()

    def _accept(self) -> None:
        assert self._socket is not None
        try:
            client, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):  # the client left before
            return
        except OSError as error:  # out of file descriptors: try again in a moment, not at once
            self._failed(error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            self._is_accepting = False
            self._retry = loop.call_later(RETRY_S, self.accept_clients)
            return
        client.setblocking(False)
        self._accepted(client)


def bound(host: str, number: int) -> socket.socket:
    """Return a socket that is bound to the port; several may be bound, as long as only one of them listens."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, number))
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made
