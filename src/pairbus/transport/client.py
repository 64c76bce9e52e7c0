"""The asyncio AMQP 1.0 client: connect, send, receive, settle, manage; a deadline on every wait.

    async with await connect("Endpoint=sb://…") as connection:
        sender = await connection.sender("orders")
        await sender.send(payload)
        receiver = await connection.receiver("orders")
        messages = await receiver.receive(100, timeout_s=5)
        await receiver.complete(messages)

Payloads are encoded messages and pass unaltered. A connection that is lost stays lost: everything that waits on it is
woken at once with ConnectionLost, and whether and when to `connect` again is the caller's decision.
"""

from __future__ import annotations

import asyncio
import os
import ssl as tls
import uuid
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from pairbus.amqp.connection import Settings, Trace
from pairbus.amqp.performatives import Source, Target
from pairbus.amqp.session import Session
from pairbus.amqp.types import Symbol
from pairbus.errors import ConfigError
from pairbus.transport.cbs import Tokens
from pairbus.transport.credential import credential_for
from pairbus.transport.endpoint import Endpoint
from pairbus.transport.errors import ConnectionLost, Timeout, TransportError
from pairbus.transport.links import CLOSE_TIMEOUT_S, LinkEnd, new_session
from pairbus.transport.management import Management
from pairbus.transport.receiver import Receiver
from pairbus.transport.requests import open_requests
from pairbus.transport.sender import Sender
from pairbus.transport.websocket import connect_websocket
from pairbus.transport.wire import Wire

CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 30.0
CREDIT = 256
IDLE_TIME_OUT_S = 30.0
FRAME_SIZE_MAX = 1 << 20
Mode = Literal["peek-lock", "receive-and-delete"]
Ssl = tls.SSLContext | str | os.PathLike[str] | None
"A context, or a file of certificates to trust instead of the system's."


async def connect(
    endpoint: Endpoint | str,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
    ssl: Ssl = None,
    credential: object | None = None,
    idle_time_out_s: float = IDLE_TIME_OUT_S,
    container_id: str | None = None,
    proxy: str | None = None,
    trace: Trace | None = None,
) -> Connection:
    """Connect to an endpoint or connection string: socket, TLS, SASL and open within `timeout_s`.

    `credential`: any azure-identity credential, or one of `pairbus.transport.credential`; without one the endpoint's
    own key or signature serves. A peer that is silent for one and a half `idle_time_out_s` is taken for dead.
    `proxy` ("http://[user:password@]host:port") is for web sockets.
    Raises ConfigError, Timeout, Refused (by SASL, or by a close with a reason) or ConnectionLost.
    """
    if isinstance(endpoint, str):
        endpoint = Endpoint.parse(endpoint)
    if proxy is not None and endpoint.transport != "websocket":
        raise ConfigError("proxy: only web sockets go through an HTTP proxy; ask for transport 'websocket'")
    who = credential_for(endpoint, credential)
    context = _context(ssl) if endpoint.tls else None
    settings = Settings(
        container_id=container_id or f"pairbus-{uuid.uuid4().hex[:12]}",
        hostname=endpoint.hostname,
        max_frame_size=FRAME_SIZE_MAX,
        idle_time_out_ms=int(idle_time_out_s * 1000),
        unsettled_max=0x7FFFFFFF,  # what is received and not settled is the caller's to bound; credit bounds the rest
    )
    wire = Wire(settings, who.sasl(endpoint.hostname), trace)
    try:
        async with asyncio.timeout(timeout_s):
            if endpoint.transport == "websocket":
                await connect_websocket(endpoint, context, wire, proxy)
            else:
                await wire.loop.create_connection(lambda: wire, endpoint.host, endpoint.port, ssl=context)
            await wire.opened
    except (TimeoutError, OSError, aiohttp.ClientError) as error:
        wire.abort()
        raise _connect_error(endpoint, error, timeout_s) from None
    except BaseException:
        wire.abort()
        raise
    return Connection(wire, endpoint, Tokens(wire, who))


def _connect_error(endpoint: Endpoint, error: Exception, timeout_s: float) -> TransportError:
    where = f"{endpoint.host}:{endpoint.port}"
    if isinstance(error, TimeoutError) and not error.args:
        return Timeout(f"{where} did not open a connection within {timeout_s} s")
    return ConnectionLost(f"no connection to {where}: {error}")


def _context(ssl: Ssl) -> tls.SSLContext:
    if isinstance(ssl, tls.SSLContext):
        return ssl
    try:
        return tls.create_default_context(cafile=None if ssl is None else os.fspath(ssl))
    except OSError as error:
        raise ConfigError(f"ssl: cannot read certificates from {ssl}: {error}") from None


