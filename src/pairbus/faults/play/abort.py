"""Ends a connection with RST: a peer that reads or writes gets an error, not an end."""

from __future__ import annotations

import asyncio
import socket
import struct

_NO_LINGER = struct.pack("ii", 1, 0)


def reset(client: socket.socket) -> None:
    """Close a socket that no transport has."""
    try:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    finally:
        client.close()


def reset_transport(transport: asyncio.Transport) -> None:
    """Close the socket of a transport."""
    open_socket = transport.get_extra_info("socket")
    if open_socket is not None:  # a TLS transport that has lost its connection has no socket any more
        open_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()
