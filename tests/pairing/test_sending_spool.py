"""One send as a plan: the spool, after any answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.commands import Command, Pause, Receipt, ToBacklog, ToPrimary, ToSpool, Unsent, Where
from pairbus.pairing.plan import sending
from pairbus.pairing.policy import Kind
from tests.pairing.plans import BUSY, FULL, LOST, OK, SILENT, Answer, World


def test_with_every_queue_out_the_message_goes_to_the_spool() -> None:
    world = World(spool=True, queues=2)
    world.fail_over()
    assert world.send(FULL, SILENT, OK) == Receipt(Where.SPOOL, unanswered="b/1")
    assert world.steps == ["b/0", "b/1", "spool"]
    assert isinstance(world.commands[-1], ToSpool)
    assert world.commands[-1].first_attempt_at is not None


def test_the_spool_gets_its_part_of_the_time_when_queues_stay_silent() -> None:
    world = World(spool=True)
    world.fail_over()
    began = world.now
    assert world.send(SILENT, SILENT, SILENT, OK, timeout_s=6.0) == Receipt(Where.SPOOL, unanswered="b/0")
    silences = [command.silence_s for command in world.commands if isinstance(command, ToBacklog)]
    assert silences == pytest.approx([3, 2.5 * 0.75, 0.625 * 0.84])
    assert world.now - began <= 6.0 + 0.5


def test_busy_queue_without_time_left_gives_way_to_the_spool() -> None:
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
    heard=st.sampled_from([None, False, True]),
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
    """A plan never outlives the deadline by more than the write to the local disk, no command gets more time than
    is left, and a receipt names the place that the last command went to, which accepted it.
    """
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
            reply = world.perform(command, iter([next(answers, OK)]))
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
