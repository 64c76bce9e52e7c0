"""Functions that bind and reset sockets, with options that the standard library leaves to `setsockopt`."""

from __future__ import annotations

import asyncio
import socket
import struct

HOST = "127.0.0.1"
_NO_LINGER = struct.pack("ii", 1, 0)


def bound(port: int, host: str = HOST) -> socket.socket:
    """Return a socket bound to the port; several sockets may be bound, as long as only the last of them listens."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


def reset(transport: asyncio.Transport) -> None:
    """Close with RST: a peer that reads or writes gets an error, not an end."""
    open_socket = transport.get_extra_info("socket")
    if open_socket is not None:  # a TLS transport that has lost its connection has no socket any more
        open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
