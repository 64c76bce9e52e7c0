"""Receiving and settling, against a peer that can be told to misbehave."""

from __future__ import annotations

import asyncio

import pytest

from pairbus.amqp.message import Message
from pairbus.amqp.performatives import Error, Rejected
from pairbus.transport import ConnectionLost, ReceivedMessage, Receiver, Refused, Timeout, connect
from pairbus.transport.links.settlement import DEFERRED
from tests.transport.server import Script, Server

LOCK_LOST = Rejected(error=Error("com.microsoft:message-lock-lost", "too late"))


def payloads(count: int) -> list[bytes]:
    return [Message(data=[b"%d" % i]).encode() for i in range(count)]


async def take(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    """Exactly so many messages; TimeoutError when they do not come."""
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(10):
        while len(messages) < count:
            messages += await receiver.receive(count - len(messages), timeout_s=5)
    return messages


async def test_receive_returns_as_soon_as_one_message_is_there() -> None:
    """A long poll: no waiting for the batch to fill, no busy asking."""
    async with Server() as server, await connect(server.connection_string) as connection:
        receiver = await connection.receiver("q")
        waiting = asyncio.create_task(receiver.receive(100, timeout_s=30))
        await server.until(
            lambda: any(link.credit for peer in server.peers for link in peer.out if link.context == "q")
        )
        server.put("q", *payloads(1))
        async with asyncio.timeout(10):
            (message,) = await waiting
        assert message.payload == payloads(1)[0]
        assert message.lock_token.bytes_le == message.tag


async def test_receive_is_empty_when_the_time_is_over() -> None:
    """An empty queue is no error."""
    async with Server() as server, await connect(server.connection_string) as connection:
        receiver = await connection.receiver("q")
        assert await receiver.receive(10, timeout_s=0.02) == []
        server.put("q", *payloads(1))
        assert len(await receiver.receive(10, timeout_s=5)) == 1


async def test_unread_messages_never_exceed_the_credit() -> None:
    """Memory is bounded by the credit granted, with any length of the queue and any speed of its reader."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(1000))
        receiver = await connection.receiver("q", credit=10)
        assert len(server.queues["q"]) == 1000, "nothing is asked for before the first receive"
        seen: list[ReceivedMessage] = []
        while len(seen) < 1000:
            seen += await receiver.receive(3, timeout_s=5)
            assert receiver.buffered <= 10
            assert 1000 - len(server.queues["q"]) - len(seen) <= 10
        assert [message.payload for message in seen] == payloads(1000)


async def test_unread_bytes_never_exceed_their_limit() -> None:
    """Messages of 100 KB, while their size is not known and afterwards; the credit by count would take all of them."""
    large = [Message(data=[b"x" * 100_000]).encode() for _ in range(100)]
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *large)
        receiver = await connection.receiver("q", credit=1000)
        receiver.limit_bytes(1 << 20)
        seen = 0
        while seen < 100:
            seen += len(await receiver.receive(1, timeout_s=5))
            assert sum(len(message.payload) for message in receiver.unread()) <= 1 << 20
            assert 100 - len(server.queues["q"]) - seen <= 10
        assert not server.queues["q"]


async def test_credit_is_taken_back_when_messages_grow() -> None:
    """Small messages have opened much credit: of the large ones that follow, only those on their way may still come."""
    small, large = payloads(100), [Message(data=[b"x" * 100_000]).encode() for _ in range(100)]
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *small)
        receiver = await connection.receiver("q", credit=100)
        receiver.limit_bytes(1 << 20)
        assert len(await take(receiver, 100)) == 100
        await receiver.receive(1, timeout_s=0.01)
        (link,) = [link for peer in server.peers for link in peer.out if link.context == "q"]
        assert link.credit == 100
        server.put("q", *large[:1])
        await server.until(lambda: receiver.buffered == 1 and link.credit < 11)
        server.put("q", *large[1:])
        assert len(server.queues["q"]) == 90, "ten messages are as many as a megabyte has room for"


async def test_message_larger_than_the_limit_of_bytes_arrives() -> None:
    """Alone: otherwise it would block its queue for ever."""
    large = [Message(data=[b"x" * 100_000]).encode() for _ in range(3)]
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *large)
        receiver = await connection.receiver("q", credit=10)
        receiver.limit_bytes(50_000)
        for left in (2, 1, 0):
            assert len(await receiver.receive(10, timeout_s=5)) == 1
            assert len(server.queues["q"]) == left or receiver.buffered <= 1


async def test_first_call_gets_all_that_it_asked_for_when_messages_are_small() -> None:
    """Its credit is given before sizes are known, and grows with the drain."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(1000))
        receiver = await connection.receiver("q", credit=0)
        receiver.limit_bytes(8 << 20)
        assert len(await receiver.take(1000, 5, 5)) == 1000


async def test_pause_takes_the_credit_back() -> None:
    """After it nothing is locked for a receiver that does not look; the next receive opens the credit again."""
    async with Server() as server, await connect(server.connection_string) as connection:
        receiver = await connection.receiver("q", credit=10)
        await receiver.receive(1, timeout_s=0.01)
        await receiver.pause()
        server.put("q", *payloads(3))
        assert len(server.queues["q"]) == 3
        assert len(await take(receiver, 3)) == 3


async def test_a_drain_that_is_not_answered_times_out() -> None:
    """Some brokers never answer a drain."""
    async with Server(Script(answers_drain=False)) as server, await connect(server.connection_string) as connection:
        receiver = await connection.receiver("q", timeout_s=0.5)
        await receiver.receive(1, timeout_s=0.01)
        with pytest.raises(Timeout):
            await receiver.pause(timeout_s=0.02)
        waiting = asyncio.create_task(receiver.receive(1, timeout_s=5))
        await asyncio.sleep(0)  # the task has begun and waits
        server.script.answers_drain = True
        server.put("other")
        await server.until(
            lambda: any(link.credit for peer in server.peers for link in peer.out if link.context == "q")
        )
        server.put("q", *payloads(1))
        assert len(await waiting) == 1, "the late answer to the drain does not leave the receiver without credit"


async def test_a_batch_is_settled_as_one_range() -> None:
    """One frame and one answer settle a hundred messages."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(100))
        receiver = await connection.receiver("q")
        messages = await take(receiver, 100)
        await receiver.complete(messages)
        assert server.settlements == [(0, 99, "accepted", False)]


async def test_gaps_split_the_settlement_into_ranges() -> None:
    """Deliveries that were not named are not settled."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(6))
        receiver = await connection.receiver("q")
        messages = await take(receiver, 6)
        await receiver.complete([messages[5], messages[0], messages[1]])
        await receiver.complete(range(2, 4))
        assert server.settlements == [(0, 1, "accepted", False), (5, 5, "accepted", False), (2, 3, "accepted", False)]


async def test_what_tasks_complete_in_one_turn_of_the_loop_leaves_together() -> None:
    """The messages of many destinations lie between each other in a queue, and go home at the same time."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(6))
        receiver = await connection.receiver("q")
        messages = await take(receiver, 6)
        await asyncio.gather(*[receiver.complete(messages[first::3]) for first in range(3)])
        assert server.settlements == [(0, 5, "accepted", False)]


async def test_other_settlements_of_one_turn_leave_together_too() -> None:
    """Each outcome by itself, in the order in which the outcomes were first asked for."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(6))
        receiver = await connection.receiver("q")
        messages = await take(receiver, 6)
        asked = [receiver.release, receiver.abandon, receiver.release, receiver.abandon, receiver.release]
        await asyncio.gather(*(settle([messages[n]]) for n, settle in zip((0, 3, 1, 4, 2), asked, strict=True)))
        assert server.settlements == [(0, 2, "released", False), (3, 4, "modified", False)]


async def test_completion_is_not_sent_after_its_link_ended() -> None:
    """Delivery ids of the completion mean nothing on a link that is over."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(1))
        receiver = await connection.receiver("q")
        messages = await take(receiver, 1)
        task = asyncio.create_task(receiver.complete(messages))
        await asyncio.sleep(0)  # the task has begun, and its request has not been sent yet
        receiver.on_over(ConnectionLost("gone"))
        with pytest.raises(ConnectionLost):
            await task
        assert server.settlements == []


async def test_every_outcome_is_told_and_its_answer_understood() -> None:
    """An answer repeats the kind of outcome; a dead-lettering that worked is answered by rejected without an error."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(6))
        receiver = await connection.receiver("q")
        messages = await take(receiver, 6)
        await receiver.complete(messages[:1])
        await receiver.abandon(messages[1:2])
        await receiver.defer(messages[2:3])
        await receiver.dead_letter(messages[3:4], "reason", "description")
        await receiver.release(messages[4:5])
        receiver.settle_nowait(messages[5:])
        await receiver.complete([])
        await server.until(lambda: len(server.settlements) >= 6)
        assert [(name, settled) for _, _, name, settled in server.settlements] == [
            ("accepted", False),
            ("modified", False),
            ("modified", False),
            ("rejected", False),
            ("released", False),
            ("accepted", True),
        ]


async def test_a_refused_settlement_names_condition_and_deliveries() -> None:
    """A lost lock means that another receiver may have the message: the caller must know which."""
    async with Server(Script(settlement=LOCK_LOST)) as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(2))
        receiver = await connection.receiver("q")
        messages = await take(receiver, 2)
        with pytest.raises(Refused) as caught:
            await receiver.complete(messages)
        assert caught.value.condition == "com.microsoft:message-lock-lost"
        assert caught.value.delivery_ids == (0, 1)


