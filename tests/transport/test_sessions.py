"""Receivers of sessions: named, the next available one, none in time; against the real broker."""

from __future__ import annotations

import time

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.transport import SESSION_TIMEOUT, Carrier, NextSession, ReceivedMessage, Refused, connect
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue


def encoded(session_id: str, number: int) -> bytes:
    properties = Properties(message_id=f"{session_id}-{number}", group_id=session_id)
    return Message(properties=properties, data=[b"%d" % number]).encode()


async def test_each_receiver_has_the_messages_of_its_session_alone(
    broker: BrokerProcess, make_queue: MakeQueue
) -> None:
    """By its name, or the next one that nobody has; the receiver knows which, and its messages are settled as usual."""
    queue = make_queue(requires_session=True)
    async with await connect(broker.connection_string()) as connection:
        sender = await connection.sender(queue)
        for number in range(3):
            for session_id in ("größe", "b"):
                await sender.send(encoded(session_id, number))
        named = await connection.receiver(queue, session="größe")
        other = await connection.receiver(queue, session=NextSession())
        assert (named.session_id, other.session_id) == ("größe", "b")
        for receiver in (named, other):
            messages: list[ReceivedMessage] = []
            while len(messages) < 3:
                messages += await receiver.receive(3, timeout_s=5)
            assert [Message.decode(message.payload).data for message in messages] == [[b"0"], [b"1"], [b"2"]]
            await receiver.complete(messages)
            await receiver.close()
        assert await (await connection.management(queue)).peek(1, 10) == []


async def test_no_session_in_time_is_a_refusal_that_says_so(broker: BrokerProcess, make_queue: MakeQueue) -> None:
    """The wait for a session is longer than the silence after which a peer counts as dead, and ends as asked for."""
    queue = make_queue(requires_session=True)
    async with await connect(broker.connection_string(), silence_s=2.0) as connection:
        began = time.monotonic()
        with pytest.raises(Refused) as refused:
            await connection.receiver(queue, session=NextSession(wait_s=3.0))
        assert refused.value.condition == SESSION_TIMEOUT
        assert 2.9 < time.monotonic() - began < 10
        assert (await connection.receiver(queue, session="empty")).session_id == "empty", (
            "the connection can still be used"
        )


async def test_a_session_that_somebody_has_is_refused_until_released(
    broker: BrokerProcess, make_queue: MakeQueue
) -> None:
    """Closing a receiver gives its session back at once."""
    queue = make_queue(requires_session=True)
    async with Carrier(broker.connection_string()) as carrier:
        first = await carrier.receiver(queue, session="a")
        with pytest.raises(Refused) as refused:
            await carrier.receiver(queue, session="a")
        assert refused.value.condition == "com.microsoft:session-cannot-be-locked"
        await first.close()
        second = await carrier.receiver(queue, session="a")
        assert (first.session_id, second.session_id) == ("a", "a")


async def test_a_receiver_without_a_session_has_no_session_id(broker: BrokerProcess, queue_name: str) -> None:
    """An entity with sessions refuses such a receiver."""
    async with await connect(broker.connection_string()) as connection:
        assert (await connection.receiver(queue_name)).session_id is None
