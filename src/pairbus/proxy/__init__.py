"""A proxy that stands before any AMQP endpoint, Azure included, and plays the same faults as the broker.

    async with Proxy("127.0.0.1", 5672) as proxy:
        client = ServiceBusClient.from_connection_string(proxy.connection_string(original))
        proxy.faults.add("refuse", for_s="5s")

The faults that it can play depend on the bytes that it can read (docs/outages.md): it follows AMQP in the clear, or TLS
that it ends itself, frame by frame; TLS that it passes on is only bytes.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from pairbus.auth.connection_string import ConnectionString
from pairbus.auth.hosts import in_url
from pairbus.broker.kit.control import ControlSocket, answer_faults
from pairbus.broker.wire.certificate import ca_path, expiring_contexts
from pairbus.errors import ConfigError
from pairbus.faults import CONTACT, Place
from pairbus.proxy import names
from pairbus.proxy.counts import Counts
from pairbus.proxy.faults import ProxyFaults
from pairbus.proxy.joint import ProxyTarget
from pairbus.proxy.passage import Passage
from pairbus.proxy.port import HOST, THIN_BUFFER_BYTES, ProxyPort

__all__ = ["Proxy"]

NAME = "proxy"
"The namespace of the control socket."
LOOKUP_S = 10.0  # wait for the proxy's loop to decide whether a name resolves
_AUTHORITY = re.compile(r"\b(Endpoint=\w+://|HostName=)[^;/]+", re.IGNORECASE)
_EMULATOR = re.compile(r";?\s*UseDevelopmentEmulator=\w+", re.IGNORECASE)


class Proxy:
    """A proxy before one endpoint: on an event loop from `start` to `stop`, or as an `async with` block."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        listen: tuple[str, int] = (HOST, 0),
        tls_to_target: ssl.SSLContext | None = None,
        tls: Path | None = None,
        tls_names: Iterable[str] = (),
        pass_tls: bool = False,
        control: Path | None = None,
    ) -> None:
        """Stand before HOST:PORT.

        `tls_to_target`: encrypt to the target, and check its certificate with this context.
        `tls`: end the TLS of clients with a certificate made in this folder, for the loopback and `tls_names`.
        `pass_tls`: clients speak TLS with the target itself; faults that need frames are then refused.
        `control`: path of a control socket, for `pairbus fault`.
        """
        if pass_tls and (tls is not None or tls_to_target is not None):
            raise ConfigError("a proxy that passes TLS on neither ends TLS nor begins it: choose one of the two")
        self.target = ProxyTarget(host, port, tls_to_target)
        self.counts = Counts()
        self.sees_frames = not pass_tls
        self.ca_file = None if tls is None else ca_path(tls)
        "Certificate that clients must trust, where the proxy ends TLS."
        self._listen = listen
        self._tls = None if tls is None else expiring_contexts(tls, tls_names)
        self._names = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._port = ProxyPort(self._accepted)
        self.faults = ProxyFaults(self, self._port)
        "The switches: `add`, `list`, `clear`."
        self._control = None if control is None else ControlSocket(control, {NAME: self}, {"faults": answer_faults})

    def __repr__(self) -> str:
        return f"<Proxy {self.address} before {self.target.host}:{self.target.port} {self.faults.faults.items()!r}>"

    @classmethod
    def before(
        cls, connection_string: str, *, listen: tuple[str, int] = (HOST, 0), control: Path | None = None
    ) -> Self:
        """Make a proxy before the namespace of a connection string, with AMQP in the clear between clients and itself.

        It speaks TLS to the namespace unless that is an emulator.
        """
        target = ConnectionString.parse(connection_string)
        tls = None if target.emulator else ssl.create_default_context()
        port = target.port or (5672 if target.emulator else 5671)
        return cls(target.host, port, listen=listen, tls_to_target=tls, control=control)

    # ── life ──

    async def start(self) -> None:
        """Listen. ConfigError when the port is not free, or the control socket cannot be opened."""
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        host, port = self._listen
        self._port.open(host, port)
        if self._control is not None:
            try:
                self._control.listen()
            except ConfigError:
                await self._port.close()
                raise

    async def stop(self) -> None:
        """Accept no more connections, and reset those that are open."""
        if self._control is not None:
            await self._control.close()
        self._loop = None
        self.faults.close()
        await self._port.close()
        await asyncio.sleep(0)  # lets the event loop tell the sockets that they are closed

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ── addresses ──

    @property
    def host(self) -> str:
        return self._port.host

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def address(self) -> str:
        """The address as `host:port`, for a custom endpoint of the SDK."""
        return f"{in_url(self.host)}:{self.port}"

    @property
    def open_connections(self) -> int:
        return sum(not passage.is_ending for passage in self._port.passages)

    def connection_string(self, original: str) -> str:
        """Return the connection string for clients of this proxy.

        That of an emulator gets the proxy's name instead of the emulator's. Azure takes only tokens for its own name,
        so that name stays, and clients get the proxy's address as `custom_endpoint_address`.
        """
        parsed = ConnectionString.parse(original)
        text = original.strip().rstrip(";")
        is_clear = self.sees_frames and self._tls is None
        if parsed.emulator and is_clear:
            return _AUTHORITY.sub(rf"\g<1>{self.address}", text, count=1)
        return _EMULATOR.sub("", text) + (";UseDevelopmentEmulator=true" if is_clear else "")

    @contextmanager
    def known_as(self, host: str) -> Iterator[None]:
        """Let a host lead to this proxy, with any port, in this process and while the block runs.

        The fault `dns` then makes it a name that does not resolve. `pairbus.proxy.names` tells which clients notice.
        """
        with names.leading(host, names.ProxyName(self.host, self.port, self._does_not_resolve)):
            self._names += 1
            try:
                yield
            finally:
                self._names -= 1

    # ── for its faults ──

    @property
    def name(self) -> str:
        return NAME

    @property
    def namespace(self) -> str:
        """The name for the texts of errors."""
        return self.target.host

    @property
    def ends_tls(self) -> bool:
        return self._tls is not None

    @property
    def has_names(self) -> bool:
        return self._names > 0

    def _does_not_resolve(self) -> bool:
        """Decide about one look-up, in the thread of the caller."""
        loop = self._loop
        if loop is None:
            return False
        if threading.get_ident() == self._thread_id:
            return self._meets_dns()

        async def look_up() -> bool:
            return self._meets_dns()

        return asyncio.run_coroutine_threadsafe(look_up(), loop).result(LOOKUP_S)

    def _meets_dns(self) -> bool:
        return self.faults.meet(Place.RESOLVE, CONTACT) is not None

    def _accepted(self, client: socket.socket) -> None:
        self.counts.connections += 1
        self.faults.connections.accept(client)

    def refuse(self, is_refusing: bool) -> None:
        """Stop listening and cut every connection, or listen again."""
        self._port.refuse(is_refusing)
        if is_refusing:
            self._port.reset_all()

    def welcome(self, client: socket.socket) -> None:
        """Go on with a connection that was accepted."""
        if self._loop is None:
            client.close()
            return
        cables = self.faults.connections.cables
        if cables.thin:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, THIN_BUFFER_BYTES)
        passage = Passage(self.faults.rules, cables, self.counts, self._loop.time(), changed=_nothing)
        tls = None
        if self._tls is not None:
            good, expired = self._tls
            tls = good if self.faults.meet(Place.HANDSHAKE, CONTACT) is None else expired
        self._port.welcome(client, passage, self.target, tls)


def _nothing() -> None:
    """Do nothing: there is no listener for changes."""
