"""Sending, against a peer that can be told to misbehave."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.amqp.message import BATCH_FORMAT, Message
from pairbus.amqp.performatives import Error, Rejected, Released
from pairbus.transport import ConnectionLost, NotReady, Refused, Timeout, connect
from pairbus.transport.connection.wire import UNFLUSHED_MAX
from tests.transport.server import Script, Server

PAYLOAD = Message(data=[b"hello"]).encode()
BUSY = Error("com.microsoft:server-busy", "come back later")


async def test_a_send_returns_when_the_peer_has_accepted() -> None:
    """The return is the promise that the message is the peer's now; its bytes arrive unaltered."""
    async with Server() as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        await sender.send(PAYLOAD)
        assert server.received == [("q", PAYLOAD, 0)]
        assert sender.in_flight == 0


async def test_five_hundred_sends_are_under_way_at_once_and_all_are_answered() -> None:
    """The round trip is paid once for many messages; that is where the rate comes from."""
    async with Server(Script(credit=2000)) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        await sender.ready()
        futures = [sender.send_nowait(b"\x00\x53\x77\x54%c" % (i % 100)) for i in range(500)]
        assert sender.in_flight == 500
        await asyncio.gather(*futures)
        assert [payload for _, payload, _ in server.received] == [b"\x00\x53\x77\x54%c" % (i % 100) for i in range(500)]


