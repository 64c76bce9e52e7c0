"""One send as a plan: replies come from a script, the clock is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.events import BacklogQueueBack, BacklogQueueFailed, Event, FailedOver
from pairbus.pairing.failover import State
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import Pair
from pairbus.pairing.policy import Failure, Kind
from pairbus.pairing.sending import (
    Command,
    Pause,
    Receipt,
    Reply,
    SenderState,
    ToBacklog,
    ToPrimary,
    ToSpool,
    Unsent,
    Where,
    sending,
)

QUEUES = ["b/0", "b/1", "b/2"]
HOME = Receipt(Where.PRIMARY)


@dataclass(frozen=True)
class Answer:
    """How a scripted command ends, and how long it takes."""

    kind: Kind | None = None
    after_s: float = 0.01
    unknown: bool = False
    rerouted: bool = False
    meanwhile: Callable[[float], object] | None = None
    "Something else happens while the command is under way; it is told when."


OK = Answer()
LOST, FULL, BUSY = Answer(Kind.COMMUNICATION), Answer(Kind.FULL), Answer(Kind.BUSY)
SILENT = Answer(Kind.TIMEOUT, after_s=-1.0, unknown=True)
"No answer: it takes all the time that the command has."


class World:
    """A pair, one sender of `orders`, and a clock."""

    def __init__(self, *, failover_interval: float = 60, spool: bool = False, queues: int = 3, **options: Any) -> None:
        self.events: list[Event] = []
        chosen = SendAvailabilityPairedNamespaceOptions(
            failover_interval=failover_interval,
            spool_dir="spool" if spool else None,
            **options,
        )
        self.pair = Pair(chosen, self.events.append, lambda count: 0)
        self.pair.paired_with(QUEUES[:queues])
        self.entity = self.pair.entity("orders", 0.0)
        self.sender = SenderState(self.entity)
        self.now = 0.0
        self.commands: list[Command] = []

    def fail_over(self) -> None:
        self.pair.failed(self.entity, Failure(Kind.COMMUNICATION, "lost"), self.now)
        self.now += self.pair.options.failover_interval
        self.pair.tick(self.now)
        assert self.entity.state is State.FAILED_OVER
        self.events.clear()

    def send(self, *script: Answer, timeout_s: float = 60.0, behind_spool: bool = False) -> Receipt:
        """Perform the plan; pauses take their time, everything else is answered by the script, all of it."""
        self.commands, answers = [], iter(script)
        plan = sending(self.pair, self.sender, timeout_s, self.now, behind_spool=behind_spool)
        command = next(plan)
        try:
            while True:
                self.commands.append(command)
                command = plan.send(self._perform(command, answers))
        except StopIteration as end:
            receipt: Receipt = end.value
            return receipt
        finally:
            assert next(answers, None) is None, "an answer was left over"

    def _perform(self, command: Command, answers: Iterator[Answer]) -> Reply:
        if isinstance(command, Pause):
            self.now += command.seconds
            return Reply(self.now)
        answer = next(answers, None)
        assert answer is not None, f"no answer for {command}"
        limit_s = 1.0 if isinstance(command, ToSpool) else command.timeout_s
        self.now += limit_s if answer.after_s < 0 else min(answer.after_s, limit_s)
        if answer.meanwhile is not None:
            answer.meanwhile(self.now)
        failure = None if answer.kind is None else Failure(answer.kind, answer.kind.value, answer.unknown)
        return Reply(self.now, failure, answer.rerouted)

    @property
    def steps(self) -> list[str]:
        """The commands in one word each."""
        return [_word(command) for command in self.commands]


def _word(command: Command) -> str:
    if isinstance(command, ToPrimary):
        return "trial" if command.trial else "primary fresh" if command.fresh else "primary"
    if isinstance(command, ToBacklog):
        return f"{command.queue} fresh" if command.fresh else command.queue
    return "spool" if isinstance(command, ToSpool) else f"pause {command.seconds:g}"


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


# ── away ──


def test_a_sender_keeps_the_backlog_queue_that_it_picked() -> None:
    world = World()
    world.fail_over()
    world.pair.rotation.failed("b/0", "lost", world.now)
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/1")
    world.now += 100.0
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/1"), "although b/0 is back"


def test_a_queue_that_fails_is_out_for_all_senders_and_another_is_picked() -> None:
    world = World()
    world.fail_over()
    assert world.send(LOST, LOST, OK) == Receipt(Where.BACKLOG, "b/1")
    assert world.steps == ["b/0", "b/0 fresh", "b/1"], "a connection that was lost is tried once more, fresh"
    assert world.events == [BacklogQueueFailed("b/0", "communication", 60.0)]
    world.sender = SenderState(world.entity)
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/1")


@pytest.mark.parametrize(
    "kind", [Kind.TIMEOUT, Kind.INTERNAL, Kind.FULL, Kind.UNAUTHORIZED, Kind.NOT_FOUND, Kind.DISABLED]
)
def test_any_other_trouble_of_a_queue_takes_it_out_without_a_second_try(kind: Kind) -> None:
    world = World()
    world.fail_over()
    assert world.send(Answer(kind), OK) == Receipt(Where.BACKLOG, "b/1")
    assert not world.pair.rotation.has("b/0")


@pytest.mark.parametrize("kind", [Kind.TOO_LARGE, Kind.INVALID])
def test_the_messages_fault_reaches_the_caller_and_takes_no_queue_out(kind: Kind) -> None:
    world = World()
    world.fail_over()
    with pytest.raises(Unsent) as raised:
        world.send(Answer(kind))
    assert (raised.value.failure.kind, raised.value.where) == (kind, Where.BACKLOG)
    assert world.pair.rotation.has("b/0")


def test_a_busy_queue_is_waited_for_and_stays_in() -> None:
    world = World()
    world.fail_over()
    assert world.send(BUSY, OK) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["b/0", "pause 10", "b/0"]


def test_a_busy_queue_with_less_than_ten_seconds_left_is_the_callers_error() -> None:
    world = World()
    world.fail_over()
    with pytest.raises(Unsent) as raised:
        world.send(BUSY, timeout_s=9.0)
    assert raised.value.failure.kind is Kind.BUSY
    assert world.pair.rotation.has("b/0")


def test_with_no_queue_left_the_error_reaches_the_caller() -> None:
    world = World()
    world.fail_over()
    with pytest.raises(Unsent) as raised:
        world.send(FULL, FULL, FULL)
    assert raised.value.where is Where.BACKLOG
    assert "no backlog queue" in str(raised.value)
    with pytest.raises(Unsent):
        world.send()


def test_a_queue_is_tried_again_after_the_retry_interval() -> None:
    world = World(queues=1, backlog_retry_interval=60)
    world.fail_over()
    with pytest.raises(Unsent):
        world.send(FULL)
    world.now += 60.0
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/0")
    assert world.events[-1] == BacklogQueueBack("b/0")


def test_a_send_that_waited_in_line_for_a_queue_that_went_out_picks_another() -> None:
    world = World()
    world.fail_over()
    out = Answer(rerouted=True, meanwhile=lambda now: world.pair.rotation.failed("b/0", "lost", now))
    assert world.send(out, OK) == Receipt(Where.BACKLOG, "b/1")


def test_a_send_that_waits_for_a_busy_queue_goes_home_when_the_entity_recovers() -> None:
    world = World()
    world.fail_over()
    recovers = Answer(Kind.BUSY, meanwhile=lambda now: world.pair.ping_ended(world.entity, None, now))
    world.pair.pings.due(world.now + 60.0)
    assert world.send(recovers, OK) == HOME


def test_queues_that_stay_silent_never_make_a_call_outlive_its_time() -> None:
    world = World()
    world.fail_over()
    began = world.now
    with pytest.raises(Unsent):
        world.send(SILENT, SILENT, SILENT, timeout_s=8.0)
    assert world.now == pytest.approx(began + 8.0)


# ── unknown outcomes ──


def test_an_unknown_outcome_of_the_primary_is_carried_to_the_backlog() -> None:
    """The syphon reports the message when it comes home after the window of duplicate detection."""
    world = World(failover_interval=0)
    world.now = 5.0
    world.send(LOST, Answer(Kind.COMMUNICATION, unknown=True), LOST, OK)
    command = world.commands[-1]
    assert isinstance(command, ToBacklog)
    assert command.first_attempt_at == pytest.approx(5.0 + 0.1), "when the attempt began that may have stored it"


def test_an_unknown_outcome_of_one_backlog_queue_is_carried_to_the_next() -> None:
    world = World()
    world.fail_over()
    began = world.now
    world.send(SILENT, OK)
    assert world.commands[-1] == ToBacklog("b/1", 3, False, first_attempt_at=began)


def test_an_unknown_outcome_of_a_backlog_queue_is_told_when_nobody_else_takes_the_message() -> None:
    """The caller who sends it again must know that it may be there twice."""
    world = World(queues=2)
    world.fail_over()
    with pytest.raises(Unsent) as raised:
        world.send(SILENT, FULL)
    assert raised.value.outcome_unknown


def test_certain_failures_leave_no_mark() -> None:
    world = World(failover_interval=0)
    world.send(LOST, LOST, LOST, FULL, OK)
    assert [c.first_attempt_at for c in world.commands if isinstance(c, ToBacklog)] == [None, None]


# ── trial ──


def trial_world(**options: Any) -> World:
    world = World(ping="attach", **options)
    world.fail_over()
    world.now += 60.0
    world.pair.pings.due(world.now)
    world.pair.ping_ended(world.entity, None, world.now, probe=True)
    return world


def test_a_probe_that_went_well_grants_one_trial_which_recovers_the_entity() -> None:
    world = trial_world()
    assert world.send(OK) == HOME
    assert world.steps == ["trial"]
    assert world.entity.state is State.HEALTHY


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in (Kind.TOO_LARGE, Kind.INVALID)])
def test_a_trial_that_fails_goes_to_the_backlog_in_the_same_call(kind: Kind) -> None:
    world = trial_world()
    assert world.send(Answer(kind), OK) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["trial", "b/0"]
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/0"), "one trial was granted"
    assert world.entity.state is State.FAILED_OVER


def test_a_trial_with_a_message_that_is_to_blame_tells_the_caller() -> None:
    world = trial_world()
    with pytest.raises(Unsent):
        world.send(Answer(Kind.INVALID))


def test_a_trial_that_is_granted_when_the_primary_had_its_share_does_not_cost_the_backlog_its_turn() -> None:
    """The primary used its third; the time that is left is enough for a queue."""
    world = World(failover_interval=0)

    def grant(now: float) -> None:
        world.entity.trial = True

    answers = (SILENT, Answer(Kind.FULL, meanwhile=grant), OK)
    assert world.send(*answers, timeout_s=9.0) == Receipt(Where.BACKLOG, "b/1")


# ── spool ──


def test_with_every_queue_out_the_message_goes_to_the_spool() -> None:
    world = World(spool=True, queues=2)
    world.fail_over()
    assert world.send(FULL, SILENT, OK) == Receipt(Where.SPOOL)
    assert world.steps == ["b/0", "b/1", "spool"]
    assert isinstance(world.commands[-1], ToSpool)
    assert world.commands[-1].first_attempt_at is not None


def test_the_spool_gets_its_part_of_the_time_when_queues_stay_silent() -> None:
    world = World(spool=True)
    world.fail_over()
    began = world.now
    assert world.send(SILENT, SILENT, OK, timeout_s=6.0) == Receipt(Where.SPOOL)
    assert [c.timeout_s for c in world.commands if isinstance(c, ToBacklog)] == [3, 2.5]
    assert world.now - began <= 6.0 + 0.5


def test_a_busy_queue_with_too_little_time_left_gives_way_to_the_spool() -> None:
    world = World(spool=True)
    world.fail_over()
    assert world.send(BUSY, OK, timeout_s=10.4) == Receipt(Where.SPOOL)


def test_without_a_secondary_the_spool_is_where_an_entity_fails_over_to() -> None:
    world = World(failover_interval=0, spool=True, queues=0)
    assert world.send(LOST, LOST, LOST, OK) == Receipt(Where.SPOOL)


def test_a_send_queues_behind_the_spool_whatever_the_state() -> None:
    """Later messages must not overtake those that wait on this machine."""
    world = World(spool=True)
    assert world.send(OK, behind_spool=True) == Receipt(Where.SPOOL)
    assert world.steps == ["spool"]


def test_a_spool_that_takes_nothing_is_the_callers_error() -> None:
    world = World(spool=True, queues=0)
    world.fail_over()
    with pytest.raises(Unsent) as raised:
        world.send(FULL)
    assert raised.value.where is Where.SPOOL


# ── whatever happens ──

ANSWERS = st.builds(
    Answer,
    kind=st.sampled_from([None, *Kind]),
    after_s=st.sampled_from([0.0, 0.01, 0.5, 3.0, -1.0]),
    unknown=st.booleans(),
)


@given(
    script=st.lists(ANSWERS, max_size=60),
    timeout_s=st.sampled_from([0.2, 1.0, 9.0, 15.0, 60.0, 120.0]),
    failover_interval=st.sampled_from([0, 2, 60]),
    spool=st.booleans(),
    queues=st.integers(0, 3),
    away=st.booleans(),
    trial=st.booleans(),
)
def test_whatever_is_answered_the_plan_ends_in_time_and_tells_the_truth(
    script: list[Answer], timeout_s: float, failover_interval: float, spool: bool, queues: int, away: bool, trial: bool
) -> None:
    """It never outlives the deadline by more than the write to the local disk, no command gets more time than is
    left, and a receipt names the place that the last command went to, which accepted it."""
    world = World(failover_interval=failover_interval, spool=spool, queues=queues)
    if away:
        world.fail_over()
        world.entity.trial = trial
    began, accepted, last = world.now, False, None
    plan = sending(world.pair, world.sender, timeout_s, began)
    answers = iter(script)
    command = next(plan)
    try:
        while True:
            left_s = began + timeout_s - world.now
            assert isinstance(command, ToSpool) or 0 < _limit_s(command) <= left_s + 1e-6
            reply = world._perform(command, iter([next(answers, OK)]))
            accepted = reply.failure is None
            last = command
            command = plan.send(reply)
    except StopIteration as end:
        receipt: Receipt = end.value
        assert accepted
        assert type(last) is {Where.PRIMARY: ToPrimary, Where.BACKLOG: ToBacklog, Where.SPOOL: ToSpool}[receipt.where]
        assert receipt.queue == (last.queue if isinstance(last, ToBacklog) else None)
    except Unsent:
        assert not accepted or isinstance(last, Pause)
    assert world.now <= began + timeout_s + 1.0


def _limit_s(command: Command) -> float:
    assert not isinstance(command, ToSpool)
    return command.seconds if isinstance(command, Pause) else command.timeout_s
