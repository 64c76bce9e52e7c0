"""Administration of topics, subscriptions and rules with the genuine administration clients."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.brokers import BrokerProcess
from tests.sdk.flavours import Admin, Flavour, Sdk, assert_empty, receive, receive_one, text

pytestmark = pytest.mark.asyncio(loop_scope="session")
MINUTE = datetime.timedelta(minutes=1)
DAY = datetime.timedelta(days=1)
YEARS = datetime.timedelta(days=3650)


def _name() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


async def _topic_with_subscription(admin: Admin) -> str:
    topic = _name()
    await admin.calls.create_topic(topic)
    await admin.calls.create_subscription(topic, "s")
    return topic


# ── topics ──


async def test_new_topic_has_the_defaults_of_the_service(sdk_admin: Admin) -> None:
    """Code that relies on a default must not behave differently here."""
    name = _name()
    created = await sdk_admin.calls.create_topic(name)
    for topic in (created, await sdk_admin.calls.get_topic(name)):
        assert topic.name == name
        assert topic.max_size_in_megabytes == 1024
        assert topic.duplicate_detection_history_time_window == 10 * MINUTE
        assert (topic.requires_duplicate_detection, topic.enable_partitioning, topic.enable_express) == (False,) * 3
        assert (topic.enable_batched_operations, topic.support_ordering) == (True, True)
        assert topic.status == EntityStatus.ACTIVE
        assert isinstance(topic.default_message_time_to_live, datetime.timedelta)
        assert topic.default_message_time_to_live > 1000 * YEARS
        assert not topic.user_metadata


TOPIC_SETTINGS: dict[str, Any] = {
    "default_message_time_to_live": DAY,
    "max_size_in_megabytes": 5120,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": 5 * MINUTE,
    "enable_batched_operations": False,
    "status": EntityStatus.SEND_DISABLED,
    "support_ordering": False,
    "auto_delete_on_idle": 2 * DAY,
    "enable_partitioning": True,
    "enable_express": True,
    "user_metadata": "<owner & co> “grüße”",
    "max_message_size_in_kilobytes": 2048,
}


async def test_every_setting_of_a_topic_is_kept(sdk_admin: Admin) -> None:
    """The settings go through XML and back; a partitioned topic shows its flag."""
    name = f"contoso/{_name()}"
    await sdk_admin.calls.create_topic(name, **TOPIC_SETTINGS)
    topic = await sdk_admin.calls.get_topic(name.upper())
    assert {setting: getattr(topic, setting) for setting in TOPIC_SETTINGS} == TOPIC_SETTINGS


async def test_topic_is_updated_and_fixed_settings_refused(sdk_admin: Admin) -> None:
    """The client writes back all that it has read."""
    name = _name()
    topic = await sdk_admin.calls.create_topic(name, user_metadata="old")
    topic.max_size_in_megabytes = 2048
    topic.user_metadata = None
    await sdk_admin.calls.update_topic(topic)
    read = await sdk_admin.calls.get_topic(name)
    assert (read.max_size_in_megabytes, read.user_metadata) == (2048, None)
    for setting, element in (
        ("requires_duplicate_detection", "RequiresDuplicateDetection"),
        ("enable_partitioning", "EnablePartitioning"),
    ):
        changed = await sdk_admin.calls.get_topic(name)
        setattr(changed, setting, True)
        with pytest.raises(HttpResponseError, match=element) as refused:
            await sdk_admin.calls.update_topic(changed)
        assert refused.value.status_code == 400


async def test_queues_and_topics_share_their_names(sdk_admin: Admin) -> None:
    """A name leads to one entity, of any kind and in any case."""
    queue, topic = _name(), _name()
    await sdk_admin.calls.create_queue(queue)
    await sdk_admin.calls.create_topic(topic)
    with pytest.raises(ResourceExistsError):
        await sdk_admin.calls.create_topic(queue.upper())
    with pytest.raises(ResourceExistsError):
        await sdk_admin.calls.create_queue(topic)
    with pytest.raises(ResourceExistsError):
        # The name is refused first, though the size is wrong too.
        await sdk_admin.calls.create_topic(topic, max_size_in_megabytes=0)


# ── subscriptions ──


async def test_new_subscription_has_defaults_and_a_default_rule(sdk_admin: Admin) -> None:
    """`$Default` selects every message."""
    topic = await _topic_with_subscription(sdk_admin)
    subscription = await sdk_admin.calls.get_subscription(topic, "S")
    assert subscription.lock_duration == MINUTE
    assert subscription.max_delivery_count == 10
    assert (subscription.requires_session, subscription.dead_lettering_on_message_expiration) == (False, False)
    assert subscription.dead_lettering_on_filter_evaluation_exceptions is True
    assert subscription.status == EntityStatus.ACTIVE
    assert not subscription.forward_to
    [rule] = await sdk_admin.listed("list_rules", topic, "s")
    assert rule.name == "$Default"
    assert isinstance(rule.filter, TrueRuleFilter)
    assert rule.action is None
    assert await sdk_admin.calls.get_rule(topic, "s", "$default")


SUBSCRIPTION_SETTINGS: dict[str, Any] = {
    "lock_duration": datetime.timedelta(seconds=42),
    "default_message_time_to_live": DAY,
    "dead_lettering_on_message_expiration": True,
    "dead_lettering_on_filter_evaluation_exceptions": False,
    "max_delivery_count": 3,
    "enable_batched_operations": False,
    "requires_session": True,
    "status": EntityStatus.RECEIVE_DISABLED,
    "user_metadata": "<owner & co> “grüße”",
    "auto_delete_on_idle": 2 * DAY,
}


async def test_every_setting_of_a_subscription_is_kept_and_changed(sdk_admin: Admin) -> None:
    """Sessions are fixed at creation; the rest can be changed."""
    topic = _name()
    await sdk_admin.calls.create_topic(topic)
    await sdk_admin.calls.create_subscription(topic, "All.of-it_1", **SUBSCRIPTION_SETTINGS)
    read = await sdk_admin.calls.get_subscription(topic, "all.of-it_1")
    assert {setting: getattr(read, setting) for setting in SUBSCRIPTION_SETTINGS} == SUBSCRIPTION_SETTINGS
    read.max_delivery_count = 7
    read.status = EntityStatus.ACTIVE
    await sdk_admin.calls.update_subscription(topic, read)
    changed = await sdk_admin.calls.get_subscription(topic, read.name)
    assert (changed.max_delivery_count, changed.status) == (7, EntityStatus.ACTIVE)
    changed.requires_session = False
    with pytest.raises(HttpResponseError, match="RequiresSession"):
        await sdk_admin.calls.update_subscription(topic, changed)


async def test_forwarding_needs_a_destination(sdk_admin: Admin) -> None:
    """The clients send an absolute address and read one back."""
    topic, queue = _name(), _name()
    await sdk_admin.calls.create_topic(topic)
    await sdk_admin.calls.create_queue(queue)
    created = await sdk_admin.calls.create_subscription(
        topic, "s", forward_to=queue, forward_dead_lettered_messages_to=queue
    )
    for subscription in (created, await sdk_admin.calls.get_subscription(topic, "s")):
        assert str(subscription.forward_to).endswith(f"/{queue}")
        assert str(subscription.forward_dead_lettered_messages_to).endswith(f"/{queue}")
    await sdk_admin.calls.update_subscription(topic, created)
    source = await sdk_admin.calls.create_queue(_name(), forward_to=topic)
    assert str(source.forward_to).endswith(f"/{topic}")
    bad: list[tuple[str, dict[str, Any]]] = [
        ("ForwardTo", {"forward_to": "no-such-entity"}),
        ("ForwardDeadLetteredMessagesTo", {"forward_dead_lettered_messages_to": "no-such-entity"}),
    ]
    for element, settings in bad:
        with pytest.raises(HttpResponseError, match=element) as refused:
            await sdk_admin.calls.create_subscription(topic, "bad", **settings)
        assert refused.value.status_code == 400


@pytest.mark.parametrize("name", ["a/b", "ä", "-a", "a-", "has space", "x" * 51, "$Default"])
async def test_bad_subscription_name_is_refused(sdk_admin: Admin, name: str) -> None:
    """Letters, digits, dots, dashes and underscores; 50 of them at most."""
    topic = _name()
    await sdk_admin.calls.create_topic(topic)
    with pytest.raises(HttpResponseError) as refused:
        await sdk_admin.calls.create_subscription(topic, name)
    assert refused.value.status_code == 400
    assert await sdk_admin.listed("list_subscriptions", topic) == []


async def test_deleting_a_topic_takes_subscriptions_and_rules(sdk_admin: Admin) -> None:
    """A topic of the same name starts empty."""
    topic = await _topic_with_subscription(sdk_admin)
    await sdk_admin.calls.create_rule(topic, "s", "r", filter=SqlRuleFilter("a=1"))
    await sdk_admin.calls.delete_topic(topic)
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.calls.get_subscription(topic, "s")
    await sdk_admin.calls.create_topic(topic)
    assert await sdk_admin.listed("list_subscriptions", topic) == []
    await sdk_admin.calls.create_subscription(topic, "s")
    assert [rule.name for rule in await sdk_admin.listed("list_rules", topic, "s")] == ["$Default"]


async def test_missing_topic_subscription_or_rule_is_not_found(sdk_admin: Admin) -> None:
    """Each call raises it, and the text has the address."""
    topic = await _topic_with_subscription(sdk_admin)
    calls = sdk_admin.calls
    missing = "no-such-topic"
    for call in (
        lambda: calls.get_topic(missing),
        lambda: calls.get_topic_runtime_properties(missing),
        lambda: calls.delete_topic(missing),
        lambda: calls.create_subscription(missing, "s"),
        lambda: calls.get_subscription(missing, "s"),
        lambda: calls.get_subscription(topic, "other"),
        lambda: calls.get_subscription_runtime_properties(topic, "other"),
        lambda: calls.delete_subscription(topic, "other"),
        lambda: calls.create_rule(topic, "other", "r"),
        lambda: calls.get_rule(topic, "s", "other"),
        lambda: calls.delete_rule(topic, "s", "other"),
    ):
        with pytest.raises(ResourceNotFoundError):
            await call()
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.listed("list_subscriptions", missing)
    with pytest.raises(ResourceExistsError):
        await calls.create_subscription(topic, "S")
    with pytest.raises(ResourceExistsError):
        await calls.create_rule(topic, "s", "$default")


# ── rules ──

VALUES: dict[str, Any] = {
    "@text": "x <&> “ü” ''",
    "@int": -5,
    "@long": 1 << 40,
    "@double": 1.5,
    "@bool": True,
    "@time": datetime.datetime(2026, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    "@span": datetime.timedelta(days=1, seconds=3),
}


async def test_parameters_of_every_type_survive(sdk_admin: Admin) -> None:
    """Text, whole numbers of 32 and 64 bits, fractions, truth, times and durations, in filters and actions."""
    topic = await _topic_with_subscription(sdk_admin)
    await sdk_admin.calls.create_rule(
        topic, "s", "sql", filter=SqlRuleFilter("a = @text", VALUES), action=SqlRuleAction("SET b = @int", VALUES)
    )
    await sdk_admin.calls.create_rule(
        topic, "s", "correlation", filter=CorrelationRuleFilter(label="l", to="<t>", properties=VALUES)
    )
    sql = await sdk_admin.calls.get_rule(topic, "s", "SQL")
    assert isinstance(sql.filter, SqlRuleFilter)
    assert (sql.filter.sql_expression, sql.filter.parameters) == ("a = @text", VALUES)
    assert sql.action is not None
    assert (sql.action.sql_expression, sql.action.parameters) == ("SET b = @int", VALUES)
    assert sql.created_at_utc is not None
    listed = {rule.name: rule for rule in await sdk_admin.listed("list_rules", topic, "s")}
    assert set(listed) == {"$Default", "sql", "correlation"}
    correlation = listed["correlation"].filter
    assert isinstance(correlation, CorrelationRuleFilter)
    assert (correlation.label, correlation.to, correlation.message_id) == ("l", "<t>", None)
    assert correlation.properties == VALUES


async def test_rule_is_replaced_by_an_update(sdk_admin: Admin) -> None:
    """Filter and action together; an action can be taken away."""
    topic = await _topic_with_subscription(sdk_admin)
    rule = await sdk_admin.calls.create_rule(
        topic, "s", "r", filter=FalseRuleFilter(), action=SqlRuleAction("SET a = 1")
    )
    assert isinstance(rule.filter, FalseRuleFilter)
    rule.filter = CorrelationRuleFilter(session_id="x")
    rule.action = None
    await sdk_admin.calls.update_rule(topic, "s", rule)
    read = await sdk_admin.calls.get_rule(topic, "s", "r")
    assert isinstance(read.filter, CorrelationRuleFilter)
    assert (read.filter.session_id, read.action) == ("x", None)
    await sdk_admin.calls.delete_rule(topic, "s", "r")
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.calls.update_rule(topic, "s", rule)


BAD_RULES: dict[str, dict[str, Any]] = {
    "empty filter": {"filter": SqlRuleFilter(" ")},
    "long filter": {"filter": SqlRuleFilter("a = '" + "x" * 1024 + "'")},
    "long action": {"action": SqlRuleAction("SET a = '" + "x" * 1024 + "'")},
    "empty correlation": {"filter": CorrelationRuleFilter()},
}


@pytest.mark.parametrize("rule", BAD_RULES.values(), ids=BAD_RULES.keys())
async def test_bad_rule_is_refused_by_name(sdk_admin: Admin, rule: dict[str, Any]) -> None:
    """The rule is not created."""
    topic = await _topic_with_subscription(sdk_admin)
    with pytest.raises(HttpResponseError, match="rule 'bad'") as refused:
        await sdk_admin.calls.create_rule(topic, "s", "bad", **rule)
    assert refused.value.status_code == 400
    with pytest.raises(ResourceNotFoundError):
        await sdk_admin.calls.get_rule(topic, "s", "bad")


@pytest.mark.slow
async def test_hundreds_of_rules_are_listed_and_counted(broker: BrokerProcess, flavour: Flavour) -> None:
    """Page by page, each once; the topic's filter counts come with api-version 2024-05."""
    admin = Admin(flavour, broker.connection_string("fabrikam"), broker.ca_file)
    topic = await _topic_with_subscription(admin)
    names = [f"r{number:03}" for number in range(250)]
    for number, name in enumerate(names):
        rule: Any = SqlRuleFilter(f"a = {number}") if number % 5 else CorrelationRuleFilter(label=str(number))
        await admin.calls.create_rule(topic, "s", name, filter=rule)
    assert [rule.name for rule in await admin.listed("list_rules", topic, "s")] == ["$Default", *names]
    runtime: Any = await admin.calls.get_topic_runtime_properties(topic)
    assert runtime.subscription_count == 1
    assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (201, 50)
    await admin.calls.delete_topic(topic)
    await admin.close()


