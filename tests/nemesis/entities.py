"""The entities of the world, made with the genuine administration client."""

from __future__ import annotations

from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from tests.nemesis.places import BACKLOG, BILLS, DESK, LOCK_S, NEWS, ONCE, ORDERS


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
