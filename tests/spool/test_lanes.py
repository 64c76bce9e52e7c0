"""What a lane decides about a failure, on a clock that is an argument."""

from __future__ import annotations

import pytest

from pairbus.pairing.envelope import Away
from pairbus.pairing.forwarding import PAUSE_MAX_S, PRIMARY, Lane, Verdict, Way, together, travels_alone, wrapped
from pairbus.pairing.policy import BUSY_WAIT_S, Failure, Kind
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
    """Everything else may heal; keys, entities and quotas are an operator's business, and the messages wait for it."""
    assert Lane("orders").failed(way, Failure(kind, "no"), count, now=0.0) is verdict


def test_pauses_double_up_to_half_a_minute_and_end_with_a_success() -> None:
    """A namespace that comes back must not be met by a storm, nor be left alone for long."""
    lane, pauses = Lane("orders"), []
    for _ in range(7):
        lane.failed(PRIMARY, Failure(Kind.COMMUNICATION, "gone"), 1, now=0.0)
        pauses.append(lane.pause_s)
    assert pauses == [1, 2, 4, 8, 16, PAUSE_MAX_S, PAUSE_MAX_S]
    assert lane.reason == "primary: gone"
    lane.accepted(1)
    assert lane.pause_s == 0 and lane.reason == ""


def test_server_busy_waits_as_the_service_asks() -> None:
    """At least ten seconds, each time, and nobody may cut it short."""
    lane = Lane("orders")
    lane.failed(PRIMARY, Failure(Kind.BUSY, "later"), 1, now=0.0)
    assert lane.pause_s == BUSY_WAIT_S and lane.is_busy
    lane.failed(PRIMARY, Failure(Kind.INTERNAL, "broken"), 1, now=0.0)
    assert not lane.is_busy


def test_an_entity_that_stays_missing_lets_its_messages_go_after_the_grace() -> None:
    """It may be redeployed: the clock runs while nothing else is heard, and starts anew when it was there."""
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


def test_after_a_refused_batch_its_messages_go_one_by_one() -> None:
    """As many as it had; then batches again."""
    lane = Lane("orders")
    lane.failed(PRIMARY, Failure(Kind.TOO_LARGE, "no"), 3, now=0.0)
    left = []
    for _ in range(3):
        left.append(lane.singly)
        lane.accepted(1)
    assert left == [3, 2, 1] and lane.singly == 0


def test_messages_with_a_session_or_a_partition_key_travel_alone() -> None:
    """The service files a whole batch under one session and one key; what cannot be read must not spoil a batch."""
    plain = encoded(1)
    keyed = encoded(2, partition_key="k")
    assert [travels_alone(each) for each in (plain, encoded(3, session_id="s"), keyed, b"rubbish")] == [
        *(False, True, True, True)
    ]
    assert together([plain, plain, keyed, plain], 10_000) == 2
    assert together([keyed, plain], 10_000) == 1
    assert together([plain] * 5, 3 * len(plain)) == 3
    assert together([plain], 1) == 1


def test_a_message_that_cannot_be_read_cannot_be_wrapped() -> None:
    """It is not lost over it: it goes home as it is when the primary is back."""
    failure = wrapped(b"\x00\x53", Away("orders"))
    assert isinstance(failure, Failure) and failure.kind is Kind.INVALID