async def test_topics_and_subscriptions_are_listed(sdk_admin: Admin) -> None:
    """The lists have runtime properties too."""
    topic = await _topic_with_subscription(sdk_admin)
    await sdk_admin.calls.create_subscription(topic, "b")
    assert topic in [found.name for found in await sdk_admin.listed("list_topics")]
    assert topic not in [found.name for found in await sdk_admin.list_queues()]
    [runtime] = [found for found in await sdk_admin.listed("list_topics_runtime_properties") if found.name == topic]
    assert (runtime.subscription_count, runtime.scheduled_message_count, runtime.size_in_bytes) == (2, 0, 0)
    assert [found.name for found in await sdk_admin.listed("list_subscriptions", topic)] == ["b", "s"]
    for counts in await sdk_admin.listed("list_subscriptions_runtime_properties", topic):
        assert (counts.active_message_count, counts.dead_letter_message_count, counts.total_message_count) == (0, 0, 0)
        assert (counts.transfer_message_count, counts.transfer_dead_letter_message_count) == (0, 0)


async def test_entities_survive_a_restart(tmp_path_factory: pytest.TempPathFactory, flavour: Flavour) -> None:
    """Killed without warning: topics, subscriptions and rules are there as they were acknowledged."""
    with BrokerProcess(tmp_path_factory.mktemp("restart") / "data", namespaces=("contoso",)) as process:
        admin = Admin(flavour, process.connection_string(), process.ca_file)
        topic = await _topic_with_subscription(admin)
        await admin.calls.create_subscription(topic, "gone")
        await admin.calls.create_rule(topic, "s", "r", filter=SqlRuleFilter("a = @text", VALUES))
        await admin.calls.delete_rule(topic, "s", "$Default")
        await admin.calls.delete_subscription(topic, "gone")
        await admin.close()
        process.kill()
        process.start()
        admin = Admin(flavour, process.connection_string(), process.ca_file)
        assert [found.name for found in await admin.listed("list_subscriptions", topic)] == ["s"]
        [rule] = await admin.listed("list_rules", topic, "s")
        assert (rule.name, rule.filter.parameters) == ("r", VALUES)
        await admin.close()


