"""Rules over `$management`, at the level of requests: what the JavaScript SDK sends, and what nobody should."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pairbus.amqp.types import Described, Int, Long, Timestamp
from pairbus.auth.sas import SEND, SharedAccessKey
from pairbus.broker import Broker, NamespaceOptions, SubscriptionConfig, SubscriptionDescription, TopicDescription
from pairbus.filters import CorrelationFilter, FalseFilter, SqlAction, SqlFilter, TrueFilter
from pairbus.transport.connection.client_connection import connect
from pairbus.transport.connection.endpoint import Endpoint
from pairbus.transport.errors import Refused
from pairbus.transport.links.management import Management

pytestmark = pytest.mark.asyncio
SUBSCRIPTION = "events/Subscriptions/audit"


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    options = NamespaceOptions(
        "contoso",
        keys=(SharedAccessKey("sender", "send-key", rights=frozenset({SEND})),),
        topics=(TopicDescription("events"),),
        subscriptions=(SubscriptionConfig(SubscriptionDescription("events", "audit")),),
    )
    async with Broker([options], data=None) as running:
        yield running


@pytest_asyncio.fixture
async def management(broker: Broker) -> AsyncIterator[Management]:
    async with await connect(Endpoint.parse(broker.connection_string("contoso"))) as connection:
        yield await connection.management(SUBSCRIPTION.upper())


def add(name: str, **described: Any) -> dict[str, Any]:
    return {"rule-name": name, "rule-description": {key.replace("_", "-"): each for key, each in described.items()}}


async def test_rules_are_added_and_removed(broker: Broker, management: Management) -> None:
    """A member that is null is not set; without a filter a rule selects every message."""
    namespace = broker.namespace("contoso")
    correlation: dict[str, Any] = {
        "correlation-id": "c",
        "label": None,
        "properties": {
            "i": Int(1),
            "l": Long(2),
            "d": 1.5,
            "t": Timestamp(3),
            "s": "x",
            "b": True,
            "u": uuid.UUID(int=4),
        },
    }
    await management.request("add-rule", add("one", correlation_filter=correlation, sql_rule_action=None))
    await management.request(
        "add-rule", add("two", sql_filter={"expression": "a = 1"}, sql_rule_action={"expression": "SET b = 2"})
    )
    await management.request("add-rule", add("three", sql_filter=None, correlation_filter=None))
    assert namespace.rule("events", "audit", "ONE").filter == CorrelationFilter(
        correlation_id="c", properties=correlation["properties"]
    )
    two = namespace.rule("events", "audit", "two")
    assert (two.filter, two.action) == (SqlFilter("a = 1"), SqlAction("SET b = 2"))
    assert namespace.rule("events", "audit", "three").filter == TrueFilter()
    await management.request("remove-rule", {"rule-name": "$default"})
    assert [rule.name for rule in namespace.rules("events", "audit")] == ["one", "three", "two"]


async def test_rules_are_enumerated_page_by_page(management: Management) -> None:
    """As described lists: filter, action, name, creation time."""
    await management.request(
        "add-rule", add("a", sql_filter={"expression": "x = 1"}, sql_rule_action={"expression": "SET y = 2"})
    )
    await management.request("add-rule", add("b", correlation_filter={"label": "l", "properties": {"p": "q"}}))
    await management.request("add-rule", add("c", false_filter={}))
    found = []
    for skip in range(5):
        answer = await management.request("enumerate-rules", {"skip": Int(skip), "top": Int(1)})
        found += [rule["rule-description"] for rule in answer.get("rules", [])]
    assert all(isinstance(rule, Described) and rule.descriptor == 0x137_0000_0004 for rule in found)
    listed = {rule.value[2]: rule.value for rule in found}
    assert list(listed) == ["$Default", "a", "b", "c"]
    codes = {name: (value[0].descriptor & 0xF, value[1].descriptor & 0xF) for name, value in listed.items()}
    assert codes == {"$Default": (7, 5), "a": (6, 6), "b": (9, 5), "c": (8, 5)}
    assert listed["a"][0].value[0] == "x = 1"
    assert listed["a"][1].value[0] == "SET y = 2"
    assert listed["b"][0].value == [None, None, None, None, "l", None, None, None, {"p": "q"}]


@pytest.mark.parametrize(
    ("operation", "body", "condition", "words"),
    [
        (
            "add-rule",
            add("$DEFAULT"),
            "com.microsoft:entity-already-exists",
            "The messaging entity '.*' already exists.",
        ),
        ("add-rule", add("bad", sql_filter={"expression": "a = "}), "com.microsoft:argument-error", "column"),
        ("add-rule", add("bad", sql_filter={}), "com.microsoft:argument-error", "expression is empty"),
        ("add-rule", add("bad", sql_filter="a = 1"), "com.microsoft:argument-error", "'sql-filter' must be a map"),
        ("add-rule", add("bad", correlation_filter={}), "com.microsoft:argument-error", "at least one property"),
        (
            "add-rule",
            add("bad", correlation_filter={"properties": {"p": [1]}}),
            "com.microsoft:argument-error",
            "expected is a simple value",
        ),
        ("add-rule", add("a/b"), "com.microsoft:argument-error", "'rule-name'"),
        ("add-rule", add("x" * 51), "com.microsoft:argument-error", "51 characters"),
        ("add-rule", {"rule-name": 5}, "com.microsoft:argument-error", "'rule-name'"),
        ("remove-rule", {"rule-name": "other"}, "amqp:not-found", "'other'"),
        ("remove-rule", {}, "com.microsoft:argument-error", "'rule-name'"),
        ("enumerate-rules", {"skip": Int(-1), "top": Int(5)}, "com.microsoft:argument-error", "'skip'"),
        ("enumerate-rules", {"skip": Int(0), "top": Int(0)}, "com.microsoft:argument-error", "'top'"),
    ],
)
async def test_bad_rule_request_is_refused(
    broker: Broker, management: Management, operation: str, body: dict[str, Any], condition: str, words: str
) -> None:
    """With a condition that the SDKs know and words that name the key; no rule is changed."""
    with pytest.raises(Refused, match=words) as refused:
        await management.request(operation, body)
    assert refused.value.condition == condition
    assert [rule.name for rule in broker.namespace("contoso").rules("events", "audit")] == ["$Default"]


async def test_rules_belong_to_subscriptions(broker: Broker) -> None:
    """A topic and a queue have none, and a sender may not choose for the receivers."""
    await broker.namespace("contoso").create(TopicDescription("other"))
    async with await connect(Endpoint.parse(broker.connection_string("contoso"))) as connection:
        topic = await connection.management("events")
        with pytest.raises(Refused, match="not possible on the topic 'events'"):
            await topic.request("enumerate-rules", {"skip": Int(0), "top": Int(1)})
    text = broker.connection_string("contoso")
    text = text.replace("RootManageSharedAccessKey", "sender").replace("SAS_KEY_VALUE", "send-key")
    async with await connect(Endpoint.parse(text)) as connection:
        management = await connection.management(SUBSCRIPTION)
        with pytest.raises(Refused, match="needs the Listen claim"):
            await management.request("add-rule", add("r"))


async def test_false_filter_is_kept_as_such(broker: Broker, management: Management) -> None:
    """A false filter selects no message, and must not become another filter when it is read back."""
    await management.request("add-rule", add("none", false_filter={}))
    assert broker.namespace("contoso").rule("events", "audit", "none").filter == FalseFilter()
