"""Faults of whole connections at a proxy, as the genuine SDK meets them; and the endpoint is whole when they end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusError

from pairbus.errors import ConfigError, FaultNotFound, InvalidFault
from pairbus.faults import KINDS
from pairbus.faults.play.abort import reset_transport
from pairbus.proxy import Proxy
from pairbus.proxy.faults import AT_THE_TARGET, WITHOUT_FRAMES
from pairbus.transport import TransportError, connect
from tests.proxy.conftest import World, by_proxy, encoded, message, running, until


async def test_refused_connections_and_cut_ones(world: World) -> None:
    """The port is closed, as when the endpoint is down; the proxy keeps its port."""
    sender = await world.sender()
    world.faults.add("refuse")
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(message("lost"), timeout=5)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(world.proxy.host, world.proxy.port)
    assert world.waiting() == 0
    world.faults.clear()
    await world.check_whole()


async def test_port_that_another_program_took_is_taken_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A reserved port does not listen, so another server can; the other faults that end with this one heal as well."""
    world.faults.add("refuse")
    held = Mock()
    world.faults.held.add(world.faults.add("stall"), held, held)
    with socket.create_server((world.proxy.host, world.proxy.port)):
        world.faults.clear()
        held.assert_called_once()
        assert f"port {world.proxy.port} cannot be opened again yet" in caplog.text
    async with asyncio.timeout(5):
        while True:
            try:
                await world.check_whole()
            except TransportError:
                await asyncio.sleep(0.1)
            else:
                break


async def test_refuse_with_a_count_resets_new_connections_only(world: World) -> None:
    sender = await world.sender()
    world.faults.add("refuse", count=1)
    with pytest.raises(ConnectionResetError):
        await (await asyncio.open_connection(world.proxy.host, world.proxy.port))[0].readexactly(1)
    await sender.send_messages(message("goes on"), timeout=5)
    await world.check_whole()


async def test_black_hole_freezes_and_swallows(world: World) -> None:
    """No answer comes, no connection is closed, no message is lost: open and new connections go on afterwards."""
    sender = await world.sender()
    world.faults.add("black-hole")
    sending = asyncio.create_task(sender.send_messages(message("frozen"), timeout=10))
    opening = asyncio.create_task(connect(world.connection_string, timeout_s=10))
    await asyncio.sleep(0.3)
    assert (world.waiting(), sending.done(), opening.done()) == (0, False, False)
    world.faults.clear()
    await sending
    async with await opening as connection:
        await (await connection.sender("orders")).send(encoded("swallowed"), timeout_s=5)
    assert world.waiting() == 2
    await world.check_whole()


async def test_latency_makes_every_answer_late(world: World) -> None:
    sender = await world.sender()
    world.faults.add("latency", delay_s=0.3, for_s=60)
    began = time.monotonic()
    await sender.send_messages(message("late"), timeout=5)
    assert time.monotonic() - began >= 0.3
    world.faults.clear()
    await world.check_whole()


async def test_bytes_that_are_late_leave_when_latency_ends(world: World) -> None:
    sender = await world.sender()
    world.faults.add("latency", delay_s=60)
    sending = asyncio.create_task(sender.send_messages(message("late"), timeout=30))
    await until(lambda: world.waiting() == 1)
    assert not sending.done()
    world.faults.clear()
    await asyncio.wait_for(sending, 5)
    await world.check_whole()


async def test_black_hole_keeps_what_is_late(world: World) -> None:
    """Two faults at once: nothing leaves before both have ended."""
    async with await connect(world.connection_string) as connection:
        sender = await connection.sender("orders")
        world.faults.add("latency", delay_s=1.0)  # the answer is still on its way when the black hole begins
        sending = asyncio.create_task(sender.send(encoded("late")))
        await until(lambda: world.waiting() == 1)
        hole = world.faults.add("black-hole")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending), 1.5)
        world.faults.clear(hole)
        await asyncio.wait_for(sending, 5)
        world.faults.clear()
    await world.check_whole()


@pytest.mark.parametrize("slow", [{"kind": "latency", "delay_s": 60}, {"kind": "bandwidth", "bytes_per_s": 1_000}])
async def test_end_of_one_slow_fault_heals_while_another_is_on(world: World, slow: dict[str, Any]) -> None:
    """Bytes that wait get new times, by the faults that are left."""
    sender = await world.sender()
    world.faults.add("bandwidth", bytes_per_s=1_000_000)
    number = world.faults.add(**slow)
    sending = asyncio.create_task(sender.send_messages(message("x" * 30_000), timeout=60))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(sending), 0.5)
    world.faults.clear(number)
    await asyncio.wait_for(sending, 5)
    world.faults.clear()
    await world.check_whole()


async def test_bandwidth_slows_large_messages(world: World) -> None:
    sender = await world.sender()
    world.faults.add("bandwidth", bytes_per_s=100_000)
    began = time.monotonic()
    await sender.send_messages(message("x" * 50_000), timeout=10)
    assert time.monotonic() - began >= 0.45
    world.faults.clear()
    await world.check_whole()


