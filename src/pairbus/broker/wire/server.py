"""The port: every listening socket takes AMQP, AMQP over TLS, HTTP and HTTPS, told apart by the first bytes.

    0x16        a TLS handshake; what follows inside is looked at again
    AMQP        an AMQP protocol header
    the rest    HTTP: administration, /health, and AMQP over a web socket

The first byte is only peeked, because TLS must read it again; behind TLS the door itself passes the bytes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from aiohttp import WSMsgType, http_exceptions, web

from pairbus.amqp.connection import Trace
from pairbus.broker.namespace import Namespace
from pairbus.broker.outages.contact import HttpRequest, answered_request
from pairbus.broker.outages.held import run_all
from pairbus.broker.wire.door import FIRST_BYTES_DEADLINE_S, Door
from pairbus.broker.wire.peer import Peer
from pairbus.broker.wire.web_socket import WebSocketWire
from pairbus.errors import ConfigError

logger = logging.getLogger("pairbus.broker")
http_logger = logging.getLogger("pairbus.broker.http")
# A request that cannot be read is the peer's mistake and is answered with 400. With a traceback for each, garbage from
# one peer would hide all other lines of the log.
_UNREADABLE = (http_exceptions.HttpProcessingError, web.RequestPayloadError)
http_logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _UNREADABLE)))

LAST_REQUESTS_S = 2.0  # for requests that are being read or answered when the broker stops
BACKLOG = 1024  # connections that wait to be accepted
TAKEN_PORT_S = 1.0  # until the next try to take a port that another program took
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
        self.doors: set[Door] = set()
        self.frozen_by: set[int] = set()
        "Faults that let no bytes in or out."
        self._tls = tls
        self._listeners: list[socket.socket] = []
        self._accepting: dict[socket.socket, asyncio.Task[None]] = {}
        "Tasks of the listeners that listen; while connections are refused there are none."
        self.opened_count = 0
        "Connections that were accepted since the start."
        self._is_refusing = False
        self._turning: asyncio.Task[None] | None = None
        "Task that brings the listeners into line with `_is_refusing`."
        self._runner: web.AppRunner | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaited: dict[object, asyncio.TimerHandle] = {}
        "Connections that speak HTTP and have not made a request yet, and the timers that will cut them."

    async def open(self, host: str, port: int, app: web.Application, extra_ports: Sequence[int] = ()) -> None:
        """Listen on all ports or on none; `number` and `extra_numbers` then tell which were taken."""
        try:
            for number in (port, *extra_ports):
                self._listeners.append(_listen(host, number))
        except ConfigError:
            self._close_listeners()
            raise
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, logger=http_logger, shutdown_timeout=LAST_REQUESTS_S
        )
        await self._runner.setup()
        self.number, *self.extra_numbers = [int(listener.getsockname()[1]) for listener in self._listeners]
        self._open_ports()
        self.namespace.faults.contact.port = self
        self.namespace.faults.contact.changed()

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
        self.namespace.faults.contact.port = None
        tasks = [*self._tasks, *self._accepting.values(), *([] if self._turning is None else [self._turning])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_listeners()

    # ── faults ──

    def refuse(self, is_refusing: bool) -> None:
        """Stop listening and cut every connection, or listen again."""
        self._is_refusing = is_refusing
        if is_refusing:
            self._cut_all()
        if self._turning is not None and not self._turning.done():
            return  # the running task sees the new value
        if not is_refusing:
            self._open_ports()
        if not self._is_in_line():
            self._turning = self.loop.create_task(self._turn())

    def _is_in_line(self) -> bool:
        """Return whether all ports listen, or none while connections are refused."""
        return len(self._accepting) == (0 if self._is_refusing else len(self._listeners))

    async def _turn(self) -> None:
        """Bring the ports into line with `_is_refusing`, which may change meanwhile."""
        while not self._is_in_line():
            if self._is_refusing:
                await self._close_ports()
            else:
                await asyncio.sleep(TAKEN_PORT_S)
            if not self._is_refusing:
                self._open_ports()

    def _cut_all(self) -> None:
        """Cut every connection; the one whose request asked for this fault gets its answer first."""
        for task in self._tasks:
            task.cancel()
        for door in list(self.doors):
            door.abort()
        assert self._runner is not None and self._runner.server is not None
        request = answered_request.get()
        for connection in self._runner.server.connections:
            if request is not None and connection is request.connection:
                connection.close()
            elif connection.transport is not None:
                connection.transport.abort()

    async def _close_ports(self) -> None:
        """Close the listeners and keep their ports."""
        accepting, self._accepting = self._accepting, {}
        for task in accepting.values():
            task.cancel()
        await asyncio.gather(*accepting.values(), return_exceptions=True)
        for at, listener in enumerate(self._listeners):
            if listener in accepting:
                host, number = listener.getsockname()[:2]
                listener.close()
                self._listeners[at] = await self._reserve(host, number)

    def _open_ports(self) -> None:
        """Listen again; clients that connect after this call are accepted, unless another program has the port."""
        for listener in self._listeners:
            if listener in self._accepting:
                continue
            try:
                listener.listen(BACKLOG)
            except OSError as error:  # a program that shares the address (SO_REUSEADDR) listened while we did not
                number = listener.getsockname()[1]
                logger.error("%s: port %d cannot be opened again yet: %s", self.namespace.name, number, error.strerror)
            else:
                self._accepting[listener] = self.loop.create_task(self._accept(listener))

    async def _reserve(self, host: str, number: int) -> socket.socket:
        """Return a socket that is bound and does not listen: it refuses connections and keeps the port."""
        while True:
            try:
                return _bind(host, number)
            except ConfigError as error:  # another process took the port since it was closed
                logger.error("%s: %s", self.namespace.name, error)
                await asyncio.sleep(TAKEN_PORT_S)

    def freeze(self, key: int) -> None:
        """Stop reading from the open connections and writing to them, until `thaw` with the same key."""
        if not self.frozen_by:
            for door in self.doors:
                door.freeze()
        self.frozen_by.add(key)
        for peer in self.namespace.peers:
            peer.freeze(key)

    def thaw(self, key: int) -> None:
        """Let the frozen connections go on."""
        self.frozen_by.discard(key)
        run_all([partial(peer.thaw, key) for peer in self.namespace.peers])
        if not self.frozen_by:
            run_all([door.thaw for door in self.doors])

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
            if not self.doors:
                return
            await asyncio.sleep(0.05)
        for door in list(self.doors):
            door.abort()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = await self.loop.sock_accept(listener)
            except OSError as error:  # out of file descriptors, or a client that left before we looked
                self.namespace.strangers.warning(
                    "%s: a connection could not be accepted: %s", self.namespace.name, error
                )
                await asyncio.sleep(0.1)
                continue
            self.opened_count += 1
            if self._connection_count() >= CONNECTIONS_MAX:
                self.namespace.strangers.warning(
                    "%s: %d connections are open; one more was turned away", self.namespace.name, CONNECTIONS_MAX
                )
                client.close()
                continue
            if not self.namespace.faults.acts or self.namespace.faults.contact.accepts(client):
                self._spawn(self._welcome(client))

    def _connection_count(self) -> int:
        """Count connections: undecided ones, AMQP, and HTTP with its web sockets."""
        assert self._runner is not None and self._runner.server is not None
        return len(self._tasks) + len(self.doors) + len(self._runner.server.connections)

    def connections(self) -> dict[str, int]:
        """Count the open connections by protocol: AMQP, and HTTP with its web sockets."""
        assert self._runner is not None and self._runner.server is not None
        return {"amqp": len(self.doors), "http": len(self._runner.server.connections)}

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
            await self.loop.connect_accepted_socket(lambda: Door(self), client, **tls)  # type: ignore[arg-type]
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
        peer = wire.peer = Peer(self.namespace, wire, self.loop, self.trace)
        sending = self.loop.create_task(wire.send_forever())
        try:
            async for message in response:
                if message.type is not WSMsgType.BINARY:
                    self.namespace.strangers.warning("%s: a web socket sent text; AMQP is binary", self.namespace.name)
                    break
                peer.data_received(message.data)
                await wire.may_read.wait()
        finally:
            peer.connection_lost()
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await sending
            await response.close()
        return response


def _listen(host: str, port: int) -> socket.socket:
    listener = _bind(host, port)
    listener.listen(BACKLOG)
    return listener


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        other = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "address"
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another {other}") from error
    listener.setblocking(False)
    return listener
