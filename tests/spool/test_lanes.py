"""Decisions of a lane about a failure, on a clock that is an argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.backlog.envelope import Envelope
from pairbus.backlog.filing import together
from pairbus.pairing.commands import Pause, Plan, Reply, ToPrimary, ToSpool
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import Pair
from pairbus.pairing.plan import SenderState
from pairbus.pairing.policy import BUSY_WAIT_S, Failure, Kind
from pairbus.spool.lanes import HOLD_S, MOVING_S, PAUSE_MAX_S, PRIMARY, Inflow, Lane, Verdict, Way, queueing, wrapped
from tests.spool.entries import encoded

BACKLOG = Way("contoso/x-servicebus-transfer/0")
GRACE_S = 900.0

# kind, way, messages sent together → verdict
VERDICTS = [
    *((kind, PRIMARY, 1, Verdict.REFUSE) for kind in (Kind.TOO_LARGE, Kind.INVALID)),
    *((kind, PRIMARY, 9, Verdict.SINGLY) for kind in (Kind.TOO_LARGE, Kind.INVALID)),
    # The aliases cost bytes: the primary may take what a backlog queue does not.
    *((kind, BACKLOG, 1, Verdict.WAIT) for kind in (Kind.TOO_LARGE, Kind.INVALID)),
    *((kind, BACKLOG, 9, Verdict.SINGLY) for kind in (Kind.TOO_LARGE, Kind.INVALID)),
    *(
        (kind, way, count, Verdict.WAIT)
        for kind in Kind
        if kind not in (Kind.TOO_LARGE, Kind.INVALID)
        for way in (PRIMARY, BACKLOG)
        for count in (1, 9)
    ),
]


@pytest.mark.parametrize(("kind", "way", "count", "verdict"), VERDICTS)
def test_only_a_message_that_is_itself_to_blame_steps_aside(kind: Kind, way: Way, count: int, verdict: Verdict) -> None:
    """Other failures may heal; keys, entities and quotas are an operator's work, and the messages wait for it."""
    assert Lane("orders").failed(way, Failure(kind, "no"), count, now=0.0) is verdict


def test_pauses_double_up_to_half_a_minute_and_end_with_a_success() -> None:
    """A namespace that comes back must not meet a storm of sends, and must not be left alone for long."""
    lane, pauses = Lane("orders"), []
    for _ in range(7):
        lane.failed(PRIMARY, Failure(Kind.COMMUNICATION, "gone"), 1, now=0.0)
        pauses.append(lane.pause_s)
    assert pauses == [1, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S]
    assert lane.reason == "primary: gone"
    lane.accepted(1)
    assert lane.pause_s == 0 and lane.reason == ""


def test_server_busy_waits_as_the_service_asks() -> None:
    """The pause is at least ten seconds, each time, and cannot be cut short."""
    lane = Lane("orders")
    lane.failed(PRIMARY, Failure(Kind.BUSY, "later"), 1, now=0.0)
    assert lane.pause_s == BUSY_WAIT_S and lane.is_busy
    lane.failed(PRIMARY, Failure(Kind.INTERNAL, "broken"), 1, now=0.0)
    assert not lane.is_busy


def test_an_entity_that_stays_missing_lets_its_messages_go_after_the_grace() -> None:
    """The entity may be redeployed: the clock runs while nothing else is heard, and starts anew when the entity
    was there.
    """
    lane, missing = Lane("orders", GRACE_S), Failure(Kind.NOT_FOUND, "no such entity")
    assert lane.failed(PRIMARY, missing, 1, now=0.0) is Verdict.WAIT
    assert lane.failed(PRIMARY, missing, 1, now=GRACE_S - 1) is Verdict.WAIT
    lane.accepted(1)
    assert lane.failed(PRIMARY, missing, 1, now=GRACE_S) is Verdict.WAIT
    assert lane.failed(PRIMARY, missing, 9, now=2 * GRACE_S) is Verdict.SINGLY
    assert lane.failed(PRIMARY, missing, 1, now=2 * GRACE_S) is Verdict.REFUSE
    assert lane.failed(BACKLOG, missing, 1, now=9 * GRACE_S) is Verdict.WAIT, (
        "the backlog queue is missing, not the entity"
    )


def test_quick_errors_of_the_primary_are_tried_three_times_within_a_moment() -> None:
    """Attempts have the pace of a send. A failure that a retry cannot change, or of a backlog queue, counts at once."""
    lane, gone = Lane("orders"), Failure(Kind.COMMUNICATION, "gone")
    assert [lane.again_s(PRIMARY, gone, at, at) for at in (0.0, 0.1, 0.5)] == [0.1, 0.4, None]
    slow = [lane.again_s(PRIMARY, gone, at, at + 1.0) for at in (9.0, 10.0, 11.0)]
    assert slow == [0.0, 0.0, None], "three attempts are made also over a distance"
    for kind in set(Kind) - {Kind.COMMUNICATION, Kind.INTERNAL, Kind.FULL}:
        assert lane.again_s(PRIMARY, Failure(kind, "no"), 20.0, 20.0) is None
    assert lane.again_s(BACKLOG, gone, 30.0, 30.0) is None


