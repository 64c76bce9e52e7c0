"""A namespace that uses everything at once, and where each message that is sent to it must arrive.

A *copy* is what becomes of a message in one sink, an entity from which it is received in the end. The subscription
`changed` makes up to three copies, which the application property `copy` tells apart.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleAction, SqlRuleFilter

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Symbol, Timestamp

TOPIC, ARRIVALS = "news", "arrivals"
COUNTER = "counter"
ALL, EVEN, CHANGED, MORTAL, RULED, CASES = (
    f"{TOPIC}/Subscriptions/{name}" for name in ("all", "even", "changed", "mortal", "ruled", "cases")
)
BRIEF, RELAY, END = f"{TOPIC}/Subscriptions/brief", f"{TOPIC}/Subscriptions/relay", f"{ARRIVALS}/Subscriptions/end"
ARRIVED_CASES = f"{ARRIVALS}/Subscriptions/cases"
GRAVEYARD, CEMETERY, COLD, HOP, GRAVES, LAST, DESK = "graveyard", "cemetery", "cold", "hop", "graves", "last", "desk"
PASSED = {CHANGED: GRAVEYARD, MORTAL: CEMETERY, COLD: f"{COLD}/$DeadLetterQueue"}
"Sinks whose dead letters go on, and where they are in the end: the same copy, in another place."
SINKS = (ALL, EVEN, CHANGED, MORTAL, RULED, COLD, LAST)
SESSION_SINKS = (CASES, ARRIVED_CASES, DESK)
COLOURS = ("red", "green", "blue", "black")
DELIVERIES_OF_MORTALS = 2
_SCHEDULED_TIME = Symbol("x-opt-scheduled-enqueue-time")
_ADDED = ("DeadLetterReason", "DeadLetterErrorDescription")

Copy = tuple[str, str]
"The sink and the value of the property `copy`."


def make_entities(admin: ServiceBusAdministrationClient) -> None:
    """Topics that detect duplicates, filter, change, forward over three hops, and dead-letter into other queues."""
    often: dict[str, Any] = {"lock_duration": "PT5M", "max_delivery_count": 2000}
    admin.create_topic(TOPIC, requires_duplicate_detection=True, duplicate_detection_history_time_window="PT1H")
    admin.create_topic(ARRIVALS)
    for queue in (GRAVEYARD, CEMETERY, LAST):
        admin.create_queue(queue, **often)
    # Forwarded dead letters of expired messages get their short time to live again.
    admin.create_queue(COLD, dead_lettering_on_message_expiration=True, **often)
    admin.create_queue(DESK, requires_session=True, **often)
    for queue, onward in ((HOP, ARRIVALS), (GRAVES, CEMETERY), (COUNTER, DESK)):
        admin.create_queue(queue, forward_to=onward)
    for name in ("all", "even", "ruled"):
        admin.create_subscription(TOPIC, name, **often)
    admin.create_subscription(TOPIC, "changed", forward_dead_lettered_messages_to=GRAVEYARD, **often)
    admin.create_subscription(
        TOPIC,
        "mortal",
        forward_dead_lettered_messages_to=GRAVES,
        **{**often, "max_delivery_count": DELIVERIES_OF_MORTALS},
    )
    admin.create_subscription(
        TOPIC,
        "brief",
        default_message_time_to_live="PT0.3S",
        dead_lettering_on_message_expiration=True,
        forward_dead_lettered_messages_to=COLD,
    )
    admin.create_subscription(TOPIC, "relay", forward_to=HOP)
    admin.create_subscription(ARRIVALS, "end", forward_to=LAST)
    for topic in (TOPIC, ARRIVALS):
        admin.create_subscription(topic, "cases", requires_session=True, **often)
    for name in ("even", "changed", "ruled"):
        admin.delete_rule(TOPIC, name, "$Default")
    for name, rule, rule_filter, action in (
        ("even", "only", "number % 2 = 0", None),
        ("changed", "one", "EXISTS(number)", "SET copy = 'one'; SET seen = number + 1"),
        ("changed", "two", "number % 3 = 0", "SET copy = 'two'; REMOVE text"),
        ("changed", "plain", "number % 5 = 0", None),
    ):
        admin.create_rule(
            TOPIC, name, rule, filter=SqlRuleFilter(rule_filter), action=SqlRuleAction(action) if action else None
        )


@dataclass(frozen=True, slots=True)
class Made:
    """A message as a client sends it."""

    id: str
    payload: bytes
    session: str
    colour: str
    "Decides which rule of `ruled` selects it; empty for a message that does not go to the topic."
    is_scheduled: bool
    copies: dict[Copy, str]
    "The content of each copy, apart from that of `ruled`, which depends on its rules."
    content: str
    "Content of an unchanged copy."


def make(message_id: str, entity: str, session: str, source: random.Random, *, due_ms: int = 0) -> Made:
    """A message with a random body for the topic or for the queue that passes on to sessions."""
    colour = source.choice(COLOURS) if entity == TOPIC else ""
    number = source.getrandbits(20)
    application = {"number": number, "text": f"{source.getrandbits(64):x}", "colour": colour}
    message = Message(
        annotations={_SCHEDULED_TIME: Timestamp(due_ms)} if due_ms else None,
        properties=Properties(message_id=message_id, subject=f"subject of {message_id}", group_id=session),
        application_properties=application,
        data=[source.randbytes(source.choice((0, 20, 200, 1000, 1000, 9_000, 40_000)))],
    )
    copies = _copies(message, number) if entity == TOPIC else {(DESK, ""): content_of(message)}
    return Made(message_id, message.encode(), session, colour, bool(due_ms), copies, content_of(message))


def _copies(message: Message, number: int) -> dict[Copy, str]:
    same = content_of(message)
    copies: dict[Copy, str] = {(sink, ""): same for sink in (ALL, MORTAL, COLD, LAST, CASES, ARRIVED_CASES)}
    if number % 2 == 0:
        copies[EVEN, ""] = same
    if number % 5 == 0:
        copies[CHANGED, ""] = same
    copies[CHANGED, "one"] = content_of(message, {"copy": "one", "seen": number + 1, "RuleName": "one"})
    if number % 3 == 0:
        copies[CHANGED, "two"] = content_of(message, {"copy": "two", "text": None, "RuleName": "two"})
    return copies


def content_of(message: Message, changes: dict[str, Any] | None = None) -> str:
    """A digest of all that must arrive: properties, application properties and body."""
    values = {**(message.application_properties or {}), **(changes or {})}
    told = sorted((key, value) for key, value in values.items() if key not in _ADDED and value is not None)
    assert message.properties is not None, "every message of these tests has properties"
    head = repr((message.properties.encode(), told)).encode()
    return hashlib.sha256(head + message.body).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Seen:
    """A copy as a receiver gets it."""

    id: str
    variant: str
    number: int
    content: str
    session: str
    deliveries: int
    "Before this one."


def seen(payload: bytes) -> Seen:
    message = Message.decode(payload)
    assert message.properties is not None, "every message of these tests has properties"
    return Seen(
        str(message.properties.message_id),
        str((message.application_properties or {}).get("copy", "")),
        int((message.annotations or {})["x-opt-sequence-number"]),
        content_of(message),
        message.properties.group_id or "",
        int((message.header.delivery_count if message.header else 0) or 0),
    )
