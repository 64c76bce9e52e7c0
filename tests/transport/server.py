"""A peer for the client's tests: the server end of the core behind a real socket, obeying a `Script`.

By default it accepts everything. What it is told to do wrong is set on the script, before or while a client talks.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import (
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Delivery,
    Disposed,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionBegun,
    SessionFlow,
)
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.link import Link, ReceiverLink, SenderLink
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import ACCEPTED_BYTES, Accepted, Error, Rejected, Source, Target
from pairbus.amqp.sasl import SaslServer
from pairbus.amqp.types import Int

SMALL_BUFFER = 32_768  # socket buffer of a peer that reads slowly; bytes in it count as sent

Manage = Callable[[str, Any], tuple[int, Any, str | None] | None]
"(operation, body) → (status, answer's body, error condition); None: no answer"


def kept_path(link: Link) -> str:
    """Return the path to which a link leads, which is kept as its context; empty until it is known."""
    return link.context if isinstance(link.context, str) else ""


@dataclass
class Script:
    """Behaviour of the peer. Every field is read at the moment it matters."""

    silent: bool = False
    "Take the connection and say nothing at all."
    sasl: Callable[[str, bytes], bool] = lambda mechanism, response: True
    cbs_status: int | None = 202
    "None: a put-token is never answered."
    cbs_text: str = "as told"
    tokens_max: int = 1000
    "Tokens that a connection takes; one more is refused, as Azure does."
    refuse: dict[str, Error] = field(default_factory=dict)
    "Addresses whose links are refused."
    answers_attach: bool = True
    credit: int = 1000
    credits: dict[str, int] = field(default_factory=dict)
    "Addresses with another credit, given once."
    window: int = 8192
    max_frame_size: int = 65_536
    channel_max: int = 4999
    handle_max: int = 255
    idle_time_out_ms: int = 240_000
    max_message_size: int | None = None
    link_properties: dict[Any, Any] | None = None
    rate: float | None = None
    "Bytes a second that are read, from a small socket buffer; None: as fast as they come."
    outcome: Any = field(default_factory=Accepted)
    "Outcome of sends; None: no answer."
    settlement: Any = "echo"
    "Answer to settlements: 'echo' the outcome, a Rejected, or None for no answer."
    answers_drain: bool = True
    answers_close: bool = True
    manage: Manage = lambda operation, body: (200, {}, None)

    def outcome_of(self, message_format: int) -> Any:
        return self.outcome


class Peer(asyncio.Protocol):
    """Server side of one connection."""

    def __init__(self, server: Server) -> None:
        script = server.script
        settings = ConnectionSettings(
            "server",
            incoming_window=script.window,
            max_frame_size=script.max_frame_size,
            channel_max=script.channel_max,
            handle_max=script.handle_max,
            idle_time_out_ms=script.idle_time_out_ms,
        )
        self.server = server
        self.core = Connection(settings, SaslServer(check=lambda m, r: server.script.sasl(m, r)))
        self.transport: Any = None
        self.out: list[SenderLink] = []
        self.tags = 0
        self.reads = 0
        "Number of times that bytes came in."
        self.bytes_read = 0
        self.audiences: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.server.script.rate is not None and transport.get_extra_info("ssl_object") is not None:
            self.transport.set_read_buffer_limits(SMALL_BUFFER)
        self.server.peers.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.server.peers.remove(self)
        self.server.told()

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        self.bytes_read += len(data)
        if self.server.script.silent:
            return
        loop = asyncio.get_running_loop()
        if self.server.script.rate is not None:
            self.transport.pause_reading()
            loop.call_later(len(data) / self.server.script.rate, self.resume_reading)
        for event in self.core.receive_data(data, loop.time()):
            self._act(event)
        self.flush()
        self.server.told()

    def flush(self) -> None:
        self.transport.write(self.core.data_to_send())

    def cut(self) -> None:
        self.transport.abort()

    def resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _act(self, event: Any) -> None:
        match event:
            case ConnectionOpened():
                self.core.open()
            case SessionBegun():
                event.session.begin()
            case LinkAttached():
                self._on_attach(event)
            case LinkDetached():
                if event.link.state is EndpointState.CLOSE_ASKED:
                    event.link.detach()
            case LinkFlow() | SessionFlow():
                self.pump()
            case Delivery():
                self._on_delivery(event)
            case Disposed():
                self._on_disposed(event)
            case ConnectionClosed() | ConnectionFailed():
                if self.server.script.answers_close:
                    self.flush()
                    self.transport.close()
                else:
                    self.core.data_to_send()

    def _on_attach(self, event: LinkAttached) -> None:
        script, link, attach = self.server.script, event.link, event.attach
        if not script.answers_attach:
            return
        terminus: Any = attach.source if attach.role else attach.target
        error = script.refuse.get(terminus.address)
        if error is not None:
            link.refuse(error)
            return
        link.context = terminus.address
        link.attach(
            source=attach.source or Source(),
            target=attach.target or Target(),
            snd_settle_mode=attach.snd_settle_mode,
            rcv_settle_mode=attach.rcv_settle_mode,
            max_message_size=script.max_message_size,
            properties=script.link_properties,
        )
        if isinstance(link, ReceiverLink):
            if terminus.address in script.credits:
                link.grant(script.credits[terminus.address])
            elif script.credit or "$" in terminus.address:
                link.keep_credit(script.credit or 100)
        elif isinstance(link, SenderLink):
            self.out.append(link)

    def _on_delivery(self, event: Delivery) -> None:
        link, script = event.link, self.server.script
        if "$cbs" in kept_path(link) or "$management" in kept_path(link):
            link.settle(event.delivery_id, event.delivery_id, ACCEPTED_BYTES, 1)
            self._on_request(event)
            return
        self.server.received.append((kept_path(link), event.payload, event.message_format))
        outcome = script.outcome_of(event.message_format)
        if outcome is not None:
            if isinstance(outcome, Accepted):
                self.server.queues[kept_path(link)].append(event.payload)
            link.settle(event.delivery_id, event.delivery_id, outcome.encode(), 1)
            self.pump()

    def _on_request(self, event: Delivery) -> None:
        request, script = Message.decode(event.payload), self.server.script
        assert request.properties is not None
        operation = request.property("operation")
        if operation == "put-token":
            self.server.tokens.append((request.property("name"), request.property("type"), request.value))
            if script.cbs_status is None:
                return
            self.audiences.add(request.property("name"))
            answer = {"status-code": Int(script.cbs_status), "status-description": script.cbs_text}
            if len(self.audiences) > script.tokens_max:
                text = f"the maximum number of '{script.tokens_max}' tokens per connection has been reached"
                answer = {"status-code": Int(403), "status-description": text}
            body: Any = None
        else:
            told = script.manage(operation, request.value)
            if told is None:
                return
            status, body, condition = told
            answer = {"statusCode": Int(status), "statusDescription": "as told"}
            if condition is not None:
                answer["errorCondition"] = condition
        message = Message(
            properties=Properties(correlation_id=request.properties.message_id),
            application_properties=answer,
            value=body,
            has_value=True,
        )
        for link in self.out:
            attach = link.remote_attach
            if attach is not None and attach.target and attach.target.address == request.properties.reply_to:  # type: ignore[union-attr]
                link.send(message.encode(), b"answer", settled=True)

    def _on_disposed(self, event: Disposed) -> None:
        first, last = event.deliveries[0].delivery_id, event.deliveries[-1].delivery_id
        self.server.settlements.append((first, last, event.state.NAME, event.settled))
        answer = self.server.script.settlement
        if not event.settled and answer is not None:
            state = event.state if answer == "echo" else answer
            if answer == "echo" and isinstance(state, Rejected):
                state = Rejected()  # a dead-lettering that worked is answered without the error
            event.session.settle_sent(first, last, state.encode())

    def pump(self) -> None:
        """Deliver queued messages, as far as credit goes; answer drains."""
        for link in self.out:
            queue = self.server.queues[kept_path(link)]
            if "$" in kept_path(link) and not kept_path(link).endswith("$DeadLetterQueue"):
                continue
            attach = link.remote_attach
            assert attach is not None
            while queue and link.sendable:
                self.tags += 1
                link.send(queue.popleft(), self.tags.to_bytes(16, "little"), settled=attach.snd_settle_mode == 1)
            if link.drain and self.server.script.answers_drain and link.state is EndpointState.OPEN:
                link.drained()


class Server:
    """A listening socket on loopback, from `__aenter__` to `__aexit__`."""

    def __init__(self, script: Script | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.script = script or Script()
        self.peers: list[Peer] = []
        self.queues: dict[str, deque[bytes]] = defaultdict(deque)
        self.received: list[tuple[str, bytes, int]] = []
        self.tokens: list[tuple[str, str, str]] = []
        self.settlements: list[tuple[int, int, str, bool]] = []
        self.port = 0
        self._changed = asyncio.Event()
        self._tls = tls
        self._server: asyncio.Server | None = None

    @property
    def connection_string(self) -> str:
        emulator = "" if self._tls else ";UseDevelopmentEmulator=true"
        return f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=k;SharedAccessKey=s3cr3t{emulator}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), "127.0.0.1", 0, ssl=self._tls)
        if self.script.rate is not None:
            for listening in self._server.sockets:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for peer in list(self.peers):
            peer.cut()
        await self._server.wait_closed()

    def told(self) -> None:
        """Wake up callers of `until`: a message arrived or a connection ended."""
        self._changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until `holds` is true of this server, after steps of clients; TimeoutError after a long while."""
        async with asyncio.timeout(10):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def put(self, address: str, *payloads: bytes) -> None:
        self.queues[address].extend(payloads)
        for peer in self.peers:
            peer.pump()
            peer.flush()

    def cut(self) -> None:
        """Every connection breaks, without a word."""
        for peer in list(self.peers):
            peer.cut()

    def receivers(self) -> list[ReceiverLink]:
        """The links on which clients send data to us."""
        return [
            link
            for peer in self.peers
            for session in peer.core.sessions
            for link in session.links
            if isinstance(link, ReceiverLink) and kept_path(link) and "$" not in kept_path(link)
        ]

    def senders(self, address: str) -> list[SenderLink]:
        """The links on which clients receive from there."""
        return [link for peer in self.peers for link in peer.out if kept_path(link) == address]

    def flush(self) -> None:
        for peer in self.peers:
            peer.flush()
