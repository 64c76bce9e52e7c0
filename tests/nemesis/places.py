"""The entities of the world, and where a message for one of them must arrive."""

from __future__ import annotations

from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

PRIMARY, SECONDARY = "contoso", "fabrikam"
SIDES = (PRIMARY, SECONDARY)
ORDERS, BILLS, ONCE, DESK, NEWS = "orders", "bills", "once", "desk", "news"
ENTITIES = (ORDERS, BILLS, ONCE, DESK, NEWS)
"Entities that clients send to: two queues, one that detects duplicates, one with sessions, a topic."
ALL, EVEN = f"{NEWS}/Subscriptions/all", f"{NEWS}/Subscriptions/even"
SINKS = (ORDERS, BILLS, ONCE, DESK, ALL, EVEN)
"Entities that clients receive from."
SESSION_SINKS = frozenset({DESK})
BACKLOG = tuple(f"{PRIMARY}/x-servicebus-transfer/{number}" for number in range(3))
PATHS = {PRIMARY: (*ENTITIES, ALL, EVEN), SECONDARY: BACKLOG}
"Entities of each side that a fault may name."
LOCK_S = 8
"Short: a stopped process loses its locks, and a killed one delays nobody for long."


def sinks_of(entity: str, number: int) -> tuple[str, ...]:
    """Return where a message with this number must arrive."""
    if entity != NEWS:
        return (entity,)
    return (ALL, EVEN) if number % 2 == 0 else (ALL,)


def make_entities(admin: ServiceBusAdministrationClient) -> None:
    """Make the primary's entities. Nothing expires, and nothing is delivered too often."""
    patient: dict[str, Any] = {"lock_duration": f"PT{LOCK_S}S", "max_delivery_count": 2000}
    admin.create_queue(ORDERS, **patient)
    admin.create_queue(BILLS, **patient)
    admin.create_queue(
        ONCE, requires_duplicate_detection=True, duplicate_detection_history_time_window="PT30M", **patient
    )
    admin.create_queue(DESK, requires_session=True, **patient)
    admin.create_topic(NEWS)
    for name in ("all", "even"):
        admin.create_subscription(NEWS, name, **patient)
    admin.delete_rule(NEWS, "even", "$Default")
    admin.create_rule(NEWS, "even", "only", filter=SqlRuleFilter("number % 2 = 0"))


def make_backlog(admin: ServiceBusAdministrationClient) -> None:
    """Make the backlog queues as pairing does, but for the short locks."""
    for queue in BACKLOG:
        admin.create_queue(queue, lock_duration=f"PT{LOCK_S}S", max_delivery_count=2_147_483_647)
