"""Opening a connection: slow is not dead, dead is left in time, refused is told at once."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker.wire import certificate
from pairbus.transport import Carrier, ConnectionLost, Endpoint, Plain, Timeout, connect, log_frames
from pairbus.transport.connection import dial as transport_dial
from pairbus.transport.connection.steps import Hearing, Steps
from pairbus.transport.links.link_end import LinkEnd
from pairbus.transport.links.receiver import Receiver
from tests.limits import slowness
from tests.transport.line import Line, deaf_port
from tests.transport.server import Script, Server

BODY = b"\x00\x53\x75\xa0\x06secret"
Addresses = list[tuple[Any, ...]]


def names(monkeypatch: pytest.MonkeyPatch, host: str, *targets: tuple[str, int]) -> None:
    """Let a host name have these addresses."""
    ask = socket.getaddrinfo

    def answer(name: str, port: int, *args: Any, **kinds: Any) -> Addresses:
        if name != host:
            return ask(name, port, *args, **kinds)
        if kinds.get("flags"):
            raise socket.gaierror("not a number")
        return [address for target in targets for address in ask(*target, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


async def test_a_round_trip_longer_than_half_the_silence_opens_with_tls(tmp_path: Path) -> None:
    """TCP, TLS, SASL, open, `$cbs`, token and attach take several silences together, and none is silent.

    The line has a third of the round trip of a satellite, the clock a third of `connect_timeout`.
    """
    context, trust = certificate.server_context(tmp_path), certificate.ca_path(tmp_path)
    async with Server(tls=context) as server, Line(server.port, round_trip_s=0.2) as line:
        endpoint = Endpoint.parse(server.connection_string, via=f"127.0.0.1:{line.port}")
        async with Carrier(endpoint, ssl=trust, connect_timeout_s=1.0) as carrier:
            began = time.monotonic()
            await carrier.send("orders", BODY)
            assert time.monotonic() - began > 1.0, "the send took longer than silence_s"


async def test_a_blocked_loop_is_not_the_peers_silence() -> None:
    """`time.sleep` in the application's loop stops our clocks' watch, not the peer."""
    async with Server() as server, Carrier(server.connection_string, connect_timeout_s=0.3) as carrier:
        opening = asyncio.create_task(carrier.send("orders", BODY))
        for _ in range(12):
            await asyncio.sleep(0.002)
            time.sleep(0.4)  # noqa: ASYNC251 - that is the point
            if opening.done():
                break
        await opening


async def test_a_web_socket_that_is_silent_is_left() -> None:
    """The HTTP upgrade is a step as any other."""
    async with Server(Script(silent=True)) as silent:
        began = time.monotonic()
        with pytest.raises(Timeout, match="web socket"):
            endpoint = Endpoint("127.0.0.1", silent.port, tls=False, transport="websocket")
            await connect(endpoint, silence_s=0.2, timeout_s=60)
        assert time.monotonic() - began < 3
        await silent.until(lambda: not silent.peers)


async def test_a_peer_that_is_silent_in_tls_is_left(tmp_path: Path) -> None:
    """The socket is there, and no byte comes."""
    context = certificate.server_context(tmp_path)
    async with Server(Script(silent=True)) as silent, Server(tls=context) as server:
        endpoint = Endpoint.parse(server.connection_string, via=f"127.0.0.1:{silent.port}")
        began = time.monotonic()
        with pytest.raises(Timeout, match="TLS"):
            await connect(endpoint, silence_s=0.2, timeout_s=60)
        assert time.monotonic() - began < 3
        await silent.until(lambda: not silent.peers)


async def test_bytes_during_tls_are_signs_of_life() -> None:
    """A handshake over a thin line takes longer than a silence; where the system tells, that is seen."""
    over = asyncio.Event()

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(b"\x16\x03\x03\x40\x00")  # the head of a TLS record that never becomes whole
            for _ in range(100):
                writer.write(b"\x02")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    began = time.monotonic()
    with pytest.raises(Timeout, match="time was over"):
        await connect(Endpoint("127.0.0.1", port), silence_s=0.3, timeout_s=1.0)
    assert time.monotonic() - began >= 0.9
    server.close()
    await asyncio.wait_for(over.wait(), 10)


async def test_a_dead_address_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPv6 address behind a firewall swallows every packet, and comes first."""
    deaf, fillers = deaf_port()
    try:
        async with Server() as server:
            names(monkeypatch, "two.example", deaf.getsockname(), ("127.0.0.1", server.port))
            steps = Steps("two.example", 3.0)
            addresses = await transport_dial.resolve("two.example", 1, steps)
            assert [address[4][1] for address in addresses] == [deaf.getsockname()[1], server.port]
            began = time.monotonic()
            sock = await transport_dial.reach(addresses, steps)
            assert sock.getpeername()[1] == server.port
            assert time.monotonic() - began < 2.7, "the opening took half of silence_s"
            sock.close()
    finally:
        for each in (deaf, *fillers):
            each.close()


