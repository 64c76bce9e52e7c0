"""Each fault of the nemesis is what it says: the genuine SDK in front, a real broker behind."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError, ServiceBusError

from pairbus.amqp.message import Message, Properties
from pairbus.transport import ConnectionLost, Refused, Timeout, connect
from tests.testing.world import Stopwatch, World, error_of, opened, sdk, send, text


async def test_without_a_fault_everything_passes_and_is_counted(world: World) -> None:
    """The proxy adds nothing by itself; tests read from its counters who talked to the broker."""
    sender = await world.sender("orders")
    await send(sender, "first")
    await send(sender, "second")
    async with await opened(world.client.get_queue_receiver("orders")) as receiver:
        messages = await receiver.receive_messages(max_message_count=2, max_wait_time=5)
        assert [str(message) for message in messages] == ["first", "second"]
        for message in messages:
            await receiver.complete_message(message)
    counts = world.nemesis.counts.of("Orders")
    assert (counts.attaches, counts.transfers, counts.deliveries, counts.pings) == (2, 2, 2, 0)
    assert counts.answers == 4, "two acceptances, two completions"
    assert world.nemesis.counts.connections == 2
    assert counts.bytes < world.nemesis.counts.bytes_up + world.nemesis.counts.bytes_down
    assert world.stored("orders") == 0


async def test_pings_are_counted_apart(world: World) -> None:
    """A test of pings asks how many were sent while the primary was away."""
    ping = Message(properties=Properties(content_type="application/vnd.ms-servicebus-ping"), data=[b""]).encode()
    async with await connect(world.nemesis.connection_string(world.broker.connection_string("contoso"))) as connection:
        await (await connection.sender("orders")).send(ping)
    counts = world.nemesis.counts.of("orders")
    assert (counts.transfers, counts.pings) == (1, 1)


@pytest.mark.parametrize("tls", [False, True])
async def test_tls_and_plain_bytes_pass_unchanged(world: World, tls: bool) -> None:
    """The administration client speaks HTTPS to the same port; a proxy for AMQP alone would break it."""
    context = ssl.create_default_context(cafile=str(world.broker.ca_file)) if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", world.nemesis.port, ssl=context)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")


async def test_a_refused_port_resets_open_connections_and_takes_no_new_ones(world: World) -> None:
    """The port behaves as if the process were gone: the kernel answers for it, at once."""
    sender = await world.sender("orders")
    world.nemesis.refuse()
    assert isinstance(await error_of(send(sender, "lost")), ServiceBusConnectionError)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", world.nemesis.port)
    assert world.stored("orders") == 0
    world.nemesis.heal()
    await send(sender, "again")
    assert world.stored("orders") == 1


async def test_refusing_can_leave_open_connections_alone(world: World) -> None:
    sender = await world.sender("orders")
    world.nemesis.refuse(open_connections=False)
    await send(sender, "still here")
    assert isinstance(await error_of(world.sender("orders")), ServiceBusConnectionError)
    assert world.stored("orders") == 1


@pytest.mark.parametrize("fault", ["reset", "cut"])
async def test_reset_and_cut_end_open_connections_once(world: World, fault: str) -> None:
    """A single broken connection is an everyday event, no outage: the next one works."""
    sender = await world.sender("orders")
    reader, writer = await asyncio.open_connection("127.0.0.1", world.nemesis.port)
    await world.nemesis.until(lambda: world.nemesis.open_connections == 2)
    getattr(world.nemesis, fault)()
    if fault == "reset":
        with pytest.raises(ConnectionResetError):
            await reader.read()
    else:
        assert await reader.read() == b""
    writer.close()
    assert isinstance(await error_of(send(sender, "lost")), ServiceBusConnectionError)
    await send(sender, "again")
    assert world.stored("orders") == 1


async def test_a_black_hole_before_the_connection_is_silent(world: World) -> None:
    """Accepted and never answered: this blocks the sync SDK for ever and costs the aio one its timeout."""
    open_sender = await world.sender("orders")
    world.nemesis.black_hole(open_connections=False)
    late = world.client.get_queue_sender("orders")
    with Stopwatch() as watch:
        assert isinstance(await error_of(send(late, "lost", 1)), OperationTimeoutError)
    assert watch.seconds > 0.9
    await send(open_sender, "not meant")
    assert world.stored("orders") == 1
    await late.close()


@pytest.mark.slow
async def test_a_black_hole_swallows_what_open_connections_say(world: World) -> None:
    """The two ends do not notice it; when the network heals, such a connection is of no use and is reset."""
    sender = await world.sender("orders")
    world.nemesis.black_hole(open_connections=True)
    assert isinstance(await error_of(send(sender, "lost", 1)), OperationTimeoutError)
    world.nemesis.heal()
    assert isinstance(await error_of(send(sender, "on the old connection")), ServiceBusConnectionError)
    await send(sender, "again")
    assert world.stored("orders") == 1


async def test_a_stall_loses_nothing(world: World) -> None:
    """Back pressure, as from a broker that is stopped with SIGSTOP: bytes written arrive when it goes on."""
    connection_string = world.nemesis.connection_string(world.broker.connection_string("contoso"))
    async with await connect(connection_string) as connection:
        sender = await connection.sender("orders")
        world.nemesis.stall()
        sending = asyncio.create_task(sender.send(Message(data=[b"late"]).encode()))
        with pytest.raises(Timeout):
            await connect(connection_string, timeout_s=0.3)
        assert not sending.done() and world.stored("orders") == 0
        world.nemesis.heal()
        await asyncio.wait_for(sending, 5)
    assert world.stored("orders") == 1


async def test_latency_delays_both_directions(world: World) -> None:
    sender = await world.sender("orders")
    world.nemesis.latency(1.0)
    with Stopwatch() as watch:
        await send(sender, "slow", 20)
    assert 2.0 <= watch.seconds < 8
    world.nemesis.heal()
    with Stopwatch() as watch:
        await send(sender, "quick", 20)
    assert watch.seconds < 1.5
    assert world.stored("orders") == 2


async def test_a_thin_line_passes_so_many_bytes_a_second(world: World) -> None:
    """The writer notices: bytes that are not read stay in its own buffers."""
    sender = await world.sender("orders")
    world.nemesis.bandwidth(200_000)
    with Stopwatch() as watch:
        await send(sender, "x" * 200_000, 5)
    assert 0.6 <= watch.seconds < 4
    assert world.stored("orders") == 1


@pytest.mark.slow
async def test_stalled_transfers_stall_nothing_else(world: World) -> None:
    """Links open, connections live, messages do not arrive: so a stuck partition behaves."""
    orders, invoices = await asyncio.gather(world.sender("orders"), world.sender("invoices"))
    world.nemesis.stall_transfers("orders")
    assert isinstance(await error_of(send(orders, "stuck", 1)), OperationTimeoutError)
    await send(invoices, "other")
    another = await world.sender("orders")
    assert isinstance(await error_of(send(another, "stuck too", 1)), OperationTimeoutError)
    assert (world.stored("orders"), world.stored("invoices")) == (0, 1)
    assert world.nemesis.counts.of("orders").transfers_held == 2
    world.nemesis.heal()
    await send(orders, "again")
    assert world.stored("orders") == 3, "the SDK keeps its link after a time-out, so what was stuck on it arrived"


async def test_stalled_transfers_of_many_frames_arrive_in_their_order(world: World) -> None:
    """A send that timed out has an unknown outcome, and a large message must not come in pieces."""
    async with await connect(world.nemesis.connection_string(world.broker.connection_string("contoso"))) as connection:
        sender = await connection.sender("orders")
        world.nemesis.stall_transfers()
        with pytest.raises(Timeout):
            await sender.send(Message(data=[bytes(200_000)]).encode(), timeout_s=0.2)
        assert world.stored("orders") == 0
        world.nemesis.heal()
        await sender.send(Message(data=[b"next"]).encode())
    assert world.stored("orders") == 2


async def test_what_is_stalled_goes_with_its_link_and_not_with_another(world: World) -> None:
    """A client that gives a link up has taken its message back: it must not appear later, without a link."""
    async with await connect(world.nemesis.connection_string(world.broker.connection_string("contoso"))) as connection:
        orders, invoices = await connection.sender("orders"), await connection.sender("invoices")
        world.nemesis.stall_transfers()
        for sender in (orders, invoices):
            with pytest.raises(Timeout):
                await sender.send(text("stuck"), timeout_s=0.2)
        await orders.close(1)
        world.nemesis.heal()
        await invoices.send(text("next"))
    assert (world.stored("orders"), world.stored("invoices")) == (0, 2)


async def test_a_dropped_answer_leaves_the_message_stored_though_the_send_failed(world: World) -> None:
    """A dropped answer is the one fault that makes duplicates: the client cannot tell it from a lost message."""
    orders, invoices = await asyncio.gather(world.sender("orders"), world.sender("invoices"))
    world.nemesis.drop_answers("orders", count=1)
    assert isinstance(await error_of(send(orders, "once", 1)), OperationTimeoutError)
    assert world.stored("orders") == 1
    await send(invoices, "other")
    await send(orders, "once")
    assert world.stored("orders") == 2
    counts = world.nemesis.counts.of("orders")
    assert (counts.transfers, counts.answers, counts.answers_dropped) == (2, 1, 1)


async def test_dropped_answers_are_taken_out_of_ranges(world: World) -> None:
    """The broker accepts many messages in one frame; those of other links must not be lost with them."""
    async with await connect(world.nemesis.connection_string(world.broker.connection_string("contoso"))) as connection:
        sender = await connection.sender("orders")
        world.nemesis.drop_answers("orders", count=3)
        sends = [sender.send_nowait(Message(data=[b"x"]).encode(), timeout_s=0.5) for _ in range(10)]
        ended = await asyncio.gather(*sends, return_exceptions=True)
        assert [isinstance(end, Timeout) for end in ended] == [True] * 3 + [False] * 7
    assert world.stored("orders") == 10


async def test_the_answer_to_a_completion_can_be_lost(world: World) -> None:
    """A syphon without an answer to its completion must not expect the message to come again."""
    async with await connect(world.nemesis.connection_string(world.broker.connection_string("contoso"))) as connection:
        await (await connection.sender("orders")).send(Message(data=[b"x"]).encode())
        receiver = await connection.receiver("orders")
        messages = await receiver.receive(1, timeout_s=3)
        world.nemesis.drop_settlement_answers("orders", count=1)
        with pytest.raises(Timeout):
            await receiver.complete(messages, timeout_s=0.3)
    assert world.broker.namespace("contoso").queue_info("orders").active == 0
    assert world.nemesis.counts.of("orders").answers_dropped == 1


@pytest.mark.slow
async def test_cutting_the_links_of_one_entity_leaves_another_working(world: World) -> None:
    """The failover of one entity must not move the others, so a test needs one that fails alone."""
    orders, invoices = await asyncio.gather(world.sender("orders"), world.sender("invoices"))
    world.nemesis.cut_links("orders")
    for attempt in ("first", "second"):
        assert isinstance(await error_of(send(orders, attempt)), ServiceBusConnectionError)
    await send(invoices, "other")
    assert (world.stored("orders"), world.stored("invoices")) == (0, 1)
    world.nemesis.heal()
    await send(orders, "again")
    assert world.stored("orders") == 1


@pytest.mark.slow
async def test_attaches_to_one_entity_can_be_left_unanswered(world: World) -> None:
    """The silent variant: the connection opens, the token is taken, and the link never comes."""
    world.nemesis.cut_links("orders", "stall")
    late = world.client.get_queue_sender("orders")
    assert isinstance(await error_of(send(late, "lost", 1)), ServiceBusError)
    await send(await world.sender("invoices"), "other")
    world.nemesis.heal()
    await send(late, "again")
    assert (world.stored("orders"), world.stored("invoices")) == (1, 1)
    await late.close()


async def test_one_link_of_a_shared_connection_can_be_detached_alone(world: World) -> None:
    """Our own transport, and the JavaScript SDK, carry all entities on one connection."""
    async with await connect(world.nemesis.connection_string(world.broker.connection_string("contoso"))) as connection:
        orders, invoices = await connection.sender("orders"), await connection.sender("invoices")
        world.nemesis.cut_links("orders", "detach")
        with pytest.raises((Refused, ConnectionLost)):
            await orders.send(Message(data=[b"lost"]).encode(), timeout_s=2)
        with pytest.raises(Refused, match="detach-forced"):
            await connection.sender("orders")
        await invoices.send(Message(data=[b"other"]).encode())
        world.nemesis.heal()
        await (await connection.sender("orders")).send(Message(data=[b"again"]).encode())
        assert connection.loss is None
    assert (world.stored("orders"), world.stored("invoices")) == (1, 1)


@pytest.mark.slow
async def test_the_sdk_takes_a_detached_link_for_a_lost_one(world: World) -> None:
    """The SDK opens another link when the cut is over."""
    sender = await world.sender("orders")
    world.nemesis.cut_links("orders", "detach")
    for attempt in ("first", "second"):
        assert isinstance(await error_of(send(sender, attempt)), ServiceBusError)
    world.nemesis.heal()
    await send(sender, "again")
    assert world.stored("orders") == 1


async def test_a_target_that_is_not_there_resets_its_clients(world: World) -> None:
    """The proxy has accepted before it can know."""
    world.nemesis.target = ("127.0.0.1", 1)
    client = sdk(world.nemesis.connection_string(world.broker.connection_string("contoso")))
    sender = client.get_queue_sender("orders")
    assert isinstance(await error_of(send(sender, "lost")), ServiceBusConnectionError)
    await sender.close()
    await client.close()
