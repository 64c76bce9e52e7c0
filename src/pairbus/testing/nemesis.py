"""A proxy that stands before any AMQP endpoint and, when told, behaves like a network or a broker in trouble.

    async with Nemesis("127.0.0.1", port) as nemesis:
        client = ServiceBusClient.from_connection_string(nemesis.connection_string(original))
        nemesis.drop_answers("orders")      # stored, but the answer is lost
        …
        nemesis.heal()

Every switch takes effect before its call returns, and may be called from any thread. Faults add up until `heal`; paths
are those of entities, in any case. Faults that name a path, or a kind of frame, need AMQP in the clear; TLS and HTTP
pass as bytes, and only faults of whole connections apply to them.
"""

from __future__ import annotations

import re
import socket
from typing import Self

from pairbus.auth.connection_string import ConnectionString
from pairbus.proxy.conversation import path_of
from pairbus.proxy.counts import Counts
from pairbus.proxy.joint import ProxyTarget
from pairbus.proxy.passage import Passage
from pairbus.proxy.port import HOST, THIN_BUFFER_BYTES, ProxyPort
from pairbus.testing.network_switches import CUTS, CutHow, NemesisSwitches
from pairbus.testing.threads import InThread, OnLoop, switch

_AUTHORITY = re.compile(r"\b(Endpoint=\w+://|HostName=)[^;/]+", re.IGNORECASE)


class Nemesis(OnLoop):
    """A proxy on a port of the loopback."""

    def __init__(self, target_host: str, target_port: int) -> None:
        super().__init__()
        self.target = target_host, target_port
        "Host and port of the broker. Read at every new connection, so a broker may come back at another address."
        self.counts = Counts()
        self._switches = NemesisSwitches()
        self._port = ProxyPort(self._accepted)

    def __repr__(self) -> str:
        return f"<Nemesis {self.port} before {self.target[0]}:{self.target[1]} {self._switches}>"

    @property
    def port(self) -> int:
        return self._port.number

    @classmethod
    def before(cls, connection_string: str) -> Self:
        """Make a nemesis before the endpoint of a connection string, which must name its port."""
        parsed = ConnectionString.parse(connection_string)
        if parsed.port is None:
            raise ValueError("the connection string names no port: use Nemesis(host, port)")
        return cls(parsed.host, parsed.port)

    async def start(self, port: int = 0) -> None:
        await super().start(port)
        self._port.open(HOST, port)

    async def stop(self) -> None:
        """Accept no more connections, and reset those that are open."""
        await self._port.close()
        await super().stop()

    def connection_string(self, original: str) -> str:
        """Return the connection string with the host and port of this proxy."""
        return _AUTHORITY.sub(rf"\g<1>{HOST}:{self.port}", original, count=1)

    @property
    def open_connections(self) -> int:
        return sum(not passage.is_ending for passage in self._port.passages)

    # ── switches ──

    @switch
    def heal(self) -> None:
        """End all faults. Stalled frames arrive now; connections that lost bytes in a black hole are reset."""
        self._switches.clear()
        for passage in self._port.open_passages():
            passage.swallow(False)
        self._switches.go_on()
        for passage in self._port.open_passages():
            passage.release()
        self._port.refuse(False)

    @switch
    def refuse(self, *, open_connections: bool = True) -> None:
        """Stop listening on the port; open connections are reset, unless `open_connections` is False."""
        self._port.refuse(True)
        if open_connections:
            self.reset()

    @switch
    def reset(self) -> None:
        """Reset both ends of every open connection with RST, once. New connections are not touched."""
        for passage in self._port.open_passages():
            passage.reset()

    @switch
    def cut(self) -> None:
        """Close both ends of every open connection with FIN, once. New connections are not touched."""
        for passage in self._port.open_passages():
            passage.cut()

    @switch
    def black_hole(self, open_connections: bool = True) -> None:
        """Accept new connections and never answer; with `open_connections`, open ones lose every byte both ways."""
        self._switches.is_black_hole = True
        if open_connections:
            for passage in self._port.open_passages():
                passage.swallow()

    @switch
    def stall(self) -> None:
        """Stop reading from both ends, which may write until the sockets are full. No bytes are lost."""
        self._switches.cables.freeze("stall")

    @switch
    def latency(self, seconds: float) -> None:
        """Delay every byte by this time from now on, in each direction."""
        self._switches.slow_line("latency", delay_s=seconds)

    @switch
    def bandwidth(self, bytes_per_s: float) -> None:
        """Limit every connection to so many bytes a second in each direction, from now on; it reads no more than that.

        A connection that is made later also has small system buffers for bytes that are not read yet.
        """
        self._switches.slow_line("bandwidth", bytes_per_s=bytes_per_s)

    @switch
    def stall_transfers(self, path: str | None = None) -> None:
        """Hold messages of clients (to one entity); other frames pass, so links open and connections stay open.

        `heal` lets messages arrive whose link is still attached then.
        """
        self._switches.held.add(None if path is None else path_of(path))

    @switch
    def drop_answers(self, path: str | None = None, count: int | None = None) -> None:
        """Drop the broker's answers to messages (to one entity), which are stored; only `count` of them, if given.

        `drop_answers("orders/$management")` drops only the acceptance of requests, not their replies.
        """
        self._switches.drop_answers(path, count, to_settlement=False)

    @switch
    def drop_settlement_answers(self, path: str | None = None, count: int | None = None) -> None:
        """Drop the broker's answers to settlements, which are carried out."""
        self._switches.drop_answers(path, count, to_settlement=True)

    @switch
    def cut_links(self, path: str, how: CutHow = "reset") -> None:
        """Cut the links to one entity, which cannot be attached again; connections without such a link go on.

        reset    connections with a link to the path are reset now, later ones when they attach to it
        stall    connections with a link are reset now; later attaches to the path are never answered
        detach   clients are told `amqp:link:detach-forced` on that link alone, now and at every attach
        """
        self._switches.cut[path_of(path)] = how
        error = CUTS[how].error
        for passage in self._port.open_passages():
            for link in [link for link in passage.links() if link.path == path_of(path)]:
                if error is None:
                    passage.reset()
                else:
                    passage.detach(link, error)

    # ── connections ──

    def _accepted(self, client: socket.socket) -> None:
        assert self._loop is not None
        switches = self._switches
        if switches.cables.thin:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, THIN_BUFFER_BYTES)
        self.counts.connections += 1
        passage = Passage(
            switches, switches.cables, self.counts, self._loop.time(), changed=self.changed, is_late_both_ways=True
        )
        if switches.is_black_hole:
            passage.swallow()
            passage.has_lost_bytes = True
        self._port.welcome(client, passage, None if switches.is_black_hole else ProxyTarget(*self.target))
        self.changed()


class NemesisThread(InThread, Nemesis):
    """A nemesis for tests that block: `with NemesisThread(host, port) as nemesis:`."""
