"""Counters that events of a client change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pairbus.pairing import events
from pairbus.pairing.events import Event
from pairbus.telemetry.counters import Counters

QUEUE = "contoso/x-servicebus-transfer/3"
SUSPECTED = events.Suspected("orders", "refused", 10.0)
FAILED_OVER = events.FailedOver("orders", 10.0, 4, "refused")
HELD_OVER = events.FailedOver("orders", 0.0, 0, "an operator asked for it", forced=True)
RECOVERED = events.Recovered("orders", 20.0, 5, "a ping")

ENTITY_CASES: list[tuple[Sequence[Event], dict[str, int | str]]] = [
    ([SUSPECTED], {"state": "SUSPECT"}),
    ([SUSPECTED, RECOVERED], {"state": "HEALTHY", "recovered": 0}),
    ([SUSPECTED, FAILED_OVER], {"state": "FAILED_OVER", "failovers": 1}),
    ([FAILED_OVER, RECOVERED, FAILED_OVER, RECOVERED], {"state": "HEALTHY", "failovers": 2, "recovered": 2}),
    ([HELD_OVER], {"state": "HELD_OVER", "failovers": 1}),
    ([HELD_OVER, RECOVERED], {"state": "HEALTHY", "failovers": 1, "recovered": 1}),
    ([events.PingSent("orders", False, "no"), events.PingSent("ORDERS", True, "")], {"pings": 2}),
    ([events.Diverted("orders", QUEUE, 3, ("a", "b", "c"), False)], {"diverted": 3, "spooled": 0}),
    (
        [events.Diverted("orders", "spool", 2, ("a", "b"), False), events.Spooled("orders", 2, 7)],
        {"diverted": 0, "spooled": 2},
    ),
    ([FAILED_OVER, events.PairingCleared("contoso")], {"state": "HEALTHY", "failovers": 1}),
]
QUEUE_CASES: list[tuple[Sequence[Event], dict[str, int | bool]]] = [
    ([events.Diverted("orders", QUEUE, 3, ("a", "b", "c"), False)], {"stored": 3, "moved": 0}),
    ([events.Moved("orders", QUEUE, 2, ("a", "b"))], {"moved": 2}),
    ([events.DeadLettered(QUEUE, "a", "TooLarge", "…")], {"dead_lettered": 1}),
    ([events.BacklogQueueFailed(QUEUE, "full", 60.0)], {"failed": 1, "out_of_rotation": True}),
    (
        [events.BacklogQueueFailed(QUEUE, "full", 60.0), events.BacklogQueueBack(QUEUE)],
        {"failed": 1, "out_of_rotation": False},
    ),
]


@pytest.mark.parametrize(("told", "expected"), ENTITY_CASES)
def test_events_about_an_entity(told: Sequence[Event], expected: dict[str, int | str]) -> None:
    """Paths compare without case, and a message is counted in one place only."""
    counters = Counters()
    for event in told:
        counters.note(event)
    [(path, counts)] = counters.snapshot()["entities"].items()
    assert path == "orders"
    assert counts | expected == counts


@pytest.mark.parametrize(("told", "expected"), QUEUE_CASES)
def test_events_about_a_backlog_queue(told: Sequence[Event], expected: dict[str, int | bool]) -> None:
    """Messages are stored, moved and dead-lettered, and queues leave the rotation."""
    counters = Counters()
    for event in told:
        counters.note(event)
    snapshot = counters.snapshot()
    counts = snapshot["queues"][QUEUE]
    assert counts | expected == counts
    assert snapshot["out_of_rotation"] == expected.get("out_of_rotation", 0)


def test_totals_are_sums_and_a_snapshot_stays_as_it_was() -> None:
    """A program that prints a snapshot must not see numbers that move."""
    waiting = [6]
    counters = Counters(lambda: waiting[0])
    counters.entity("orders").sent += 3
    counters.entity("Orders").sent += 1
    counters.entity("invoices").sent += 2
    counters.entity("invoices").failed += 1
    counters.note(events.Moved("orders", QUEUE, 5, ()))
    snapshot = counters.snapshot()
    waiting[0] = 5
    counters.entity("orders").sent += 100
    assert snapshot["total"] | {"sent": 6, "failed": 1, "backlog_moved": 5, "backlog_failed": 0} == snapshot["total"]
    assert snapshot["entities"]["orders"]["sent"] == 4
    assert snapshot["spool_depth"] == 6
