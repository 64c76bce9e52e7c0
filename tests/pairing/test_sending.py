"""One send as a plan: replies come from a script, the clock is moved by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pairbus.pairing.commands import Pause, Receipt, Reply, ToBacklog, ToPrimary, Unsent, Where
from pairbus.pairing.events import FailedOver
from pairbus.pairing.failover import State
from pairbus.pairing.plan import CONCLUSIVE_S, sending
from pairbus.pairing.policy import Failure, Kind
from tests.pairing.plans import BUSY, HOME, LOST, OK, SILENT, SLOW, Answer, World

# ── healthy ──


def test_a_healthy_send_is_one_command_and_nothing_else() -> None:
    world = World()
    assert world.send(OK) == HOME
    assert world.commands == [ToPrimary(59.0, 3, 3, fresh=False, trial=False)]
    assert world.events == []


def test_a_silent_primary_gets_a_third_of_the_callers_time() -> None:
    """The time that is left must be enough to reach a backlog queue."""
    world = World(failover_interval=0)
    world.send(SILENT, OK, timeout_s=6.0)
    assert world.commands == [
        ToPrimary(5.0, 2.0, 2.0, fresh=False, trial=False),
        ToBacklog("b/0", 4.0, 3, 3, False, first_attempt_at=0.0),
    ]


def test_all_attempts_share_the_primarys_third() -> None:
    """A service that takes its time to say no does not get three times the third."""
    world = World(failover_interval=0)
    world.send(Answer(Kind.INTERNAL, after_s=1.2), Answer(Kind.INTERNAL, after_s=0.75), OK, timeout_s=6.0)
    assert [c.silence_s for c in world.commands if isinstance(c, ToPrimary)] == pytest.approx([2.0, 0.8])


@pytest.mark.parametrize(
    ("timeout_s", "allowed_s", "silence_s"),
    [(60, 59, 3), (6, 5, 2), (2, 1.5, 0.75), (1, 0.75, 0.63), (0.4, 0.3, 0.252)],
)
def test_a_slow_primary_gets_all_but_a_second(timeout_s: float, allowed_s: float, silence_s: float) -> None:
    """A slow primary has the caller's time less a second for a backlog queue; a silent one has the silence time."""
    world = World()
    world.send(OK, timeout_s=timeout_s)
    [command] = world.commands
    assert isinstance(command, ToPrimary)
    assert (command.timeout_s, command.silence_s) == pytest.approx((allowed_s, silence_s))


def test_a_primary_without_an_alternative_gets_all_the_time() -> None:
    world = World(queues=0)
    world.send(OK, timeout_s=60.0)
    assert world.commands == [ToPrimary(60.0, 60.0, 60.0, fresh=False, trial=False)]


# ── slow is not dead ──


@pytest.mark.parametrize("timeout_s", [0.4, 2.0, 60.0])
def test_a_slow_but_living_primary_never_counts(timeout_s: float) -> None:
    """The caller gets the time-out: a peer that works on a send is not away."""
    world = World(failover_interval=0)
    for _ in range(3):
        with pytest.raises(Unsent) as raised:
            world.send(SLOW, timeout_s=timeout_s)
        assert (raised.value.failure.kind, raised.value.where) == (Kind.TIMEOUT, Where.PRIMARY)
        assert raised.value.outcome_unknown
    assert (world.entity.state, world.entity.failed_sends) == (State.HEALTHY, 0)
    assert world.events == []


def test_a_send_on_a_slow_primary_may_be_spooled() -> None:
    """The message is safe, and the entity stays healthy."""
    world = World(failover_interval=0, spool=True)
    assert world.send(SLOW, OK) == Receipt(Where.SPOOL)
    assert world.entity.state is State.HEALTHY


def test_silence_counts() -> None:
    world = World(failover_interval=0)
    assert world.send(SILENT, OK) == Receipt(Where.BACKLOG, "b/0")
    assert world.entity.state is State.FAILED_OVER


@pytest.mark.parametrize(("timeout_s", "counts"), [(0.6, False), (0.78, False), (0.8, True), (1.0, True)])
def test_a_moment_of_silence_says_nothing(timeout_s: float, counts: bool) -> None:
    """An attempt that granted less than half a second of silence is no evidence: a connection may take as long."""
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(SILENT, timeout_s=timeout_s)
    assert (world.commands[0].silence_s >= CONCLUSIVE_S) is counts  # type: ignore[union-attr]
    assert (world.entity.state is State.SUSPECT) is counts


def test_a_short_attempt_timeout_of_the_operator_is_conclusive() -> None:
    world = World(failover_interval=0, attempt_timeout=0.2)
    assert world.send(SILENT, OK) == Receipt(Where.BACKLOG, "b/0")


# ── suspicion ──


def test_quick_error_is_tried_three_times_first_on_a_fresh_connection() -> None:
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


@pytest.mark.parametrize("after_s", [0.5, 1.0, 5.0])
def test_three_attempts_are_three_over_a_distance(after_s: float) -> None:
    """An attempt that takes its time is not paused after, and is not made up for by fewer attempts."""
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(*[replace(LOST, after_s=after_s)] * 3)
    assert world.steps == ["primary", "primary fresh", "primary"]
    assert world.entity.failed_sends == 1


def test_repetitions_end_with_the_primarys_share() -> None:
    """Three attempts of a second each would leave a backlog queue too little of six seconds."""
    world = World(failover_interval=0)
    assert world.send(*[replace(LOST, after_s=1.0)] * 2, OK, timeout_s=6.0) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["primary", "primary fresh", "b/0"]


