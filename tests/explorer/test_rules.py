"""Rules of a subscription, and whether a message would match them."""

from __future__ import annotations

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.broker.description import RuleDescription, SubscriptionDescription, TopicDescription
from pairbus.explorer import Address, rules, would_match
from pairbus.filters import CorrelationFilter, SqlAction, SqlFilter, TrueFilter
from tests.explorer.world import world

AUDIT = Address.parse("events/Subscriptions/audit")


async def test_rules_say_which_messages_they_select() -> None:
    """An operator asks before a rule is changed, not after messages are missing."""
    async with world() as w:
        namespace = w.broker.namespace("contoso")
        await namespace.create(TopicDescription("events"))
        given = [
            RuleDescription("events", "audit", "all", filter=TrueFilter()),
            RuleDescription("events", "audit", "red", SqlFilter("color = 'red'"), SqlAction("SET seen = 1")),
            RuleDescription("events", "audit", "one", CorrelationFilter(label="x", properties={"n": 5})),
        ]
        await namespace.create_subscription(SubscriptionDescription("events", "audit"), given)
        found = {rule["name"]: rule for rule in await rules(w.carrier, AUDIT)}
    assert found["red"] == {"name": "red", "filter": "sql", "expression": "color = 'red'", "action": "SET seen = 1"}
    assert (found["one"]["fields"], found["one"]["properties"]["n"]["value"]) == ({"label": "x"}, "5")
    message = Message(properties=Properties(subject="x"), application_properties={"color": "red", "n": 5}).encode()
    assert {name: would_match(rule, message) for name, rule in found.items()} == {
        "all": (True, None),
        "red": (True, None),
        "one": (True, None),
    }
    other = Message(properties=Properties(subject="x"), application_properties={"color": "blue", "n": 6}).encode()
    assert [would_match(found[name], other)[0] for name in ("all", "red", "one")] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "path", "destination"),
    [
        ("orders", "orders", "orders"),
        ("a/b/$DeadLetterQueue", "a/b/$DeadLetterQueue", "a/b"),
        ("t/Subscriptions/s", "t/Subscriptions/s", "t"),
        ("t/subscriptions/s/$deadletterqueue", "t/subscriptions/s/$DeadLetterQueue", "t"),
    ],
)
def test_address_says_where_to_receive_and_where_to_send(text: str, path: str, destination: str) -> None:
    """Subscriptions are received from and topics are sent to."""
    address = Address.parse(text)
    assert (address.path, address.destination) == (path, destination)