def test_after_a_refused_batch_its_messages_go_one_by_one() -> None:
    """All messages of the batch go singly; then batches are sent again."""
    lane = Lane("orders")
    lane.failed(PRIMARY, Failure(Kind.TOO_LARGE, "no"), 3, now=0.0)
    left = []
    for _ in range(3):
        left.append(lane.singly)
        lane.accepted(1)
    assert left == [3, 2, 1] and lane.singly == 0


def test_a_batch_has_one_session_and_one_partition_key() -> None:
    """The service files a whole batch under the session and key of its first message. An unreadable message must not
    spoil the batch. Order is kept: only messages that follow each other travel together."""
    plain, own, keyed = encoded(1), encoded(2, session_id="s"), encoded(3, partition_key="k")
    assert together([plain, plain, keyed, plain], 10_000) == 2
    assert together([own, encoded(4, session_id="s"), plain], 10_000) == 2
    assert together([own, encoded(4, session_id="t"), own], 10_000) == 1
    assert together([keyed, encoded(4, partition_key="k"), encoded(5, partition_key="l")], 10_000) == 2
    both = encoded(6, session_id="k", partition_key="k")
    assert together([both, both, keyed], 10_000) == 2
    assert together([b"rubbish", b"rubbish"], 10_000) == 1
    assert together([plain, b"rubbish"], 10_000) == 1
    assert together([plain] * 5, 3 * len(plain)) == 3
    assert together([plain], 1) == 1


def test_for_two_messages_that_leave_a_lane_one_may_come() -> None:
    """The lane then ends, with any number of sends. Lists count with all their messages; an excess is owed."""
    inflow = Inflow()
    assert inflow.takes("orders", 0.0), "the lane has not moved yet: senders do not wait for it"
    inflow.left("Orders", 6, 1.0)
    inflow.joined("orders", 2, 1.0)
    assert [inflow.takes("orders", 1.0) for _ in range(3)] == [True, True, False]
    inflow.joined("bills", 5, 1.0)
    assert inflow.takes("bills", 1.0), "nothing is owed to a lane that does not move"
    inflow.left("orders", 4, 1.0)
    inflow.joined("orders", 101, 1.0)
    inflow.left("orders", 100, 1.0)
    assert not inflow.takes("orders", 1.0 + MOVING_S), "more messages came than the lane allows"
    assert inflow.takes("orders", 1.1 + MOVING_S), "the lane has not moved for a while"
    inflow.left("orders", 1, 9.0)
    assert not inflow.takes("orders", 9.0)
    inflow.stuck("orders")
    assert inflow.takes("orders", 9.0)


def test_send_behind_a_moving_lane_waits_for_room(tmp_path: Path) -> None:
    """With room it joins, at the end it takes the usual way, and it is never held longer than a moment, nor half of its
    own time."""
    pair = Pair(SendAvailabilityPairedNamespaceOptions(None, None, spool_dir=tmp_path), lambda event: None, lambda n: 0)
    sender, inflow, waits = SenderState(pair.entity("orders", 0.0)), Inflow(), [True]

    def planned(timeout_s: float = 60.0) -> Plan:
        return queueing(pair, sender, timeout_s, 0.0, inflow, lambda: waits[0])

    assert isinstance(next(planned()), ToSpool), "the lane does not move"
    inflow.left("orders", 1, 0.0)
    plan = planned()
    assert isinstance(next(plan), Pause)
    inflow.left("orders", 1, 0.5)
    assert isinstance(plan.send(Reply(0.5)), ToSpool), "the spool takes the message when the lane has moved"
    plan = planned()
    assert isinstance(next(plan), Pause)
    waits[0] = False
    command = plan.send(Reply(0.6))
    assert isinstance(command, ToPrimary), "the lane is empty"
    waits[0] = True
    for timeout_s, held_s in ((60.0, HOLD_S), (4.0, 2.0)):
        plan = planned(timeout_s)
        assert isinstance(next(plan), Pause)
        inflow.left("orders", 0, held_s)
        assert isinstance(plan.send(Reply(held_s - 0.01)), Pause)
        assert isinstance(plan.send(Reply(held_s)), ToSpool)


def test_a_message_that_cannot_be_read_cannot_be_wrapped() -> None:
    """The message is not lost: it goes home as it is when the primary is back."""
    failure = wrapped(b"\x00\x53", Envelope("orders"))
    assert isinstance(failure, Failure) and failure.kind is Kind.INVALID
