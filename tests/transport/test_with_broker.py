"""The client against the real broker: both were written from one specification, and must also work together."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.transport import (
    ClientConnection,
    ConnectionLost,
    Endpoint,
    ReceivedMessage,
    Receiver,
    Refused,
    SasKey,
    Scheduled,
    connect,
)
from tests.brokers import BrokerProcess


def encoded(number: int, **annotations: Any) -> bytes:
    return Message(
        annotations={Symbol(key.replace("_", "-")): value for key, value in annotations.items()} or None,
        properties=Properties(message_id=f"m{number}"),
        data=[b"%d" % number],
    ).encode()


def number_of(payload: bytes) -> int:
    return int(Message.decode(payload).data[0])


async def take(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(20):
        while len(messages) < count:
            messages += await receiver.receive(count - len(messages), timeout_s=5)
    return messages


async def test_pipelined_sends_come_back_in_order_and_ranges_settle_them(
    broker: BrokerProcess, queue_name: str
) -> None:
    """A thousand messages, five hundred in flight, each exactly once."""
    async with await connect(broker.connection_string()) as connection:
        sender = await connection.sender(queue_name)
        futures = []
        for number in range(1000):
            await sender.ready()
            futures.append(sender.send_nowait(encoded(number)))
        await asyncio.gather(*futures)
        receiver = await connection.receiver(queue_name)
        messages = await take(receiver, 1000)
        assert [number_of(message.payload) for message in messages] == list(range(1000))
        await receiver.complete(messages)
        await receiver.pause()
        assert await (await connection.management(queue_name)).peek(1, 10) == []


async def test_every_way_to_settle_does_what_it_says(broker: BrokerProcess, queue_name: str) -> None:
    """The broker's answers are understood, and its queue shows that it did as told."""
    async with await connect(broker.connection_string()) as connection:
        sender = await connection.sender(queue_name)
        await sender.send_batch([encoded(number) for number in range(5)])
        receiver = await connection.receiver(queue_name)
        messages = await take(receiver, 5)
        await receiver.pause()
        assert all(expiry > time.time() * 1000 for expiry in await receiver.renew(messages))
        await receiver.complete(messages[:1])
        await receiver.abandon(messages[1:2])
        await receiver.defer(messages[2:3])
        await receiver.dead_letter(messages[3:4], "why", "because")
        await receiver.release(messages[4:])
        again = await take(receiver, 2)
        assert [number_of(message.payload) for message in again] == [1, 4]
        assert [_delivery_count(message) for message in again] == [1, 0]
        await receiver.complete(again)
        await _check_deferred(connection, queue_name, messages[2])
        dead = await connection.receiver(queue_name, sub_queue="dead-letter", mode="receive-and-delete")
        (letter,) = await take(dead, 1)
        properties = Message.decode(letter.payload).application_properties
        assert properties == {"DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}


def _delivery_count(message: ReceivedMessage) -> int:
    header = Message.decode(message.payload).header
    assert header is not None
    return header.delivery_count or 0


async def _check_deferred(connection: ClientConnection, path: str, message: ReceivedMessage) -> None:
    sequence = (Message.decode(message.payload).annotations or {})["x-opt-sequence-number"]
    management = await connection.management(path)
    (deferred,) = await management.receive_deferred([sequence])
    assert deferred.lock_token is not None
    await management.update_disposition("completed", [deferred.lock_token])
    with pytest.raises(Refused, match="message-not-found"):
        await management.receive_deferred([sequence])


async def test_a_scheduled_message_is_cancelled_by_its_number(broker: BrokerProcess, queue_name: str) -> None:
    """Cancelled once; the second time there is nothing."""
    due = Timestamp(int(time.time() * 1000) + 3_600_000)
    async with await connect(broker.connection_string()) as connection:
        management = await connection.management(queue_name)
        numbers = await management.schedule([Scheduled("m1", encoded(1, x_opt_scheduled_enqueue_time=due))])
        await management.cancel(numbers)
        with pytest.raises(Refused, match="message-not-found"):
            await management.cancel(numbers)


async def test_unknown_entities_and_wrong_keys_are_refused_by_name(broker: BrokerProcess, queue_name: str) -> None:
    """The two refusals are no outage: no failover may start because of them."""
    async with await connect(broker.connection_string()) as connection:
        with pytest.raises(Refused, match="amqp:not-found"):
            await connection.sender("no-such-queue")
    wrong = SasKey("RootManageSharedAccessKey", "wrong")
    async with await connect(broker.connection_string(), credential=wrong) as connection:
        with pytest.raises(Refused, match="unauthorized"):
            await connection.sender(queue_name)


async def test_tls_and_web_sockets_reach_the_same_queue(broker: BrokerProcess, queue_name: str) -> None:
    """Plain AMQP, TLS and web sockets are served on one port."""
    plain = Endpoint.parse(broker.connection_string())
    tls = Endpoint.parse(broker.connection_string().replace(";UseDevelopmentEmulator=true", ""))
    websocket = Endpoint.parse(broker.connection_string(), transport="websocket")
    for number, endpoint in enumerate((plain, tls, websocket)):
        async with await connect(endpoint, ssl=broker.ca_file) as connection:
            await (await connection.sender(queue_name)).send(encoded(number))
    async with await connect(plain) as connection:
        messages = await take(await connection.receiver(queue_name), 3)
        assert [number_of(message.payload) for message in messages] == [0, 1, 2]


async def test_a_killed_broker_is_noticed_at_once_by_everybody(tmp_path: Path) -> None:
    """SIGKILL, in the middle of everything: no waiter is left waiting, and a fresh connect says so at once."""
    with BrokerProcess(tmp_path / "data", strict=True) as process:
        with process.admin() as admin:
            admin.create_queue("q")
        async with await connect(process.connection_string()) as connection:
            sender, receiver = await connection.sender("q"), await connection.receiver("q", mode="receive-and-delete")
            waiting = asyncio.create_task(_receive_for_ever(receiver))
            await sender.ready()
            sends = [asyncio.create_task(sender.send(encoded(number))) for number in range(500)]
            await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            process.kill()
            async with asyncio.timeout(5):
                outcomes = await asyncio.gather(*sends, waiting, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} <= {type(None), ConnectionLost}
            assert isinstance(outcomes[-1], ConnectionLost)
        with pytest.raises(ConnectionLost):
            await connect(process.connection_string(), timeout_s=5)


async def _receive_for_ever(receiver: Receiver) -> None:
    while True:
        await receiver.receive(100, timeout_s=60)