@pytest.mark.parametrize("condition", ["com.microsoft:timeout", "com.microsoft:message-lock-lost"])
async def test_only_the_services_own_time_out_leaves_a_settlement_open(condition: str) -> None:
    """The service stopped waiting for its storage: the message may be gone, or come again."""
    script = Script(settlement=Rejected(error=Error(condition, "as told")))
    async with Server(script) as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(2))
        receiver = await connection.receiver("q")
        with pytest.raises(Refused) as caught:
            await receiver.complete(await take(receiver, 2))
        assert caught.value.outcome_unknown == (condition == "com.microsoft:timeout")
        assert caught.value.delivery_ids == (0, 1)


async def test_a_settlement_that_is_not_answered_times_out_with_the_outcome_unknown() -> None:
    """The message may be gone or come again. Asked again, the peer may answer."""
    async with Server(Script(settlement=None)) as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(1))
        receiver = await connection.receiver("q")
        messages = await receiver.receive(1, timeout_s=5)
        with pytest.raises(Timeout) as caught:
            await receiver.complete(messages, timeout_s=0.02)
        assert caught.value.outcome_unknown
        assert receiver._settlements._pending == {}


async def test_each_settlement_ends_at_its_own_deadline() -> None:
    """One timer serves all settlements of a link: a short one is not late behind a long one."""
    async with Server(Script(settlement=None)) as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(3))
        receiver = await connection.receiver("q")
        long, *short = await take(receiver, 3)
        waiting = asyncio.create_task(receiver.complete([long], timeout_s=60))
        for message in short:
            async with asyncio.timeout(10):
                with pytest.raises(Timeout):
                    await receiver.complete([message], timeout_s=0.02)
        assert not waiting.done()
        server.cut()
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionLost):
                await waiting


