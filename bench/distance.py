"""A proxy that makes round trips longer: in each direction it delays bytes by half of the given time.

Run as `python -m bench.distance PORT MILLISECONDS`, it prints the port on which it listens, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from pairbus.transport.loops import run

HOST = "127.0.0.1"


class _End(asyncio.Protocol):
    """A socket of a connection: the client's or the broker's."""

    def __init__(self, delay_s: float, other: _End | None = None) -> None:
        self._delay_s = delay_s
        self._loop = asyncio.get_running_loop()
        self.other = other
        self.transport: Any = None
        self.before: list[bytes] = []
        "Bytes that arrived before the socket was open."

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        for data in self.before:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._loop.call_later(self._delay_s, self._pass, data)

    def _pass(self, data: bytes) -> None:
        assert self.other is not None
        if self.other.transport is None:
            self.other.before.append(data)
        elif not self.other.transport.is_closing():
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()


class _Near(_End):
    """The client's socket, which opens the other one."""

    def __init__(self, delay_s: float, port: int) -> None:
        super().__init__(delay_s)
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        far = self.other = _End(self._delay_s, self)
        self._opening = self._loop.create_task(self._loop.create_connection(lambda: far, HOST, self._port))


async def _serve(port: int, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Near(delay_s, port), HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 2000))


if __name__ == "__main__":
    main()
