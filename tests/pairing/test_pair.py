"""One client's decisions together: pings follow the state, events tell it, an operator overrules it."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.pairing.events import (
    Diverted,
    Event,
    FailedOver,
    PingRefused,
    PingSent,
    Recovered,
    Suspected,
)
from pairbus.pairing.failover import State
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import Pair, Route
from pairbus.pairing.policy import Failure, Kind, Reaction

LOST = Failure(Kind.COMMUNICATION, "lost")


class World:
    def __init__(self, **options: Any) -> None:
        self.events: list[Event] = []
        self.pair = Pair(
            SendAvailabilityPairedNamespaceOptions(**options),
            self.events.append,
            lambda count: 0,
        )
        self.pair.paired_with(["b/0"])
        self.orders = self.pair.entity("orders", 0.0)

    @property
    def told(self) -> list[type[Event]]:
        return [type(event) for event in self.events]


def test_an_outage_from_its_first_failure_to_the_ping_that_ends_it() -> None:
    world = World(failover_interval=60, ping_primary_interval=30)
    pair, orders = world.pair, world.orders
    pair.failed(orders, LOST, 0.0)
    assert pair.next_due() == 60.0
    assert pair.route(orders, 59.9) is Route.PRIMARY
    pair.tick(60.0)
    assert pair.route(orders, 60.0) is Route.DIVERTED
    pair.note_diverted(orders, "b/0", ("1", "2"), outcome_unknown=False)
    assert pair.next_due() == 90.0
    assert pair.pings.due(90.0) == [orders]
    pair.ping_ended(orders, LOST, 95.0)
    assert pair.pings.due(125.0) == [orders]
    pair.ping_ended(orders, None, 125.1)
    assert pair.route(orders, 125.1) is Route.PRIMARY
    assert pair.next_due() is None
    assert world.events == [
        Suspected("orders", "lost", 60.0),
        FailedOver("orders", 60.0, 1, "lost"),
        Diverted("orders", "b/0", 2, ("1", "2"), False),
        PingSent("orders", False, "lost"),
        PingSent("orders", True, ""),
        Recovered("orders", pytest.approx(65.1), 2, "a ping"),  # type: ignore[arg-type]
    ]


def test_with_interval_zero_there_is_no_suspicion_to_tell_of() -> None:
    world = World(failover_interval=0)
    world.pair.failed(world.orders, LOST, 0.0)
    assert world.told == [FailedOver]


@pytest.mark.parametrize("kind", [Kind.NOT_FOUND, Kind.UNAUTHORIZED])
def test_a_refused_ping_leaves_the_entity_away_and_is_told_once(kind: Kind) -> None:
    world = World(failover_interval=0, ping_primary_interval=10)
    world.pair.failed(world.orders, LOST, 0.0)
    world.events.clear()
    for now in (10.0, 20.0):
        assert world.pair.pings.due(now) == [world.orders]
        world.pair.ping_ended(world.orders, Failure(kind, "no"), now)
    assert world.orders.state is State.FAILED_OVER
    assert world.told == [PingSent, PingRefused, PingSent]


def test_a_throttled_ping_waits_ten_seconds_before_the_next() -> None:
    world = World(failover_interval=0, ping_primary_interval=1)
    world.pair.failed(world.orders, LOST, 0.0)
    world.pair.pings.due(1.0)
    world.pair.ping_ended(world.orders, Failure(Kind.BUSY, "busy"), 1.0)
    assert world.pair.next_due() == 11.0


def test_a_probe_earns_a_trial_for_one_send_and_no_more() -> None:
    """An entity whose link opens may still take no message."""
    world = World(failover_interval=0, ping_primary_interval=10)
    pair, orders = world.pair, world.orders
    pair.failed(orders, LOST, 0.0)
    pair.pings.due(10.0)
    pair.ping_ended(orders, None, 10.0, probe=True)
    assert pair.is_diverted(orders, 11.0)
    assert [pair.route(orders, 11.0), pair.route(orders, 11.0)] == [Route.TRIAL, Route.DIVERTED]
    assert pair.next_due() == 20.0, "the next probe earns the next trial"
    pair.accepted(orders, 12.0, trial=True)
    assert orders.state is State.HEALTHY
    assert world.events[-1] == Recovered("orders", 12.0, 0, "a trial send")


def test_late_success_does_not_bring_a_failed_over_entity_back() -> None:
    """The late send began before the failover; the pings decide when the entity is back."""
    world = World(failover_interval=0)
    world.pair.failed(world.orders, LOST, 0.0)
    world.pair.accepted(world.orders, 1.0)
    assert world.orders.state is State.FAILED_OVER


def test_an_operators_failover_is_not_pinged_away() -> None:
    world = World()
    world.pair.force_failover("ORDERS", 0.0)
    assert world.pair.route(world.orders, 0.0) is Route.DIVERTED
    assert world.pair.next_due() is None
    world.pair.force_healthy("orders", 1.0)
    assert world.pair.route(world.orders, 1.0) is Route.PRIMARY


def test_an_operator_who_forces_a_failed_over_entity_stops_its_pings() -> None:
    world = World(failover_interval=0)
    world.pair.failed(world.orders, LOST, 0.0)
    world.pair.force_failover("orders", 1.0)
    assert world.pair.pings.due(1000.0) == []
    world.pair.ping_ended(world.orders, None, 1001.0)
    assert world.orders.state is State.HELD_OVER, "a ping that was under way does not end the hold"


def test_clearing_forgets_everything_and_leaves_a_plain_client() -> None:
    world = World(failover_interval=0)
    world.pair.failed(world.orders, LOST, 0.0)
    world.pair.clear(1.0)
    assert world.pair.next_due() is None
    world.pair.failed(world.orders, LOST, 2.0)
    assert world.orders.state is State.HEALTHY
    assert world.pair.route(world.orders, 2.0) is Route.PRIMARY


def test_throttling_never_counts_unless_the_operator_set_a_limit() -> None:
    busy = Failure(Kind.BUSY, "busy")
    patient, strict = World(), World(busy_counts_after=30)
    assert [patient.pair.reaction(patient.orders, busy, now) for now in (0.0, 1e6)] == [Reaction.WAIT] * 2
    reactions = [strict.pair.reaction(strict.orders, busy, now) for now in (0.0, 29.9, 30.0)]
    assert reactions == [Reaction.WAIT, Reaction.WAIT, Reaction.COUNT]
    strict.pair.accepted(strict.orders, 31.0)
    assert strict.pair.reaction(strict.orders, busy, 32.0) is Reaction.WAIT


def test_with_neither_queue_nor_spool_there_is_no_away() -> None:
    world = World(failover_interval=0)
    world.pair.paired_with([])
    world.pair.failed(world.orders, LOST, 0.0)
    assert world.orders.state is State.FAILED_OVER
    assert world.pair.route(world.orders, 1.0) is Route.PRIMARY
    world.pair.paired_with(["b/0"])
    assert world.pair.route(world.orders, 1.0) is Route.DIVERTED