async def test_settlement_of_a_caller_who_left_is_not_sent_and_may_be_repeated() -> None:
    """A call may be cancelled before the end of its turn; what the message becomes is then for the next call."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(1))
        receiver = await connection.receiver("q")
        messages = await take(receiver, 1)
        receiver.settle_soon(messages, DEFERRED, 5.0).cancel()
        async with asyncio.timeout(10):
            await receiver.complete(messages)
        assert [outcome for _, _, outcome, _ in server.settlements] == ["accepted"]


async def test_a_delivery_cannot_be_settled_twice_at_once() -> None:
    """Two answers for one id could not be told apart."""
    async with Server(Script(settlement=None)) as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(1))
        receiver = await connection.receiver("q")
        messages = await receiver.receive(1, timeout_s=5)
        with pytest.raises(ValueError, match="twice"):
            await receiver.complete(messages * 2)


async def test_receive_and_delete_messages_need_no_settlement() -> None:
    """The messages are gone from the queue when they are sent."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(1))
        receiver = await connection.receiver("q", mode="receive-and-delete")
        messages = await receiver.receive(1, timeout_s=5)
        assert messages[0].settled
        with pytest.raises(ValueError, match="settled already"):
            await receiver.complete(messages)


async def test_loss_wakes_receives_and_settlements_at_once() -> None:
    """Locks go with the connection, so unread messages are not handed out any more."""
    async with Server(Script(settlement=None)) as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(3))
        receiver, idle = await connection.receiver("q"), await connection.receiver("empty")
        messages = await receiver.receive(1, timeout_s=5)
        waiting = [asyncio.create_task(idle.receive(1, 60)), asyncio.create_task(receiver.complete(messages))]
        await server.until(lambda: server.settlements)
        server.cut()
        async with asyncio.timeout(10):
            received, settled = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(received, ConnectionLost)
        assert isinstance(settled, ConnectionLost)
        assert settled.outcome_unknown
        with pytest.raises(ConnectionLost):
            await receiver.receive(10, timeout_s=1)


async def test_loss_does_not_lose_deleted_messages_that_had_arrived() -> None:
    """In receive-and-delete mode the buffer is the only place where they still are."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(5))
        receiver = await connection.receiver("q", mode="receive-and-delete")
        first = await receiver.receive(1, timeout_s=5)
        server.cut()
        await asyncio.wait([connection._wire.ended], timeout=5)
        rest = await receiver.receive(10, timeout_s=1)
        assert [message.payload for message in first + rest] == payloads(5)
        with pytest.raises(ConnectionLost):
            await receiver.receive(10, timeout_s=1)


async def test_closing_gives_unread_messages_back() -> None:
    """Otherwise they would stay locked, and counted as delivered, until their locks expire."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q", *payloads(5))
        receiver = await connection.receiver("q")
        await receiver.receive(1, timeout_s=5)
        await receiver.close()
        assert (1, 4, "released", False) in server.settlements


async def test_the_dead_letter_queue_has_its_own_address_and_audience() -> None:
    """A token for the queue does not reach its sub-queue at every peer, so the sub-queue gets its own."""
    async with Server() as server, await connect(server.connection_string) as connection:
        server.put("q/$DeadLetterQueue", *payloads(1))
        receiver = await connection.receiver("q", sub_queue="dead-letter")
        assert len(await receiver.receive(1, timeout_s=5)) == 1
        assert server.tokens[0][0].endswith("/q/$DeadLetterQueue")
