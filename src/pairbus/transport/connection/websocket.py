"""AMQP over a web socket: binary messages in and out, treated as the bytes of a socket."""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
from collections import deque
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from pairbus.transport.connection.endpoint import WEBSOCKET_PROTOCOL, Endpoint
from pairbus.transport.connection.steps import Steps
from pairbus.transport.errors import ConnectionLost
from pairbus.transport.tasks import Tasks
from pairbus.transport.threads import in_thread
from pairbus.transport.times import WEBSOCKET_CLOSE_S

if TYPE_CHECKING:
    from pairbus.transport.connection.wire import Wire

HIGH_WATER, LOW_WATER = 64 * 1024, 16 * 1024  # bytes waiting to be sent: pause above, resume below


class WebSocketTransport:
    """The `ByteTransport` of a web socket: one task reads, one writes."""

    def __init__(self, http: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse, wire: Wire) -> None:
        self._http = http
        self._socket = socket
        self._wire = wire
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._more = asyncio.Event()
        self._closing = False
        tasks = self._tasks = Tasks()
        self._reader = tasks.start(self._read(), "the reader of a web socket", failed=self._failed)
        self._writer = tasks.start(self._write(), "the writer of a web socket", failed=self._failed)
        wire.connection_made(self)

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        self._queue.append(data)
        self._queued += len(data)
        self._more.set()
        if self._queued > HIGH_WATER:
            self._wire.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._queued

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the limits of this file apply."""

    def close(self) -> None:
        """Write the queued bytes, then close."""
        self._closing = True
        self._more.set()

    def abort(self) -> None:
        self._closing = True
        self._writer.cancel()
        self._reader.cancel()

    def _failed(self, error: BaseException) -> None:
        """End the connection: with one task alone it would stand still until a time-out."""
        self._wire.lose(ConnectionLost(f"the web socket broke: {error}"))
        self.abort()

    async def _write(self) -> None:
        while self._queue or not self._closing:
            while self._queue:
                data = self._queue.popleft()
                try:
                    await self._socket.send_bytes(data)
                except (ConnectionError, aiohttp.ClientError) as error:
                    self._wire.lose(ConnectionLost(f"the web socket broke: {error}"))
                    self._reader.cancel()
                    return
                self._queued -= len(data)
                if self._queued < LOW_WATER and not self._wire.writable:
                    self._wire.resume_writing()
            self._more.clear()
            if not self._closing:
                await self._more.wait()
        await self._socket.close()

    async def _read(self) -> None:
        error: Exception | None = None
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    self._wire.data_received(message.data)
                elif message.type is aiohttp.WSMsgType.ERROR:
                    error = self._socket.exception() or None  # type: ignore[assignment]
        except (ConnectionError, aiohttp.ClientError) as broken:
            error = broken
        finally:
            self._closing = True
            self._writer.cancel()
            self._wire.connection_lost(error)
            await self._http.close()


class _Resolver(AbstractResolver):
    """A resolver of names in our own threads; aiohttp's would use the default executor."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        def ask() -> list[Any]:
            return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)

        return [
            ResolveResult(
                hostname=host, host=where[0], port=where[1], family=kind, proto=protocol, flags=socket.AI_NUMERICHOST
            )
            for kind, _, protocol, _, where in await in_thread(f"resolve {host}", ask)
        ]

    async def close(self) -> None:
        """Do nothing: the resolver has no resources."""


def _signs(steps: Steps) -> aiohttp.TraceConfig:
    """Return hooks that note each step of the HTTP client as a sign of life."""

    async def note(*_: object) -> None:
        steps.sign()

    hooks = aiohttp.TraceConfig()
    for signal in (hooks.on_dns_resolvehost_end, hooks.on_connection_create_end, hooks.on_request_headers_sent):
        signal.append(note)
    return hooks


async def connect_websocket(
    endpoint: Endpoint, ssl: tls.SSLContext | None, wire: Wire, steps: Steps, proxy: str | None = None
) -> None:
    """Open the web socket and join it to the wire. OSError or Timeout when that fails."""
    connector = aiohttp.TCPConnector(resolver=_Resolver(), use_dns_cache=False)
    http = aiohttp.ClientSession(connector=connector, trace_configs=[_signs(steps)])
    try:
        opening = http.ws_connect(
            endpoint.url,
            protocols=(WEBSOCKET_PROTOCOL,),
            ssl=ssl if ssl is not None else True,
            proxy=proxy,
            max_msg_size=0,  # AMQP's own max-frame-size limits frames
            timeout=aiohttp.ClientWSTimeout(ws_close=WEBSOCKET_CLOSE_S),
        )
        joined = await steps.step("the web socket", opening)
    except BaseException as error:
        await http.close()
        if isinstance(error, aiohttp.ClientError) and not isinstance(error, OSError):
            raise ConnectionError(str(error)) from None
        raise
    WebSocketTransport(http, joined, wire)
