"""A long or broken line between a client and a server: bytes arrive later, or one name has several addresses."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Any, Self


class _End(asyncio.Protocol):
    def __init__(self, line: Line, other: _End | None = None) -> None:
        self.line = line
        self.other = other
        self.transport: Any = None
        self._before: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.line.ends.append(self)
        if self.other is None:
            self.line.connections += 1
            self.other = _End(self.line, self)
            loop = asyncio.get_running_loop()
            other = self.other
            task = loop.create_task(loop.create_connection(lambda: other, "127.0.0.1", self.line.to_port))
            self.line.tasks.append(task)
        for data in self._before:
            transport.write(data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self.line.delay_s, self._pass, data)

    def _pass(self, data: bytes) -> None:
        assert self.other is not None
        if self.other.transport is None:
            self.other._before.append(data)
        elif not self.other.transport.is_closing():
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.line.ends.remove(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()


class Line:
    """Listens on a port of its own and passes on, each way after half of the round trip."""

    def __init__(self, to_port: int, round_trip_s: float) -> None:
        self.to_port = to_port
        self.delay_s = round_trip_s / 2
        self.port = 0
        self.connections = 0
        self.ends: list[_End] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for end in list(self.ends):
            end.transport.abort()
        await self._server.wait_closed()


def deaf_port() -> tuple[socket.socket, list[socket.socket]]:
    """Return a socket whose queue of connections is full: who connects to it hears nothing."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    return listener, fillers
