"""Sessions of subscriptions, lock renewal and unusual input with the genuine SDK, on a strict broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    aio,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
)
from azure.servicebus.management import SqlRuleFilter

from tests.brokers import BrokerProcess
from tests.sdk.flavours import Admin, Sdk, assert_empty, number, receive, receive_one, text
from tests.sdk.test_sessions import of, session_call, session_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
DELETING = ServiceBusReceiveMode.RECEIVE_AND_DELETE
DEAD = ServiceBusSubQueue.DEAD_LETTER


def rule_of(n: int) -> dict[str, Any]:
    """Return rule `n` of two hundred: the odd ones are SQL filters, the others are correlation filters."""
    sql = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": f"n = {n} OR every = TRUE"}}
    correlation = {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"n": n}}}
    return {"Name": f"rule._-{n}", "Properties": sql if n % 2 else correlation}


RULES = [rule_of(n) for n in range(200)]
TOPICS = [{"Name": f"rules/{flavour}", "Subscriptions": [{"Name": "s", "Rules": RULES}]} for flavour in ("sync", "aio")]
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Topics": TOPICS}]}}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A strict broker in place of the one that the other files share."""
    folder = tmp_path_factory.mktemp("strict") / "data"
    with BrokerProcess(folder, namespaces=("contoso",), config=CONFIG, strict=True) as process:
        yield process


async def topic_of(admin: Admin, **subscriptions: dict[str, Any]) -> str:
    """A topic whose name has slashes, and subscriptions with these settings."""
    topic = f"shop/Orders.{uuid4().hex[:12]}/new_1-a"
    await admin.calls.create_topic(topic)
    for name, settings in subscriptions.items():
        await admin.calls.create_subscription(topic, name, **settings)
    return topic


