"""One send as a plan, away from home: backlog queues, trials, the spool, and any order of answers."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.client.errors import SendAvailabilityBacklogError
from pairbus.client.outgoing import Outgoing
from pairbus.client.results import error_of
from pairbus.pairing.commands import Pause, Receipt, Reply, ToBacklog, ToPrimary, Unsent, Where
from pairbus.pairing.events import BacklogQueueBack, BacklogQueueFailed
from pairbus.pairing.failover import State
from pairbus.pairing.plan import CONCLUSIVE_S, SenderState, sending
from pairbus.pairing.policy import Failure, Kind, Silence
from tests.pairing.plans import BUSY, FULL, HOME, LOST, OK, SILENT, SLOW, Answer, World

# ── away ──


def test_a_sender_keeps_the_backlog_queue_that_it_picked() -> None:
    world = World()
    world.fail_over()
    world.pair.rotation.failed("b/0", "lost", world.now)
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/1")
    world.now += 100.0
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/1"), "the sender keeps b/1, although b/0 is back"


def test_a_queue_stays_when_the_spool_left_an_attempt_too_little_time() -> None:
    """The attempt may have had to open its connection. All other senders would be without the queue for a minute."""
    world = World(spool=True)
    world.fail_over()
    assert world.send(SILENT, OK, timeout_s=0.8) == Receipt(Where.SPOOL, unanswered="b/0")
    assert world.steps == ["b/0", "spool"] and world.pair.rotation.is_whole
    assert world.send(SILENT, SILENT, SILENT, OK) == Receipt(Where.SPOOL, unanswered="b/0")
    assert not world.pair.rotation.has("b/0"), "b/0 had its share of the time"


@pytest.mark.parametrize("timeout_s", [0.45, 0.65, 0.8, 1.9])
def test_a_moment_of_silence_takes_no_queue_out(timeout_s: float) -> None:
    """The queue may be slow: all other senders would be without it for a minute."""
    world = World()
    world.fail_over()
    with pytest.raises(Unsent) as raised:
        world.send(SILENT, timeout_s=timeout_s)
    assert raised.value.outcome_unknown
    assert world.steps == ["b/0"] and world.pair.rotation.is_whole


@pytest.mark.parametrize(("timeout_s", "queues"), [(1.0, 3), (3.0, 1)])
def test_slow_queue_has_the_time_that_no_other_queue_can_use(timeout_s: float, queues: int) -> None:
    """Another queue could hardly answer in a quarter of a second, and both queues would have the message."""
    world = World(queues=queues)
    world.fail_over()
    attempt = next(sending(world.pair, world.sender, timeout_s, world.now))
    assert isinstance(attempt, ToBacklog) and attempt.silence_s > timeout_s * 0.8


@pytest.mark.parametrize("timeout_s", [0.6, 1.0, 2.0, 3.0])
def test_queue_that_stays_silent_leaves_the_rotation_also_with_short_time_outs(timeout_s: float) -> None:
    """The silences of all senders add up to the silence that takes a queue out at once."""
    world = World(queues=1)
    world.fail_over()
    silence_s, sends = 0.0, 0
    while world.pair.rotation.has("b/0"):
        with pytest.raises(Unsent):
            world.send(SILENT, timeout_s=timeout_s)
        silence_s, sends = silence_s + timeout_s * 0.84, sends + 1
        assert world.pair.rotation.has("b/0") is (silence_s < 3.0)
        world.sender = SenderState(world.entity)
    assert sends == {0.6: 6, 1.0: 4, 2.0: 2, 3.0: 2}[timeout_s]


def test_accepted_send_ends_the_sum_of_short_silences() -> None:
    world = World(queues=1)
    world.fail_over()
    for _ in range(5):
        for _ in range(3):
            with pytest.raises(Unsent):
                world.send(SILENT, timeout_s=1.0)
        assert world.send(OK, timeout_s=1.0) == Receipt(Where.BACKLOG, "b/0")


def test_sender_asks_another_queue_after_a_short_silence() -> None:
    """A silent queue costs each sender one send, not every send until the queue leaves the rotation."""
    world = World()
    world.fail_over()
    with pytest.raises(Unsent):
        world.send(SILENT, timeout_s=1.0)
    assert world.send(OK, timeout_s=1.0) == Receipt(Where.BACKLOG, "b/1")


def test_a_slow_but_living_queue_stays_in() -> None:
    """The slow queue works on the message: when the caller's time is over, no queue is asked again."""
    world = World()
    world.fail_over()
    with pytest.raises(Unsent) as raised:
        world.send(SLOW, timeout_s=9.0)
    assert (raised.value.where, raised.value.outcome_unknown) == (Where.BACKLOG, True)
    assert world.pair.rotation.is_whole


