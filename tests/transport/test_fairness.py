"""One connection carries many senders: none of them waits for another's large message, and none overtakes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pairbus.amqp.message import Message
from pairbus.amqp.performatives import Error
from pairbus.broker.wire import certificate
from pairbus.transport import Carrier, Refused, Timeout, connect
from tests.limits import slowness
from tests.transport.server import Script, Server

SMALL = Message(data=[bytes(1000)]).encode()


def numbered(number: int) -> bytes:
    return Message(data=[b"%d" % number]).encode()


def numbers(server: Server) -> list[int]:
    return [int(Message.decode(payload).data[0]) for _, payload, _ in server.received]


async def test_small_sends_pass_a_large_one_on_a_thin_line() -> None:
    """Frames of the large message go out one by one, as the socket takes them: sends of others come between."""
    script = Script(rate=1e6)
    large = Message(data=[bytes(2_000_000)]).encode()
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender, other = await connection.sender("large"), await connection.sender("small")
        upload = asyncio.create_task(sender.send(large, timeout_s=60, silence_s=1))
        took: list[float] = []
        while not upload.done():
            began = time.perf_counter()
            await other.send(SMALL, timeout_s=30, silence_s=1)
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
        await upload
        assert [payload for path, payload, _ in server.received if path == "large"] == [large]
        assert len(took) > 5
        assert sorted(took)[int(len(took) * 0.99)] < 0.5 * slowness()


async def test_large_messages_of_two_senders_share_the_line() -> None:
    """The second is through long before it would be, had it waited for the first."""
    script = Script(rate=2e6)
    large, medium = Message(data=[bytes(1_500_000)]).encode(), Message(data=[bytes(300_000)]).encode()
    async with Server(script) as server, await connect(server.connection_string) as connection:
        one, two = await connection.sender("one"), await connection.sender("two")
        first = asyncio.create_task(one.send(large, timeout_s=60))
        await asyncio.sleep(0)
        await two.send(medium, timeout_s=60)
        assert not first.done()
        await first
        assert [path for path, _, _ in server.received] == ["two", "one"]


async def test_sends_leave_in_the_order_in_which_they_were_begun() -> None:
    """A new send does not take the credit of those that have waited, whenever the credit comes."""
    script = Script(credits={"q": 0})
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        sends = [asyncio.create_task(sender.send(numbered(number))) for number in range(10)]
        await asyncio.sleep(0)
        (link,) = server.receivers()
        for number in range(10, 30):
            link.grant(1)
            server.flush()
            seen = len(server.received)
            await server.until(lambda seen=seen: len(server.received) > seen)  # type: ignore[misc]
            sends.append(asyncio.create_task(sender.send(numbered(number))))
        link.grant(100)
        server.flush()
        await asyncio.gather(*sends)
        assert numbers(server) == list(range(30))


async def test_a_send_that_is_given_up_gives_up_its_place() -> None:
    """Sends behind it go on with the credit that it would have taken; nothing of it is sent."""
    async with Server(Script(credits={"q": 0})) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        sends = [asyncio.create_task(sender.send(numbered(number))) for number in range(4)]
        late = asyncio.create_task(sender.send(numbered(4), timeout_s=0.02))
        with pytest.raises(Timeout) as caught:
            await late
        assert not caught.value.outcome_unknown
        sends[0].cancel()
        sends[2].cancel()
        await asyncio.sleep(0)
        (link,) = server.receivers()
        link.grant(2)
        server.flush()
        await asyncio.gather(sends[1], sends[3])
        assert numbers(server) == [1, 3]


async def test_whoever_waited_until_ready_goes_before_those_behind() -> None:
    """`ready` has its place in the line too, and `send_nowait` after it is taken."""
    async with Server(Script(credits={"q": 0})) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")

        async def wait_then_send() -> None:
            await sender.ready()
            await sender.send_nowait(numbered(0))

        first = asyncio.create_task(wait_then_send())
        await asyncio.sleep(0)
        second = asyncio.create_task(sender.send(numbered(1)))
        await asyncio.sleep(0)
        (link,) = server.receivers()
        link.grant(1)
        server.flush()
        await first
        link.grant(1)
        server.flush()
        await second
        assert numbers(server) == [0, 1]


async def test_those_who_wait_send_before_a_drain_is_answered() -> None:
    """A drain asks for all messages there are: returning credit while sends wait for it would starve them."""
    async with Server(Script(credits={"q": 0})) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        sends = [asyncio.create_task(sender.send(numbered(number))) for number in range(3)]
        await asyncio.sleep(0)
        (link,) = server.receivers()
        link.grant(2, drain=True)
        server.flush()
        await asyncio.gather(*sends[:2])
        await server.until(lambda: not link.drain)
        assert numbers(server) == [0, 1]
        assert not sends[2].done()
        link.grant(5, drain=True)
        server.flush()
        await sends[2]
        await server.until(lambda: link.credit == 0 and not link.drain)


async def test_a_large_message_that_is_given_up_half_way_is_taken_back() -> None:
    """The abandoned message has a known outcome, and the next one on the link arrives whole."""
    script = Script(window=2, max_frame_size=1024)
    large = Message(data=[bytes(20_000)]).encode()
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        await sender.send(SMALL)
        server.peers[0].transport.pause_reading()
        with pytest.raises(Timeout) as caught:
            await sender.send(large, timeout_s=0.1)
        assert not caught.value.outcome_unknown
        server.peers[0].transport.resume_reading()
        await sender.send(SMALL, timeout_s=5)
        assert [payload for _, payload, _ in server.received] == [SMALL, SMALL]


async def test_link_that_ends_during_a_large_message_sent_nothing() -> None:
    """A peer cannot have taken a message whose last frame was never written."""
    script = Script(window=2, max_frame_size=1024)
    async with Server(script) as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        await sender.send(SMALL)
        (link,) = server.receivers()
        sending = asyncio.create_task(sender.send(Message(data=[bytes(200_000)]).encode()))
        await server.until(lambda: server.peers[0].bytes_read > 20_000)
        link.detach(Error("amqp:link:detach-forced", "The link was idle."))
        server.flush()
        with pytest.raises(Refused) as caught:
            await sending
        assert not caught.value.outcome_unknown


# ── one path, several callers ──

LARGE_MESSAGE = Message(data=[bytes(2_000_000)]).encode()


async def small_sends(carrier: Carrier, upload: asyncio.Task[None], by: object) -> list[float]:
    """Send small messages, one after the other, until the upload is over; how long each took."""
    took: list[float] = []
    while not upload.done():
        began = time.perf_counter()
        await carrier.send("q", SMALL, timeout_s=30, silence_s=1, by=by)
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.01)
    return took


@pytest.mark.parametrize("over", ["tcp", "tls"])
async def test_other_callers_of_a_path_pass_a_large_message(tmp_path: Path, over: str) -> None:
    """Two deliveries on one link cannot be interleaved, so the others take a spare link: also over TLS."""
    context = certificate.server_context(tmp_path) if over == "tls" else None
    trust = certificate.ca_path(tmp_path) if over == "tls" else None
    async with (
        Server(Script(rate=1e6), tls=context) as server,
        Carrier(server.connection_string, ssl=trust, senders_max=8) as carrier,
    ):
        await carrier.send("q", SMALL)
        upload = asyncio.create_task(carrier.send("q", LARGE_MESSAGE, timeout_s=60, silence_s=1, by="archive"))
        await asyncio.sleep(0)
        took = await small_sends(carrier, upload, "orders")
        await upload
        print(f"{over}: {len(took)} small sends, the slowest took {max(took):.3f} s")
        assert len(took) > 4 and sorted(took)[int(len(took) * 0.99)] < 0.5 * slowness()
        assert len(server.peers) == 1, "one connection is enough"
        links = len(carrier._senders.links)
        await carrier.send("q", SMALL, by="orders")
        assert (len(carrier._senders.links), carrier._senders.on_spares) == (links, {})


async def test_a_large_message_that_waits_for_its_link_is_passed_too() -> None:
    """The first sends of a client begin before there is a link; none of another caller queues behind the large one."""
    async with Server(Script(rate=1e6)) as server, Carrier(server.connection_string) as carrier:
        upload = asyncio.create_task(carrier.send("q", LARGE_MESSAGE, timeout_s=60, by="archive"))
        await asyncio.sleep(0)
        small = [asyncio.create_task(carrier.send("q", numbered(number), by="orders")) for number in range(5)]
        await asyncio.gather(*small)
        assert not upload.done()
        assert numbers(server) == list(range(5))
        await upload


async def test_sends_of_one_caller_stay_behind_its_own_large_message() -> None:
    """Order goes before fairness within one caller: nothing of it overtakes."""
    async with Server(Script(rate=4e6)) as server, Carrier(server.connection_string) as carrier:
        await carrier.send("q", SMALL, by="a")
        sends = [asyncio.create_task(carrier.send("q", LARGE_MESSAGE, timeout_s=60, by="a"))]
        await asyncio.sleep(0)
        sends += [asyncio.create_task(carrier.send("q", numbered(number), timeout_s=60, by="a")) for number in range(5)]
        await asyncio.gather(*sends)
        assert server.received[1][1] == LARGE_MESSAGE
        assert [int(Message.decode(payload).data[0]) for _, payload, _ in server.received[2:]] == list(range(5))


async def test_a_caller_keeps_its_order_when_it_changes_the_link() -> None:
    """The caller leaves a spare link, where its sends still wait for credit, only after the last of them has ended."""
    async with Server(Script(rate=4e6, credits={"q": 2})) as server, Carrier(server.connection_string) as carrier:
        await carrier.send("q", SMALL)
        upload = asyncio.create_task(carrier.send("q", LARGE_MESSAGE, timeout_s=60, by="archive"))
        await asyncio.sleep(0)
        sends = [asyncio.create_task(carrier.send("q", numbered(number), timeout_s=60, by="b")) for number in range(6)]
        await upload
        first, spare = server.receivers()
        first.grant(20)
        server.flush()
        await server.until(lambda: len(server.received) == 4)
        sends.append(asyncio.create_task(carrier.send("q", numbered(6), timeout_s=60, by="b")))
        await asyncio.sleep(0.05)
        assert len(server.received) == 4, "the new send waits behind earlier sends of its caller"
        spare.grant(20)
        server.flush()
        await asyncio.gather(*sends)
        sent = [Message.decode(payload).data[0] for _, payload, _ in server.received]
        assert [int(body) for body in sent if len(body) == 1] == list(range(7))
        await carrier.send("q", numbered(7), by="b")
        assert first.delivery_count > 2, "afterwards it is back on the first link"