class Connection:
    """An open connection. Links are opened one at a time or at once, from any task of its event loop."""

    def __init__(self, wire: Wire, endpoint: Endpoint, tokens: Tokens) -> None:
        self._wire = wire
        self._tokens = tokens
        self.endpoint = endpoint
        self._managements: dict[str, Management] = {}
        self._opening = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Connection {self.endpoint.host}:{self.endpoint.port} {self.loss or 'open'}>"

    @property
    def peer_properties(self) -> dict[str, object]:
        """What the peer says of itself in its open: product, version, and what it can do."""
        return dict(self._wire.core.remote_open.properties or {}) if self._wire.core.remote_open is not None else {}

    @property
    def loss(self) -> TransportError | None:
        """Why the connection is over; None while it is good."""
        return self._wire.loss

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close, waiting at most `timeout_s` for the peer. Sends in flight end with an unknown outcome: await them."""
        self._tokens.close()
        await self._wire.close(timeout_s)

    async def sender(self, path: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Sender:
        """A link that sends to the entity. `timeout_s` bounds this call, and is the sender's own default."""
        path, deadline = self.endpoint.path(path), self._wire.loop.time() + timeout_s
        audience = await self._authorise(path, timeout_s)
        link = self._session(audience).new_sender(f"sender-{uuid.uuid4().hex[:12]}")
        sender = Sender(self._wire, link, f"sender {path}", timeout_s)
        link.attach(source=Source(address=link.name), target=Target(address=path), snd_settle_mode=0)
        await self._attached(sender, audience, deadline)
        return sender

    async def receiver(
        self,
        path: str | None = None,
        *,
        mode: Mode = "peek-lock",
        sub_queue: Literal["dead-letter"] | None = None,
        credit: int = CREDIT,
        timeout_s: float = TIMEOUT_S,
        filters: dict[str, Any] | None = None,
    ) -> Receiver:
        """A link that receives from the entity; see `receiver.py` for what `credit` means.

        `filters` of the source: `com.microsoft:session-filter` with a session id, or None for the next available one.
        """
        path, deadline = self.endpoint.path(path), self._wire.loop.time() + timeout_s
        if sub_queue is not None:
            path += "/$DeadLetterQueue"
        audience = await self._authorise(path, timeout_s)
        link = self._session(audience).new_receiver(f"receiver-{uuid.uuid4().hex[:12]}")
        locking = mode == "peek-lock"

        async def renew(tokens: list[uuid.UUID], timeout_s: float) -> list[int]:
            deadline = self._wire.loop.time() + timeout_s
            management = await self.management(path, timeout_s=timeout_s)
            return await management.renew_lock(tokens, deadline - self._wire.loop.time())

        receiver = Receiver(self._wire, link, f"receiver {path}", timeout_s, credit, renew)
        link.attach(
            source=Source(address=path, filter={Symbol(key): value for key, value in (filters or {}).items()} or None),
            target=Target(address=link.name),
            snd_settle_mode=0 if locking else 1,
            # "second" is what Service Bus expects of whoever asks before it settles; RabbitMQ refuses the link over it,
            # and answers an unsettled disposition all the same. What tells the two apart is `$cbs`.
            rcv_settle_mode=1 if locking and self._tokens.in_use else 0,
        )
        await self._attached(receiver, audience, deadline)
        return receiver

    async def management(self, path: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Management:
        """The `$management` node of the entity; asked again, the same object while its links are good."""
        path, deadline = self.endpoint.path(path), self._wire.loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline), self._opening:
                known = self._managements.get(path)
                if known is None or known.over is not None:
                    known = self._managements[path] = await self._open_management(path, deadline, timeout_s)
                return known
        except TimeoutError:
            raise Timeout(f"{path}/$management was not opened in time") from None

    async def _open_management(self, path: str, deadline: float, timeout_s: float) -> Management:
        audience = await self._authorise(path, timeout_s)
        try:
            requests = await open_requests(self._wire, f"{path}/$management", deadline, timeout_s)
        except BaseException:
            self._tokens.release(audience)
            raise
        if requests.sender.over is None:
            requests.sender.when_over = lambda: self._tokens.release(audience)
        else:
            self._tokens.release(audience)
        return Management(self._wire, requests, timeout_s)

    async def _authorise(self, path: str, timeout_s: float) -> str:
        if self._wire.loss is not None:
            raise self._wire.loss.again(outcome_unknown=False)
        audience = self.endpoint.audience(path)
        await self._tokens.acquire(audience, timeout_s)
        return audience

    def _session(self, audience: str) -> Session:
        try:
            return new_session(self._wire)
        except TransportError:
            self._tokens.release(audience)
            raise

    async def _attached(self, end: LinkEnd, audience: str, deadline: float) -> None:
        end.when_over = lambda: self._tokens.release(audience)
        await end.attached(deadline)
