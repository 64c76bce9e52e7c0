"""Faults of the connection, the disk and idleness, as the genuine SDK meets them; and the namespace is whole after."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError, ServiceBusError

from pairbus.aio import PairedServiceBusClient
from pairbus.amqp.message import Message, Properties
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.client.pinger import ping_payload
from pairbus.faults.play.cable import Cable
from pairbus.faults.play.held_steps import HeldSteps
from pairbus.pairing.events import Event, PingSent
from pairbus.pairing.failover import State
from pairbus.transport import Endpoint, Refused, Timeout, TransportError, connect
from tests.faults.conftest import World, running, until


def port_of(world: World) -> int:
    return int(world.connection_string.split(";")[0].rsplit(":", 1)[1])


async def dial(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port_of(world))


def one_message() -> bytes:
    return Message(properties=Properties(message_id="a"), data=[b"a"]).encode()


# ── refuse ──


async def test_refused_connections_and_cut_ones(world: World) -> None:
    """The port is closed, as when the broker is down; the namespace keeps its port, and listens again."""
    sender, admin = await world.sender(), await world.admin()
    await admin.get_queue("orders")
    world.faults.add("refuse")
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("lost"), timeout=5)
    await until(lambda: refuses(world))
    with pytest.raises(ServiceBusConnectionError):
        await world.sender()
    with pytest.raises(ServiceRequestError):
        await admin.get_queue("orders")
    assert world.waiting() == 0
    world.faults.clear()
    assert not refuses(world), "the port listens when clear() returns"
    await world.check_whole()
    assert (await admin.get_queue("orders")).name == "orders"


def refuses(world: World) -> bool:
    with socket.socket() as client:
        try:
            client.connect(("127.0.0.1", port_of(world)))
        except ConnectionRefusedError:
            return True
        return False


async def test_refuse_can_begin_and_end_in_one_turn(world: World) -> None:
    """The listeners follow the last call, after any calls made while they changed."""
    for _ in range(3):
        world.faults.add("refuse")
        world.faults.clear()
    await asyncio.sleep(0)
    await until(lambda: not refuses(world))
    await world.check_whole()


async def test_port_that_another_program_took_is_taken_back(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A reserved port does not listen, so another server can; the other faults that end with this one heal as well."""
    async with await connect(world.connection_string) as connection:
        await connection.sender("orders")
        world.faults.add("refuse")
        await until(lambda: refuses(world))
    held = Mock()
    world.faults.held.add(world.faults.add("stall"), held, held)
    with socket.create_server(("127.0.0.1", port_of(world))):
        world.faults.clear()
        held.assert_called_once()
        assert f"port {port_of(world)} cannot be opened again yet" in caplog.text
    await until(lambda: not refuses(world))
    await world.check_whole()


async def test_refuse_with_a_count_resets_new_connections_only(world: World) -> None:
    sender = await world.sender()
    world.faults.add("refuse", count=1)
    with pytest.raises(ConnectionResetError):
        await (await dial(world))[0].readexactly(8)
    await sender.send_messages(ServiceBusMessage("goes on"), timeout=5)
    await world.check_whole()


# ── black hole ──


async def test_black_hole_freezes_and_swallows(world: World) -> None:
    """Connections are accepted, nothing answers, nothing is closed; afterwards the frozen ones go on."""
    sender = await world.sender()
    reader, writer = await dial(world)
    world.faults.add("black-hole")
    sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("frozen"), timeout=10))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await world.sender()
    assert (world.waiting(), sending.done()) == (0, False)
    writer.write(b"AMQP\x03\x01\x00\x00")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(1), 0.2)
    assert not reader.at_eof()
    world.faults.clear()
    await sending
    assert await asyncio.wait_for(reader.readexactly(8), 5) == b"AMQP\x03\x01\x00\x00"
    writer.close()
    assert world.waiting() == 1
    await world.check_whole()