async def test_sessions_of_a_subscription(sdk: Sdk, sdk_admin: Admin) -> None:
    """Named or the next one, alone and in order, with a state that outlives the receiver."""
    topic = await topic_of(sdk_admin, s={"requires_session": True})
    sender = await sdk.topic_sender(topic)
    await sender.send_messages([*of("größe/1", "1", "2"), *of("b", "other"), ServiceBusMessage("none")])
    named = await sdk.subscription_receiver(topic, "s", session_id="b")
    following = await sdk.subscription_receiver(topic, "s", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
    assert session_of(following).session_id == "größe/1"
    with pytest.raises(SessionCannotBeLockedError):
        await sdk.subscription_receiver(topic, "s", session_id="b")
    with pytest.raises(OperationTimeoutError):
        await sdk.subscription_receiver(topic, "s", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=0.5)
    assert [text(message) for message in await receive(following, 2)] == ["1", "2"]
    await session_call(sdk, following, "set_state", b"half way")
    await following.close()
    again = await sdk.subscription_receiver(topic, "s", session_id="größe/1")
    assert await session_call(sdk, again, "get_state") == b"half way"
    first, second = await receive(again, 2)
    await again.dead_letter_message(first, reason="bad", error_description="why")
    await again.complete_message(second)
    assert text(await receive_one(named)) == "other"
    dead = await receive(await sdk.subscription_receiver(topic, "s", sub_queue=DEAD), 2)
    found = [(text(message), message.session_id, message.dead_letter_reason) for message in dead]
    assert found == [("1", "größe/1", "bad"), ("none", None, "Session ID is null")]


async def test_deferred_scheduled_and_peeked_messages_of_a_subscriptions_session(sdk: Sdk, sdk_admin: Admin) -> None:
    """Each message belongs to its session alone, wherever it was before."""
    topic = await topic_of(sdk_admin, s={"requires_session": True})
    sender = await sdk.topic_sender(topic)
    await sender.send_messages([*of("a", "1", "2"), *of("b", "other")])
    mine = await sdk.subscription_receiver(topic, "s", session_id="a")
    theirs = await sdk.subscription_receiver(topic, "s", session_id="b")
    first = await receive_one(mine)
    await mine.defer_message(first)
    with pytest.raises(MessageNotFoundError):
        await theirs.receive_deferred_messages([number(first)])
    assert [text(message) for message in await mine.peek_messages(10, sequence_number=1)] == ["1", "2"]
    assert [text(message) for message in await theirs.peek_messages(10, sequence_number=1)] == ["other"]
    await sender.schedule_messages(of("a", "late"), datetime.now(UTC) + timedelta(seconds=0.5))
    assert [text(message) for message in await receive(mine, 2)] == ["2", "late"]
    [again] = await mine.receive_deferred_messages([number(first)])
    assert (text(again), again.session_id) == ("1", "a")
    await mine.complete_message(again)


async def test_receivers_of_the_wrong_kind_are_refused_by_subscriptions(sdk: Sdk, sdk_admin: Admin) -> None:
    """The SDK's error is one without a retry, and its text names the reason."""
    topic = await topic_of(sdk_admin, talks={"requires_session": True}, plain={})
    with pytest.raises(ServiceBusError, match="non-sessionful") as refused:
        await sdk.subscription_receiver(topic, "talks")
    assert type(refused.value) is ServiceBusError
    with pytest.raises(ServiceBusError, match="does not require sessions") as refused:
        await sdk.subscription_receiver(topic, "plain", session_id="a")
    assert type(refused.value) is ServiceBusError
    with pytest.raises(ServiceBusError, match="does not require sessions"):
        await sdk.subscription_receiver(topic, "plain", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)


async def test_the_lock_renewer_of_the_sdk_keeps_messages_and_sessions(sdk: Sdk, sdk_admin: Admin) -> None:
    """The renewer keeps them longer than their locks last; the messages can be settled then."""
    lock_s = 5
    topic = await topic_of(
        sdk_admin,
        talks={"requires_session": True, "lock_duration": timedelta(seconds=lock_s)},
        plain={"lock_duration": timedelta(seconds=lock_s)},
    )
    sender = await sdk.topic_sender(topic)
    await sender.send_messages(of("a", "1"))
    plain = await sdk.subscription_receiver(topic, "plain")
    talks = await sdk.subscription_receiver(topic, "talks", session_id="a")
    message, of_session = await receive_one(plain), await receive_one(talks)
    renewer: Any = aio.AutoLockRenewer() if sdk.flavour == "aio" else AutoLockRenewer()
    renewer._sleep_time = 0.2  # by default the renewer looks once a second, too rarely for short locks
    lost: list[Any] = []

    async def noted(renewable: Any, error: Exception | None) -> None:
        lost.append(error)

    on_lost = noted if sdk.flavour == "aio" else lambda renewable, error: lost.append(error)
    renewer.register(cast(Any, plain)._target, message, 60, on_lost)
    renewer.register(cast(Any, talks)._target, session_of(talks), 60, on_lost)
    first_ends = [message.locked_until_utc, session_of(talks).locked_until_utc]
    await asyncio.sleep(lock_s + 0.5)
    assert all(end is not None and end < datetime.now(UTC) for end in first_ends)
    await plain.complete_message(message)
    await talks.complete_message(of_session)
    await (renewer.close() if sdk.flavour == "aio" else asyncio.to_thread(renewer.close))
    assert lost == []
    for name in ("plain", "talks"):
        counts = await sdk_admin.calls.get_subscription_runtime_properties(topic, name)
        assert counts.total_message_count == 0


async def test_ids_of_sessions_have_at_most_128_characters(sdk: Sdk, sdk_admin: Admin) -> None:
    """The SDK refuses a longer id, and another partition key; without the SDK the broker refuses them."""
    queue = f"talks-{uuid4().hex[:12]}"
    await sdk_admin.calls.create_queue(queue, requires_session=True)
    sender = await sdk.sender(queue)
    longest = "ü" * 128
    with pytest.raises(ValueError, match="128"):
        ServiceBusMessage("x", session_id=f"{longest}s")
    with pytest.raises(ValueError, match="cannot be set to a different value than session_id"):
        ServiceBusMessage("x", session_id="a", partition_key="b")
    raw = AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(group_id=f"{longest}s"))
    with pytest.raises(ServiceBusError, match="The session id has 129 characters; 128 are allowed"):
        await sender.send_messages(raw)
    with pytest.raises(ServiceBusError, match="at most 128 characters"):
        await sdk.receiver(queue, session_id=f"{longest}s")
    await sender.send_messages(of(longest, "fits"))
    receiver = await sdk.receiver(queue, session_id=longest)
    assert text(await receive_one(receiver)) == "fits"


async def test_a_filter_that_fails_is_silent_where_the_setting_says_so(sdk: Sdk, sdk_admin: Admin) -> None:
    """The message is then dropped for this subscription; the next one is selected as usual."""
    quiet = {"dead_lettering_on_filter_evaluation_exceptions": False}
    topic = await topic_of(sdk_admin, quiet=quiet, loud={})
    for name in ("quiet", "loud"):
        await sdk_admin.calls.delete_rule(topic, name, "$Default")
        await sdk_admin.calls.create_rule(topic, name, "ratio", filter=SqlRuleFilter("100 / n > 1"))
    sender = await sdk.topic_sender(topic)
    await sender.send_messages(ServiceBusMessage("zero", application_properties={"n": 0}))
    await sender.send_messages(ServiceBusMessage("ten", application_properties={"n": 10}))
    counted = {}
    for name in ("quiet", "loud"):
        counts = await sdk_admin.calls.get_subscription_runtime_properties(topic, name)
        counted[name] = (counts.active_message_count, counts.dead_letter_message_count)
    assert counted == {"quiet": (1, 0), "loud": (1, 1)}


