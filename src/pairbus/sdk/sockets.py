"""Freeing a sync call of the SDK that hangs: its socket is shut down, and the call fails in the same second.

The sync SDK has no time-out for a peer that accepts a connection and stays silent, and `close()` from another thread
does not free the call. During a handshake no attribute of the SDK has the socket (wrapping it for TLS takes the
descriptor out of the one that it has), so then the socket is found in the stack of the hung thread.
"""

from __future__ import annotations

import socket
import sys
from types import FrameType
from typing import Any

from azure.servicebus._pyamqp._connection import Connection
from azure.servicebus._pyamqp._transport import _AbstractTransport
from azure.servicebus._pyamqp.client import AMQPClient


def _is_known() -> bool:
    """Return True when this version of the SDK keeps its socket where `break_socket` looks for it."""
    ways = (
        (AMQPClient.open, "_connection"),
        (Connection._connect, "_transport"),
        (_AbstractTransport.connect, "sock"),
    )
    return hasattr(sys, "_current_frames") and all(name in function.__code__.co_names for function, name in ways)


CAN_BREAK = _is_known()
"False when a hung call cannot be freed, so that its thread must be left behind."


def break_socket(owner: Any) -> bool:
    """Shut down the socket of a sync sender or receiver, from any thread. False: there is no socket yet, call again.

    The SDK's own limit for connecting is one second for each address, so a hang without a socket does not last.
    """
    transport = getattr(getattr(getattr(owner, "_handler", None), "_connection", None), "_transport", None)
    if transport is None:
        return False
    held = getattr(transport, "sock", None)
    held = getattr(held, "sock", held)  # of a web socket
    if _shut_down(held):
        return True
    return any(_shut_down(candidate) for candidate in _in_use_by(transport))


def _shut_down(candidate: object) -> bool:
    if not isinstance(candidate, socket.socket) or candidate.fileno() < 0:
        return False
    try:
        # Not the method of SSLSocket: it drops the TLS state while another thread is reading.
        socket.socket.shutdown(candidate, socket.SHUT_RDWR)
    except OSError:
        return False  # not connected: no call can hang on it
    return True


def _in_use_by(transport: object) -> list[socket.socket]:
    """List the sockets that threads inside this transport hold in local variables, innermost first."""
    sockets: list[socket.socket] = []
    for innermost in sys._current_frames().values():
        held: list[socket.socket] = []
        frame: FrameType | None = innermost
        while frame is not None:
            names = frame.f_locals
            if names.get("self") is transport:
                sockets += held
                break
            # By the real type: `isinstance` of an application's proxy object may run the application's code.
            held += [value for value in list(names.values()) if issubclass(type(value), socket.socket)]
            frame = frame.f_back
    return sockets
