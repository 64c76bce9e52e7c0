"""Connections that do not come about, break, or do not want to end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from pairbus.broker.wire import certificate
from pairbus.errors import ConfigError
from pairbus.transport import Anonymous, ConnectionLost, Endpoint, Plain, ReceivedMessage, Refused, Timeout, connect
from tests.transport.server import Peer, Script, Server


async def test_a_refused_port_fails_at_once() -> None:
    """Failover starts its clock with the first failure: every second here is a second of outage."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLost, match=str(port)) as caught:
        await connect(Endpoint("127.0.0.1", port, tls=False), timeout_s=10)
    assert not caught.value.outcome_unknown


async def test_a_peer_that_says_nothing_costs_the_deadline_and_no_more() -> None:
    """A silent peer is the commonest outage, and the one that hangs other clients for ever."""
    async with Server(Script(silent=True)) as server:
        started = time.monotonic()
        with pytest.raises(Timeout):
            await connect(server.connection_string, timeout_s=0.1)
        assert time.monotonic() - started < 2.5, "the silence that is allowed without a deadline is 3 s"
        await server.until(lambda: not server.peers)  # the socket was closed


async def test_silent_peer_costs_each_call_its_deadline() -> None:
    """Each wait has its own deadline, also those inside of opening a link."""
    async with Server(Script(answers_attach=False)) as server, await connect(server.connection_string) as connection:
        with pytest.raises(Timeout):
            await connection.sender("q", timeout_s=0.05)
        with pytest.raises(Timeout):
            await connection.management("q", timeout_s=0.05)
    async with Server(Script(answers_attach=False)) as server:
        plain = Endpoint("127.0.0.1", server.port, tls=False)
        async with await connect(plain) as connection:
            with pytest.raises(Timeout):
                await connection.receiver("q", timeout_s=0.05)


async def test_a_peer_that_does_not_answer_the_close_is_left() -> None:
    """close never hangs."""
    async with Server(Script(answers_close=False)) as server:
        connection = await connect(server.connection_string)
        started = time.monotonic()
        await connection.close(timeout_s=0.05)
        assert time.monotonic() - started < 1.9, "the usual deadline is 2 s"
        await connection.close()  # closing twice is allowed
        with pytest.raises(ConnectionLost):
            await connection.sender("q")


async def test_closing_leaves_no_socket_and_no_task() -> None:
    """A fresh connect must be cheap, also for the ten-thousandth time."""
    async with Server() as server:
        async with await connect(server.connection_string) as connection:
            await connection.sender("q")
            await connection.receiver("q")
        await server.until(lambda: not server.peers)
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_link_closes_and_its_name_is_free_again() -> None:
    """Closing one link leaves the connection usable, with nothing held at either end."""
    async with Server() as server, await connect(server.connection_string) as connection:
        for _ in range(3):
            sender = await connection.sender("q")
            await sender.close()
            with pytest.raises(ConnectionLost):
                await sender.send(b"")
        assert len(connection._wire.core.sessions) == 1, "only the session of $cbs is left"


async def test_a_peer_that_falls_silent_is_taken_for_dead() -> None:
    """A cable that was pulled sends no word; the peer here sends no signs of life either."""
    async with Server() as server, await connect(server.connection_string, idle_time_out_s=0.5) as connection:
        receiver = await connection.receiver("q")
        with pytest.raises(ConnectionLost, match="silent"):
            await receiver.receive(1, timeout_s=5)


async def test_signs_of_life_are_sent_to_a_peer_that_wants_them() -> None:
    """An idle client would otherwise be dropped by the peer."""
    async with Server(Script(idle_time_out_ms=300)) as server, await connect(server.connection_string) as connection:
        before = server.peers[0].reads
        await server.until(lambda: server.peers[0].reads >= before + 3)
        assert connection.loss is None


