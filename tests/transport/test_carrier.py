"""One connection that comes back: shared while it is opened, opened again after a loss, bounded in its links."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from collections.abc import Callable

import pytest

from pairbus.amqp.performatives import Error
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.errors import ConfigError
from pairbus.pairing.policy import Kind
from pairbus.transport import Carrier, ConnectionLost, Endpoint, Refused, Timeout, TransportError
from pairbus.transport.errors import failure_of
from tests.transport.server import Script, Server
from tests.transport.silences import HEARD


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the awaited change sets no event
            await asyncio.sleep(0)


async def test_callers_that_come_at_once_share_one_connection_and_one_link() -> None:
    """A burst of first sends must not open a connection each: the namespace counts them."""
    async with Server() as server, Carrier(server.connection_string) as carrier:
        senders = await asyncio.gather(*[carrier.sender(path) for path in ("orders", "Orders", "ORDERS", "bills")])
        assert len(server.peers) == 1
        assert len({id(sender) for sender in senders}) == 2


async def test_after_a_loss_the_next_call_connects_again() -> None:
    """The loss is told once to callers that waited; a reconnect needs no request."""
    async with Server() as server, Carrier(server.connection_string) as carrier:
        before = await carrier.sender("orders")
        server.cut()
        await until(lambda: before.over is not None)
        after = await carrier.sender("orders")
        assert after is not before
        await after.send(b"\x00\x53\x75\xa0\x01a")


async def test_a_link_that_is_over_is_replaced() -> None:
    """The service closes idle links; the connection stays."""
    async with Server() as server, Carrier(server.connection_string) as carrier:
        before = await carrier.sender("orders")
        await before.close()
        assert (await carrier.sender("orders")).over is None
        carrier.forget("ORDERS")
        after = await carrier.sender("orders")
        assert after.over is None
        assert len(server.peers) == 1


async def test_the_link_unused_for_longest_makes_room() -> None:
    """A thousand entities must not become ten thousand links."""
    async with Server() as server, Carrier(server.connection_string, senders_max=2) as carrier:
        a, b = await carrier.sender("a"), await carrier.sender("b")
        assert await carrier.sender("a") is a
        await carrier.sender("c")
        await asyncio.wait_for(b.close(), 5)
        assert await carrier.sender("a") is a
        assert await carrier.sender("b") is not b


async def test_limits_of_an_entity_are_known_while_no_link_is_open() -> None:
    """Batches are made in an outage too: with the limit of another tier, a large one would be an error."""
    async with Server(Script(max_message_size=1 << 21)) as server, Carrier(server.connection_string) as carrier:
        assert (carrier.batch_limit("orders"), carrier.message_limit("orders")) == (0, 0)
        sender = await carrier.sender("orders", name="named")
        limits = sender.batch_limit, 1 << 21
        assert (carrier.batch_limit("Orders"), carrier.message_limit("Orders")) == limits
        server.cut()
        await until(lambda: sender.over is not None)
        assert (carrier.batch_limit("orders"), carrier.message_limit("orders")) == limits


async def test_limits_of_few_entities_are_remembered() -> None:
    async with Server() as server, Carrier(server.connection_string, senders_max=3) as carrier:
        for number in range(5):
            await carrier.sender(f"queue-{number}")
        assert [bool(carrier.batch_limit(f"queue-{number}")) for number in range(5)] == [False, False, True, True, True]


async def test_a_caller_that_gives_up_leaves_the_attempt_to_the_others() -> None:
    """The shortest deadline must not decide for all callers."""
    async with Server(Script(answers_attach=False)) as server, Carrier(server.connection_string) as carrier:
        carrier.timeout_s = 0.5
        patient = asyncio.create_task(carrier.sender("orders"))
        with pytest.raises(Timeout):
            await carrier.sender("orders", timeout_s=0.01)
        cancelled = asyncio.create_task(carrier.sender("orders"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert not patient.done()
        with pytest.raises(Timeout):  # ends by its own time-out, not by that of the impatient caller
            await patient


async def test_a_refusal_reaches_every_caller_and_the_next_call_asks_again() -> None:
    """A failure is not remembered: its cause may be over."""
    script = Script(refuse={"orders": Error("amqp:not-found", "no such entity")})
    async with Server(script) as server, Carrier(server.connection_string) as carrier:
        answers = await asyncio.gather(*[carrier.sender("orders") for _ in range(3)], return_exceptions=True)
        assert [getattr(answer, "condition", None) for answer in answers] == ["amqp:not-found"] * 3
        script.refuse.clear()
        assert (await carrier.sender("orders")).over is None


async def test_next_call_after_drop_uses_a_fresh_connection() -> None:
    """A silent peer is left without waiting for it."""
    async with Server(Script(outcome=None)) as server, Carrier(server.connection_string) as carrier:
        sender = await carrier.sender("orders")
        sent = sender.send_nowait(b"\x00\x53\x75\xa0\x01a")
        await carrier.drop()
        with pytest.raises(ConnectionLost) as caught:
            await sent
        assert caught.value.outcome_unknown
        assert await carrier.sender("orders") is not sender


async def test_drop_ends_an_attempt_that_hangs() -> None:
    """A caller that waits for the attempt is told at once, and does not wait for the deadline."""
    async with Server(Script(silent=True)) as server, Carrier(server.connection_string) as carrier:
        waiting = asyncio.create_task(carrier.sender("orders"))
        await until(lambda: bool(server.peers))
        await carrier.drop()
        with pytest.raises(ConnectionLost, match="abandoned"):
            await waiting


async def test_a_closed_carrier_says_so() -> None:
    """The carrier opens no connection after its owner has closed it."""
    async with Server() as server:
        carrier = Carrier(server.connection_string)
        await carrier.sender("orders")
        await carrier.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await carrier.sender("orders")
        await server.until(lambda: not server.peers)


async def test_a_port_that_refuses_is_a_lost_connection_for_every_caller() -> None:
    """No task is left whose exception is never retrieved."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    carrier = Carrier(Endpoint("127.0.0.1", port, tls=False))
    answers = await asyncio.gather(*[carrier.sender(path) for path in "abc"], return_exceptions=True)
    assert all(isinstance(answer, ConnectionLost) and not answer.outcome_unknown for answer in answers)