async def test_all_addresses_together_have_one_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with many dead addresses is left as soon as one with a single address."""
    deaf, fillers = deaf_port()
    try:
        names(monkeypatch, "dead.example", *[deaf.getsockname()] * 9)
        began = time.monotonic()
        with pytest.raises(Timeout):
            await connect(Endpoint("dead.example", 1, tls=False), silence_s=0.4)
        assert 0.3 < time.monotonic() - began < 3.4, "one silence for each address would be 3.6 s"
    finally:
        for each in (deaf, *fillers):
            each.close()


async def test_a_name_that_is_not_found_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that is never answered costs one silence; its thread is abandoned."""

    def ask(host: str, port: int, *args: Any, flags: int = 0, **_: Any) -> Addresses:
        if host == "hangs.example" and not flags:
            time.sleep(0.6)
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    with pytest.raises(ConnectionLost, match="not known"):
        await connect(Endpoint("lost.example", 1))
    began = time.monotonic()
    with pytest.raises(Timeout, match="address of hangs"):
        await connect(Endpoint("hangs.example", 1), silence_s=0.1)
    assert time.monotonic() - began < 0.5 * slowness()


async def test_the_name_in_tls_is_that_of_the_socket(tmp_path: Path) -> None:
    """As the SDK has it: a custom endpoint changes the target and the name in TLS, not the name in the open."""
    asked: list[str | None] = []
    context, trust = certificate.server_context(tmp_path), certificate.ca_path(tmp_path)
    context.sni_callback = lambda _sock, name, _context: asked.append(name)
    async with Server(tls=context) as server:
        text = "Endpoint=sb://contoso.servicebus.windows.net;SharedAccessKeyName=k;SharedAccessKey=s"
        endpoint = Endpoint.parse(text, via=f"localhost:{server.port}")
        async with await connect(endpoint, ssl=ssl.create_default_context(cafile=trust)) as connection:
            await connection.sender("orders")
            opened = server.peers[0].core.remote_open
            assert opened is not None and opened.hostname == "contoso.servicebus.windows.net"
        assert server.tokens[0][0] == "sb://contoso.servicebus.windows.net/orders"
    assert asked == ["localhost"]


async def test_the_open_says_who_we_are() -> None:
    """The same names as the SDK's; the application's own words come first."""
    async with Server() as server, Carrier(server.connection_string, user_agent="till/7") as carrier:
        await carrier.connection()
        opened = server.peers[0].core.remote_open
        assert opened is not None and opened.properties is not None
        said = {str(name): text for name, text in opened.properties.items()}
        assert set(said) == {"product", "version", "framework", "platform", "user-agent"}
        assert said["user-agent"].startswith(f"till/7 pairbus/{said['version']} Python/")


async def test_frames_in_the_log_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """A trace is made to be sent to somebody."""
    caplog.set_level(logging.DEBUG, "pairbus.transport.frames")
    async with Server() as server:
        async with Carrier(server.connection_string, trace=log_frames("contoso")) as carrier:
            await carrier.send("orders", BODY)
        endpoint = Endpoint("127.0.0.1", server.port, tls=False)
        plain = Plain("user", "pa55word")
        async with await connect(endpoint, credential=plain, trace=log_frames("contoso")) as connection:
            await (await connection.sender("orders")).send(BODY)
        token = server.tokens[0][2]
    text = caplog.text
    assert "contoso ->" in text and "contoso <-" in text and "Attach" in text
    log_frames("x")("->", 0, "SaslInit(mechanism='PLAIN', initial_response=b'\\x00user\\x00pa55word')")
    log_frames("x")("->", 0, "SharedAccessSignature sr=x&sig=abc%3D&se=1")
    for secret in ("s3cr3t", "pa55word", "secret", token, token.split("sig=")[1][:10], "abc%3D"):
        assert secret not in caplog.text


@pytest.mark.parametrize("kind", ["receiver", "management"])
async def test_link_is_detached_when_its_opening_is_cancelled_with_the_answer(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller leaves in the turn of the loop in which the peer's answer came: the link has no owner."""
    genuine = LinkEnd.attached
    openings: list[asyncio.Task[object]] = []

    async def attached(self: LinkEnd, deadline: float) -> None:
        await genuine(self, deadline)
        for task in openings if type(self) is Receiver or kind == "management" else ():
            task.cancel()

    async with Server() as server, await connect(server.connection_string) as connection:
        monkeypatch.setattr(LinkEnd, "attached", attached)
        if kind == "receiver":
            openings.append(asyncio.create_task(connection.receiver("orders")))
        else:
            openings.append(asyncio.create_task(connection._open_management("orders", 5.0, Hearing())))
        await asyncio.wait(openings)
        assert openings[0].cancelled()
        assert not connection.has_links
        assert [link for link in connection._wire.links if "$cbs" not in repr(link)] == []
