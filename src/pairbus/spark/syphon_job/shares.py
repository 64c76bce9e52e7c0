"""Divides a round among its tasks: queues, quotas, a part of the budget. Time is an argument, in seconds.

The budget belongs to the round. The tasks that run have equal shares of it, and the pumps of a task use its share
together: the part that a task or a pump no longer needs goes to the others. An unused rest of a round, because of the
pause after it or because a worker started late, raises the budget of the next one by a few percent; overspending lowers
it. Where the gaps between rounds are too long for that, on a slow or busy cluster, rounds become longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from pairbus.spark.syphon_job.journal import TaskReport
from pairbus.syphon.decide.pace import Budget

LIFT = 0.08  # part of the budget by which a round may be faster, to use the rest of earlier rounds
CREDIT_MAX_S = 5.0  # seconds of the budget that can be made up for
START_S = 2.0  # seconds within which all tasks of a round begin, if there is a slot for each
LOST = 0.05  # part of the budget that gaps between rounds may cost before rounds become longer
LONGER_MAX = 6.0  # factor by which gaps between rounds can make a round longer
SKEW_MS = 500  # difference that the clocks of two hosts may have


@dataclass(frozen=True, slots=True)
class TaskPump:
    """One pump of a task."""

    queue: str
    number: int
    "Number among several pumps that share a queue."
    queue_created_ms: int | None


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Plan of one task of a round: its pumps and quotas."""

    tick: int
    number: int
    tasks: int
    "Number of tasks of the round."
    pumps: tuple[TaskPump, ...]
    max_messages: int
    max_s: float
    wait_s: float
    "Seconds to wait for the first message, and for the next one."
    per_s: float | None = None
    "Budget of the whole round."


class BudgetShare(Budget):
    """Limits a task to its share of the budget. It begins empty: many short tasks must not each begin with a burst."""

    def __init__(self, per_s: float | None, tasks: int, now: float) -> None:
        super().__init__(None if per_s is None else per_s / tasks)
        self.was_busy = False
        self._all_per_s = per_s
        self._tokens = 0.0
        self._at_s = now

    def busy(self, now: float, asked_at: float = float("inf")) -> None:
        self.was_busy = True
        super().busy(now, asked_at)

    def shared_by(self, tasks: int, now: float) -> None:
        """Set how many tasks run at once from now on."""
        if self._all_per_s is None or self._max_per_s is None:
            return
        self._advance(now, self._max_per_s)
        max_per_s = self._all_per_s / tasks
        self._rate_per_s *= max_per_s / self._max_per_s
        self._max_per_s = max_per_s


def sharers(plan: TaskPlan, begun: AbstractSet[int], ended: Iterable[TaskReport], age_s: float) -> int:
    """Return how many tasks share the budget of a round: those that run, and at first those that will begin soon.

    When one of them has run for `START_S`, the others have begun, or wait for a slot.
    """
    ended = list(ended)
    over = {report.task for report in ended} - {plan.number}
    if age_s < START_S and not any(map(_was_long, ended)):
        return max(plan.tasks - len(over), 1)
    return len((begun - over) | {plan.number})


class Account:
    """Carries the budget from round to round: messages that were allowed, and messages that were moved."""

    def __init__(self) -> None:
        self._credit = 0.0
        "Messages that were allowed and not moved; negative: moved and not allowed."
        self._at: float | None = None

    def rate(self, per_s: float, round_s: float, now: float) -> float:
        """Return the budget of a round that begins now: the budget as it is, and the rest from before."""
        self._allow(per_s, now)
        self._credit = min(self._credit, per_s * CREDIT_MAX_S)
        share = self._credit / round_s
        return max(min(per_s + share, per_s * (1 + LIFT)), per_s / 2)

    def spent(self, messages: int, per_s: float, now: float, *, all_used: bool) -> None:
        """Note that a round is over. Unless `all_used`, queues ran empty, and the rest of the budget is dropped."""
        self._allow(per_s, now)
        self._credit -= messages
        if not all_used:
            self._credit = min(self._credit, 0.0)
            self._at = None

    def _allow(self, per_s: float, now: float) -> None:
        if self._at is not None:
            self._credit += per_s * max(now - self._at, 0.0)
        self._at = now


def round_s(max_s: float, gap_s: float) -> float:
    """Return how long a round with a budget takes: so long that the gap before the next one loses little of it."""
    return max(max_s, min(gap_s * (1 - LOST) / (LIFT + LOST), max_s * LONGER_MAX))


def worked_s(reports: Iterable[TaskReport]) -> float:
    """Return how long a round had tasks, by their own clocks."""
    reports = list(reports)
    return (max(report.ended_ms for report in reports) - min(report.began_ms for report in reports)) / 1000


def ran_at_once(reports: Iterable[TaskReport]) -> int | None:
    """Return how many tasks Spark runs at once, if a round has shown it: one of its tasks began only after another,
    long one had ended. None when it has not."""
    reports = list(reports)
    spans = {report.task: (report.began_ms, report.ended_ms) for report in reports}
    ends = [report.ended_ms for report in reports if _was_long(report)]
    if not ends or all(began < min(ends) - SKEW_MS for began, _ in spans.values()):
        return None
    return max(sum(other <= began < end for other, end in spans.values()) for began, _ in spans.values())


def _was_long(report: TaskReport) -> bool:
    return report.ended_ms - report.began_ms >= START_S * 1000