# ── messages ──


async def test_counts_of_topics_and_subscriptions_are_true(sdk: Sdk, sdk_admin: Admin) -> None:
    """Waiting, locked, deferred, dead-lettered and scheduled; a payload counts once, however many hold it."""
    topic = await _topic_with_subscription(sdk_admin)
    await sdk_admin.calls.create_subscription(topic, "b")

    async def counts(name: str) -> tuple[int | None, ...]:
        found = await sdk_admin.calls.get_subscription_runtime_properties(topic, name)
        return found.active_message_count, found.dead_letter_message_count, found.total_message_count

    sender = await sdk.topic_sender(topic)
    receiver = await sdk.subscription_receiver(topic, "s")
    await sender.send_messages([ServiceBusMessage("x" * 1000) for _ in range(3)], timeout=10)
    later = datetime.datetime.now(datetime.UTC) + DAY
    await sender.schedule_messages(ServiceBusMessage("later"), later, timeout=10)
    first, second, third = await receive(receiver, 3)
    assert await counts("s") == await counts("b") == (3, 0, 3)
    await receiver.dead_letter_message(first)
    await receiver.defer_message(second)
    await receiver.complete_message(third)
    assert await counts("s") == (0, 1, 2)
    assert await counts("b") == (3, 0, 3)
    runtime = await sdk_admin.calls.get_topic_runtime_properties(topic)
    assert (runtime.scheduled_message_count, runtime.subscription_count) == (1, 2)
    assert runtime.size_in_bytes is not None
    assert 3000 < runtime.size_in_bytes < 5000
    await sdk_admin.calls.delete_subscription(topic, "b")
    async with asyncio.timeout(10):  # messages of a deleted topic are swept in the background
        while True:
            smaller = await sdk_admin.calls.get_topic_runtime_properties(topic)
            if (smaller.size_in_bytes or 0) < runtime.size_in_bytes:
                break
            await asyncio.sleep(0.02)


