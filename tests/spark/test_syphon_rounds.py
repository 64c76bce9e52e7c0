"""Times of the next round, on a clock that is moved by hand."""

from __future__ import annotations

import pytest

from pairbus.spark.syphon_job.journal import TaskReport
from pairbus.spark.syphon_job.rounds import Quotas, Rounds


def rounds(*, once: bool = False, rate: float | None = None, **quotas: float) -> Rounds:
    return Rounds(Quotas(**quotas), once=once, max_messages_per_s=rate)  # type: ignore[arg-type]


MOVED, NOTHING, HELD = TaskReport(1, "q", moved=5), TaskReport(1, "q"), TaskReport(1, "q", held=3)


def test_a_round_that_moved_something_is_followed_at_once() -> None:
    """A large backlog is drained without pauses."""
    made = rounds()
    made.ended([NOTHING, MOVED], 10.0)
    assert made.pause_s(10.0) == 0.0


def test_rounds_that_move_nothing_come_ever_more_rarely() -> None:
    """Messages that are blocked are there at every look; two minutes are the limit, as for every pump."""
    made, pauses = rounds(), []
    for _ in range(10):
        made.ended([HELD], 0.0)
        pauses.append(made.pause_s(0.0))
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 120, 120, 120]
    made.ended([MOVED], 0.0)
    made.ended([HELD], 0.0)
    assert made.pause_s(0.0) == 1.0


def test_an_unreachable_side_is_asked_every_half_minute_at_least() -> None:
    """The breaker closes soon after the primary is back."""
    made = rounds()
    assert [made.unhealthy(0.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    made.something_there(0.0)
    assert made.unhealthy(0.0) == 1


def test_a_single_drain_is_over_when_nothing_is_there() -> None:
    made = rounds(once=True)
    made.ended([MOVED], 0.0)
    assert not made.is_over
    made.nothing_there(1.0)
    assert made.is_over


def test_a_single_drain_does_not_wait_for_what_it_held_back_itself() -> None:
    """The same messages would be held back again: their destination is missing, full or busy."""
    made = rounds(once=True)
    made.something_there(0.0)
    made.ended([MOVED, HELD], 1.0)
    assert not made.is_over
    made.ended([NOTHING], 2.0)
    assert made.is_over


def test_a_single_drain_waits_for_the_locks_of_others_within_its_patience() -> None:
    """A worker that was killed leaves its messages locked: they are seen, and cannot be had until the lock ends."""
    made, now = rounds(once=True, patience_s=20.0), 0.0
    made.something_there(now)
    while not made.is_over:
        made.ended([NOTHING], now)
        now += made.pause_s(now)
        assert now < 30.0
    assert now >= 20.0


def test_a_throttled_secondary_is_asked_again_after_ten_seconds() -> None:
    """The patience of a single drain begins anew with each message that it moves."""
    made = rounds(once=True, patience_s=25.0)
    for now in (0.0, 10.0, 20.0):
        made.throttled(now)
        assert (made.pause_s(now), made.is_over) == (10.0, False)
    made.ended([MOVED], 21.0)
    made.throttled(40.0)
    assert not made.is_over
    made.throttled(46.0)
    assert made.is_over


def test_a_continuous_syphon_is_never_over() -> None:
    made = rounds()
    made.something_there(0.0)
    made.ended([HELD], 1.0)
    made.ended([NOTHING], 1e6)
    made.nothing_there(2e6)
    assert not made.is_over


@pytest.mark.parametrize(
    ("queues", "lanes", "tasks", "sizes"),
    [(10, 1, 2, [5, 5]), (10, 1, None, [1] * 10), (3, 1, 2, [2, 1]), (1, 4, 2, [2, 2]), (1, 1, 8, [1])],
)
def test_pumps_are_shared_by_tasks_and_the_budget_by_tasks(
    queues: int, lanes: int, tasks: int | None, sizes: list[int]
) -> None:
    """Pumps of a task have its part of the budget in common: one that is empty leaves it to the others."""
    made = rounds(rate=120.0, lanes=lanes, tasks=tasks)  # type: ignore[arg-type]
    plans = made.tasks(1, [(f"q/{number}", None) for number in range(queues)], 0.0)
    assert [len(plan.pumps) for plan in plans] == sizes
    assert {(plan.per_s, plan.tasks) for plan in plans} == {(120.0, len(sizes))}


def test_a_destination_that_was_busy_halves_the_budget_of_the_next_round() -> None:
    """Wherever the task ran that was told so."""
    made = rounds(rate=100.0)
    made.ended([MOVED, TaskReport(1, "q", busy=True)], 0.0)
    (plan,) = made.tasks(2, [("q", None)], 0.0)
    assert plan.per_s is not None and 45.0 <= plan.per_s <= 50.0
    made.ended([MOVED], 20.0)
    (plan,) = made.tasks(3, [("q", None)], 20.0)
    assert plan.per_s == 100.0


def test_a_low_budget_serves_queues_in_turns() -> None:
    """Each pump has a few messages in hand: with ten queues and four messages a second their locks would run out."""
    made = rounds(rate=4.0, tasks=2)
    queues: list[tuple[str, int | None]] = [(f"q/{number}", None) for number in range(10)]
    served = []
    for tick in range(10):
        now = [pump.queue for plan in made.tasks(tick, queues, 0.0) for pump in plan.pumps]
        made.ended([TaskReport(tick, queue, moved=20, more=True) for queue in now], 0.0)
        assert made.more == {queue for queue, _ in queues}, "queues that had to wait are not forgotten"
        served += now
    assert sorted(served) == sorted([queue for queue, _ in queues] * 2)


def test_a_task_that_found_nothing_waits_longer_the_next_time() -> None:
    """A quarter of a second is enough on a good line; on a slow one nothing would ever be received."""
    made = rounds()
    waits = []
    for tick in range(7):
        (plan,) = made.tasks(tick, [("q", None)], 0.0)
        waits.append(plan.wait_s)
        made.ended([NOTHING], 0.0)
    assert waits == [0.25, 0.5, 1, 2, 4, 5, 5]


def test_a_queue_that_ended_by_its_quota_needs_no_look() -> None:
    """Draining a large backlog costs no peeks."""
    made = rounds()
    made.ended([TaskReport(1, "a", moved=9, more=True), TaskReport(1, "b", moved=9)], 0.0)
    assert made.more == {"a"}
