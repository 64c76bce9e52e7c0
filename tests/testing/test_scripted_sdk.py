"""Each action of a scripted endpoint is what it says to the genuine SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus import exceptions as sdk_errors
from azure.servicebus.aio import ServiceBusClient

from pairbus.amqp.performatives import Modified, Released
from pairbus.transport import Refused, connect
from tests.scripted import (
    Accept,
    Answer,
    Close,
    Detach,
    HangUp,
    LoseAnswer,
    Reject,
    Reply,
    Reset,
    ScriptedEndpoint,
    Silent,
    short_rejection,
)
from tests.testing.world import DEADLINE_S, all_rows, error_of, opened, sdk, send, text, texts

pytestmark = pytest.mark.slow


@pytest.fixture
async def client(endpoint: ScriptedEndpoint) -> AsyncIterator[ServiceBusClient]:
    client = sdk(endpoint.connection_string)
    yield client
    endpoint.heal()
    async with asyncio.timeout(DEADLINE_S):
        await client.close()


async def test_without_a_rule_messages_are_taken_recorded_and_handed_out(
    endpoint: ScriptedEndpoint, client: ServiceBusClient
) -> None:
    """Tests assert what reached the namespace: every message byte for byte, batches taken apart."""
    sender = await opened(client.get_queue_sender("Orders"))
    await send(sender, "one")
    await sender.send_messages([ServiceBusMessage("two"), ServiceBusMessage("three")], timeout=8)
    assert texts(endpoint.stored("orders")) == ["one", "two", "three"]
    assert [(each.is_batch, len(each.messages), each.stored) for each in endpoint.received] == [
        (False, 1, True),
        (True, 2, True),
    ]
    receiver = await opened(client.get_queue_receiver("orders"))
    messages = await receiver.receive_messages(max_message_count=3, max_wait_time=3)
    assert [str(message) for message in messages] == ["one", "two", "three"]
    await receiver.complete_message(messages[0])
    await receiver.abandon_message(messages[1])
    await receiver.dead_letter_message(messages[2], reason="test")
    assert [outcome for _, outcome in endpoint.settlements] == ["accepted", "modified", "rejected"]
    assert [str(message) for message in await receiver.receive_messages(3, max_wait_time=1)] == ["two"]
    await asyncio.gather(sender.close(), receiver.close())


async def test_topics_and_sessions_are_paths_like_others(endpoint: ScriptedEndpoint, client: ServiceBusClient) -> None:
    """The embedded broker has neither yet; the paths of a client that lead there can be tested here."""
    topic = await opened(client.get_topic_sender("news"))
    await send(topic, "headline")
    assert texts(endpoint.stored("news")) == ["headline"]
    endpoint.put("news/Subscriptions/all", text("copy"))
    subscription = await opened(client.get_subscription_receiver("news", "all"))
    assert [str(message) for message in await subscription.receive_messages(1, max_wait_time=3)] == ["copy"]

    queue = await opened(client.get_queue_sender("steps"))
    for session in ("a", "b"):
        await queue.send_messages(ServiceBusMessage(f"of {session}", session_id=session), timeout=8)
    of_b = await opened(client.get_queue_receiver("steps", session_id="b"))
    assert [str(message) for message in await of_b.receive_messages(5, max_wait_time=1)] == ["of b"]
    next_one = await opened(client.get_queue_receiver("steps", session_id=NEXT_AVAILABLE_SESSION))
    assert next_one.session.session_id == "a"
    await asyncio.gather(*(handler.close() for handler in (topic, subscription, queue, of_b, next_one)))


async def test_sizes_are_limited_by_path(endpoint: ScriptedEndpoint, client: ServiceBusClient) -> None:
    """A batch that fits the primary and not the backlog needs two limits."""
    endpoint.max_message_sizes["small"] = 2048
    sender = await opened(client.get_queue_sender("small"))
    error = await error_of(send(sender, "x" * 5000))
    assert isinstance(error, sdk_errors.MessageSizeExceededError)
    assert endpoint.stored("small") == []
    async with await connect(endpoint.connection_string) as connection:
        assert (await connection.sender("small")).max_message_size == 2048
        assert (await connection.sender("other")).max_message_size == 256 << 10
    await sender.close()


CONDITIONS = [
    ("com.microsoft:server-busy", sdk_errors.ServiceBusServerBusyError),
    ("amqp:unauthorized-access", sdk_errors.ServiceBusAuthorizationError),
    ("amqp:not-found", sdk_errors.MessagingEntityNotFoundError),
    ("amqp:resource-limit-exceeded", sdk_errors.ServiceBusQuotaExceededError),
    ("com.microsoft:entity-disabled", sdk_errors.MessagingEntityDisabledError),
    ("com.microsoft:timeout", sdk_errors.OperationTimeoutError),
    ("amqp:internal-error", sdk_errors.ServiceBusError),
    ("com.microsoft:argument-error", sdk_errors.ServiceBusError),
]


async def test_a_transfer_is_rejected_with_any_condition(endpoint: ScriptedEndpoint, client: ServiceBusClient) -> None:
    """The SDK names each condition as it does on Azure, and the next send works."""

    async def check(condition: str, kind: type[Exception]) -> None:
        path = condition.replace(":", "-")
        endpoint.on("transfer", Reject(condition, "no"), path=path, times=1)
        sender = await opened(client.get_queue_sender(path))
        error = await error_of(send(sender, "refused"))
        assert type(error) is kind, repr(error)
        await send(sender, "fine")
        assert texts(endpoint.stored(path)) == ["fine"]
        assert [each.stored for each in endpoint.received_by(path)] == [False, True]
        await sender.close()

    await all_rows(check, CONDITIONS)


async def test_rules_apply_in_order_with_count_and_path(endpoint: ScriptedEndpoint, client: ServiceBusClient) -> None:
    """A script reads as a history: three are refused, one is let through, the rest is refused in another way."""
    busy = endpoint.on("transfer", Reject("com.microsoft:server-busy"), path="orders", times=2)
    endpoint.on("transfer", Accept(), path="orders", times=1)
    full = endpoint.on("transfer", Reject("amqp:resource-limit-exceeded"), when=lambda each: b"bad" in each.payload)
    orders, invoices = await asyncio.gather(
        opened(client.get_queue_sender("orders")), opened(client.get_queue_sender("invoices"))
    )
    await send(invoices, "not meant")
    for _ in range(2):
        assert isinstance(await error_of(send(orders, "early")), sdk_errors.ServiceBusServerBusyError)
    await send(orders, "bad but let through")
    assert isinstance(await error_of(send(orders, "bad")), sdk_errors.ServiceBusQuotaExceededError)
    await send(orders, "good")
    assert (busy.hits, full.hits) == (2, 1)
    endpoint.remove(full)
    await send(orders, "bad")
    await asyncio.gather(orders.close(), invoices.close())


ENDINGS = [
    (Detach("amqp:link:detach-forced"), False),
    (Close("amqp:connection:forced"), False),
    (Reset(), False),
    (HangUp(), False),
    (LoseAnswer(then=Reset()), True),
    (LoseAnswer(then=Detach()), True),
]


async def test_a_transfer_can_end_its_link_or_connection() -> None:
    """In mid-send all of these look the same to the SDK, whether the message was stored or not."""

    async def check(action: Any, is_stored: bool) -> None:
        async with ScriptedEndpoint() as endpoint, sdk(endpoint.connection_string) as client:
            endpoint.on("transfer", action, path="orders", times=1)
            sender = await opened(client.get_queue_sender("orders"))
            assert isinstance(await error_of(send(sender, "unlucky")), sdk_errors.ServiceBusConnectionError)
            assert [each.stored for each in endpoint.received] == [is_stored]
            await send(sender, "again")
            assert texts(endpoint.stored("orders")) == (["unlucky"] if is_stored else []) + ["again"]
            await sender.close()

    await all_rows(check, ENDINGS)


async def test_a_transfer_can_be_left_unanswered_stored_or_not(
    endpoint: ScriptedEndpoint, client: ServiceBusClient
) -> None:
    endpoint.on("transfer", Silent(), times=1)
    endpoint.on("transfer", LoseAnswer(), times=1)
    sender = await opened(client.get_queue_sender("orders"))
    for body in ("lost", "kept"):
        assert isinstance(await error_of(send(sender, body, 0.5)), sdk_errors.OperationTimeoutError)
    assert texts(endpoint.stored("orders")) == ["kept"]
    await sender.close()


BAD_ANSWERS = [
    (Released(),),
    (Modified(delivery_failed=True),),
    (short_rejection(),),
    (short_rejection("amqp:internal-error"),),
]


async def test_bad_answers_hang_the_sdk_and_not_our_transport() -> None:
    """No broker should say these; a client that stands on the SDK must survive one that does."""

    async def check(state: Any) -> None:
        async with ScriptedEndpoint() as endpoint, sdk(endpoint.connection_string) as client:
            endpoint.on("transfer", Answer(state))
            async with await connect(endpoint.connection_string) as connection:
                with pytest.raises(Refused):
                    await (await connection.sender("orders")).send(text("x"), timeout_s=3)
            sender = await opened(client.get_queue_sender("orders"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.2):
                    await sender.send_messages(ServiceBusMessage("hangs"), timeout=0.5)
            assert endpoint.stored("orders") == []
            endpoint.reset()
            await sender.close()

    await all_rows(check, BAD_ANSWERS)


REFUSALS = [
    ("connect", Reject(), sdk_errors.ServiceBusConnectionError),
    ("sasl", Reject(), sdk_errors.ServiceBusError),
    ("open", Reject("amqp:connection:forced"), sdk_errors.ServiceBusConnectionError),
    ("open", Silent(), sdk_errors.OperationTimeoutError),
    ("token", Reject(status=401), sdk_errors.ServiceBusAuthenticationError),
    ("token", Silent(), sdk_errors.OperationTimeoutError),
    ("token", Close(), sdk_errors.ServiceBusConnectionError),
    ("attach", Reject("amqp:not-found"), sdk_errors.MessagingEntityNotFoundError),
    ("attach", Reject("amqp:unauthorized-access"), sdk_errors.ServiceBusAuthorizationError),
    ("attach", Reject("com.microsoft:server-busy"), sdk_errors.ServiceBusServerBusyError),
    ("attach", Silent(), sdk_errors.OperationTimeoutError),
    ("attach", Close("amqp:internal-error"), sdk_errors.ServiceBusConnectionError),
]


async def test_the_sdk_names_a_refusal_at_each_step() -> None:
    """The SDK continues when the refusal is over."""

    async def check(step: Any, action: Any, kind: type[Exception]) -> None:
        async with ScriptedEndpoint() as endpoint, sdk(endpoint.connection_string) as client:
            endpoint.on(step, action)
            sender = client.get_queue_sender("orders")
            error = await error_of(send(sender, "refused", 1 if isinstance(action, Silent) else 8))
            assert type(error) is kind, repr(error)
            assert endpoint.received == []
            endpoint.heal()
            await send(sender, "fine")
            assert texts(endpoint.stored("orders")) == ["fine"]
            await sender.close()

    await all_rows(check, REFUSALS)


@pytest.mark.parametrize("what", ["links", "connections", "reset"])
async def test_what_was_idle_is_closed_and_can_be_opened_again(
    endpoint: ScriptedEndpoint, client: ServiceBusClient, what: str
) -> None:
    """The service does so after ten minutes; it is no outage."""
    sender = await opened(client.get_queue_sender("orders"))
    await send(sender, "before")
    if what == "links":
        assert endpoint.link_count("orders") == 1
        assert endpoint.close_idle_links() == 1
    elif what == "connections":
        endpoint.close_connections()
    else:
        endpoint.reset()
    error = await error_of(send(sender, "lost"))
    assert isinstance(error, sdk_errors.ServiceBusConnectionError), repr(error)
    await send(sender, "after")
    assert texts(endpoint.stored("orders")) == ["before", "after"]
    await sender.close()


async def test_requests_are_answered_as_scripted(endpoint: ScriptedEndpoint, client: ServiceBusClient) -> None:
    """Scheduling goes over `$management`, so its failures do too."""
    endpoint.on("request", Reject("com.microsoft:server-busy", status=503), path="orders", times=1)
    endpoint.on("request", Reply(404, None, "com.microsoft:message-not-found"), times=1)
    endpoint.on("request", LoseAnswer(), times=1)
    sender = await opened(client.get_queue_sender("orders"))
    due = datetime.now(UTC) + timedelta(hours=1)
    for kind in (
        sdk_errors.ServiceBusServerBusyError,
        sdk_errors.MessageNotFoundError,
        sdk_errors.OperationTimeoutError,
    ):
        async with asyncio.timeout(DEADLINE_S):
            error = await error_of(sender.schedule_messages(ServiceBusMessage("later"), due, timeout=2))
        assert type(error) is kind, repr(error)
    assert len(endpoint.scheduled("orders")) == 1, "the answer was lost, the message was not"
    assert await sender.schedule_messages(ServiceBusMessage("later"), due, timeout=5) == [2]
    assert len(endpoint.scheduled("orders")) == 2
    assert {operation for _, operation, _ in endpoint.requests} == {"com.microsoft:schedule-message"}
    await sender.close()
