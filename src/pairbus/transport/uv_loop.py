"""uvloop's event loop, without the threads of libuv.

libuv looks names up in four threads that it starts at the first `getaddrinfo`, and waits for them when a process ends.
A forked child does not have these threads, and with glibc 2.43 (seen with uvloop 0.23) it waits for them for ever.
Applications that fork, such as gunicorn with `--preload`, have not chosen uvloop: the paired client has. `sock_connect`
calls `getaddrinfo` too, with addresses that need no look-up.
"""

from __future__ import annotations

import socket
from typing import Any

import uvloop

from pairbus.transport.threads import in_thread


class Loop(uvloop.Loop):
    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        """Answer for an address at once, and look a name up in a thread of our own."""

        def look_up(more_flags: int = 0) -> Any:
            return socket.getaddrinfo(host, port, family, type, proto, flags | more_flags)

        try:
            return look_up(socket.AI_NUMERICHOST)
        except socket.gaierror:
            return await in_thread(f"resolve {host!r}", look_up)
