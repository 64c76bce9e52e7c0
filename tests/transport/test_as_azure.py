"""Peers with Azure's numbers and habits, and with smaller ones: limits that are kept, endings that are told apart."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import pytest

from pairbus.amqp.message import Message
from pairbus.amqp.performatives import Detach, Disposition, End, Error, Flow
from pairbus.amqp.types import Symbol, ULong
from pairbus.pairing.policy import Kind
from pairbus.transport import (
    ConnectionLost,
    Exhausted,
    NotReady,
    Refused,
    Timeout,
    TransportError,
    connect,
)
from pairbus.transport.errors import failure_of
from tests.transport.server import Script, Server
from tests.transport.silences import HEARD, SILENT

PAYLOAD = Message(data=[b"hello"]).encode()
FORCED = Error("amqp:connection:forced", "The connection was inactive for more than the allowed 60000 milliseconds.")
BUSY = Error("com.microsoft:server-busy", "come back later")


@pytest.mark.parametrize(("frame_size", "window", "credit"), [(512, 8192, 1000), (65_536, 1, 1000), (512, 1, 1)])
async def test_small_frames_windows_and_credits_are_respected(frame_size: int, window: int, credit: int) -> None:
    """Every peer must take frames of 512 bytes; what else it grants, it may grant one by one."""
    script = Script(max_frame_size=frame_size, window=window, credit=credit)
    payloads = [Message(data=[bytes([number]) * size]).encode() for number, size in enumerate((1, 400, 441, 3000, 70))]
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender, other = await connection.sender("q", timeout_s=10), await connection.sender("other", timeout_s=10)
        sends = [asyncio.create_task(sender.send(payload, silence_s=5)) for payload in payloads]
        await other.send(payloads[3])
        await asyncio.gather(*sends)
        assert [payload for path, payload, _ in server.received if path == "q"] == payloads


async def test_the_limit_of_a_batch_is_read_from_the_link() -> None:
    """Premium entities take messages of 100 MB, and batches of 1 MB."""
    properties = {Symbol("com.microsoft:max-message-batch-size"): ULong(1 << 20)}
    script = Script(max_message_size=100 << 20, link_properties=properties)
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        assert (sender.max_message_size, sender.max_batch_size) == (100 << 20, 1 << 20)
        server.script.link_properties = None
        assert (await connection.sender("other")).max_batch_size == 0


@pytest.mark.parametrize(("said", "kind"), [(BUSY, Kind.BUSY), (FORCED, Kind.COMMUNICATION)])
async def test_the_condition_of_a_close_is_kept(said: Error, kind: Kind) -> None:
    """A busy namespace is waited for; one that closed an idle connection is connected to again."""
    async with Server(Script(credits={"q": 0})) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        waiting = asyncio.create_task(sender.send(PAYLOAD))
        await asyncio.sleep(0)
        server.peers[0].core.close(said)
        server.flush()
        with pytest.raises(ConnectionLost) as caught:
            await waiting
        assert caught.value.condition == said.condition
        assert not caught.value.outcome_unknown
        assert failure_of(caught.value).kind is kind
        with pytest.raises(ConnectionLost) as again:
            await sender.send(PAYLOAD)
        assert again.value.condition == said.condition


async def test_a_session_that_ends_tells_its_links_why() -> None:
    """Azure ends the session, not the link, over a handle or a window too many."""
    violation = Error("amqp:session:window-violation", "too many transfers")
    async with Server(Script(outcome=None)) as server, await connect(server.connection_string) as connection:
        sender, other = await connection.sender("q"), await connection.sender("other")
        sent = sender.send_nowait(PAYLOAD)
        await server.until(lambda: server.received)
        (link,) = [link for link in server.receivers() if link.context == "q"]
        link.session.end(violation)
        server.flush()
        with pytest.raises(Refused) as caught:
            await sent
        assert (caught.value.condition, caught.value.outcome_unknown) == (violation.condition, True)
        assert failure_of(caught.value).kind is Kind.INTERNAL
        assert other.over is None


async def test_running_out_of_channels_is_not_a_full_entity() -> None:
    """The connection has no room for another link; the entity may be empty, and a second connection has room."""
    async with Server(Script(channel_max=1)) as server, await connect(server.connection_string) as connection:
        await connection.sender("q")  # on the second channel; `$cbs` has the first
        with pytest.raises(Exhausted) as caught:
            await connection.sender("other")
        assert not caught.value.outcome_unknown
        assert failure_of(caught.value).kind is Kind.COMMUNICATION


async def test_a_link_that_was_detached_for_idling_has_sent_nothing() -> None:
    """The sender may attach anew and send within the same call: there is no doubt about the message."""
    idle = Error("amqp:link:detach-forced", "The link was closed by container. IdleTimerExpired: Idle timeout.")
    async with Server() as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        await sender.send(PAYLOAD)
        (link,) = server.receivers()
        link.detach(idle)
        server.flush()
        with pytest.raises(Refused) as caught:
            while True:
                await sender.ready()
                await asyncio.sleep(0)
        assert not caught.value.outcome_unknown
        for attempt in (sender.send(PAYLOAD), sender.send(PAYLOAD, silence_s=1)):
            with pytest.raises(Refused) as again:
                await attempt
            assert (again.value.condition, again.value.outcome_unknown) == (idle.condition, False)
        await (await connection.sender("q")).send(PAYLOAD)
        assert len(server.received) == 2


@pytest.mark.parametrize(
    "late",
    [Disposition(True, 0, settled=True), Flow(0, 8, 0, 8, handle=0, delivery_count=0, link_credit=1), Detach(0), End()],
    ids=["disposition", "flow", "detach", "end"],
)
async def test_a_late_frame_of_an_ended_link_harms_no_other(late: Any) -> None:
    """The session of a closed sender is gone at both ends when the frame comes; the connection goes on."""
    async with Server() as server, await connect(server.connection_string) as connection:
        gone, other = await connection.sender("gone"), await connection.sender("other")
        await gone.send(PAYLOAD)
        peer = server.peers[0]
        (link,) = [link for link in server.receivers() if link.context == "gone"]
        await gone.close()
        peer.core.send_performative(link.session.channel, late)
        server.flush()
        await other.send(PAYLOAD)
        assert connection.loss is None


async def test_closing_a_receiver_waits_until_its_messages_are_back() -> None:
    """The release and the detach have one answer each: who hears of the close finds the messages in the queue."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *[PAYLOAD] * 5)
        receiver = await connection.receiver("q", credit=5)
        await receiver.receive(1, timeout_s=5)
        await server.until(lambda: not server.queues["q"])
        while receiver.buffered < 4:  # noqa: ASYNC110 - a change of the buffer sets no event
            await asyncio.sleep(0)
        await receiver.close()
        assert server.settlements == [(1, 4, "released", False)]
        server.script.settlement = None
        server.put("q", PAYLOAD)
        silent = await connection.receiver("q", credit=1)
        await silent.receive(0, timeout_s=5)
        async with asyncio.timeout(10):
            await silent.close(timeout_s=0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other options")
async def test_sockets_notice_a_peer_that_is_gone() -> None:
    """Without these a connection that a router has forgotten looks good until the heartbeat is missed twice."""
    async with Server() as server, await connect(server.connection_string) as connection:
        sock = connection._wire.progress._socket
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


KINDS: list[tuple[TransportError, Kind]] = [
    (ConnectionLost("broken"), Kind.COMMUNICATION),
    (ConnectionLost("closed", condition="amqp:not-found"), Kind.COMMUNICATION),
    (ConnectionLost("closed", condition="com.microsoft:server-busy"), Kind.BUSY),
    (Timeout("late", HEARD), Kind.TIMEOUT),
    (Timeout("silent", SILENT), Kind.TIMEOUT),
    (Exhausted("no channel"), Kind.COMMUNICATION),
    (NotReady("no credit"), Kind.COMMUNICATION),
    (Refused("amqp:link:detach-forced", "idle"), Kind.COMMUNICATION),
    (Refused("amqp:connection:forced"), Kind.COMMUNICATION),
    (Refused("com.microsoft:server-busy"), Kind.BUSY),
    (Refused("amqp:unauthorized-access"), Kind.UNAUTHORIZED),
    (Refused("amqp:not-found"), Kind.NOT_FOUND),
    (Refused("com.microsoft:entity-disabled"), Kind.DISABLED),
    (Refused("amqp:resource-limit-exceeded"), Kind.FULL),
    (Refused("amqp:link:message-size-exceeded"), Kind.TOO_LARGE),
    (Refused("com.microsoft:argument-error"), Kind.INVALID),
    (Refused("amqp:session:window-violation"), Kind.INTERNAL),
    (Refused("amqp:internal-error"), Kind.INTERNAL),
]


@pytest.mark.parametrize(("error", "kind"), KINDS, ids=lambda value: str(value))
def test_every_error_has_its_kind(error: TransportError, kind: Kind) -> None:
    """The table of the pairing core decides by kinds alone; doubt about the outcome is passed on."""
    failure = failure_of(error.again(outcome_unknown=True))
    assert (failure.kind, failure.outcome_unknown) == (kind, True)


def test_a_close_is_remembered_by_every_waiter() -> None:
    """Copies for other waiters carry the condition too."""
    lost = ConnectionLost("closed", condition="x").again(outcome_unknown=True)
    assert (lost.condition, lost.outcome_unknown) == ("x", True)
