"""A socket of the proxy that its peer has ended."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from pairbus.broker.wire.certificate import ca_path, expiring_contexts
from pairbus.faults import Active
from pairbus.proxy.conversation import UP, Direction
from pairbus.proxy.wire import ProxyWire


class Owner:
    """A passage without faults. It tells when its socket is gone."""

    def __init__(self) -> None:
        self.wire = ClientWire(self, UP, lambda: 0.5)
        self.gone = asyncio.Event()

    def end(self, direction: Direction) -> ProxyWire:
        return self.wire

    def lines(self, direction: Direction) -> Sequence[Active]:
        return ()

    def arrived(self, direction: Direction, data: bytes) -> None:
        raise AssertionError("the client of this test sends no bytes")

    def lost(self, direction: Direction, error: Exception | None) -> None:
        self.gone.set()


class ClientWire(ProxyWire):
    """A socket whose target has twenty more frames for the client at the moment when the client ends."""

    def eof_received(self) -> None:
        super().eof_received()
        asyncio.get_running_loop().call_soon(self._write_twenty)

    def _write_twenty(self) -> None:
        assert self.transport is not None, "the frames come before the socket is closed"
        for _ in range(20):
            self.write(b"frame")


def leave(address: tuple[str, int], trust: Path) -> None:
    """Begin TLS, end it as a client does that closes its connection, and wait for the answer."""
    context = ssl.create_default_context(cafile=trust)
    with socket.create_connection(address, 10) as raw, context.wrap_socket(raw, server_hostname="localhost") as client:
        client.unwrap()


async def test_frames_for_a_client_that_ended_its_tls_are_dropped_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Event loops drop the bytes too, and log a warning for each write after the fifth."""
    loop, owner = asyncio.get_running_loop(), Owner()
    good, _ = expiring_contexts(tmp_path, ())
    server = await loop.create_server(lambda: owner.wire, "127.0.0.1", 0, ssl=good)
    with caplog.at_level(logging.WARNING):
        async with server:
            await asyncio.to_thread(leave, server.sockets[0].getsockname(), ca_path(tmp_path))
            await asyncio.wait_for(owner.gone.wait(), 10)
    assert caplog.messages == []
