"""Names that lead to a proxy, for this process alone, so that a client can meet a name that does not resolve.

A proxy of TCP is never asked for a name, so it cannot play that trouble for another program. In its own process it can:
`socket.getaddrinfo` is replaced while at least one name is known, and asks the proxy first. The sync SDK, the aio SDK
on Python's own event loop and the paired client look names up there; the loops of uvloop do not.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pairbus.errors import ConfigError


class ProxyName(NamedTuple):
    """A name that leads to a proxy."""

    host: str
    "Address on which the proxy listens."
    port: int
    fails: Callable[[], bool]
    "Function that decides whether this look-up fails. Called in any thread."


_proxy_names: dict[str, ProxyName] = {}
_lock = threading.Lock()
_getaddrinfo = socket.getaddrinfo


def _ask(host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
    """Look a name up: first among the proxies of this process, then as `socket.getaddrinfo` does."""
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    redirect = _proxy_names.get(name.lower()) if isinstance(name, str) else None
    if redirect is None or flags & socket.AI_NUMERICHOST:
        return _getaddrinfo(host, port, family, type, proto, flags)
    if redirect.fails():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _getaddrinfo(redirect.host, redirect.port, family, type, proto, flags)


@contextmanager
def leading(name: str, proxy_name: ProxyName) -> Iterator[None]:
    """Let the name lead to a proxy while the block runs."""
    global _getaddrinfo  # noqa: PLW0603 - the function to go back to is the present one
    key = name.lower()
    with _lock:
        if key in _proxy_names:
            raise ConfigError(f"{name} leads to a proxy of this process already")
        if not _proxy_names:
            _getaddrinfo = socket.getaddrinfo
            socket.getaddrinfo = _ask
        _proxy_names[key] = proxy_name
    try:
        yield
    finally:
        with _lock:
            del _proxy_names[key]
            if not _proxy_names:
                socket.getaddrinfo = _getaddrinfo