async def test_addresses_of_topics_and_subscriptions(sdk: Sdk, sdk_admin: Admin) -> None:
    """Case is ignored; messages go in at the topic and out at its subscriptions, and nowhere else."""
    topic = await _topic_with_subscription(sdk_admin)
    path = f"{topic}/Subscriptions/s"
    sender = await sdk.sender(topic.upper())
    receiver = await sdk.receiver(f"{topic.upper()}/SUBSCRIPTIONS/S")
    await sender.send_messages(ServiceBusMessage("hello"), timeout=10)
    message = await receive_one(receiver)
    await receiver.dead_letter_message(message)
    dead = await sdk.receiver(f"{path}/$deadletterqueue")
    await dead.complete_message(await receive_one(dead))
    transfers = await sdk.receiver(f"{path}/$transfer/$DeadLetterQueue")
    await assert_empty(transfers)
    for opening, words in (
        (sdk.receiver(topic), "cannot be received from the topic"),
        (sdk.sender(path), "cannot be sent to the subscription"),
        (sdk.receiver(f"{topic}/$DeadLetterQueue"), "has no dead-letter queue"),
    ):
        with pytest.raises(ServiceBusError, match=words):
            await opening
    for missing in (
        f"{topic}/Subscriptions/other",
        f"{topic}/Subscriptions/s/Rules/$Default",
        f"{topic}/Subscriptions",
    ):
        with pytest.raises(ServiceBusAuthenticationError) as refused:
            await sdk.receiver(missing)
        assert "Status code: 404" in str(refused.value.inner_exception)


async def test_rules_take_effect_at_once(sdk: Sdk, sdk_admin: Admin) -> None:
    """Without a rule a subscription gets nothing; a replaced filter decides about the next message."""
    topic = await _topic_with_subscription(sdk_admin)
    sender = await sdk.topic_sender(topic)
    receiver = await sdk.subscription_receiver(topic, "s")
    await sdk_admin.calls.delete_rule(topic, "s", "$Default")
    await sender.send_messages(ServiceBusMessage("lost", subject="red"), timeout=10)
    rule = await sdk_admin.calls.create_rule(topic, "s", "r", filter=CorrelationRuleFilter(label="red"))
    await sender.send_messages(
        [ServiceBusMessage("1", subject="red"), ServiceBusMessage("2", subject="blue")], timeout=10
    )
    rule.filter = SqlRuleFilter("sys.Label = 'blue'")
    await sdk_admin.calls.update_rule(topic, "s", rule)
    await sender.send_messages(
        [ServiceBusMessage("3", subject="red"), ServiceBusMessage("4", subject="blue")], timeout=10
    )
    assert [text(message) for message in await receive(receiver, 2)] == ["1", "4"]
    await assert_empty(receiver)
