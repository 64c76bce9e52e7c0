"""The state machine: every state × every signal, and the clock of a suspicion."""

from __future__ import annotations

from typing import Any

import pytest
from tools.draw_states import BEGIN, END, diagram, drawn

from pairbus.pairing.events import Event, FailedOver, Recovered, Suspected
from pairbus.pairing.failover import TRANSITIONS, Failover, SendingEntity, Signal, State

HEALTHY, SUSPECT, FAILED_OVER, HELD_OVER = State

# The specification once more, in rows: what each signal makes of each state.
EXPECTED = {
    #                         HEALTHY    SUSPECT      FAILED_OVER  HELD_OVER
    Signal.SEND_FAILED: (SUSPECT, SUSPECT, FAILED_OVER, HELD_OVER),
    Signal.SEND_ACCEPTED: (HEALTHY, HEALTHY, FAILED_OVER, HELD_OVER),
    Signal.INTERVAL_OVER: (HEALTHY, FAILED_OVER, FAILED_OVER, HELD_OVER),
    Signal.PING_ACCEPTED: (HEALTHY, SUSPECT, HEALTHY, HELD_OVER),
    Signal.TRIAL_ACCEPTED: (HEALTHY, SUSPECT, HEALTHY, HELD_OVER),
    Signal.FORCED_OVER: (HELD_OVER, HELD_OVER, HELD_OVER, HELD_OVER),
    Signal.FORCED_HEALTHY: (HEALTHY, HEALTHY, HEALTHY, HEALTHY),
}


class World:
    def __init__(self, interval_s: float = 60.0) -> None:
        self.events: list[Event] = []
        self.failover = Failover(interval_s, lambda entity, event, now: self.events.append(event))
        self.orders = self.failover.entity("orders", 0.0)

    def in_state(self, state: State) -> SendingEntity:
        if state in (SUSPECT, FAILED_OVER):
            self.failover.failed(self.orders, "lost", 0.0)
        if state is FAILED_OVER:
            self.failover.tick(60.0)
        if state is HELD_OVER:
            self.failover.force(self.orders, Signal.FORCED_OVER, 0.0)
        assert self.orders.state is state
        return self.orders


def signal_to(failover: Failover, entity: SendingEntity, signal: Signal) -> None:
    now = entity.since + 1.0
    if signal is Signal.SEND_FAILED:
        failover.failed(entity, "lost", now)
    elif signal is Signal.SEND_ACCEPTED:
        failover.accepted(entity, now)
    elif signal is Signal.TRIAL_ACCEPTED:
        failover.accepted(entity, now, trial=True)
    elif signal is Signal.INTERVAL_OVER:
        failover.tick(now + 60.0)
    elif signal is Signal.PING_ACCEPTED:
        failover.pinged(entity, now)
    else:
        failover.force(entity, signal, now)


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("state", State)
def test_every_signal_in_every_state_leads_where_the_table_says(state: State, signal: Signal) -> None:
    """An absent row changes nothing; a changed state is told exactly once."""
    world = World()
    entity = world.in_state(state)
    world.events.clear()
    signal_to(world.failover, entity, signal)
    expected = EXPECTED[signal][list(State).index(state)]
    assert entity.state is expected
    assert len(world.events) == (expected is not state)


def test_the_table_has_no_row_that_leads_nowhere() -> None:
    assert all(after is not state for (state, _), after in TRANSITIONS.items())


def test_the_clock_starts_at_the_first_failure_and_not_again() -> None:
    """Otherwise frequent failures would put the failover off for ever."""
    world = World(60.0)
    world.failover.failed(world.orders, "first", 10.0)
    world.failover.failed(world.orders, "second", 50.0)
    assert world.failover.next_due() == 70.0
    world.failover.tick(69.999)
    assert world.orders.state is SUSPECT
    world.failover.tick(70.0)
    assert world.orders.state is FAILED_OVER
    assert world.events == [
        Suspected("orders", "first", 60.0),
        FailedOver("orders", 60.0, 2, "second"),
    ]


def test_a_success_inside_the_interval_cancels_the_failover() -> None:
    """One accepted send proves the primary alive, however many failed before it."""
    world = World(60.0)
    world.failover.failed(world.orders, "lost", 0.0)
    world.failover.failed(world.orders, "lost", 30.0)
    world.failover.accepted(world.orders, 59.9)
    world.failover.tick(1000.0)
    assert world.orders.state is HEALTHY
    assert world.failover.next_due() is None
    assert world.events[-1] == Recovered("orders", 59.9, 0, "a send")


def test_interval_zero_fails_over_on_the_first_counting_failure() -> None:
    world = World(0.0)
    world.failover.failed(world.orders, "refused", 5.0)
    assert world.orders.state is FAILED_OVER
    assert world.events[-1] == FailedOver("orders", 0.0, 1, "refused")


def test_a_suspicion_that_nobody_ticked_ends_when_somebody_looks() -> None:
    """A send that comes after the interval must not wait for a timer that is late."""
    world = World(60.0)
    world.in_state(SUSPECT)
    assert world.failover.settle(world.orders, 59.0) is SUSPECT
    assert world.failover.settle(world.orders, 60.0) is FAILED_OVER