async def test_new_connection_goes_on_after_the_black_hole(world: World) -> None:
    """The connection was accepted and never read, so none of its bytes is lost."""
    world.faults.add("black-hole", for_s=0.4)
    async with await connect(world.connection_string, timeout_s=5) as connection:
        sender = await connection.sender("orders")
        await sender.send(one_message())
    assert world.waiting() == 1
    await world.check_whole()


async def test_http_is_swallowed_by_a_black_hole(world: World) -> None:
    """On a connection that is open, too."""
    admin = await world.admin()
    await admin.get_queue("orders")
    world.faults.add("black-hole")
    asking = asyncio.create_task(admin.get_queue("orders"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(asking), 0.3)
    world.faults.clear()
    assert (await asking).name == "orders"
    await world.check_whole()


async def test_frozen_receiver_gets_its_message_afterwards(world: World) -> None:
    sender, receiver = await world.sender(), await world.receiver()
    await sender.send_messages(ServiceBusMessage("kept"), timeout=5)
    world.faults.add("black-hole")
    assert await receiver.receive_messages(max_wait_time=0.3) == []
    world.faults.clear()
    [message] = await receiver.receive_messages(max_wait_time=5)
    await receiver.complete_message(message)
    assert world.waiting() == 0
    await world.check_whole()


async def test_connection_that_fails_in_its_thaw_keeps_no_other_frozen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is closed, as by any other bug that bytes of a client meet, and the event loop reports the bug."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    bug = ValueError("a bug")
    async with await connect(world.connection_string) as one, await connect(world.connection_string) as two:
        senders = [await each.sender("orders") for each in (one, two)]
        world.faults.add("black-hole")
        sending = [asyncio.create_task(sender.send(one_message(), timeout_s=10)) for sender in senders]
        first = next(iter(world.namespace.peers))
        assert isinstance(first._wire, Cable)
        first._wire.data_received(b"bytes that came while the connection froze")
        monkeypatch.setattr(first, "data_received", Mock(side_effect=bug))
        world.faults.clear()
        results = await asyncio.gather(*sending, return_exceptions=True)
    assert sorted(isinstance(result, TransportError) for result in results) == [False, True], results
    assert reported == [bug]
    assert world.waiting() == 1
    await world.check_whole()


async def test_every_held_step_runs_although_one_fails() -> None:
    """A fault holds the steps of many clients; when it ends, none of them may wait for ever."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
    held, ran = HeldSteps(), list[str]()

    def step(name: str) -> None:
        ran.append(name)
        if name.startswith("bad"):
            raise ValueError(name)

    for number, name in ((1, "bad 1"), (1, "good 1"), (2, "bad 2"), (2, "good 2"), (3, "good 3")):
        held.add(number, name, partial(step, name))
    held.release(1)
    held.release_all()
    assert ran == ["bad 1", "good 1", "bad 2", "good 2", "good 3"]
    assert reported == ["bad 1", "bad 2"]
    assert not held.owns_any()


async def test_broker_stops_in_a_black_hole(world: World) -> None:
    """Stopping lets go of every fault first, so that clients hear the goodbye."""
    async with await connect(world.connection_string) as connection:
        await connection.sender("orders")
        world.faults.add("black-hole")
        world.faults.add("refuse")
        async with asyncio.timeout(10):
            await world.broker.stop()


async def test_swallowed_connection_is_closed_when_the_broker_stops(world: World) -> None:
    world.faults.add("black-hole")
    reader, writer = await dial(world)
    await until(world.faults.held.owns_any)
    async with asyncio.timeout(10):
        await world.broker.stop()
        assert await reader.read() == b""
    writer.close()


async def test_web_socket_freezes_too(world: World) -> None:
    """A web socket is AMQP on a connection that HTTP opened."""
    endpoint = Endpoint.parse(world.connection_string, transport="websocket", via=f"127.0.0.1:{port_of(world)}")
    async with await connect(endpoint, timeout_s=5) as connection:
        sender = await connection.sender("orders")
        world.faults.add("black-hole")
        sending = asyncio.create_task(sender.send(one_message()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending), 0.2)
        assert world.waiting() == 0
        world.faults.clear()
        await sending
    await world.check_whole()


# ── slow lines ──


async def test_latency_makes_every_answer_late(world: World) -> None:
    sender, admin = await world.sender(), await world.admin()
    await admin.get_queue("orders")
    world.faults.add("latency", delay_s=0.3)
    began = time.monotonic()
    await sender.send_messages(ServiceBusMessage("late"), timeout=5)
    assert time.monotonic() - began >= 0.3
    began = time.monotonic()
    await admin.get_queue("orders")
    assert time.monotonic() - began >= 0.3
    world.faults.clear()
    await world.check_whole()


async def test_bytes_that_are_late_leave_when_latency_ends(world: World) -> None:
    """The bytes leave in order: later ones must not overtake them."""
    sender = await world.sender()
    world.faults.add("latency", delay_s=60)
    sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("late"), timeout=30))
    await until(lambda: world.waiting() == 1)
    await asyncio.sleep(0.05)
    assert not sending.done()
    world.faults.clear()
    await asyncio.wait_for(sending, 5)
    await world.check_whole()


async def test_late_bytes_go_with_their_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to a connection that is gone is an error in the broker's log, and with uvloop an exception."""
    was_over: list[bool] = []
    genuine = Cable._write_due

    def write_due(cable: Cable) -> None:
        was_over.append(not cable.is_open)
        genuine(cable)

    monkeypatch.setattr(Cable, "_write_due", write_due)
    async with await connect(world.connection_string) as connection:
        sender = await connection.sender("orders")
        world.faults.add("latency", delay_s=0.1)
        with pytest.raises(Timeout):
            await sender.send(one_message(), timeout_s=0.01)
        await connection.close(timeout_s=0.01)
    await until(lambda: not world.namespace.peers)
    await asyncio.sleep(0.2)
    assert True not in was_over
    world.faults.clear()
    await world.check_whole()


async def test_faults_end_although_a_slow_connection_is_just_being_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late bytes of that connection are dropped: with uvloop a write to it raises, and the end of all faults once
    failed by that.
    """
    sender = await world.sender()
    world.faults.add("latency", delay_s=30)
    sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("a")))
    await until(lambda: world.waiting() == 1)
    [peer] = world.namespace.peers
    assert isinstance(peer._wire, Cable)
    transport = Mock(wraps=peer._wire.transport)
    transport.write.side_effect = RuntimeError("the handler is closed")
    with monkeypatch.context() as patch:
        patch.setattr(peer._wire, "transport", transport)
        world.faults.clear()
    assert world.faults.list() == [] and transport.write.called
    sending.cancel()
    peer._wire.abort()
    await world.check_whole()


async def test_black_hole_keeps_what_is_late(world: World) -> None:
    """Two faults at once: the line is slow, then swallowed; nothing leaves before both have ended."""
    async with await connect(world.connection_string) as connection:
        sender = await connection.sender("orders")
        world.faults.add("latency", delay_s=1.0)  # the answer is still on its way when the black hole begins
        sending = asyncio.create_task(sender.send(one_message()))
        await until(lambda: world.waiting() == 1)
        hole = world.faults.add("black-hole")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(sending), 1.5)
        world.faults.clear(hole)
        await sending
        world.faults.clear()
        await sender.send(one_message())
    await world.check_whole()


async def test_bandwidth_slows_large_messages(world: World) -> None:
    """The two directions are slow: 50 KB at 100 KB a second take half a second each way."""
    sender, receiver = await world.sender(), await world.receiver()
    world.faults.add("bandwidth", bytes_per_s=100_000)
    began = time.monotonic()
    await sender.send_messages(ServiceBusMessage(b"x" * 50_000), timeout=10)
    assert time.monotonic() - began >= 0.45
    began = time.monotonic()
    [message] = await receiver.receive_messages(max_wait_time=5)
    assert time.monotonic() - began >= 0.45
    await receiver.complete_message(message)
    world.faults.clear()
    await world.check_whole()


async def test_connection_for_http_is_read_on_over_a_slow_line(world: World) -> None:
    """An administration client sends its next request, and the body of a large one, on the same connection."""
    world.faults.add("bandwidth", bytes_per_s=1_000_000)
    reader, writer = await dial(world)
    for _ in range(2):
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 200")
        [length] = re.findall(rb"Content-Length: (\d+)", head)
        await asyncio.wait_for(reader.readexactly(int(length)), 10)
    writer.close()
    world.faults.clear()
    await world.check_whole()


async def test_line_is_wide_again_when_its_fault_is_cleared(world: World) -> None:
    """Bytes that wait already go at once too: a message in doubt must not arrive minutes after the outage."""
    sender = await world.sender()
    world.faults.add("bandwidth", bytes_per_s=1_000)
    sending = asyncio.create_task(sender.send_messages(ServiceBusMessage(b"x" * 30_000), timeout=60))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(sending), 0.5)
    world.faults.clear()
    await asyncio.wait_for(sending, 5.0)
    await world.check_whole()


@pytest.mark.parametrize("slow", [{"kind": "latency", "delay_s": 60}, {"kind": "bandwidth", "bytes_per_s": 1_000}])
async def test_end_of_one_slow_fault_heals_while_another_is_on(world: World, slow: dict[str, Any]) -> None:
    """Bytes that wait get new times, by the faults that are left."""
    sender = await world.sender()
    world.faults.add("bandwidth", bytes_per_s=1_000_000)
    number = world.faults.add(**slow)
    sending = asyncio.create_task(sender.send_messages(ServiceBusMessage(b"x" * 30_000), timeout=60))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(sending), 0.5)
    world.faults.clear(number)
    await asyncio.wait_for(sending, 5)
    world.faults.clear()
    await world.check_whole()


async def test_slow_line_does_not_take_a_queue_into_memory(world: World) -> None:
    """Messages wait in the queue when the line cannot take them: each peer could cost the memory of all that it asked
    for."""
    async with await connect(world.connection_string) as connection:
        sender = await connection.sender("orders")
        large = Message(properties=Properties(message_id="a"), data=[bytes(100_000)]).encode()
        await asyncio.gather(*(sender.send(large) for _ in range(200)))
        receiver = await connection.receiver("orders", mode="receive-and-delete", credit=200)
        world.faults.add("bandwidth", bytes_per_s=10_000_000)
        found = len(await receiver.receive(200, timeout_s=5))
        assert world.waiting() > 100
        while found < 100:
            found += len(await receiver.receive(200, timeout_s=5))
        world.faults.clear()
        while found < 200:
            found += len(await receiver.receive(200, timeout_s=5))
        assert world.waiting() == 0
    await world.check_whole()


# ── the disk ──


@pytest.mark.parametrize("is_durable", [False, True])
async def test_full_disk_refuses_sends_and_completes(is_durable: bool, tmp_path: Path) -> None:
    """As on a disk that is really full, settlements go on: a queue can be emptied."""
    async with running(data=tmp_path if is_durable else None) as world:
        sender, receiver = await world.sender(), await world.receiver()
        await sender.send_messages(ServiceBusMessage("before"), timeout=5)
        world.faults.add("disk-full")
        with pytest.raises(ServiceBusError, match="The disk is full"):
            await sender.send_messages(ServiceBusMessage("refused"), timeout=5)
        assert world.waiting() == 1
        assert "The disk is full" in str(await world.namespace.trouble())
        [message] = await receiver.receive_messages(max_wait_time=5)
        await receiver.complete_message(message)
        assert world.waiting() == 0
        world.faults.clear()
        await world.check_whole()


@pytest.mark.parametrize("is_durable", [False, True])
async def test_ping_is_refused_while_the_disk_takes_no_messages(is_durable: bool, tmp_path: Path) -> None:
    """A client that is told to come back would send to the full disk again, and its callers would get the errors."""
    async with running(data=tmp_path if is_durable else None) as world:
        async with await connect(world.connection_string) as connection:
            sender = await connection.sender("orders")
            await sender.send(ping_payload(), timeout_s=5)
            world.faults.add("disk-full")
            with pytest.raises(Refused, match="The disk is full"):
                await sender.send(ping_payload(), timeout_s=5)
            world.faults.clear()
            await sender.send(ping_payload(), timeout_s=5)
        assert world.waiting() == 0
        await world.check_whole()


async def test_full_disk_does_not_make_an_entity_flap(tmp_path: Path) -> None:
    """The entity stays with the secondary as long as the disk of the primary is full, and comes back afterwards."""
    options = [NamespaceOptions("near", queues=(QueueDescription("orders"),)), NamespaceOptions("far")]
    async with Broker(options, data=tmp_path) as broker:
        faults = broker.namespace("near").faults
        pings: list[bool] = []

        def hear(event: Event) -> None:
            if isinstance(event, PingSent):
                pings.append(event.accepted)

        ends = broker.connection_string("near"), broker.connection_string("far")
        client = PairedServiceBusClient.from_connection_strings(
            *ends, failover_interval=0, ping_primary_interval=1, backlog_queue_count=1, on_event=hear
        )
        async with client, client.get_queue_sender("orders") as sender:
            faults.add("disk-full")
            await sender.send_messages(ServiceBusMessage("diverted"))
            await until(lambda: bool(pings))
            assert client.states()["orders"] is State.FAILED_OVER
            faults.clear()
            await until(lambda: client.states()["orders"] is State.HEALTHY)
            await sender.send_messages(ServiceBusMessage("direct"))
        assert (pings[0], pings[-1]) == (False, True)
        assert broker.namespace("near").queue_info("orders").active == 1


@pytest.mark.parametrize("is_durable", [False, True])
async def test_slow_disk_answers_late(is_durable: bool, tmp_path: Path) -> None:
    """Accepted means committed: the answer waits for the disk."""
    async with running(data=tmp_path if is_durable else None) as world:
        sender = await world.sender()
        world.faults.add("slow-disk", delay_s=0.4, count=1)
        began = time.monotonic()
        await sender.send_messages(ServiceBusMessage("slow"), timeout=5)
        assert time.monotonic() - began >= 0.4
        assert world.waiting() == 1
        await world.check_whole()


async def test_message_on_a_slow_disk_can_time_out_and_be_stored(tmp_path: Path) -> None:
    async with running(data=tmp_path) as world:
        sender = await world.sender()
        world.faults.add("slow-disk", delay_s=3, count=1)
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(ServiceBusMessage("unknown"), timeout=0.2)
        await until(lambda: world.waiting() == 1)
        await world.check_whole()


# ── idleness ──


async def test_idle_sender_is_detached_and_its_connection_closed(world: World) -> None:
    """The texts are Azure's; a client that sends again opens a new link."""
    sender = await world.sender()
    world.faults.add("idle-close", link_s=0.1, connection_s=0.2)
    await until(lambda: not world.namespace.links)
    await until(lambda: all(peer.is_over for peer in world.namespace.peers))
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("too late"), timeout=5)
    world.faults.clear()
    await world.check_whole()


async def test_idle_times_are_those_of_before_after_the_fault(world: World) -> None:
    async with await connect(world.connection_string) as connection:
        sender = await connection.sender("orders")
        number = world.faults.add("idle-close", link_s=600)
        assert world.faults.idle is not None
        world.faults.clear(number)
        assert world.faults.idle is None
        await sender.send(one_message())
    await world.check_whole()
