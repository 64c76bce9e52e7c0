"""The budget of a syphon on Spark, played through: rounds, tasks that run at once, pauses, workers that start late."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

import pytest

from pairbus.spark.syphon_job.journal import TaskReport
from pairbus.spark.syphon_job.rounds import Quotas, Rounds
from pairbus.spark.syphon_job.shares import Account, BudgetShare, TaskPlan, ran_at_once, sharers

STEP_S = 0.05
BUDGET = 200.0
LOOK_S = 0.5


@dataclass
class Running:
    """A task as in `task_pumps.py`: pieces of a quarter of a second for each pump, each after its wait."""

    plan: TaskPlan
    share: BudgetShare
    began: float
    pieces: dict[str, deque[tuple[float, int]]]
    "Queue → messages in hand, and when they may go."
    moved: dict[str, int]
    more: bool = False


class Cluster:
    """Spark with some slots, a gap between rounds, and a start of each task that takes a while."""

    def __init__(self, backlog: dict[str, int], slots: int, tasks: int | None, gap_s: float, start_s: float) -> None:
        self.backlog = backlog
        self.rounds = Rounds(Quotas(tasks=tasks), once=True, max_messages_per_s=BUDGET)
        self.now = 0.0
        self.moved_at: list[float] = []
        self._slots, self._gap_s, self._start_s = slots, gap_s, start_s

    def drain(self) -> float:
        """Return messages a second, from the first to the last that was moved."""
        tick = 0
        while any(self.backlog.values()):
            tick += 1
            there: list[tuple[str, int | None]] = [(queue, None) for queue, count in self.backlog.items() if count]
            self._round(self.rounds.tasks(tick, there, self.now))
            self.now += self._gap_s
        return len(self.moved_at) / (self.moved_at[-1] - self.moved_at[0])

    def _round(self, plans: list[TaskPlan]) -> None:
        waiting, running = deque(plans), list[Running]()
        reports: list[TaskReport] = []
        while waiting or running:
            while waiting and len(running) < self._slots:
                plan, began = waiting.popleft(), self.now + self._start_s
                queues = [pump.queue for pump in plan.pumps]
                share = BudgetShare(plan.per_s, plan.tasks, began)
                running.append(Running(plan, share, began, {q: deque() for q in queues}, dict.fromkeys(queues, 0)))
            self.now += STEP_S
            for task in list(running):
                begun = {plan.number for plan in plans} - {plan.number for plan in waiting}
                begun -= {other.plan.number for other in running if self.now < other.began}
                if self._step(task, begun, reports):
                    running.remove(task)
                    reports += [
                        TaskReport(1, queue, moved, more=task.more, task=task.plan.number,
                               began_ms=round(task.began * 1000), ended_ms=round(self.now * 1000))
                        for queue, moved in task.moved.items()
                    ]  # fmt: skip
        self.rounds.ended(reports, self.now)

    def _step(self, task: Running, begun: set[int], ended: list[TaskReport]) -> bool:
        """Return whether the task has ended."""
        if self.now < task.began:
            return False
        age_s = self.now - task.began
        if age_s < STEP_S or int(age_s / LOOK_S) != int((age_s - STEP_S) / LOOK_S):
            task.share.shared_by(sharers(task.plan, begun, ended, age_s), self.now)
        is_late = self.now - task.began >= task.plan.max_s
        active = [queue for queue in task.pieces if self.backlog[queue] or task.pieces[queue]]
        for queue in active:
            pieces = task.pieces[queue]
            while not is_late and len(pieces) < 2 and self.backlog[queue]:
                rate = task.share.rate_per_s(self.now)
                assert rate is not None
                count = min(max(int(rate / len(active) / 4), 1), self.backlog[queue])
                self.backlog[queue] -= count
                pieces.append((self.now + task.share.take(count, self.now), count))
            while pieces and pieces[0][0] <= self.now:
                count = pieces.popleft()[1]
                task.moved[queue] += count
                self.moved_at += [self.now] * count
        task.more = is_late
        return not any(task.pieces[queue] or (self.backlog[queue] and not is_late) for queue in active)


@pytest.mark.parametrize("queues", [1, 3, 10, 25])
@pytest.mark.parametrize(("slots", "tasks"), [(1, 1), (2, 2), (8, 8), (2, 8), (2, None), (16, None)])
@pytest.mark.parametrize("is_even", [True, False])
def test_a_drain_keeps_its_budget_with_any_queues_and_tasks(
    queues: int, slots: int, tasks: int | None, *, is_even: bool
) -> None:
    """The rate is within ten percent; budget left by a pause, a late worker or an empty queue is made up for."""
    shares = [1.0] * queues if is_even else [2.0**-number for number in range(queues)]
    backlog = {f"q/{number}": int(12_000 * share / sum(shares)) for number, share in enumerate(shares)}
    cluster = Cluster(backlog, slots, tasks, gap_s=0.8, start_s=0.3)
    rate = cluster.drain()
    assert 0.9 * BUDGET <= rate <= 1.1 * BUDGET
    seconds = Counter(map(int, cluster.moved_at))
    most = max(sum(seconds[second] for second in range(first, first + 10)) for first in range(int(cluster.now)))
    assert most <= 1.1 * BUDGET * 10, "in any ten seconds"


@pytest.mark.parametrize(("gap_s", "start_s"), [(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)])
@pytest.mark.parametrize(("queues", "tasks"), [(1, 1), (10, 2), (10, 8)])
def test_long_gaps_between_rounds_are_made_up_for(gap_s: float, start_s: float, queues: int, tasks: int) -> None:
    """Spark on a busy machine takes seconds from one round to the next: rounds become longer, not faster."""
    backlog = {f"q/{number}": 60_000 // queues for number in range(queues)}
    cluster = Cluster(backlog, 2, tasks, gap_s, start_s)
    assert 0.85 * BUDGET <= cluster.drain() <= 1.1 * BUDGET
    seconds = Counter(map(int, cluster.moved_at))
    most = max(sum(seconds[second] for second in range(first, first + 10)) for first in range(int(cluster.now)))
    assert most <= 1.1 * BUDGET * 10, "in any ten seconds"


def test_a_share_begins_empty_and_grows_when_others_end() -> None:
    """Many short tasks must not each begin with a burst; budget that other tasks do not need any more is not lost."""
    share = BudgetShare(100.0, 4, 0.0)
    assert share.take(5, 0.0) == pytest.approx(0.2)
    share.shared_by(1, 0.2)
    assert share.rate_per_s(0.2) == 100.0
    share.busy(0.3)
    assert (share.rate_per_s(0.3), share.was_busy) == (50.0, True)
    assert BudgetShare(None, 4, 0.0).take(1000, 0.0) == 0.0


def test_a_queue_that_ran_empty_leaves_nothing_to_make_up_for() -> None:
    """Otherwise the first round after a quiet hour would be faster than the budget."""
    account = Account()
    assert account.rate(100.0, 10.0, 0.0) == 100.0
    account.spent(900, 100.0, 10.0, all_used=True)
    assert account.rate(100.0, 10.0, 10.5) == 108.0
    account.spent(100, 100.0, 20.0, all_used=False)
    assert account.rate(100.0, 10.0, 3600.0) == 100.0
    account.spent(1200, 100.0, 3610.0, all_used=False)
    assert account.rate(100.0, 10.0, 3610.0) == 80.0, "an excess is always deducted later"


def test_how_many_tasks_run_at_once_is_seen_in_their_times() -> None:
    """A cluster does not always say it, and another job may have taken some of its slots."""

    def ran(task: int, began_s: float, ended_s: float) -> TaskReport:
        return TaskReport(1, "q", 1, task=task, began_ms=int(began_s * 1000), ended_ms=int(ended_s * 1000))

    waves = [ran(0, 0, 10), ran(1, 0.1, 10.1), ran(2, 10.2, 20), ran(3, 10.3, 20)]
    assert ran_at_once(waves) == 2
    assert ran_at_once([ran(0, 0, 10), ran(1, 3, 13), ran(2, 4, 14)]) is None
    assert ran_at_once([ran(0, 0, 1), ran(1, 2, 3)]) is None, "a worker may just start late"