def test_a_failure_of_one_entity_says_nothing_about_another() -> None:
    world = World(0.0)
    bills = world.failover.entity("bills", 0.0)
    world.failover.failed(world.orders, "lost", 0.0)
    assert (world.orders.state, bills.state) == (FAILED_OVER, HEALTHY)


def test_paths_compare_without_case() -> None:
    world = World()
    assert world.failover.entity("ORDERS", 1.0) is world.orders
    assert [entity.path for entity in world.failover] == ["orders"]


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("", ValueError, "name is missing"),
        (None, ValueError, "name is missing"),
        (5, TypeError, "must be a str, not int"),
    ],
)
def test_a_name_that_is_none_is_refused(path: Any, error: type[Exception], says: str) -> None:
    """The refusal comes before a sender exists: its first send would fail in a place without the name."""
    world = World()
    with pytest.raises(error, match=says):
        world.failover.entity(path, 0.0)
    assert [entity.path for entity in world.failover] == ["orders"]


def test_failover_says_how_long_and_how_often_the_primary_failed() -> None:
    """An operator reads this line first; the line of a failover by hand names no failures."""
    world = World(10.0)
    for now in (0.0, 4.0, 10.0):
        world.failover.failed(world.orders, "no route to host", now)
    assert str(world.events[-1]) == "orders -> FAILED_OVER after 10.0s, 3 failed sends: no route to host"
    world.failover.force(world.orders, Signal.FORCED_OVER, 11.0)
    assert str(world.events[-1]).startswith("orders -> HELD_OVER by hand: ")


def test_only_a_hand_brings_a_held_entity_back() -> None:
    """An operator who drains a namespace must not be overruled by a ping."""
    world = World()
    world.in_state(HELD_OVER)
    assert world.events == [FailedOver("orders", 0.0, 0, "an operator asked for it", forced=True)]
    assert str(world.events[0]) == f"orders -> {world.orders.state.name} by hand: an operator asked for it"
    world.failover.pinged(world.orders, 1.0)
    world.failover.accepted(world.orders, 2.0, trial=True)
    assert world.orders.state is HELD_OVER
    world.failover.force(world.orders, Signal.FORCED_HEALTHY, 3.0)
    assert world.events[-1] == Recovered("orders", 3.0, 0, "an operator")


def test_recovery_tells_how_many_were_diverted_and_counts_anew() -> None:
    world = World()
    world.in_state(FAILED_OVER)
    world.orders.diverted = 40
    world.failover.pinged(world.orders, 100.0)
    assert world.events[-1] == Recovered("orders", 40.0, 40, "a ping")
    assert (world.orders.diverted, world.orders.failed_sends) == (0, 0)


def test_recovery_by_a_ping_forgets_throttling_of_the_time_before() -> None:
    """Otherwise the first busy answer after the recovery would count as an outage that never ended."""
    world = World()
    world.in_state(FAILED_OVER).busy_since = 1.0
    world.failover.pinged(world.orders, 100.0)
    assert world.orders.busy_since is None


def test_forgetting_makes_every_entity_healthy_and_stops_every_clock() -> None:
    world = World()
    world.in_state(SUSPECT)
    world.failover.forget(5.0)
    assert world.orders.state is HEALTHY
    assert world.failover.next_due() is None
    world.failover.tick(1000.0)
    assert world.orders.state is HEALTHY


def test_an_entity_shows_its_path_and_state() -> None:
    assert repr(World().in_state(FAILED_OVER)) == "<Entity orders FAILED_OVER>"


def test_the_diagram_shows_every_row_of_the_table_and_nothing_else() -> None:
    """The page that people read in the night must not tell of another machine."""
    arrows = [line.split(": ") for line in diagram().splitlines() if "-->" in line and "[*]" not in line]
    shown = {(head.strip(), label) for head, labels in arrows for label in labels.split(" / ")}
    table = {(f"{before.value} --> {after.value}", signal.value) for (before, signal), after in TRANSITIONS.items()}
    assert shown == table


def test_the_diagram_is_written_between_its_markers_and_touches_nothing_else() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert drawn(page) == f"before\n{BEGIN}\n{diagram()}\n{END}\nafter\n"
    with pytest.raises(ValueError, match="lacks the lines"):
        drawn("a page without markers")


def test_log_lines_count_one_thing_in_the_singular() -> None:
    """With an interval of 0 these are the first log lines that a new user sees."""
    assert str(FailedOver("orders", 0.0, 1, "refused")) == "orders -> FAILED_OVER after 0.0s, 1 failed send: refused"
    assert str(FailedOver("orders", 0.0, 2, "refused")) == "orders -> FAILED_OVER after 0.0s, 2 failed sends: refused"
    assert str(Recovered("orders", 3.0, 1, "a ping")) == "orders -> HEALTHY by a ping after 3.0s, 1 message diverted"
    assert str(Recovered("orders", 3.0, 0, "a ping")) == "orders -> HEALTHY by a ping after 3.0s, 0 messages diverted"
