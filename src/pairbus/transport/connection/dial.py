"""From a name to a stream of bytes: DNS, TCP, TLS, each with its own clock of silence."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import socket
import ssl as tls
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pairbus.errors import ConfigError
from pairbus.transport.connection.endpoint import Endpoint
from pairbus.transport.connection.steps import Steps
from pairbus.transport.connection.wire import Wire
from pairbus.transport.errors import Timeout
from pairbus.transport.threads import in_thread

Ssl = tls.SSLContext | str | os.PathLike[str] | None
"A context, or a file of certificates to trust instead of the system's."
Address = tuple[Any, ...]
"Address in the form of `socket.getaddrinfo`."

ADDRESSES_MAX = 4  # tried in turn; they share one silence
UNDER_TLS_MAX = 8_192  # encrypted bytes that the socket has not taken: above it TLS encrypts no more
_LAST_DATA_AT = 52  # in Linux's struct tcp_info: milliseconds since bytes last came in


async def dial(endpoint: Endpoint, wire: Wire, steps: Steps, context: tls.SSLContext | None) -> None:
    """Join the wire to a socket, with TLS when there is a context. OSError when the peer refuses, or Timeout."""
    addresses = await resolve(endpoint.host, endpoint.port, steps)
    sock = await reach(addresses, steps)
    try:
        # As in the SDK, the name in TLS is that of the host to which the socket connects, also of a custom endpoint.
        joining = _join(wire, sock) if context is None else _join_by_tls(wire, sock, context, endpoint.host)
        await steps.step("TLS" if context is not None else "the socket", joining, heard=last_data(sock))
    except BaseException:
        wire.abort()
        sock.close()
        raise


async def _join(wire: Wire, sock: socket.socket) -> None:
    await _give(wire.loop, lambda: wire, sock)


async def _join_by_tls(wire: Wire, sock: socket.socket, context: tls.SSLContext, name: str) -> None:
    """Join in two steps, to know the transport under TLS: small messages would have to wait for the bytes in it."""
    under = await _give(wire.loop, asyncio.Protocol, sock)
    under.set_write_buffer_limits(high=UNDER_TLS_MAX)
    wire.progress.under = under
    wire.connection_made(await wire.loop.start_tls(under, wire, context, server_hostname=name))


async def _give(
    loop: asyncio.AbstractEventLoop, protocol: Callable[[], asyncio.BaseProtocol], sock: socket.socket
) -> asyncio.Transport:
    """Return a transport that owns a connected socket.

    `create_connection` would seem natural. But with uvloop's the socket keeps the number of its descriptor when the
    peer closes at once, and closes that number when it is collected: by then another connection or file may have it.
    """
    transport, _ = await loop.connect_accepted_socket(protocol, sock)
    return transport


async def resolve(host: str, port: int, steps: Steps) -> list[Address]:
    """Return the addresses of a host, at most ADDRESSES_MAX, the kinds (IPv6, IPv4) in turn."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        asking = in_thread(f"resolve {host}", lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        addresses = await steps.step(f"the address of {host}", asking)
    except UnicodeError:  # a label is empty, has more than 63 characters, or wrong ones
        raise socket.gaierror(socket.EAI_NONAME, "no such host") from None
    first = [address for address in addresses if address[0] == addresses[0][0]]
    other = [address for address in addresses if address[0] != addresses[0][0]]
    in_turn = [address for pair in itertools.zip_longest(first, other) for address in pair if address is not None]
    return in_turn[:ADDRESSES_MAX]


async def reach(addresses: list[Address], steps: Steps) -> socket.socket:
    """Return a socket connected to the first address that answers; a dead address leaves time for the next ones."""
    left_s = steps.silence_s
    loop = asyncio.get_running_loop()
    silent_since = loop.time()  # of the host: an address that does not answer is no sign of life
    problem: Exception = OSError(f"{steps.where} has no address")
    for index, (family, kind, protocol, _, where) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        began = loop.time()
        try:
            share_s = left_s / (len(addresses) - index)
            connecting = loop.sock_connect(sock, where)
            await steps.step(f"{where[0]}:{where[1]}", connecting, silence_s=share_s, since=silent_since)
            return sock
        except (OSError, Timeout) as error:
            sock.close()
            problem = error
            if isinstance(error, OSError):
                silent_since = loop.time()
            if loop.time() >= steps.deadline:
                break
        except BaseException:
            sock.close()
            raise
        left_s = max(left_s - (loop.time() - began), steps.silence_s / len(addresses))
    raise problem


def last_data(sock: socket.socket) -> Callable[[], float]:
    """Return a function for the time when bytes last came in, also in a TLS handshake; never, if it is not known."""
    loop = asyncio.get_running_loop()

    def heard() -> float:
        if sys.platform != "linux" or sock.fileno() < 0:
            return -math.inf
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return loop.time() - float(struct.unpack_from("=I", info, _LAST_DATA_AT)[0]) / 1000

    return heard


def context_for(ssl: Ssl) -> tls.SSLContext:
    """Return the context that was given, or one that trusts the given file, or the system's certificates.

    A file is read again only when it has changed: to read the usual one takes 20 ms, in which the event loop stands.
    """
    if isinstance(ssl, tls.SSLContext):
        return ssl
    try:
        if ssl is None:
            return tls.create_default_context()
        file = os.stat(ssl)
        return _context_of(os.fspath(ssl), file.st_mtime_ns, file.st_size)
    except OSError as error:
        raise ConfigError(f"ssl: cannot read certificates from {ssl}: {error}") from None


@lru_cache(maxsize=8)
def _context_of(path: str, mtime_ns: int, size: int) -> tls.SSLContext:
    return tls.create_default_context(cafile=path)
