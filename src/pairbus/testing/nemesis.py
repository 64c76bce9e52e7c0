"""A proxy that stands before any AMQP endpoint and, when told, behaves like a network or a broker in trouble.

    async with Nemesis("127.0.0.1", port) as nemesis:
        client = ServiceBusClient.from_connection_string(nemesis.connection_string(original))
        nemesis.drop_answers("orders")      # stored, and never told
        …
        nemesis.heal()

Every switch takes effect before its call returns, and may be thrown from any thread. Faults add up until `heal`; paths
are those of entities, in any case. Faults that name a path, or a kind of frame, need AMQP in the clear; TLS and HTTP
pass as bytes, and only the faults of whole connections touch them.
"""

from __future__ import annotations

import random
import re
import socket
from typing import Self

from pairbus.access.connection_string import ConnectionString
from pairbus.proxy.conversation import path_of
from pairbus.proxy.counts import Counts
from pairbus.proxy.joint import ProxyTarget
from pairbus.proxy.passage import Passage
from pairbus.proxy.port import THIN_BUFFER_BYTES, ProxyPort
from pairbus.proxy.sockets import HOST
from pairbus.testing.switches import CUTS, CutHow, NemesisSwitches
from pairbus.testing.threads import InThread, OnLoop, switch

_AUTHORITY = re.compile(r"\b(Endpoint=\w+://|HostName=)[^;/]+", re.IGNORECASE)


class Nemesis(OnLoop):
    """A proxy on a port of the loopback."""

    def __init__(self, target_host: str, target_port: int) -> None:
        super().__init__()
        self.target = target_host, target_port
        "Read at every new connection, so a broker may come back elsewhere."
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
        """The one that stands before the endpoint of a connection string that names its port."""
        parsed = ConnectionString.parse(connection_string)
        if parsed.port is None:
            raise ValueError("the connection string names no port: use Nemesis(host, port)")
        return cls(parsed.host, parsed.port)

    async def start(self, port: int = 0) -> None:
        await super().start(port)
        self._port.open(HOST, port)

    async def stop(self) -> None:
        """No more connections; those that are open are reset."""
        await self._port.close()
        await super().stop()

    def connection_string(self, original: str) -> str:
        """The same connection string, with this proxy for its host and port."""
        return _AUTHORITY.sub(rf"\g<1>{HOST}:{self.port}", original, count=1)

    @property
    def open_connections(self) -> int:
        return sum(not passage.is_ending for passage in self._port.passages)

    # ── switches ──

    @switch
    def heal(self) -> None:
        """All faults end. What was stalled arrives now; connections that lost bytes in a black hole are reset."""
        self._switches.clear()
        for passage in self._port.open_passages():
            passage.swallow(False)
            passage.thaw("stall")
            passage.write_late_now()
            passage.release()
        if self._loop is not None:
            self._port.listen()

    @switch
    def refuse(self, *, open_connections: bool = True) -> None:
        """Nothing listens on the port any more; open connections are reset, unless they may go on."""
        self._port.shut()
        if open_connections:
            self.reset()

    @switch
    def reset(self) -> None:
        """RST for both ends of every open connection, once. New ones are not touched."""
        for passage in self._port.open_passages():
            passage.reset()

    @switch
    def cut(self) -> None:
        """FIN for both ends of every open connection, once. New ones are not touched."""
        for passage in self._port.open_passages():
            passage.cut()

    @switch
    def black_hole(self, open_connections: bool = True) -> None:
        """New connections are accepted and never answered; open ones, if they are meant, lose every byte both ways."""
        self._switches.is_black_hole = True
        if open_connections:
            for passage in self._port.open_passages():
                passage.swallow()

    @switch
    def stall(self) -> None:
        """Bytes are read from nobody: both ends may write until the sockets are full. Nothing is lost."""
        self._switches.is_stalled = True
        for passage in self._port.open_passages():
            passage.freeze("stall")

    @switch
    def latency(self, seconds: float) -> None:
        """From now on every byte takes this long, in each direction."""
        self._switches.slow_line("latency", delay_s=seconds)

    @switch
    def bandwidth(self, bytes_per_s: float) -> None:
        """From now on every connection passes so many bytes a second in each direction, and reads no more than that.

        Thrown before a connection is made, it leaves the system little room for bytes that are not read yet.
        """
        self._switches.slow_line("bandwidth", bytes_per_s=bytes_per_s)

    @switch
    def stall_transfers(self, path: str | None = None) -> None:
        """Messages of clients (to one entity) do not arrive; all else passes, so links open and connections live.

        `heal` lets those arrive whose link is still attached by then.
        """
        self._switches.held.add(None if path is None else path_of(path))

    @switch
    def drop_answers(self, path: str | None = None, count: int | None = None) -> None:
        """Messages (to one entity) are stored, and the broker's acceptance never comes back; for `count` of them, if
        it is given. `drop_answers("orders/$management")` loses nothing but that the request was taken."""
        self._switches.drop_answers(path, count, to_settlement=False)

    @switch
    def drop_settlement_answers(self, path: str | None = None, count: int | None = None) -> None:
        """The same for receivers: a completion is carried out, and the broker's word on it is lost."""
        self._switches.drop_answers(path, count, to_settlement=True)

    @switch
    def cut_links(self, path: str, how: CutHow = "reset") -> None:
        """Links to one entity are cut and cannot be attached again; connections without such a link work on.

        reset    connections with a link to the path are reset now, later ones when they attach to it
        stall    the same now; later attaches to the path are never answered
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
        if "bandwidth" in switches.slow:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, THIN_BUFFER_BYTES)
        self.counts.connections += 1
        passage = Passage(switches, self.counts, self.changed, random.random, self._loop.time())
        if switches.is_stalled:
            passage.freeze("stall")
        if switches.is_black_hole:
            passage.swallow()
            passage.has_lost_bytes = True
        self._port.welcome(client, passage, None if switches.is_black_hole else ProxyTarget(*self.target))
        self.changed()


class NemesisThread(InThread, Nemesis):
    """A nemesis for tests that block: `with NemesisThread(host, port) as nemesis:`."""
