"""The sender against a broker that others wrote: RabbitMQ's AMQP 1.0, on a private node, where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tools import rabbitmq

from pairbus.amqp.message import Message, Properties
from pairbus.transport import Carrier, Endpoint, Plain, Refused, TransportError, connect

NOT_HERE = rabbitmq.available()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(NOT_HERE is not None, reason=NOT_HERE or "")]


QUEUES = ["single", "large", "pipelined", "closed"]
"Declared at once: each call of rabbitmqctl takes seconds."


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rabbitmq.RabbitMQ]:
    with rabbitmq.RabbitMQ(tmp_path_factory.mktemp("rabbitmq"), durable=False) as node:
        node.declare(QUEUES)
        yield node


@pytest.fixture
async def carrier(node: rabbitmq.RabbitMQ) -> AsyncIterator[Carrier]:
    async with Carrier(Endpoint(node.host, node.port, tls=False), credential=Plain("guest", "guest")) as carrier:
        yield carrier


def numbered(number: int) -> bytes:
    return Message(
        properties=Properties(message_id=str(number)),
        application_properties={"number": number},
        data=[b"%d" % number],
    ).encode()


async def stored(node: rabbitmq.RabbitMQ, queue: str, count: int | None) -> list[Message]:
    """Take so many messages from the queue, or all of them, by a connection of its own."""
    endpoint = Endpoint(node.host, node.port, tls=False)
    async with await connect(endpoint, credential=Plain("guest", "guest")) as connection:
        receiver = await connection.receiver(queue)
        found: list[Message] = []
        while count is None or len(found) < count:
            batch = await receiver.receive(500 if count is None else count - len(found), timeout_s=10 if count else 2)
            if not batch:
                assert count is None, f"{len(found)} of {count} messages were in the queue"
                break
            found += [Message.decode(message.payload) for message in batch]
            await receiver.complete(batch)
        return found


async def test_rabbitmq_accepts_a_message(node: rabbitmq.RabbitMQ, carrier: Carrier) -> None:
    """Body, properties and application properties arrive as they were sent."""
    queue = node.address("single")
    await carrier.send(queue, numbered(7))
    [message] = await stored(node, queue, 1)
    assert message.data == [b"7"]
    assert message.properties is not None and message.properties.message_id == "7"
    assert message.application_properties == {"number": 7}


async def test_rabbitmq_puts_a_message_of_many_frames_together(node: rabbitmq.RabbitMQ, carrier: Carrier) -> None:
    """Small messages of another caller go between its frames, on a spare link."""
    queue = node.address("large")
    body = bytes(range(256)) * 20_000  # 5 MB
    large = asyncio.create_task(carrier.send(queue, Message(data=[body]).encode(), by="archive"))
    await asyncio.sleep(0)
    await asyncio.gather(*(carrier.send(queue, numbered(number), by="orders") for number in range(20)))
    await large
    found = {b"".join(message.data) for message in await stored(node, queue, 21)}
    assert found == {body} | {b"%d" % number for number in range(20)}


async def test_rabbitmq_takes_a_thousand_pipelined_sends_in_order(node: rabbitmq.RabbitMQ, carrier: Carrier) -> None:
    """RabbitMQ's credit is less than a thousand: the others stand in line."""
    queue = node.address("pipelined")
    await asyncio.gather(*(carrier.send(queue, numbered(number)) for number in range(1000)))
    assert [int(message.data[0]) for message in await stored(node, queue, 1000)] == list(range(1000))


async def test_rabbitmq_refuses_an_exchange_that_is_missing(node: rabbitmq.RabbitMQ, carrier: Carrier) -> None:
    """The error names the condition, and nothing was sent. A missing queue is no error before RabbitMQ 4."""
    with pytest.raises(Refused, match="not-found") as caught:
        await carrier.send(node.exchange_address("missing", "key"), numbered(1))
    assert not caught.value.outcome_unknown


async def test_the_carrier_connects_again_after_rabbitmq_closed(node: rabbitmq.RabbitMQ, carrier: Carrier) -> None:
    """Each send that was under way says whether it may be stored, and the next one opens a new connection."""
    queue = node.address("closed")
    await carrier.send(queue, numbered(0))
    first_link = await carrier.sender(queue, 10.0)
    accepted, lost = {0}, dict[int, TransportError]()

    closed = asyncio.Event()

    async def close() -> None:
        await asyncio.to_thread(node.control, "close_all_connections", "a test")
        closed.set()

    async def send_on(first: int) -> None:
        """Send until the connections were closed, which takes rabbitmqctl some seconds."""
        number = first
        while not closed.is_set():
            try:
                await carrier.send(queue, numbered(number))
                accepted.add(number)
            except TransportError as error:
                lost[number] = error
            number += 50
            await asyncio.sleep(0.02)

    await asyncio.gather(close(), *(send_on(number) for number in range(1, 51)))
    await carrier.send(queue, numbered(100_000))
    maybe = {number for number, error in lost.items() if error.outcome_unknown}
    found = {int(message.data[0]) for message in await stored(node, queue, None)}
    print(f"{len(accepted)} accepted, {len(lost)} lost, of which {len(maybe)} may be stored")
    assert first_link.over is not None, "RabbitMQ closed the connection"
    assert accepted | {100_000} <= found <= accepted | maybe | {100_000}
