"""Sessions with the genuine Python SDK: receivers, order, locks, and state."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, aio
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.brokers import BrokerProcess
from tests.sdk.flavours import Admin, Sdk, assert_empty, number, receive, receive_one, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def name() -> str:
    return f"sessions-{uuid4().hex[:12]}"


async def queue_of(sdk_admin: Admin, name: str, **settings: Any) -> str:
    await sdk_admin.calls.create_queue(name, requires_session=True, **settings)
    return name


def of(session_id: str, *bodies: str, **fields: Any) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(body, session_id=session_id, **fields) for body in bodies]


def session_of(receiver: aio.ServiceBusReceiver) -> Any:
    return cast(Any, receiver)._target.session


async def session_call(sdk: Sdk, receiver: aio.ServiceBusReceiver, method: str, *args: Any) -> Any:
    """A call of the session object, which is a plain one in the sync SDK."""
    function = getattr(session_of(receiver), method)
    return await function(*args) if sdk.flavour == "aio" else await asyncio.to_thread(function, *args)


async def test_a_named_session_comes_in_order_and_alone(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """Messages of other sessions wait for others."""
    queue = await queue_of(sdk_admin, name)
    sender = await sdk.sender(queue)
    await sender.send_messages([*of("a", "1", "2"), *of("b", "other"), *of("a", "3")])
    receiver = await sdk.receiver(queue, session_id="a")
    found = await receive(receiver, 3)
    assert [text(message) for message in found] == ["1", "2", "3"]
    assert {message.session_id for message in found} == {"a"}
    for message in found:
        await receiver.complete_message(message)
    await assert_empty(receiver)
    with pytest.raises(SessionCannotBeLockedError):
        await sdk.receiver(queue, session_id="a")


async def test_the_next_session_is_accepted_or_the_time_is_over(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """The oldest available one; without any, an error of its own after the time that was asked for."""
    queue = await queue_of(sdk_admin, name)
    sender = await sdk.sender(queue)
    await sender.send_messages([*of("first", "1"), *of("second", "2")])
    receivers = [await sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) for _ in range(2)]
    assert [session_of(receiver).session_id for receiver in receivers] == ["first", "second"]
    assert session_of(receivers[0]).locked_until_utc > datetime.now(UTC)
    with pytest.raises(OperationTimeoutError):
        await sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)


async def test_a_waiting_receiver_gets_the_session_that_comes(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """Accepting waits at the broker, not in a loop of the client."""
    queue = await queue_of(sdk_admin, name)
    sender = await sdk.sender(queue)
    waiting = asyncio.create_task(sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10))
    await asyncio.sleep(0.8)
    await sender.send_messages(of("late", "1"))
    assert text(await receive_one(await waiting)) == "1"


async def test_a_closed_receiver_leaves_session_and_messages(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """Closing is no delivery."""
    queue = await queue_of(sdk_admin, name)
    sender = await sdk.sender(queue)
    await sender.send_messages(of("a", "1", "2"))
    receiver = await sdk.receiver(queue, session_id="a")
    await receive(receiver, 2)
    await receiver.close()
    again = await sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
    found = await receive(again, 2)
    assert [(text(message), message.delivery_count) for message in found] == [("1", 0), ("2", 0)]


async def test_state_is_set_read_and_cleared(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """The state belongs to the session, not to its receiver."""
    queue = await queue_of(sdk_admin, name)
    receiver = await sdk.receiver(queue, session_id="größe")
    assert await session_call(sdk, receiver, "get_state") is None
    await session_call(sdk, receiver, "set_state", b"\x00state")
    await receiver.close()
    receiver = await sdk.receiver(queue, session_id="größe")
    assert await session_call(sdk, receiver, "get_state") == b"\x00state"
    await session_call(sdk, receiver, "set_state", None)
    assert await session_call(sdk, receiver, "get_state") is None


async def test_renewal_keeps_a_session_that_would_be_lost(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """The lock of the session is that of its messages."""
    queue = await queue_of(sdk_admin, name, lock_duration=timedelta(seconds=5))
    sender = await sdk.sender(queue)
    await sender.send_messages(of("a", "1"))
    receiver = await sdk.receiver(queue, session_id="a")
    message = await receive_one(receiver)
    before = session_of(receiver).locked_until_utc
    for _ in range(3):
        await asyncio.sleep(2)
        assert await session_call(sdk, receiver, "renew_lock") > before
    await receiver.complete_message(message)
    await assert_empty(receiver)


async def test_a_lost_session_counts_as_a_delivery(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """The receiver of the lost session is told, may settle nothing more, and another one gets the message again."""
    queue = await queue_of(sdk_admin, name, lock_duration=timedelta(seconds=3))
    sender = await sdk.sender(queue)
    await sender.send_messages(of("a", "1"))
    receiver = await sdk.receiver(queue, session_id="a")
    message = await receive_one(receiver)
    again = await sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10)
    with pytest.raises(SessionLockLostError):
        await receiver.complete_message(message)
    second = await receive_one(again)
    assert (text(second), second.delivery_count) == ("1", 1)


async def test_deferred_messages_of_a_session(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """Deferred messages are received by number, from their own session only."""
    queue = await queue_of(sdk_admin, name)
    sender = await sdk.sender(queue)
    await sender.send_messages(of("a", "1", "2"))
    receiver, other = await sdk.receiver(queue, session_id="a"), await sdk.receiver(queue, session_id="b")
    first = await receive_one(receiver)
    await receiver.defer_message(first)
    with pytest.raises(MessageNotFoundError):
        await other.receive_deferred_messages([number(first)])
    [again] = await receiver.receive_deferred_messages([number(first)])
    assert text(again) == "1"
    await receiver.complete_message(again)
    assert text(await receive_one(receiver)) == "2"


async def test_empty_session_id_is_one_session_everywhere(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """On a queue, on a subscription and after forwarding. It was once a session on queues only, and elsewhere none, so
    that messages were dead-lettered."""
    queue = await queue_of(sdk_admin, name)
    source, topic = f"{name}-source", f"{name}-topic"
    await sdk_admin.calls.create_queue(source, forward_to=queue)
    await sdk_admin.calls.create_topic(topic)
    await sdk_admin.calls.create_subscription(topic, "all", requires_session=True)
    for sender in (await sdk.sender(queue), await sdk.sender(source), await sdk.topic_sender(topic)):
        await sender.send_messages(of("", "a book"))
    receiver = await sdk.receiver(queue, session_id=NEXT_AVAILABLE_SESSION)
    found = await receive(receiver, 2)
    subscriber = await sdk.subscription_receiver(topic, "all", session_id=NEXT_AVAILABLE_SESSION)
    found.append(await receive_one(subscriber))
    assert [(text(message), message.session_id) for message in found] == [("a book", "")] * 3


async def test_scheduled_messages_and_peek_by_session(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """A scheduled message is seen in its session at once and received in time."""
    queue = await queue_of(sdk_admin, name)
    sender = await sdk.sender(queue)
    await sender.send_messages([*of("a", "now"), *of("b", "other")])
    await sender.schedule_messages(of("a", "later")[0], datetime.now(UTC) + timedelta(seconds=2))
    receiver = await sdk.receiver(queue, session_id="a")
    assert [text(message) for message in await receiver.peek_messages(10)] == ["now", "later"]
    found = await receive(receiver, 2)
    assert [text(message) for message in found] == ["now", "later"]
    with pytest.raises(ServiceBusError):
        await sender.schedule_messages(ServiceBusMessage("none"), datetime.now(UTC) + timedelta(hours=1))


async def test_dead_letters_of_a_session_need_no_session(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """Messages are dead-lettered by hand, and after too many deliveries."""
    queue = await queue_of(sdk_admin, name, max_delivery_count=2)
    sender = await sdk.sender(queue)
    await sender.send_messages(of("a", "bad", "poison", "good"))
    receiver = await sdk.receiver(queue, session_id="a")
    await receiver.dead_letter_message(await receive_one(receiver), reason="bad")
    for _ in range(2):
        await receiver.abandon_message(await receive_one(receiver))
    assert text(await receive_one(receiver)) == "good"
    dead = await sdk.receiver(queue, sub_queue="deadletter")
    letters = await receive(dead, 2)
    assert [(text(each), each.session_id, each.dead_letter_reason) for each in letters] == [
        ("bad", "a", "bad"),
        ("poison", "a", "MaxDeliveryCountExceeded"),
    ]


async def test_sessions_received_and_deleted(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    queue = await queue_of(sdk_admin, name)
    sender = await sdk.sender(queue)
    await sender.send_messages(of("a", *[str(n) for n in range(20)]))
    receiver = await sdk.receiver(
        queue, session_id="a", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=10
    )
    assert [text(message) for message in await receive(receiver, 20)] == [str(n) for n in range(20)]
    await assert_empty(receiver)


async def test_refusals_between_entities_with_and_without_sessions(sdk: Sdk, sdk_admin: Admin, name: str) -> None:
    """A batch in which one message has no session id is refused as a whole."""
    queue = await queue_of(sdk_admin, name)
    plain = f"{name}-plain"
    await sdk_admin.calls.create_queue(plain)
    sender = await sdk.sender(queue)
    with pytest.raises(ServiceBusError, match="non-sessionful"):
        await sdk.receiver(queue)
    with pytest.raises(ServiceBusError, match="does not require sessions"):
        await sdk.receiver(plain, session_id="a")
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        await sender.send_messages(ServiceBusMessage("none"))
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        await sender.send_messages([*of("a", "1"), ServiceBusMessage("none")])
    ping = ServiceBusMessage("", content_type="application/vnd.ms-servicebus-ping", session_id=str(uuid4()))
    await sender.send_messages(ping)
    runtime = await sdk_admin.calls.get_queue_runtime_properties(queue)
    assert runtime.total_message_count == 0


async def test_a_hundred_sessions_at_once_each_in_order(broker: BrokerProcess) -> None:
    """Each receiver sees its own session, whole and in order."""
    sessions, each = 100, 5
    queue = f"sessions-{uuid4().hex[:12]}"
    admin = Admin("aio", broker.connection_string(), broker.ca_file)
    await admin.calls.create_queue(queue, requires_session=True)
    await admin.close()
    async with aio.ServiceBusClient.from_connection_string(broker.connection_string()) as client:
        async with client.get_queue_sender(queue) as sender:
            for n in range(each):
                await sender.send_messages([ServiceBusMessage(str(n), session_id=str(s)) for s in range(sessions)])

        async def one(pause: asyncio.Semaphore) -> tuple[str, list[str]]:
            async with (
                pause,
                client.get_queue_receiver(
                    queue, session_id=cast(Any, NEXT_AVAILABLE_SESSION), max_wait_time=20
                ) as mine,
            ):
                found: list[str] = []
                while len(found) < each:
                    for message in await mine.receive_messages(each, max_wait_time=5):
                        found.append(text(message))
                        await mine.complete_message(message)
                return cast(Any, mine).session.session_id, found

        pause = asyncio.Semaphore(25)
        results = await asyncio.gather(*(one(pause) for _ in range(sessions)))
    assert sorted(name for name, _ in results) == sorted(map(str, range(sessions)))
    assert all(found == [str(n) for n in range(each)] for _, found in results)


async def test_sessions_of_a_queue_are_listed_in_pages(broker: BrokerProcess) -> None:
    """The sync client's listing: pages of a hundred."""
    sdk_admin = Admin("aio", broker.connection_string(), broker.ca_file)
    queue = await queue_of(sdk_admin, f"sessions-{uuid4().hex[:12]}")
    await sdk_admin.close()
    async with aio.ServiceBusClient.from_connection_string(broker.connection_string()) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage("x", session_id=f"{n:03}") for n in range(150)])
        listing = cast(Any, client).list_queue_sessions(queue)
        assert [name async for name in listing] == [f"{n:03}" for n in range(150)]
