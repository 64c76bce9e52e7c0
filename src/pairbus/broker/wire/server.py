"""The port: every listening socket takes AMQP, AMQP over TLS, HTTP and HTTPS, told apart by the first bytes.

    0x16        a TLS handshake; what follows inside is looked at again
    AMQP        an AMQP protocol header
    the rest    HTTP: administration, /health, and AMQP over a web socket

The first byte is only peeked, because TLS must read it again; behind TLS the door itself passes the bytes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any

from aiohttp import WSMsgType, http_exceptions, web

from pairbus.amqp.connection import Trace
from pairbus.broker.namespace import Namespace
from pairbus.broker.outages.http import HttpRequest, answered_request
from pairbus.broker.wire.door import FIRST_BYTES_DEADLINE_S, LATE_BYTES_MAX, Door
from pairbus.broker.wire.peer import Peer
from pairbus.broker.wire.web_socket import WebSocketWire
from pairbus.errors import ConfigError
from pairbus.faults.play.cable import Cable
from pairbus.faults.play.listening_port import ListeningPort

logger = logging.getLogger("pairbus.broker")
http_logger = logging.getLogger("pairbus.broker.http")
# A request that cannot be read is the peer's mistake and is answered with 400. With a traceback for each, garbage from
# one peer would hide all other lines of the log.
_UNREADABLE = (http_exceptions.HttpProcessingError, web.RequestPayloadError)
http_logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _UNREADABLE)))

LAST_REQUESTS_S = 2.0  # for requests that are being read or answered when the broker stops
CONNECTIONS_MAX = 5000  # per namespace, the limit of the service
WEB_SOCKET_PROTOCOL = "AMQPWSB10"
WEB_SOCKET_MESSAGE_MAX = 4 << 20


class Port:
    """The listening sockets of one namespace: its own, and extra ones where clients expect them."""

    def __init__(
        self,
        namespace: Namespace,
        *,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLContext,
        trace: Trace | None = None,
    ) -> None:
        self.namespace = namespace
        self.loop = loop
        self.trace = trace
        self.number = 0
        self.extra_numbers: list[int] = []
        self.opened_count = 0
        "Connections that were accepted since the start."
        self._faults = namespace.faults.connections
        self._tls = tls
        self._listeners: list[ListeningPort] = []
        self._web_cables: set[Cable] = set()
        "Cables over web sockets."
        self._runner: web.AppRunner | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaited: dict[object, asyncio.TimerHandle] = {}
        "Connections that speak HTTP and have not made a request yet, and the timers that will cut them."

    async def open(self, host: str, port: int, app: web.Application, extra_ports: Sequence[int] = ()) -> None:
        """Listen on all ports or on none; `number` and `extra_numbers` then tell which were taken."""
        for number in (port, *extra_ports):
            listener = ListeningPort(self._accepted, failed=self._not_accepted, taken=self._not_ours)
            try:
                listener.open(host, number)
            except ConfigError:
                self._close_listeners()
                raise
            self._listeners.append(listener)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, logger=http_logger, shutdown_timeout=LAST_REQUESTS_S
        )
        await self._runner.setup()
        self.number, *self.extra_numbers = [listener.number for listener in self._listeners]
        for listener in self._listeners:
            listener.accept_clients()
        self._faults.port = self
        self._faults.changed()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def http_handler(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """Make the HTTP protocol of a connection; it cuts a peer that does not finish the headers of a request."""
        assert self._runner is not None and self._runner.server is not None
        handler = self._runner.server()

        def cut() -> None:
            del self._awaited[handler]
            transport.abort()

        self._awaited[handler] = self.loop.call_later(FIRST_BYTES_DEADLINE_S, cut)
        return handler

    def on_request(self, request: web.Request) -> None:
        """Note that an HTTP connection has made a request.

        Not a middleware: aiohttp caches those of the last thousand applications, and would keep the namespace in
        memory.
        """
        answered_request.set(HttpRequest(request.protocol))
        awaited = self._awaited.pop(request.protocol, None)
        if awaited is not None:
            awaited.cancel()

    async def stop_accepting(self) -> None:
        self._faults.port = None
        self._close_listeners()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def refuse(self, is_refusing: bool) -> None:
        """Stop listening and cut every connection, or listen again."""
        for listener in self._listeners:
            listener.refuse(is_refusing)
        if is_refusing:
            self._cut_all()

    def _cut_all(self) -> None:
        """Cut every connection; the one whose request asked for this fault gets its answer first."""
        for task in self._tasks:
            task.cancel()
        for cable in self._amqp_cables():
            cable.abort()
        assert self._runner is not None and self._runner.server is not None
        request = answered_request.get()
        for connection in self._runner.server.connections:
            if request is not None and connection is request.connection:
                connection.close()
            elif connection.transport is not None:
                connection.transport.abort()

    def _amqp_cables(self) -> list[Cable]:
        """Return the connections that speak AMQP, or have not shown their protocol yet; web sockets are HTTP."""
        return [cable for cable in self._faults.cables.open if cable not in self._web_cables]

    def welcome(self, client: socket.socket) -> None:
        """Go on with a connection that was accepted."""
        self._spawn(self._welcome(client))

    async def close(self, *, at_once: bool = False) -> None:
        """Close all connections, after the namespace has told its clients: let written bytes leave, then cut.

        `at_once`: cut now; bytes that the sockets have not taken yet are lost.
        """
        if self._runner is not None:
            http = [] if not at_once or self._runner.server is None else list(self._runner.server.connections)
            transports = [handler.transport for handler in http]
            await self._runner.cleanup()
            for transport in transports:
                if transport is not None:  # a TLS connection would wait half a minute for the client's close
                    transport.abort()
        for _ in range(0 if at_once else 20):
            if not self._amqp_cables():
                return
            await asyncio.sleep(0.05)
        for cable in self._amqp_cables():
            cable.abort()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accepted(self, client: socket.socket) -> None:
        self.opened_count += 1
        if self._connection_count() >= CONNECTIONS_MAX:
            self.namespace.strangers.warning(
                "%s: %d connections are open; one more was turned away", self.namespace.name, CONNECTIONS_MAX
            )
            client.close()
        else:
            self._faults.accept(client)

    def _not_accepted(self, error: OSError) -> None:
        """Log that a connection was not accepted: no file descriptor is free, or the client left before."""
        self.namespace.strangers.warning("%s: a connection could not be accepted: %s", self.namespace.name, error)

    def _not_ours(self, number: int, error: OSError) -> None:
        logger.error("%s: port %d cannot be opened again yet: %s", self.namespace.name, number, error.strerror)

    def _connection_count(self) -> int:
        """Count connections: undecided ones, AMQP, and HTTP with its web sockets."""
        return len(self._tasks) + sum(self.connections().values())

    def connections(self) -> dict[str, int]:
        """Count the open connections by protocol: AMQP, and HTTP with its web sockets."""
        assert self._runner is not None and self._runner.server is not None
        amqp = len(self._faults.cables.open) - len(self._web_cables)
        return {"amqp": amqp, "http": len(self._runner.server.connections)}

    async def _welcome(self, client: socket.socket) -> None:
        """Go on with TLS or without, by the first byte."""
        client.setblocking(False)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(FIRST_BYTES_DEADLINE_S):
                first = await self._peek(client)
            if not first:
                client.close()
                return
            tls = {"ssl": self._tls, "ssl_handshake_timeout": FIRST_BYTES_DEADLINE_S} if first == b"\x16" else {}
            await self.loop.connect_accepted_socket(lambda: Door(self).cable, client, **tls)  # type: ignore[arg-type]
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            logger.info("%s: a connection ended before it said what it is: %s", self.namespace.name, error or "silent")
            client.close()
        except asyncio.CancelledError:
            client.close()
            raise

    async def _peek(self, client: socket.socket) -> bytes:
        readable = asyncio.Event()
        self.loop.add_reader(client, readable.set)
        try:
            await readable.wait()
        finally:
            self.loop.remove_reader(client)
        return client.recv(1, socket.MSG_PEEK)

    # ── AMQP over web sockets ──

    async def web_socket(self, request: web.Request) -> web.StreamResponse:
        response = web.WebSocketResponse(
            protocols=(WEB_SOCKET_PROTOCOL,), max_msg_size=WEB_SOCKET_MESSAGE_MAX, compress=False, autoping=True
        )
        await response.prepare(request)
        wire = WebSocketWire(response, request.transport)
        cable = wire.cable = Cable(self._faults.cables, late_bytes_max=LATE_BYTES_MAX)
        cable.protocol = Peer(self.namespace, cable, self.loop, self.trace)
        self._web_cables.add(cable)
        cable.open_on(wire)
        sending = self.loop.create_task(wire.send_forever())
        try:
            async for message in response:
                if message.type is not WSMsgType.BINARY:
                    self.namespace.strangers.warning("%s: a web socket sent text; AMQP is binary", self.namespace.name)
                    break
                cable.data_received(message.data)
                await wire.may_read.wait()
        finally:
            cable.connection_lost(None)
            self._web_cables.discard(cable)
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await sending
            await response.close()
        return response