def test_a_slow_queue_gives_way_to_the_spool() -> None:
    world = World(spool=True)
    world.fail_over()
    assert world.send(SLOW, OK, timeout_s=9.0) == Receipt(Where.SPOOL, unanswered="b/0")
    assert world.commands[0] == ToBacklog("b/0", 8.5, 3, 3, False, None)
    assert world.pair.rotation.is_whole


def lost_secondary(*, is_forced: bool, is_kept: bool = True) -> World:
    """A sender whose entity is failed over, and whose secondary was closed or faulted afterwards."""
    world = World(failover_interval=0)
    if is_forced:
        world.pair.force_failover("orders", world.now)
    else:
        world.fail_over()
    world.sender.queue = "b/0" if is_kept else None
    world.pair.rotation.is_lost = True
    return world


@pytest.mark.parametrize("is_forced", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
def test_sends_go_to_the_primary_when_the_secondary_is_lost(is_kept: bool, is_forced: bool) -> None:
    """No queue is left, also for a sender that had one. An accepted send proves the primary as a trial does."""
    world = lost_secondary(is_kept=is_kept, is_forced=is_forced)
    assert world.send(OK) == HOME
    assert world.entity.state is (State.HELD_OVER if is_forced else State.HEALTHY)


def test_primary_that_fails_without_a_secondary_says_both() -> None:
    """The message would have to be diverted: the caller is told that it cannot be."""
    world = lost_secondary(is_forced=False)
    with pytest.raises(Unsent) as raised:
        world.send(LOST, LOST, LOST)
    assert raised.value.where is Where.BACKLOG
    assert "the secondary was lost" in raised.value.failure.text
    error = error_of(raised.value, "orders", Outgoing([b""], ["id"], is_batch=False), ordered=False)
    assert isinstance(error, SendAvailabilityBacklogError) and not error.outcome_unknown


def test_request_without_a_secondary_asks_the_primary() -> None:
    world = lost_secondary(is_forced=False)
    with pytest.raises(Unsent) as raised:
        world.request(LOST, LOST, LOST)
    assert raised.value.where is Where.PRIMARY
    assert world.request(OK) == HOME


def test_without_its_secondary_a_healthy_primary_goes_on() -> None:
    world = World(failover_interval=0)
    world.pair.rotation.is_lost = True
    assert world.send(OK) == HOME


def test_no_queue_is_asked_without_time_for_the_answer() -> None:
    world = World()
    world.fail_over()
    with pytest.raises(Unsent):
        world.send(timeout_s=0.05)
    assert world.pair.rotation.is_whole


def test_attempt_with_too_little_time_counts_for_nothing() -> None:
    """The caller has less time than any connection takes; every other send keeps the queue, or the entity."""
    late = Failure(Kind.TIMEOUT, "late", silence=Silence(0.3, 0.3))
    world = World(failover_interval=0)
    for is_diverted in (False, True):
        if is_diverted:
            world.fail_over()
            world.sender.queue = "b/0"
        plan = sending(world.pair, world.sender, 0.4, world.now)
        attempt = next(plan)
        assert isinstance(attempt, ToPrimary | ToBacklog) and attempt.silence_s < CONCLUSIVE_S
        with pytest.raises(Unsent) as raised:
            plan.send(Reply(world.now + 0.3, late))
        assert raised.value.failure is late
        assert (world.entity.state is State.HEALTHY, world.pair.rotation.is_whole) == (not is_diverted, True)


def test_a_receipt_names_the_first_queue_that_may_have_a_copy_too() -> None:
    """The syphon could not tell a copy without a mark, so the client must."""
    world = World()
    world.fail_over()
    assert world.send(SILENT, SILENT, OK) == Receipt(Where.BACKLOG, "b/2", unanswered="b/0")


def test_attempt_at_a_queue_that_just_failed_is_remembered() -> None:
    """The copy in the next queue says since when there may be another one, and the receipt where."""
    world = World()
    world.fail_over()
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/0")
    began = world.now
    plan = sending(world.pair, world.sender, 60.0, began)
    next(plan)
    world.pair.rotation.failed("b/0", "lost", began + 2.0)
    command = plan.send(Reply(began + 3.0, Failure(Kind.TIMEOUT, "no answer", outcome_unknown=True)))
    assert isinstance(command, ToBacklog)
    assert (command.queue, command.fresh, command.first_attempt_at) == ("b/1", False, began)
    with pytest.raises(StopIteration) as end:
        plan.send(Reply(began + 3.1))
    assert end.value.value == Receipt(Where.BACKLOG, "b/1", unanswered="b/0")


@pytest.mark.parametrize("kind", [Kind.COMMUNICATION, Kind.TIMEOUT])
def test_queue_that_another_send_took_out_is_not_asked_again(kind: Kind) -> None:
    """Sends that fail together leave the queue together; none of them takes out a queue that it never asked."""
    world = World(queues=2)
    world.fail_over()
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/0")
    plan = sending(world.pair, world.sender, 60.0, world.now)
    next(plan)
    world.pair.rotation.failed("b/0", "another send", world.now)
    world.events.clear()
    command = plan.send(Reply(world.now + 1.0, Failure(kind, "late")))
    assert isinstance(command, ToBacklog) and (command.queue, command.fresh) == ("b/1", False)
    assert world.pair.rotation.has("b/1") and world.events == []


@pytest.mark.parametrize("took_s", [3.0, 60.0])
def test_error_says_that_the_only_queue_may_have_the_message(took_s: float) -> None:
    world = World(queues=1)
    world.fail_over()
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/0")
    plan = sending(world.pair, world.sender, 60.0, world.now)
    next(plan)
    world.pair.rotation.failed("b/0", "lost", world.now)
    with pytest.raises(Unsent) as raised:
        plan.send(Reply(world.now + took_s, Failure(Kind.TIMEOUT, "no answer", outcome_unknown=True)))
    assert raised.value.outcome_unknown


def test_an_attempt_that_took_all_the_time_is_not_forgotten() -> None:
    world = World(queues=1)
    world.fail_over()
    assert world.send(OK) == Receipt(Where.BACKLOG, "b/0")
    plan = sending(world.pair, world.sender, 3.0, world.now)
    next(plan)
    with pytest.raises(Unsent) as raised:
        plan.send(Reply(world.now + 3.0, Failure(Kind.TIMEOUT, "no answer", outcome_unknown=True)))
    assert raised.value.outcome_unknown


def test_failed_queue_is_out_for_all_senders_and_replaced() -> None:
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
def test_other_failures_take_a_queue_out_without_a_retry(kind: Kind) -> None:
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


def test_busy_queue_without_ten_seconds_left_raises() -> None:
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
    assert "no backlog queue" in str(raised.value) and FULL.kind is not None
    assert str(raised.value).endswith(FULL.kind.value), "the error of the last backlog queue"
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


def test_send_waiting_for_a_busy_queue_goes_home_after_recovery() -> None:
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
    assert world.now == pytest.approx(began + 3.0 + 3.0 + 1.68)


@pytest.mark.parametrize("spool", [False, True])
@pytest.mark.parametrize("timeout_s", [0.7, 2.0, 3.0, 3.5, 60.0])
def test_silence_of_a_queue_ends_before_the_callers_time(timeout_s: float, spool: bool) -> None:
    """With equal limits a silent queue looks like a slow one: it would stay, and take the time of every later send."""
    world = World(spool=spool)
    world.fail_over()
    world.sender.queue = "b/0"
    attempt = next(sending(world.pair, world.sender, timeout_s, world.now))
    assert isinstance(attempt, ToBacklog) and attempt.silence_s < attempt.timeout_s


def test_silent_queue_leaves_time_for_another_one() -> None:
    world = World()
    world.fail_over()
    assert world.send(SILENT, OK, timeout_s=2.0) == Receipt(Where.BACKLOG, "b/1", unanswered="b/0")
    assert world.pair.rotation.has("b/0"), "it may be slow"
    world.sender = SenderState(world.entity)
    assert world.send(SILENT, OK, timeout_s=2.0) == Receipt(Where.BACKLOG, "b/1", unanswered="b/0")
    assert not world.pair.rotation.has("b/0"), "it was silent for three seconds"


# ── unknown outcomes ──


def test_an_unknown_outcome_of_the_primary_is_carried_to_the_backlog() -> None:
    """The syphon reports the message when it comes home after the window of duplicate detection."""
    world = World(failover_interval=0)
    world.now = 5.0
    world.send(LOST, Answer(Kind.COMMUNICATION, unknown=True), LOST, OK)
    command = world.commands[-1]
    assert isinstance(command, ToBacklog)
    assert command.first_attempt_at == pytest.approx(5.0 + 0.1), (
        "the beginning of the attempt that may have stored the message"
    )


def test_an_unknown_outcome_of_one_backlog_queue_is_carried_to_the_next() -> None:
    world = World()
    world.fail_over()
    began = world.now
    world.send(SILENT, OK)
    assert world.commands[-1] == ToBacklog("b/1", 57.0, 3, 3, False, first_attempt_at=began)


def test_unknown_outcome_of_a_backlog_queue_is_reported() -> None:
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


def test_a_call_whose_trial_failed_makes_no_other_one() -> None:
    """A probe that goes well meanwhile earns the next call a trial: this one would wait for a silent primary again."""
    world = trial_world()

    def grant(now: float) -> None:
        world.entity.trial = True

    silent = Answer(Kind.TIMEOUT, after_s=-1.0, unknown=True, meanwhile=grant)
    assert world.send(silent, OK) == Receipt(Where.BACKLOG, "b/0")
    assert world.steps == ["trial", "b/0"]
    assert world.send(OK) == HOME and world.steps == ["trial"]


def test_a_trial_with_a_message_that_is_to_blame_tells_the_caller() -> None:
    world = trial_world()
    with pytest.raises(Unsent):
        world.send(Answer(Kind.INVALID))


def test_trial_without_time_left_goes_to_backlog() -> None:
    """The primary used its third; the time that is left is enough for a queue."""
    world = World(failover_interval=0)

    def grant(now: float) -> None:
        world.entity.trial = True

    answers = (SILENT, Answer(Kind.FULL, meanwhile=grant), OK)
    assert world.send(*answers, timeout_s=9.0) == Receipt(Where.BACKLOG, "b/1")


def test_trial_that_is_granted_after_the_callers_time_is_not_made() -> None:
    """A machine that slept while a backlog queue was busy: the error is the queue's, and the primary is not asked."""
    world = World()
    world.fail_over()
    plan = sending(world.pair, world.sender, 30.0, world.now)
    assert isinstance(next(plan), ToBacklog)
    assert isinstance(plan.send(Reply(world.now, Failure(Kind.BUSY, "busy"))), Pause)
    world.entity.trial = True
    with pytest.raises(Unsent, match="busy") as raised:
        plan.send(Reply(world.now + 3600.0))
    assert raised.value.where is Where.BACKLOG


def test_queue_that_another_send_took_out_comes_back_with_an_acceptance() -> None:
    """The send was under way when the queue failed for another send: its acceptance proves that the queue works."""
    world = World()
    world.fail_over()

    def take_out(now: float) -> None:
        world.pair.rotation.failed("b/0", "lost", now)

    assert world.send(Answer(meanwhile=take_out)) == Receipt(Where.BACKLOG, "b/0")
    assert world.events == [BacklogQueueBack("b/0")] and world.pair.rotation.is_whole
