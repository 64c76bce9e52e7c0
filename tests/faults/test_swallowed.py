"""Connections that a black hole keeps, at a broker and at a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pairbus.auth.connection_string import ConnectionString
from pairbus.faults.play import swallowed
from tests.faults.conftest import World as BrokerWorld
from tests.faults.conftest import running as running_broker
from tests.faults.conftest import until
from tests.proxy.conftest import World as ProxyWorld
from tests.proxy.conftest import running as running_proxy

World = BrokerWorld | ProxyWorld


@pytest.fixture(params=["broker", "proxy"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A broker or a proxy: they keep connections by the same code, and let each one go in their own way."""
    async with running_broker() if request.param == "broker" else running_proxy() as made:
        yield made


async def dial(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    given = ConnectionString.parse(world.connection_string)
    return await asyncio.open_connection(given.host, given.port)


async def test_black_hole_lets_go_of_clients_that_left(world: World) -> None:
    """Each socket is a file descriptor. The bytes that a client wrote before it left must not hide its end."""
    world.faults.add("black-hole", count=100)
    for _ in range(3):
        _, writer = await dial(world)
        writer.write(b"AMQP\x03\x01\x00\x00")
        await until(world.faults.held.owns_any)
        writer.close()
    await until(lambda: not world.faults.held.owns_any())
    world.faults.clear()
    await world.check_whole()


async def test_black_hole_is_silent_although_many_clients_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only connections that are open count towards the limit; one beyond it is reset."""
    monkeypatch.setattr(swallowed, "_limit", lambda: 2)
    world.faults.add("black-hole")
    for _ in range(4):
        _, writer = await dial(world)
        writer.close()
        await writer.wait_closed()
    patient = [await dial(world) for _ in range(2)]
    for reader, _ in patient:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
    with pytest.raises(ConnectionResetError):
        beyond = await dial(world)
        await asyncio.wait_for(beyond[0].read(1), 5)
    for _, writer in patient:
        writer.close()
    world.faults.clear()
    await world.check_whole()


async def test_swallowed_connection_stays_silent_in_a_second_black_hole(world: World) -> None:
    """A connection must not come alive while a fault swallows the ones that come."""
    first = world.faults.add("black-hole")
    reader, writer = await dial(world)
    writer.write(b"AMQP\x03\x01\x00\x00")
    await asyncio.sleep(0.05)
    world.faults.add("black-hole", count=1)
    world.faults.clear(first)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.3)
    world.faults.clear()
    assert await asyncio.wait_for(reader.readexactly(4), 5) == b"AMQP"
    writer.close()
    await world.check_whole()


async def test_refuse_resets_swallowed_connections(world: World) -> None:
    """Refused means that no connection is open, also none that came during a black hole before."""
    world.faults.add("black-hole", count=1)
    reader, writer = await dial(world)
    await until(world.faults.held.owns_any)
    world.faults.add("refuse")
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(1), 5)
    writer.close()
    world.faults.clear()
    await world.check_whole()
