"""Warnings about connections without a key are bounded."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.broker.strict import LENIENT
from pairbus.broker.wire import strangers
from pairbus.broker.wire.peer import Peer
from tests.broker.strict_world import Client


async def test_malformed_connections_without_a_key_fill_no_disk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who reaches the port can make them; at the end of the period the log has their number."""
    monkeypatch.setattr(strangers, "PERIOD_S", 0.05)
    client = Client(LENIENT)
    for _ in range(2000):
        Peer(client.namespace, client, client.loop).data_received(b"AMQPgarb")
    assert len(caplog.records) == strangers.LINES_MAX
    async with asyncio.timeout(20):
        while len(caplog.records) == strangers.LINES_MAX:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.01)
    assert "1990 more warnings about connections without a key were left out" in caplog.records[-1].getMessage()
    Peer(client.namespace, client, client.loop).data_received(b"AMQPgarb")
    assert "protocol header" in caplog.records[-1].getMessage()


async def test_malformed_connection_with_a_key_is_always_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It is a client of ours, and each of its failures matters."""
    for _ in range(2 * strangers.LINES_MAX):
        client = await Client(LENIENT).open()
        client.peer.data_received(b"\xff" * 8)
    assert len(caplog.records) == 2 * strangers.LINES_MAX