async def test_a_turn_that_sends_much_writes_before_its_end() -> None:
    """The peer works while the rest is encoded. Little is written once: many small writes would cost both ends more."""
    async with Server() as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        await sender.ready()
        progress = sender._wire.progress
        before, size = progress.written, 4096
        futures = [sender.send_nowait(bytes(size)) for _ in range(UNFLUSHED_MAX // size)]
        assert progress.written == before
        futures.append(sender.send_nowait(bytes(size)))
        assert UNFLUSHED_MAX < progress.written - before < UNFLUSHED_MAX + 2 * size
        await asyncio.gather(*futures)
        assert len(server.received) == len(futures)


async def test_many_tasks_share_a_sender_and_little_credit() -> None:
    """Every waiter is woken in its turn, however few may send at once."""
    async with Server(Script(credit=3)) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q", timeout_s=5)
        await asyncio.gather(*(sender.send(PAYLOAD) for _ in range(300)))
        assert len(server.received) == 300


async def test_a_message_larger_than_a_frame_and_the_window_arrives_whole() -> None:
    """Frames of one message wait for the session window without the caller's knowing."""
    script = Script(max_frame_size=1024, window=4)
    big = Message(data=[bytes(range(256)) * 400]).encode()
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q", timeout_s=5)
        await asyncio.gather(*(sender.send(big) for _ in range(3)))
        assert [payload for _, payload, _ in server.received] == [big] * 3


async def test_a_batch_is_one_message_of_the_batch_format() -> None:
    """The peer accepts the whole batch or none of it."""
    async with Server() as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        await sender.send_batch([PAYLOAD, PAYLOAD])
        ((_, payload, message_format),) = server.received
        assert message_format == BATCH_FORMAT
        assert Message.decode(payload).data == [PAYLOAD, PAYLOAD]


@pytest.mark.parametrize(
    ("outcome", "condition"),
    [(Rejected(error=BUSY), BUSY.condition), (Rejected(), "amqp:rejected"), (Released(), "amqp:released")],
)
async def test_rejected_message_raises_the_peers_reason(outcome: Rejected | Released, condition: str) -> None:
    """The outcome is known: the message is not there and may be sent elsewhere."""
    async with Server(Script(outcome=outcome)) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        with pytest.raises(Refused) as caught:
            await sender.send(PAYLOAD)
        assert caught.value.condition == condition
        assert not caught.value.outcome_unknown
        server.script.outcome = Script().outcome
        await sender.send(PAYLOAD)


async def test_message_refused_by_the_services_own_time_out_may_be_stored() -> None:
    """The service says that it stopped waiting for its storage, not that the message was not stored."""
    outcome = Rejected(error=Error("com.microsoft:timeout", "the operation did not complete in time"))
    async with Server(Script(outcome=outcome)) as server, await connect(server.connection_string) as connection:
        with pytest.raises(Refused, match="did not complete") as caught:
            await (await connection.sender("q")).send(PAYLOAD)
        assert caught.value.outcome_unknown


async def test_without_credit_a_send_times_out_with_nothing_sent() -> None:
    """A peer that shuts the credit has not seen the message, so sending it elsewhere makes no duplicate."""
    async with Server(Script(credit=0)) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        with pytest.raises(Timeout) as caught:
            await sender.send(PAYLOAD, timeout_s=0.05)
        assert not caught.value.outcome_unknown
        with pytest.raises(NotReady):
            sender.send_nowait(PAYLOAD)
        assert server.received == []
        (link,) = server.receivers()
        link.keep_credit(1)
        server.flush()
        await sender.send(PAYLOAD, timeout_s=5)


async def test_a_send_that_is_not_answered_times_out_with_the_outcome_unknown() -> None:
    """The message may be there or not: only the caller knows whether a repetition is harmless."""
    async with Server(Script(outcome=None)) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        sender.timeout_s = 0.05
        waiting = sender.send_nowait(PAYLOAD)
        patient = asyncio.create_task(sender.send(PAYLOAD, timeout_s=30))
        with pytest.raises(Timeout) as caught:
            await sender.send(PAYLOAD, timeout_s=0.03)
        assert caught.value.outcome_unknown
        with pytest.raises(Timeout):
            await waiting
        assert sender.in_flight == 1, "the patient send still waits"
        assert not patient.done()
        patient.cancel()


async def test_a_late_answer_to_a_send_that_was_given_up_is_ignored() -> None:
    """A time-out or a cancellation leaves no state behind that the late answer could disturb."""
    async with Server(Script(outcome=None)) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q", timeout_s=5)
        with pytest.raises(Timeout):
            await sender.send(PAYLOAD, timeout_s=0.02)
        cancelled = asyncio.create_task(sender.send(PAYLOAD))
        await server.until(lambda: len(server.received) >= 2)
        cancelled.cancel()
        (link,) = server.receivers()
        link.settle(0, 1, Script().outcome.encode(), 2)
        server.flush()
        server.script.outcome = Script().outcome
        await sender.send(PAYLOAD)
        assert sender.in_flight == 0
        assert sender._session.sent_unsettled == 0


async def test_loss_of_the_connection_wakes_every_send_at_once() -> None:
    """Sends in flight have an unknown outcome; those still waiting for credit were certainly not sent."""
    async with Server(Script(outcome=None, credit=0)) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        sends = [asyncio.create_task(sender.send(PAYLOAD, timeout_s=60)) for _ in range(5)]
        (link,) = server.receivers()
        link.grant(2)
        server.flush()
        await server.until(lambda: len(server.received) >= 2)
        server.cut()
        async with asyncio.timeout(10):
            errors = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(error) for error in errors] == [ConnectionLost] * 5
        unknown = sum(error.outcome_unknown for error in errors if isinstance(error, ConnectionLost))
        assert unknown == 2
        for attempt in (sender.send(PAYLOAD), sender.ready(), connection.sender("q"), connection.management("q")):
            with pytest.raises(ConnectionLost):
                await attempt
        with pytest.raises(ConnectionLost):
            sender.send_nowait(PAYLOAD)


async def test_a_link_that_the_peer_detaches_says_why() -> None:
    """The other links of the connection go on."""
    async with Server(Script(outcome=None)) as server, await connect(server.connection_string) as connection:
        sender, other = await connection.sender("q"), await connection.sender("other")
        waiting = sender.send_nowait(PAYLOAD)
        await server.until(lambda: server.received)
        (link,) = [link for link in server.receivers() if link.context == "q"]
        link.detach(BUSY)
        server.flush()
        with pytest.raises(Refused) as caught:
            await waiting
        assert caught.value.condition == BUSY.condition
        assert caught.value.outcome_unknown
        with pytest.raises(Refused) as again:
            await sender.send(PAYLOAD)
        assert not again.value.outcome_unknown
        server.script.outcome = Script().outcome
        await other.send(PAYLOAD)


async def test_a_message_beyond_the_peers_limit_is_refused_here() -> None:
    """The peer would answer by dropping the link, and all that is in flight with it."""
    script = Script(max_message_size=1000)
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        with pytest.raises(Refused, match="message-size-exceeded"):
            await sender.send(bytes(1001))
        assert server.received == []


async def test_a_peer_that_stops_reading_stops_the_sender() -> None:
    """Bytes that the socket does not take must not gather in memory: `ready` waits for the socket too."""
    script = Script(credit=100_000)
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q", timeout_s=10)
        await sender.ready()
        server.peers[0].transport.pause_reading()
        payload, futures = Message(data=[bytes(60_000)]).encode(), []
        while sender.sendable:
            futures.append(sender.send_nowait(payload))
            await asyncio.sleep(0)
        assert len(futures) < 1000, "60 MB were taken by a socket that nobody reads"
        with pytest.raises(Timeout):
            await sender.ready(0.02)
        server.peers[0].transport.resume_reading()
        await asyncio.gather(*futures)