async def test_the_last_of_two_hundred_rules_selects(sdk: Sdk, sdk_admin: Admin) -> None:
    """A message that several rules without an action select comes once."""
    topic = f"rules/{sdk.flavour}"
    assert len(await sdk_admin.listed("list_rules", topic, "s")) == len(RULES)
    sender = await sdk.topic_sender(topic)
    given: list[dict[str | bytes, Any]] = [{"n": 199}, {"n": 198}, {"n": 200}, {"every": True}]
    for properties in given:
        await sender.send_messages(ServiceBusMessage(f"{properties}", application_properties=properties))
    receiver = await sdk.subscription_receiver(topic, "s", receive_mode=DELETING)
    assert [text(one) for one in await receive(receiver, 3)] == ["{'n': 199}", "{'n': 198}", "{'every': True}"]
    await assert_empty(receiver)


TYPED = {
    "ubyte": ("UBYTE", 200, "200"),
    "byte": ("BYTE", -3, "-3"),
    "ushort": ("USHORT", 40_000, "40000"),
    "short": ("SHORT", -4, "-4"),
    "uint": ("UINT", 4_000_000_000, "4000000000"),
    "ulong": ("ULONG", 2**40, "1099511627776"),
    "long": ("LONG", -(2**40), "-1099511627776"),
    "float": ("FLOAT", 1.5, "1.5"),
    "double": ("DOUBLE", 0.25, "0.25"),
    "text": ("STRING", "grüße 'x'", "'grüße ''x'''"),
    "truth": ("BOOL", True, "TRUE"),
}


async def test_every_type_of_property_meets_filters_and_arrives(sdk: Sdk, sdk_admin: Admin) -> None:
    """Messages with an empty body, without a body, and with names that need brackets arrive too."""
    topic = await topic_of(sdk_admin, s={}, none={})
    conditions = [f"[{name} ü] = {literal}" for name, (_, _, literal) in TYPED.items()]
    conditions += ["EXISTS(uuid)", "EXISTS([time])", "nothing IS NULL", "sys.Label = 'größe'"]
    for name, condition in (("s", " AND ".join(conditions)), ("none", f"NOT ({' AND '.join(conditions)})")):
        await sdk_admin.calls.delete_rule(topic, name, "$Default")
        await sdk_admin.calls.create_rule(topic, name, "all", filter=SqlRuleFilter(condition))
    when, unique = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC), UUID(int=5)
    properties: dict[str, Any] = {
        f"{name} ü": {"TYPE": kind, "VALUE": value} for name, (kind, value, _) in TYPED.items()
    }
    properties |= {"uuid": unique, "time": when, "nothing": None}
    sender = await sdk.topic_sender(topic)
    for body in (b"x", b""):
        fields = AmqpMessageProperties(subject="größe")
        await sender.send_messages(
            AmqpAnnotatedMessage(data_body=body, application_properties=properties, properties=fields)
        )
    receiver = await sdk.subscription_receiver(topic, "s", receive_mode=DELETING)
    messages = await receive(receiver, 2)
    expected: dict[bytes, Any] = {f"{name} ü".encode(): value for name, (_, value, _) in TYPED.items()}
    expected |= {"text ü".encode(): "grüße 'x'".encode(), b"uuid": unique, b"time": round(when.timestamp() * 1000)}
    for message, body in zip(messages, (b"x", b""), strict=True):
        assert b"".join(message.body) == body
        assert message.application_properties == {**expected, b"nothing": None}
    counts = await sdk_admin.calls.get_subscription_runtime_properties(topic, "none")
    assert counts.total_message_count == 0


@pytest.mark.parametrize("name", ["größe", "a b", "a//b", "a/subscriptions/b"])
async def test_names_that_azure_refuses_are_refused(sdk_admin: Admin, name: str) -> None:
    """The two calls raise an error, and neither a queue nor a topic is made."""
    for create in (sdk_admin.calls.create_queue, sdk_admin.calls.create_topic):
        with pytest.raises((HttpResponseError, ValueError)):
            await create(name)
    for method in ("list_queues", "list_topics"):
        assert name not in [found.name for found in await sdk_admin.listed(method)]
