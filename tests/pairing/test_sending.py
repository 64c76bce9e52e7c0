"""One send as a plan: replies come from a script, the clock is moved by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.pairing.events import FailedOver
from pairbus.pairing.failover import State
from pairbus.pairing.policy import Kind
from pairbus.pairing.sending import (
    Receipt,
    ToBacklog,
    ToPrimary,
    Unsent,
    Where,
    sending,
)
from tests.pairing.plans import BUSY, HOME, LOST, OK, SILENT, Answer, World

# ── healthy ──


def test_a_healthy_send_is_one_command_and_nothing_else() -> None:
    world = World()
    assert world.send(OK) == HOME
    assert world.commands == [ToPrimary(3, fresh=False, trial=False)]
    assert world.events == []


def test_the_primary_gets_at_most_a_third_of_the_callers_time() -> None:
    """What is left must be enough to reach a backlog queue."""
    world = World(failover_interval=0)
    world.send(SILENT, OK, timeout_s=6.0)
    assert world.commands == [
        ToPrimary(2.0, fresh=False, trial=False),
        ToBacklog("b/0", 3, False, first_attempt_at=0.0),
    ]


def test_the_third_is_shared_by_all_attempts() -> None:
    """A service that takes its time to say no does not get three times the third."""
    world = World(failover_interval=0)
    world.send(Answer(Kind.INTERNAL, after_s=1.5), Answer(Kind.INTERNAL, after_s=0.5), OK, timeout_s=6.0)
    assert [c.timeout_s for c in world.commands if isinstance(c, ToPrimary)] == [2.0, 0.5]


# ── suspicion ──


def test_a_quick_error_is_tried_three_times_and_the_first_retry_is_fresh() -> None:
    """A link that the service closed while idle must never divert anything."""
    world = World(failover_interval=60)
    with pytest.raises(Unsent) as raised:
        world.send(LOST, LOST, LOST)
    assert world.steps == ["primary", "pause 0.09", "primary fresh", "pause 0.39", "primary"]
    assert world.now < 1.5
    assert raised.value.failure.kind is Kind.COMMUNICATION
    assert raised.value.where is Where.PRIMARY
    assert not raised.value.outcome_unknown
    assert (world.entity.state, world.entity.failed_sends) == (State.SUSPECT, 1)


def test_attempts_that_take_their_time_are_not_paused_between_and_soon_are_no_more() -> None:
    """The SDK needs half a second for a connection: three of those and two pauses would be more than a second and a
    half. The one repetition on a fresh connection is made in any case."""
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(LOST, replace(LOST, after_s=0.5), replace(LOST, after_s=0.5))
    assert world.steps == ["primary", "pause 0.09", "primary fresh", "primary"]
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(replace(LOST, after_s=2.0), replace(LOST, after_s=0.8))
    assert world.steps == ["primary", "primary fresh"]


@pytest.mark.parametrize("losses", [1, 2])
def test_an_error_that_a_retry_overcomes_does_not_count(losses: int) -> None:
    world = World(failover_interval=0)
    assert world.send(*[LOST] * losses, OK) == HOME
    assert world.entity.state is State.HEALTHY
    assert world.events == []


def test_an_attempt_that_times_out_is_not_repeated() -> None:
    world = World(failover_interval=60)
    with pytest.raises(Unsent) as raised:
        world.send(SILENT)
    assert raised.value.outcome_unknown, "the message may have been stored"
    assert world.now == 3
    assert world.entity.state is State.SUSPECT


@pytest.mark.parametrize("kind", [Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL, Kind.FULL])
def test_counting_failures_fail_over_at_once_with_interval_zero_and_the_same_call_is_stored(kind: Kind) -> None:
    world = World(failover_interval=0)
    tries = 1 if kind is Kind.TIMEOUT else 3
    receipt = world.send(*[Answer(kind)] * tries, OK)
    assert receipt == Receipt(Where.BACKLOG, "b/0")
    assert world.entity.state is State.FAILED_OVER
    assert isinstance(world.events[0], FailedOver)
    assert world.now < 2.0


def test_a_success_while_suspect_ends_the_suspicion() -> None:
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(LOST, LOST, LOST)
    assert world.send(LOST, OK) == HOME
    assert world.entity.state is State.HEALTHY


def test_sends_before_the_interval_get_the_error_and_after_it_are_stored() -> None:
    world = World(failover_interval=60)
    for _ in range(3):
        with pytest.raises(Unsent):
            world.send(LOST, LOST, LOST)
        world.now += 10
    world.now = 60.6  # the first counted at about 0.5
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["b/0"], "nothing goes to the primary any more"


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.TOO_LARGE, Kind.INVALID)])
def test_a_send_in_flight_when_the_interval_ends_is_rerouted_within_the_same_call(kind: Kind) -> None:
    """Whatever its answer, unless the message is to blame: the entity is away, and this send is one of its sends."""
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(LOST, LOST, LOST)
    world.now = 59.0
    late = Answer(kind, after_s=3.0, meanwhile=world.pair.tick)
    assert world.send(late, OK, timeout_s=10.0) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["primary", "b/0"]
    assert world.now < 62.5


def test_a_send_in_flight_when_the_interval_ends_is_rerouted_although_nobody_ticked() -> None:
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(LOST, LOST, LOST)
    world.now = 59.0
    assert world.send(Answer(Kind.FULL, after_s=3.0), OK) == Receipt(Where.BACKLOG, "b/0")


@pytest.mark.parametrize("kind", [Kind.TOO_LARGE, Kind.INVALID])
def test_a_message_that_is_to_blame_is_not_rerouted(kind: Kind) -> None:
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(LOST, LOST, LOST)
    world.now = 59.0
    with pytest.raises(Unsent) as raised:
        world.send(Answer(kind, after_s=3.0))
    assert raised.value.failure.kind is kind


def test_a_send_that_waited_in_line_while_the_entity_failed_over_follows_it() -> None:
    world = World(failover_interval=60)
    waited = Answer(rerouted=True, meanwhile=lambda now: world.pair.force_failover("orders", now))
    assert world.send(waited, OK) == Receipt(Where.BACKLOG, "b/0")


def test_without_anywhere_else_to_go_the_primary_is_asked_however_often_it_failed() -> None:
    """A client that started without its secondary is a plain client."""
    world = World(failover_interval=0, queues=0)
    for _ in range(2):
        with pytest.raises(Unsent) as raised:
            world.send(LOST, LOST, LOST)
        assert raised.value.where is Where.PRIMARY


def test_a_client_whose_pairing_is_cleared_is_a_plain_client() -> None:
    world = World(failover_interval=0)
    world.fail_over()
    world.pair.clear(world.now)
    with pytest.raises(Unsent):
        world.send(LOST, LOST, LOST)
    assert world.entity.state is State.HEALTHY
    assert world.send(OK) == HOME


# ── what does not count ──


@pytest.mark.parametrize("kind", [Kind.UNAUTHORIZED, Kind.NOT_FOUND, Kind.DISABLED, Kind.TOO_LARGE, Kind.INVALID])
def test_the_callers_mistakes_reach_the_caller_at_once(kind: Kind) -> None:
    world = World(failover_interval=0)
    with pytest.raises(Unsent) as raised:
        world.send(Answer(kind))
    assert raised.value.failure.kind is kind
    assert world.entity.state is State.HEALTHY
    assert world.now < 0.1


def test_server_busy_waits_ten_seconds_as_long_as_the_callers_time_allows() -> None:
    world = World(failover_interval=0)
    assert world.send(BUSY, BUSY, BUSY, OK) == HOME
    assert world.steps == ["primary", "pause 10", "primary", "pause 10", "primary", "pause 10", "primary"]
    assert world.entity.state is State.HEALTHY


def test_server_busy_with_less_than_ten_seconds_left_is_the_callers_error_at_once() -> None:
    world = World(failover_interval=0)
    with pytest.raises(Unsent) as raised:
        world.send(BUSY, BUSY, timeout_s=19.0)
    assert raised.value.failure.kind is Kind.BUSY
    assert world.now < 10.1
    assert world.entity.state is State.HEALTHY


def test_endless_throttling_counts_when_the_operator_says_so() -> None:
    world = World(failover_interval=0, busy_counts_after=20)
    assert world.send(BUSY, BUSY, BUSY, OK) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["primary", "pause 10", "primary", "pause 10", "primary", "b/0"]


def test_a_success_ends_the_time_of_throttling() -> None:
    world = World(failover_interval=0, busy_counts_after=20)
    world.send(BUSY, BUSY, OK)
    assert world.send(BUSY, BUSY, OK) == HOME


# ── the first attempt without a plan ──


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("unknown", [False, True])
def test_a_plan_that_is_told_of_the_first_attempt_goes_on_as_if_it_had_made_it(kind: Kind, unknown: bool) -> None:
    """The shells make the first attempt on a healthy entity without a plan, which is cheaper."""
    first = Answer(kind, unknown=unknown)
    ended: list[tuple[object, ...]] = []
    for by_plan in (True, False):
        world = World(failover_interval=0)
        began = world.now
        tried = None if by_plan else world.perform(ToPrimary(3, fresh=False, trial=False), iter([first]))
        plan = sending(world.pair, world.sender, 60.0, began, tried=tried)
        try:
            command = next(plan)
            if by_plan:
                command = plan.send(world.perform(command, iter([first])))
            ended.append((str(command), world.now, world.entity.state))
        except Unsent as unsent:
            ended.append((str(unsent), world.now, unsent.outcome_unknown))
    assert ended[0] == ended[1]
