"""Topics and subscriptions: sends reach every subscription that wants them, and are received as from a queue."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError, ServiceBusQuotaExceededError
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

from tests.sdk.flavours import Admin, Sdk, assert_empty, number, receive, receive_one, text, until

pytestmark = pytest.mark.asyncio(loop_scope="session")
SECOND = datetime.timedelta(seconds=1)


async def make_topic(admin: Admin, *subscriptions: str, **settings: Any) -> str:
    topic = f"Prices/{uuid.uuid4().hex[:12]}"
    await admin.calls.create_topic(topic, **settings)
    for name in subscriptions:
        await admin.calls.create_subscription(topic, name)
    return topic


async def replace_rule(admin: Admin, topic: str, name: str, **rule: Any) -> None:
    await admin.calls.delete_rule(topic, name, "$Default")
    await admin.calls.create_rule(topic, name, "only", **rule)


async def test_a_message_and_a_batch_reach_every_subscription(sdk: Sdk, sdk_admin: Admin) -> None:
    """Each subscription has copies of its own: completing one leaves the others."""
    topic = await make_topic(sdk_admin, "a", "b")
    sender = await sdk.topic_sender(topic)
    receivers = [await sdk.subscription_receiver(topic, name) for name in ("a", "b")]
    await sender.send_messages(ServiceBusMessage("1", subject="s", application_properties={"k": 1}), timeout=10)
    await sender.send_messages([ServiceBusMessage("2"), ServiceBusMessage("3")], timeout=10)
    for receiver in receivers:
        messages = await receive(receiver, 3)
        assert [text(message) for message in messages] == ["1", "2", "3"]
        assert [number(message) for message in messages] == [1, 2, 3]
        assert [message.enqueued_sequence_number for message in messages] == [1, 2, 3]
        assert (messages[0].subject, messages[0].application_properties) == ("s", {b"k": 1})
        for message in messages:
            await receiver.complete_message(message)
        await assert_empty(receiver)
    counts = await sdk_admin.calls.get_topic_runtime_properties(topic)
    assert (counts.subscription_count, counts.size_in_bytes) == (2, 0)


async def test_rules_choose_and_actions_change_the_copies(sdk: Sdk, sdk_admin: Admin) -> None:
    """A SQL filter, a correlation filter, and an action that only its own copy shows."""
    topic = await make_topic(sdk_admin, "all", "sql", "correlated", "changed")
    await replace_rule(sdk_admin, topic, "sql", filter=SqlRuleFilter("amount > 10 AND sys.Label LIKE 'ord%'"))
    await replace_rule(sdk_admin, topic, "correlated", filter=CorrelationRuleFilter(label="order"))
    action = SqlRuleAction("SET amount = amount * 2; REMOVE note")
    await replace_rule(sdk_admin, topic, "changed", filter=SqlRuleFilter("EXISTS(note)"), action=action)
    sender = await sdk.topic_sender(topic)
    for amount, subject in ((20, "order"), (5, "order"), (20, "other")):
        properties: dict[str | bytes, Any] = {"amount": amount, "note": "n"}
        message = ServiceBusMessage(f"{amount} {subject}", subject=subject, application_properties=properties)
        await sender.send_messages(message, timeout=10)
    expected = {
        "all": ["20 order", "5 order", "20 other"],
        "sql": ["20 order"],
        "correlated": ["20 order", "5 order"],
        "changed": ["20 order", "5 order", "20 other"],
    }
    for name, bodies in expected.items():
        receiver = await sdk.subscription_receiver(topic, name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        messages = await receive(receiver, len(bodies))
        assert [text(message) for message in messages] == bodies, name
        if name == "changed":
            assert [message.application_properties for message in messages] == [
                {b"amount": amount, b"RuleName": b"only"} for amount in (40, 10, 40)
            ]
        await assert_empty(receiver)


async def test_a_message_whose_filter_divides_by_zero_is_dead_lettered(sdk: Sdk, sdk_admin: Admin) -> None:
    """Only this subscription is affected; the sender and the other subscriptions see no error."""
    topic = await make_topic(sdk_admin, "bad", "good")
    await replace_rule(sdk_admin, topic, "bad", filter=SqlRuleFilter("100 / n > 1"))
    sender = await sdk.topic_sender(topic)
    await sender.send_messages(ServiceBusMessage("zero", application_properties={"n": 0}), timeout=10)
    assert text(await receive_one(await sdk.subscription_receiver(topic, "good"))) == "zero"
    dead = await sdk.subscription_receiver(topic, "bad", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    message = await receive_one(dead)
    assert text(message) == "zero"
    assert message.dead_letter_reason == "FilterEvaluationException"
    assert "only" in (message.dead_letter_error_description or "")
    await dead.complete_message(message)


async def test_a_subscription_settles_defers_and_peeks_like_a_queue(sdk: Sdk, sdk_admin: Admin) -> None:
    """Abandon, defer, dead-letter, renewal, peek: all by the subscription's own settings."""
    topic = await make_topic(sdk_admin)
    await sdk_admin.calls.create_subscription(topic, "s", max_delivery_count=2, lock_duration=10 * SECOND)
    sender, receiver = await sdk.topic_sender(topic), await sdk.subscription_receiver(topic, "s")
    await sender.send_messages([ServiceBusMessage(body) for body in ("twice", "later", "never", "rest")], timeout=10)
    for _ in range(2):
        await receiver.abandon_message(await receive_one(receiver))
    later = await receive_one(receiver)
    assert await receiver.renew_message_lock(later) > datetime.datetime.now(datetime.UTC) + 5 * SECOND
    await receiver.defer_message(later)
    await receiver.dead_letter_message(await receive_one(receiver), reason="r", error_description="d")
    assert [text(message) for message in await receiver.peek_messages(10, sequence_number=1)] == ["later", "rest"]
    [deferred] = await receiver.receive_deferred_messages([number(later)])
    assert text(deferred) == "later"
    await receiver.complete_message(deferred)
    dead = await sdk.subscription_receiver(topic, "s", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    messages = await receive(dead, 2)
    assert [message.dead_letter_reason for message in messages] == ["MaxDeliveryCountExceeded", "r"]
    counts = await sdk_admin.calls.get_subscription_runtime_properties(topic, "s")
    assert (counts.active_message_count, counts.dead_letter_message_count) == (1, 2)


async def test_scheduled_messages_wait_in_the_topic(sdk: Sdk, sdk_admin: Admin) -> None:
    """Scheduled messages have numbers of the topic, can be cancelled, and meet the rules of the time of their
    activation.
    """
    topic = await make_topic(sdk_admin, "s")
    sender = await sdk.topic_sender(topic)
    soon = datetime.datetime.now(datetime.UTC) + 1.5 * SECOND
    messages = [ServiceBusMessage("kept"), ServiceBusMessage("cancelled")]
    numbers = await sender.schedule_messages(messages, soon)
    assert numbers == [1, 2]
    assert (await sdk_admin.calls.get_topic_runtime_properties(topic)).scheduled_message_count == 2
    await sender.cancel_scheduled_messages(numbers[1])
    await sdk_admin.calls.create_subscription(topic, "new")
    for name in ("s", "new"):
        receiver = await sdk.subscription_receiver(topic, name)
        assert text(await receive_one(receiver)) == "kept"
        await assert_empty(receiver)


async def test_duplicates_status_and_quota_of_a_topic(sdk: Sdk, sdk_admin: Admin) -> None:
    """A duplicate is accepted and dropped; a switched-off or full topic refuses with the SDK's own error."""
    topic = await make_topic(sdk_admin, "s", requires_duplicate_detection=True, max_size_in_megabytes=1)
    sender, receiver = await sdk.topic_sender(topic), await sdk.subscription_receiver(topic, "s")
    for body in ("first", "again"):
        await sender.send_messages(ServiceBusMessage(body, message_id="m"), timeout=10)
    assert text(await receive_one(receiver)) == "first"
    await assert_empty(receiver)
    for n in range(5):
        await sender.send_messages(ServiceBusMessage(b"x" * 220_000, message_id=f"large {n}"), timeout=10)
    with pytest.raises(ServiceBusQuotaExceededError, match="maximum size"):
        await sender.send_messages(ServiceBusMessage("one more", message_id="more"), timeout=10)
    properties = await sdk_admin.calls.get_topic(topic)
    properties.status = "SendDisabled"
    await sdk_admin.calls.update_topic(properties)
    with pytest.raises(MessagingEntityDisabledError, match="SendDisabled"):
        await sender.send_messages(ServiceBusMessage("off"), timeout=10)


async def test_receivers_hear_when_their_subscription_or_its_topic_is_deleted(sdk: Sdk, sdk_admin: Admin) -> None:
    """A topic or subscription that is created again under the same name is empty."""
    topic = await make_topic(sdk_admin, "s", "t")
    sender, receiver = await sdk.topic_sender(topic), await sdk.subscription_receiver(topic, "s")
    await sender.send_messages(ServiceBusMessage("old"), timeout=10)
    await sdk_admin.calls.delete_subscription(topic, "s")
    with pytest.raises(ServiceBusError):
        await receiver.receive_messages(max_wait_time=3)
    await sdk_admin.calls.create_subscription(topic, "s")
    await sender.send_messages(ServiceBusMessage("new"), timeout=10)
    assert text(await receive_one(await sdk.subscription_receiver(topic, "s"))) == "new"
    await sdk_admin.calls.delete_topic(topic)
    with pytest.raises(ServiceBusError):
        await sender.send_messages(ServiceBusMessage("nobody"), timeout=10)


async def test_fifty_subscriptions_get_fifty_copies(sdk: Sdk, sdk_admin: Admin) -> None:
    """A body is stored once for all subscriptions, and every subscription tells the same count."""
    names = [f"s{n}" for n in range(50)]
    topic = await make_topic(sdk_admin, *names)
    sender = await sdk.topic_sender(topic)
    await sender.send_messages([ServiceBusMessage(f"{n}") for n in range(4)], timeout=10)

    async def active(name: str) -> int:
        return (await sdk_admin.calls.get_subscription_runtime_properties(topic, name)).active_message_count or 0

    assert [await active(name) for name in names] == [4] * 50
    for name in ("s0", "s49"):
        receiver = await sdk.subscription_receiver(topic, name)
        assert [text(message) for message in await receive(receiver, 4)] == ["0", "1", "2", "3"]
    await asyncio.sleep(0)
    await until(lambda: _size_is_small(sdk_admin, topic), "the size counts each body once")


async def _size_is_small(admin: Admin, topic: str) -> bool:
    size = (await admin.calls.get_topic_runtime_properties(topic)).size_in_bytes or 0
    return 0 < size < 2_000