async def test_whether_pings_are_hidden_is_read_from_the_peers_open() -> None:
    """Only a broker that says so is sent ping messages; a strict one, like Azure, says nothing."""
    async with Server() as server, Carrier(server.connection_string) as carrier:
        assert not await carrier.hides_pings()
    namespaces = [NamespaceOptions("contoso")]
    for strict in (False, True):
        async with (
            Broker(namespaces, data=None, strict=strict) as broker,
            Carrier(broker.connection_string("contoso")) as carrier,
        ):
            assert await carrier.hides_pings() != strict


async def test_a_web_socket_goes_through_an_http_proxy() -> None:
    """A network from which only HTTP leaves has no other way to Azure."""
    asked: list[bytes] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()
        await writer.wait_closed()

    over = asyncio.Event()

    async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b"\r\n")[0])
        asked.extend(line for line in head.split(b"\r\n") if line.startswith(b"Proxy-Authorization"))
        host, port = head.split()[1].decode().rsplit(":", 1)
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer))
        over.set()

    namespaces = [NamespaceOptions("contoso", queues=(QueueDescription("orders"),))]
    async with Broker(namespaces, data=None, strict=True) as broker:
        text = broker.connection_string("contoso").replace(";UseDevelopmentEmulator=true", "")
        endpoint = Endpoint.parse(text, transport="websocket")
        proxy = await asyncio.start_server(proxied, "127.0.0.1", 0)
        url = f"http://till:p%40ss@127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with Carrier(endpoint, ssl=broker.ca_file, proxy=url) as carrier:
            await (await carrier.sender("orders")).send(b"\x00\x53\x75\xa0\x01a")
        proxy.close()
        await asyncio.wait_for(over.wait(), 5)
    password = base64.b64encode(b"till:p@ss")
    assert asked == [f"CONNECT 127.0.0.1:{endpoint.port} HTTP/1.1".encode(), b"Proxy-Authorization: Basic " + password]
    with pytest.raises(ConfigError, match="proxy"):
        await Carrier(text, proxy=url).connection()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionLost("gone", outcome_unknown=True), Kind.COMMUNICATION),
        (Timeout("late", HEARD, outcome_unknown=True), Kind.TIMEOUT),
        (Refused("com.microsoft:server-busy", "slow down"), Kind.BUSY),
        (Refused("amqp:link:detach-forced", "idle"), Kind.COMMUNICATION),
        (Refused("never:heard-of"), Kind.INTERNAL),
    ],
)
def test_every_error_of_the_transport_has_a_kind(error: TransportError, kind: Kind) -> None:
    """The kind keeps whether the message may have been stored: that decides whether it is marked."""
    failure = failure_of(error)
    assert (failure.kind, failure.outcome_unknown, failure.error) == (kind, error.outcome_unknown, error)


async def test_link_with_sends_in_its_line_is_not_closed_for_another() -> None:
    """They wait for credit. Without a send in flight the link looks unused."""
    script = Script(credits={"waiting": 0})
    async with Server(script) as server, Carrier(server.connection_string, senders_max=2) as carrier:
        link = await carrier.sender("waiting")
        sending = asyncio.create_task(carrier.send("waiting", b"x", timeout_s=30.0))
        async with asyncio.timeout(10):
            while link.is_idle:  # noqa: ASYNC110 - the line has no event
                await asyncio.sleep(0)
        await carrier.sender("second")
        await carrier.sender("third")
        assert link.over is None and not sending.done()
        assert {key[0] for key in carrier._senders.links} == {"waiting", "third"}
        sending.cancel()
        await asyncio.wait([sending])
