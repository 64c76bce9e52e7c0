"""The entities of the world, and where a message for one of them must arrive."""

from __future__ import annotations

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
LOCK_S = 5
"Short: a stopped process loses its locks, and a killed one delays nobody for long."


def sinks_of(entity: str, number: int) -> tuple[str, ...]:
    """Return where a message with this number must arrive."""
    if entity != NEWS:
        return (entity,)
    return (ALL, EVEN) if number % 2 == 0 else (ALL,)