async def test_idle_sender_is_detached_and_its_connection_closed(world: World) -> None:
    """The proxy closes as the broker does; a connection in use goes on, and so does one without AMQP."""
    sender = await world.sender()
    reader, writer = await asyncio.open_connection(world.proxy.host, world.proxy.port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    world.faults.add("idle-close", link_s=0.1, connection_s=0.2)
    await until(lambda: world.proxy.open_connections == 1)
    with pytest.raises(ServiceBusError):
        await sender.send_messages(message("too late"), timeout=5)
    world.faults.clear()
    await sender.send_messages(message("again"), timeout=5)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).count(b"HTTP/1.1 200") == 1
    writer.close()
    await world.check_whole()


async def test_fault_ends_by_itself(world: World) -> None:
    world.faults.add("stall", for_s=0.05)
    number = world.faults.add("refuse", for_s=0.1)
    await until(lambda: world.faults.list() == [])
    with pytest.raises(FaultNotFound):
        world.faults.clear(number)
    await world.check_whole()


async def test_proxy_stops_while_faults_hold_connections(world: World) -> None:
    """Clients of the proxy hear of its stop, also those that a black hole had swallowed."""
    world.faults.add("black-hole")
    reader, writer = await asyncio.open_connection(world.proxy.host, world.proxy.port)
    await until(world.faults.held.owns_any)
    async with asyncio.timeout(5):
        await world.proxy.stop()
        assert await reader.read() == b""
    writer.close()


# ── what a proxy cannot play ──


@pytest.mark.parametrize("kind", AT_THE_TARGET)
async def test_kind_of_the_broker_is_refused_with_the_reason(world: World, kind: str) -> None:
    with pytest.raises(InvalidFault, match=f"{kind}: a proxy cannot play it: .*; pairbus broker can"):
        world.faults.add(kind)
    assert set(AT_THE_TARGET) == {name for name, row in KINDS.items() if "proxy" not in row.at}


async def test_certificate_and_name_need_their_means(world: World) -> None:
    """A fault that would meet nothing must not look as if it was switched on."""
    with pytest.raises(InvalidFault, match=r"certificate: the proxy shows no certificate.*--tls DIR"):
        world.faults.add("certificate")
    with pytest.raises(InvalidFault, match=r"dns: nobody asks this proxy for a name.*contoso\.invalid"):
        world.faults.add("dns")


async def test_tls_that_is_passed_meets_faults_of_connections_only() -> None:
    """Bytes can be late and connections refused; for other kinds the error says what to do."""
    async with running(pass_tls=True) as world:
        seeing = [name for name, kind in KINDS.items() if "proxy" in kind.at and name not in WITHOUT_FRAMES]
        for kind in seeing:
            with pytest.raises(InvalidFault, match=f"{kind}: it needs to see AMQP frames.*--tls DIR"):
                world.faults.add(kind)
        world.options = by_proxy(world) | {"connection_verify": str(world.broker.ca_file)}
        sender = await world.sender()
        world.faults.add("latency", delay_s=0.2)
        began = time.monotonic()
        await sender.send_messages(message("late"), timeout=5)
        assert time.monotonic() - began >= 0.2
        world.faults.clear()
        world.faults.add("refuse")
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(message("lost"), timeout=5)
        assert world.waiting() == 1


async def test_client_that_speaks_no_amqp_is_told_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A web socket passes, and no fault of frames meets it: the log says why."""
    caplog.set_level("INFO", "pairbus.proxy")
    world.options = {"custom_endpoint_address": f"sb://{world.proxy.address}"}
    sender = await world.sender()
    world.faults.add("throttle")
    await sender.send_messages(message("not met"), timeout=5)
    assert "a client speaks HTTP or a web socket: only faults of whole connections meet it" in caplog.text
    assert world.waiting() == 1


# ── how it stands between ──


async def test_target_that_is_away_is_told_and_the_proxy_lives_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    target = world.proxy.target
    world.proxy.target = target._replace(port=1)
    with pytest.raises(ServiceBusConnectionError):
        await world.sender()
    await until(lambda: "target 127.0.0.1:1 cannot be reached: " in caplog.text)
    world.proxy.target = target
    await world.check_whole()


async def test_clear_clients_reach_a_target_that_wants_tls() -> None:
    """A proxy stands before Azure in this way: names and tokens stay those of the namespace, and it sees the frames."""
    async with running(encrypts=True) as world:
        azure = world.broker.connection_string("contoso").replace(";UseDevelopmentEmulator=true", "")
        assert world.proxy.connection_string(azure).endswith(";UseDevelopmentEmulator=true")
        world.options = by_proxy(world)
        sender = await world.sender()
        world.faults.add("throttle", entity="orders", direction="send", count=1)
        with pytest.raises(ServiceBusError, match="50009"):
            await sender.send_messages(message("refused"), timeout=5)
        await sender.send_messages(message("stored"), timeout=5)
        assert world.waiting() == 1


async def test_port_that_is_taken_is_an_error_that_says_so(world: World) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*; choose another port"):
        await Proxy("127.0.0.1", 1, listen=("127.0.0.1", world.proxy.port)).start()
    await world.check_whole()


def test_tls_is_passed_or_ended_but_not_both(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose one of the two"):
        Proxy("127.0.0.1", 1, pass_tls=True, tls_to_target=ssl.create_default_context())


def test_reset_of_a_lost_tls_connection_is_quiet() -> None:
    """The two ends may go at the same time: a TLS transport then has no socket, and the loop logged an exception."""
    aborted = []

    class Lost(asyncio.Transport):
        def abort(self) -> None:
            aborted.append(self)

    reset_transport(Lost())
    assert len(aborted) == 1
