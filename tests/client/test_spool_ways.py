"""Destinations of a spooled message: by the state of its entity, whose state it changes in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from pairbus import PairedServiceBusClient
from pairbus.client.background import SpoolWays
from pairbus.client.state import PairState
from pairbus.pairing.failover import State
from pairbus.pairing.policy import Failure, Kind, Silence
from pairbus.spool.lanes import PRIMARY, Way

NOBODY = "Endpoint=sb://127.0.0.1:{};SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
BOTH = {Way("backlog/0"), Way("backlog/1")}
RETRY_S = 60.0


@pytest.fixture
def state() -> Iterator[PairState]:
    """A pair that fails over at once; nothing connects, and the clock is what a test says."""
    client = PairedServiceBusClient.from_connection_strings(
        NOBODY.format(1), NOBODY.format(2), failover_interval=0, backlog_retry_interval=RETRY_S
    )
    client._state.paired_with(["backlog/0", "backlog/1"])
    yield client._state
    client.close()


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        (Kind.COMMUNICATION, State.FAILED_OVER),
        (Kind.FULL, State.FAILED_OVER),
        (Kind.BUSY, State.HEALTHY),
        (Kind.UNAUTHORIZED, State.HEALTHY),
        (Kind.NOT_FOUND, State.HEALTHY),
    ],
)
def test_a_failure_of_the_spool_counts_as_one_of_a_send(state: PairState, kind: Kind, left: State) -> None:
    """While messages wait in the spool every send queues behind them, so only the spool can ask the primary."""
    ways = SpoolWays(state)
    assert ways.way("orders", 0.0) == PRIMARY
    ways.failed("orders", PRIMARY, Failure(kind, "no"), 1.0)
    assert state.pair.entity("orders", 1.0).state is left
    assert (ways.way("orders", 2.0) in BOTH) is (left is State.FAILED_OVER)


def test_a_lane_keeps_its_backlog_queue_until_that_fails(state: PairState) -> None:
    """A throttled queue is not broken; the other one would be throttled next."""
    ways = SpoolWays(state)
    state.pair.force_failover("orders", 0.0)
    first = ways.way("orders", 0.0)
    assert first is not None and first in BOTH
    ways.failed("orders", first, Failure(Kind.BUSY, "later"), 1.0)
    assert ways.way("orders", 2.0) == first
    ways.failed("orders", first, Failure(Kind.COMMUNICATION, "gone"), 3.0)
    second = ways.way("orders", 4.0)
    assert second is not None and {first, second} == BOTH
    ways.failed("orders", second, Failure(Kind.COMMUNICATION, "gone too"), 5.0)
    assert ways.way("orders", 6.0) is None, "it waits in the spool"
    assert ways.way("orders", 3.0 + RETRY_S) == first


@pytest.mark.parametrize(("silent_s", "counts"), [(0.0, False), (2.9, False), (3.0, True), (15.0, True)])
def test_slow_peer_of_the_spool_does_not_count(state: PairState, silent_s: float, counts: bool) -> None:
    """Its sends have no limit of silence but their time-out; what they heard until then is a value."""
    ways, late = SpoolWays(state), Failure(Kind.TIMEOUT, "late", silence=Silence(silent_s, math.inf))
    ways.failed("orders", PRIMARY, late, 1.0)
    assert (state.pair.entity("orders", 1.0).state is State.FAILED_OVER) is counts
    ways.failed("orders", Way("backlog/0"), late, 2.0)
    assert state.pair.rotation.has("backlog/0") is not counts


@pytest.mark.parametrize(("silent_s", "counts"), [(0.9, False), (1.0, True)])
def test_failed_opening_of_the_spool_counts_after_its_own_limit(
    state: PairState, silent_s: float, counts: bool
) -> None:
    """`connect_timeout` may be shorter than `attempt_timeout`: no opening is ever silent for longer than it."""
    ways = SpoolWays(state)
    ways.failed("orders", PRIMARY, Failure(Kind.TIMEOUT, "late", silence=Silence(silent_s, 1.0)), 1.0)
    assert (state.pair.entity("orders", 1.0).state is State.FAILED_OVER) is counts


def test_a_spooled_message_is_the_trial_that_a_probe_earned(state: PairState) -> None:
    """One message goes to the primary; if it is refused, the others go to the backlog, else the entity is healthy."""
    ways = SpoolWays(state)
    ways.failed("orders", PRIMARY, Failure(Kind.COMMUNICATION, "gone"), 0.0)
    entity = state.pair.entity("orders", 0.0)
    for ending in ("failed", "accepted"):
        assert ways.way("orders", 1.0) in BOTH
        entity.trial = True
        for _ in range(2):
            assert ways.way("orders", 2.0) == PRIMARY, "a lane that looks for another way does not use the trial up"
        if ending == "failed":
            ways.failed("orders", PRIMARY, Failure(Kind.COMMUNICATION, "still gone"), 3.0)
        else:
            ways.accepted("orders", PRIMARY, 1, 3.0)
    assert entity.state is State.HEALTHY
