"""Requests to `$management` that the Python SDK does not make yet, and answers that do not come in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.events import Delivery
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Modified, Transfer
from pairbus.amqp.types import Array, Int, Long, Timestamp, UInt
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.broker.store import Done
from pairbus.broker.strict import LENIENT
from pairbus.transport import ClientConnection, Refused, connect
from tests.broker.locking import lock_next
from tests.broker.strict_world import Client, message
from tests.transport.test_with_broker import encoded


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"), QueueDescription("other")))
    async with Broker([options], data=tmp_path) as running:
        yield running


@pytest.fixture
async def connection(broker: Broker) -> AsyncIterator[ClientConnection]:
    async with await connect(broker.connection_string("contoso")) as opened:
        sender = await opened.sender("orders")
        for number in range(5):
            await sender.send(encoded(number))
        yield opened


def later() -> Timestamp:
    return Timestamp(time.time_ns() // 1_000_000 + 60_000)


async def delete(
    connection: ClientConnection, count: int, before: Timestamp, path: str = "orders", session_id: str | None = None
) -> dict[str, Any]:
    body: dict[str, Any] = {"message-count": Int(count), "enqueued-time-utc": before}
    if session_id is not None:
        body["session-id"] = session_id
    return await (await connection.management(path)).request("batch-delete-messages", body)


async def peeked(connection: ClientConnection, path: str = "orders") -> list[Any]:
    found = await (await connection.management(path)).peek(0, 10)
    return [Message.decode(payload).properties.message_id for payload in found]  # type: ignore[union-attr]


async def test_a_peek_may_leave_the_bodies_out(connection: ClientConnection) -> None:
    """`omit-message-body`: everything else is there, and what is no boolean is refused."""
    management = await connection.management("orders")
    body: dict[str, Any] = {"from-sequence-number": Long(1), "message-count": Int(2)}
    whole, bare = [
        [Message.decode(entry["message"]) for entry in (await management.request("peek-message", each))["messages"]]
        for each in (body | {"omit-message-body": False}, body | {"omit-message-body": True})
    ]
    assert [message.body for message in whole] == [Message.decode(encoded(number)).body for number in (0, 1)]
    assert all(message.data == [] and not message.has_value for message in bare)
    assert [(each.properties, each.annotations) for each in bare] == [
        (each.properties, each.annotations) for each in whole
    ]
    with pytest.raises(Refused, match="'omit-message-body' must be a boolean"):
        await management.request("peek-message", body | {"omit-message-body": "yes"})


async def test_the_oldest_waiting_messages_are_deleted_together(broker: Broker, connection: ClientConnection) -> None:
    """The number asked for is deleted; the rest keeps its order, and the counts are true."""
    assert await delete(connection, 2, later()) == {"message-count": 2}
    assert await peeked(connection) == ["m2", "m3", "m4"]
    assert await delete(connection, 4000, later()) == {"message-count": 3}
    queue = broker.namespace("contoso").catalog.queues["orders"]
    assert (queue.active_count, queue.size_bytes) == (0, 0)


async def test_locked_and_younger_messages_are_not_deleted(broker: Broker, connection: ClientConnection) -> None:
    """A receiver is working on a locked message; a message that came after the given time was not meant."""
    queue = broker.namespace("contoso").catalog.queues["orders"]
    assert lock_next(queue.main, time.time_ns() // 1_000_000) is not None
    assert await delete(connection, 10, Timestamp(time.time_ns() // 1_000_000 - 60_000)) == {}
    assert len(await peeked(connection)) == 5
    assert await delete(connection, 10, later()) == {"message-count": 4}
    assert await peeked(connection) == ["m0"]
    assert (queue.active_count, len(queue.main.locks)) == (1, 1)


@pytest.mark.parametrize("count", [0, -1, 4001])
async def test_a_count_that_cannot_be_deleted_is_refused(connection: ClientConnection, count: int) -> None:
    with pytest.raises(Refused, match="message-count"):
        await delete(connection, count, later())
    assert len(await peeked(connection)) == 5


async def test_only_the_holder_of_a_session_deletes_its_messages(broker: Broker, connection: ClientConnection) -> None:
    """Only waiting messages of that session are deleted, not locked ones and none of other sessions; dead letters
    belong to no session.
    """
    await broker.namespace("contoso").create_queue(QueueDescription("talks", requires_session=True))
    sender = await connection.sender("talks")
    for number in range(4):
        for session_id in ("a", "b"):
            name = f"{session_id}{number}"
            properties = Properties(message_id=name, group_id=session_id)
            await sender.send(Message(properties=properties, data=[name.encode()]).encode())
    for named, words in ((None, "'session-id' is missing"), ("a", "session lock of 'a'")):
        with pytest.raises(Refused, match=words):
            await delete(connection, 10, later(), "talks", named)
    with pytest.raises(Refused, match="has no sessions"):
        await delete(connection, 10, later(), session_id="a")
    receiver = await connection.receiver("talks", session="a", credit=1)
    await receiver.receive(1, timeout_s=5)
    queue = broker.namespace("contoso").catalog.queues["talks"]
    assert queue.main.sessions is not None
    session = queue.main.sessions.make("a")
    async with asyncio.timeout(5):
        while session.waiting > 2:  # noqa: ASYNC110 - the receiver asks for one in advance
            await asyncio.sleep(0.005)
    assert await delete(connection, 1, later(), "talks", "a") == {"message-count": 1}
    assert await delete(connection, 10, later(), "talks", "a") == {"message-count": 1}
    assert await delete(connection, 10, later(), "talks", "a") == {}
    await receiver.close()
    assert await peeked(connection, "talks") == ["a0", "b0", "a1", "b1", "b2", "b3"]
    assert queue.active_count == 6
    assert await delete(connection, 10, later(), "talks/$deadletterqueue") == {}


async def test_messages_received_by_number_carry_their_lock_token(connection: ClientConnection) -> None:
    """The token is in the delivery annotations, as with every lock, and is the one that the answer names."""
    receiver = await connection.receiver("orders")
    (first,) = await receiver.receive(1, timeout_s=5)
    annotations = Message.decode(first.payload).delivery_annotations or {}
    token = annotations["x-opt-lock-token"]
    assert token == UUID(bytes_le=first.tag)
    management = await connection.management("orders")
    await management.request(
        "update-disposition", {"disposition-status": "defered", "lock-tokens": Array([token], 0x98)}
    )
    body = {"sequence-numbers": Array([Long(1)], 0x81), "receiver-settle-mode": UInt(1)}
    (found,) = (await management.request("receive-by-sequence-number", body))["messages"]
    annotations = Message.decode(found["message"]).delivery_annotations or {}
    assert annotations["x-opt-lock-token"] == found["lock-token"] != token


async def test_deferral_without_answer_is_seen_by_the_next_request() -> None:
    """azure-servicebus 7.0 to 7.6 settles its deferrals itself and asks for the message in the same write."""
    client = await Client(LENIENT).open()
    await client.queue("orders")
    session = await client.session()
    (await client.sender(session, "orders")).send(message("one"), b"1")
    receiver = await client.receiver(session, "orders", credit=1)
    ask = await client.sender(session, "orders/$management", name="ask")
    await client.receiver(session, "orders/$management", credit=10, name="answers")
    (delivery,) = [each for each in client.all_events(Delivery) if each.link is receiver]
    number = Message.decode(delivery.payload).annotations["x-opt-sequence-number"]  # type: ignore[index]
    receiver.settle(delivery.delivery_id, delivery.delivery_id, Modified(True, True).encode(), 1)
    request = Message(
        properties=Properties(message_id=1, reply_to="client"),
        application_properties={"operation": "com.microsoft:receive-by-sequence-number"},
        value={"sequence-numbers": Array([Long(number)], 0x81), "receiver-settle-mode": UInt(1)},
        has_value=True,
    )
    ask.send(request.encode(), b"1")
    await client.until(Transfer, 2)
    answer = Message.decode(client.said.frames[-1][2])
    assert answer.property("statusCode") == 200, answer.property("statusDescription")


async def test_an_answer_that_takes_too_long_is_a_time_out() -> None:
    """The client says how long it waits; a later answer is not sent, because its client has given up."""
    client = await Client(LENIENT).open()
    await client.queue("orders")
    session = await client.session()
    ask = await client.sender(session, "orders/$management")
    await client.receiver(session, "orders/$management", credit=10)
    stuck: list[Done] = []
    client.namespace.store.after_commit = stuck.append  # type: ignore[method-assign,assignment]
    request = Message(
        properties=Properties(message_id=1, reply_to="client"),
        application_properties={
            "operation": "com.microsoft:batch-delete-messages",
            "com.microsoft:server-timeout": UInt(50),
        },
        value={"message-count": Int(1)},
        has_value=True,
    )
    ask.send(request.encode(), b"1")
    await client.until(Transfer)
    for done in stuck:
        done(None)
    await asyncio.sleep(0.05)
    await client.turn()
    (payload,) = [payload for _, frame, payload in client.said.frames if isinstance(frame, Transfer)]
    answer = Message.decode(payload)
    assert (answer.property("statusCode"), answer.property("errorCondition")) == (408, "com.microsoft:timeout")
