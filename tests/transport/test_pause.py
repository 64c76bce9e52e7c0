"""Taking credit back while messages are on their way."""

from __future__ import annotations

from pairbus.transport import connect
from tests.brokers import BrokerProcess
from tests.transport.test_with_broker import encoded


async def test_a_pause_ends_when_messages_have_used_all_of_the_credit(broker: BrokerProcess, queue_name: str) -> None:
    """The queue has more than was asked for: there is no credit left to give back, and the broker says nothing."""
    async with await connect(broker.connection_string()) as connection:
        sender = await connection.sender(queue_name)
        await sender.send_batch([encoded(number) for number in range(20)])
        receiver = await connection.receiver(queue_name, credit=5)
        got = await receiver.receive(5, timeout_s=5)
        await receiver.pause(timeout_s=5)
        assert len(got) + receiver.buffered <= 10
        await receiver.close()
