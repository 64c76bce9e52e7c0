"""A socket of the proxy that its peer has ended."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import pytest

from pairbus.broker.wire.certificate import ca_path, expiring_contexts
from pairbus.faults.play.cable import Cable, CableFaults
from pairbus.proxy.conversation import UP, Direction
from pairbus.proxy.wire import ProxyWire


class Owner:
    """A passage without faults. It tells when its socket is gone."""

    def __init__(self) -> None:
        self.wire = ProxyWire(self, UP, CableFaults(lambda: 0.5), [])
        self.gone = asyncio.Event()

    def end(self, direction: Direction) -> ProxyWire:
        return self.wire

    def arrived(self, direction: Direction, data: bytes) -> None:
        raise AssertionError("the client of this test sends no bytes")

    def lost(self, direction: Direction, error: Exception | None) -> None:
        self.gone.set()


def write_twenty_at_the_end(wire: ProxyWire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the target have twenty more frames for the client at the moment when the client ends."""
    genuine = Cable.eof_received

    def write_twenty() -> None:
        assert wire.is_open, "the frames come before the socket is closed"
        for _ in range(20):
            wire.write(b"frame")

    def eof_received(cable: Cable) -> None:
        genuine(cable)
        asyncio.get_running_loop().call_soon(write_twenty)

    monkeypatch.setattr(Cable, "eof_received", eof_received)


def leave(address: tuple[str, int], trust: Path) -> None:
    """Begin TLS, end it as a client does that closes its connection, and wait for the answer."""
    context = ssl.create_default_context(cafile=trust)
    with socket.create_connection(address, 10) as raw, context.wrap_socket(raw, server_hostname="localhost") as client:
        client.unwrap()


async def test_frames_for_a_client_that_ended_its_tls_are_dropped_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Event loops drop the bytes too, and log a warning for each write after the fifth."""
    loop, owner = asyncio.get_running_loop(), Owner()
    write_twenty_at_the_end(owner.wire, monkeypatch)
    good, _ = expiring_contexts(tmp_path, ())
    server = await loop.create_server(lambda: owner.wire.cable, "127.0.0.1", 0, ssl=good)
    with caplog.at_level(logging.WARNING):
        async with server:
            await asyncio.to_thread(leave, server.sockets[0].getsockname(), ca_path(tmp_path))
            await asyncio.wait_for(owner.gone.wait(), 10)
    assert caplog.messages == []