async def test_wrong_credentials_are_refused_by_sasl() -> None:
    """A wrong password is no outage: there is no point in trying again."""
    script = Script(sasl=lambda mechanism, response: (mechanism, response) == ("PLAIN", b"\0user\0right"))
    async with Server(script) as server:
        endpoint = Endpoint("127.0.0.1", server.port, tls=False)
        for credential in (Plain("user", "wrong"), Anonymous()):
            with pytest.raises(Refused, match="unauthorized"):
                await connect(endpoint, credential=credential)
        async with await connect(endpoint, credential=Plain("user", "right")) as connection:
            await (await connection.sender("q")).send(b"\x00\x53\x77\x40")
        assert server.tokens == [], "no $cbs for a broker that knows no tokens"


async def test_a_peer_that_is_no_amqp_is_not_believed() -> None:
    """Any bytes may come back from a port."""

    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak_http, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLost, match="header"):
            await connect(Endpoint("127.0.0.1", port, tls=False))


async def test_tls_trusts_the_given_authority_and_no_other(tmp_path: Path) -> None:
    """A CA file or a whole context; without either the system decides, and it does not know us."""
    context = certificate.server_context(tmp_path)
    authority = certificate.ca_path(tmp_path)
    async with Server(tls=context) as server:
        for trust in (authority, str(authority), ssl.create_default_context(cafile=authority)):
            async with await connect(server.connection_string, ssl=trust) as connection:
                await (await connection.sender("q")).send(b"\x00\x53\x77\x40")
        with pytest.raises(ConnectionLost, match="CERTIFICATE_VERIFY_FAILED"):
            await connect(server.connection_string)
        with pytest.raises(ConfigError, match="ssl"):
            await connect(server.connection_string, ssl=tmp_path / "missing")


class _WebSocketBridge:
    """The peer's transport over an aiohttp web socket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.socket = socket
        self.tasks: list[asyncio.Task[Any]] = []

    def write(self, data: bytes) -> None:
        if data:
            self.tasks.append(asyncio.create_task(self.socket.send_bytes(data)))

    def close(self) -> None:
        self.tasks.append(asyncio.create_task(self.socket.close()))

    abort = close


async def _serve_websocket(server: Server, path: str) -> web.AppRunner:
    async def handle(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(protocols=("AMQPWSB10",))
        await response.prepare(request)
        assert response.ws_protocol == "AMQPWSB10"
        peer = Peer(server)
        peer.connection_made(_WebSocketBridge(response))  # type: ignore[arg-type]
        async for message in response:
            if message.type is WSMsgType.BINARY:
                peer.data_received(message.data)
        peer.connection_lost(None)
        return response

    app = web.Application()
    app.router.add_get(path, handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner


async def test_amqp_passes_through_a_web_socket_both_ways_and_ends_with_it() -> None:
    """Port 443 is all that some networks let out."""
    server = Server()
    runner = await _serve_websocket(server, "/$servicebus/websocket")
    port = runner.addresses[0][1]
    text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=k;SharedAccessKey=s;UseDevelopmentEmulator=true"
    endpoint = Endpoint.parse(text, transport="websocket")
    try:
        async with await connect(endpoint) as connection:
            sender = await connection.sender("q")
            payload = b"\x00\x53\x75\xb0\x00\x0f\x42\x40" + bytes(1_000_000)
            await asyncio.gather(*(sender.send(payload) for _ in range(5)))
            receiver = await connection.receiver("q")
            got: list[ReceivedMessage] = []
            while len(got) < 5:
                got += await receiver.receive(5, timeout_s=5)
            assert {message.payload for message in got} == {payload}
            await receiver.complete(got)
        async with await connect(endpoint) as connection:
            receiver = await connection.receiver("q")
            waiting = asyncio.create_task(receiver.receive(1, timeout_s=60))
            await asyncio.sleep(0)
            server.peers[0].cut()
            async with asyncio.timeout(10):
                with pytest.raises(ConnectionLost):
                    await waiting
    finally:
        await runner.cleanup()