@pytest.mark.parametrize("losses", [1, 2])
def test_an_error_that_a_retry_overcomes_does_not_count(losses: int) -> None:
    world = World(failover_interval=0)
    assert world.send(*[LOST] * losses, OK) == HOME
    assert world.entity.state is State.HEALTHY
    assert world.events == []


def test_a_pause_that_outlasts_the_call_ends_it_with_the_error() -> None:
    """A machine that slept meanwhile: the time of the caller is over, and no further attempt is made."""
    world = World()
    plan = sending(world.pair, world.sender, 10.0, 0.0)
    assert isinstance(next(plan), ToPrimary)
    assert isinstance(plan.send(Reply(0.01, Failure(Kind.COMMUNICATION, "lost"))), Pause)
    with pytest.raises(Unsent, match="lost") as raised:
        plan.send(Reply(3600.0))
    assert raised.value.where is Where.PRIMARY and not raised.value.outcome_unknown


def test_an_attempt_that_times_out_is_not_repeated() -> None:
    world = World(failover_interval=60)
    with pytest.raises(Unsent) as raised:
        world.send(SILENT)
    assert raised.value.outcome_unknown, "the message may have been stored"
    assert world.now == 3
    assert world.entity.state is State.SUSPECT


@pytest.mark.parametrize("kind", [Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL, Kind.FULL])
def test_interval_zero_fails_over_and_stores_in_the_same_call(kind: Kind) -> None:
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
    world.now = 60.6  # 60 s after the first failure that counted, at about 0.5
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["b/0"], "nothing goes to the primary any more"


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.TOO_LARGE, Kind.INVALID)])
def test_send_in_flight_at_the_failover_is_rerouted(kind: Kind) -> None:
    """The send is rerouted after any answer that does not blame the message, because its entity has failed over."""
    world = World(failover_interval=60)
    with pytest.raises(Unsent):
        world.send(LOST, LOST, LOST)
    world.now = 59.0
    late = Answer(kind, after_s=3.0, meanwhile=world.pair.tick)
    assert world.send(late, OK, timeout_s=10.0) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["primary", "b/0"]
    assert world.now < 62.5


def test_send_in_flight_is_rerouted_without_a_tick() -> None:
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


def test_primary_is_always_asked_without_a_secondary() -> None:
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


def test_server_busy_without_ten_seconds_left_raises_at_once() -> None:
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


# ── requests that only the primary can answer ──


def test_a_request_is_made_once_when_it_is_answered() -> None:
    world = World()
    assert world.request(OK) == HOME
    assert world.steps == ["primary"]


def test_a_request_waits_while_the_primary_is_busy() -> None:
    world = World(failover_interval=0)
    assert world.request(BUSY, BUSY, OK) == HOME
    assert world.steps == ["primary", "pause 10", "primary", "pause 10", "primary"]
    assert world.entity.state is State.HEALTHY


@pytest.mark.parametrize("kind", [Kind.INTERNAL, Kind.COMMUNICATION, Kind.FULL])
def test_one_error_of_a_request_does_not_count(kind: Kind) -> None:
    """A failed request counts after its retries, as a failed send does."""
    world = World(failover_interval=0)
    assert world.request(Answer(kind), OK) == HOME
    assert world.entity.state is State.HEALTHY


def test_a_request_that_fails_three_times_counts() -> None:
    """After a failover no request can be made: no backlog queue has sequence numbers."""
    world = World(failover_interval=0)
    with pytest.raises(Unsent) as raised:
        world.request(Answer(Kind.INTERNAL), Answer(Kind.INTERNAL, unknown=True), Answer(Kind.INTERNAL))
    assert (raised.value.where, raised.value.outcome_unknown) == (Where.BACKLOG, True)
    assert raised.value.failure.kind is Kind.INTERNAL
    assert world.entity.state is State.FAILED_OVER


def test_a_request_before_the_interval_gets_the_error() -> None:
    world = World(failover_interval=60)
    with pytest.raises(Unsent) as raised:
        world.request(LOST, LOST, LOST)
    assert raised.value.where is Where.PRIMARY
    assert world.entity.state is State.SUSPECT


def test_a_request_while_failed_over_asks_nobody() -> None:
    """A trial that a probe has earned is left to a send, which has another place to go."""
    world = World()
    world.fail_over()
    world.entity.trial = True
    with pytest.raises(Unsent) as raised:
        world.request()
    assert raised.value.where is Where.BACKLOG and world.entity.trial
    assert not raised.value.outcome_unknown


def test_a_request_never_goes_to_the_spool() -> None:
    world = World(failover_interval=0, spool=True)
    with pytest.raises(Unsent) as raised:
        world.request(LOST, LOST, LOST)
    assert raised.value.where is Where.BACKLOG
    assert "spool" not in world.steps


@pytest.mark.parametrize("spool", [False, True])
def test_a_request_on_a_slow_primary_gets_its_time_out(spool: bool) -> None:
    """The failure is not counted and the request is not spooled: a request is no message."""
    world = World(failover_interval=0, spool=spool)
    with pytest.raises(Unsent) as raised:
        world.request(SLOW)
    assert (raised.value.where, raised.value.failure.kind) == (Where.PRIMARY, Kind.TIMEOUT)
    assert world.entity.state is State.HEALTHY


@pytest.mark.parametrize("kind", [Kind.UNAUTHORIZED, Kind.NOT_FOUND, Kind.INVALID])
def test_a_request_that_is_refused_raises_at_once(kind: Kind) -> None:
    world = World(failover_interval=0)
    with pytest.raises(Unsent) as raised:
        world.request(Answer(kind))
    assert raised.value.failure.kind is kind
