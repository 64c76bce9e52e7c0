"""Plan of the Spark syphon's rounds: their times and quotas. Pure: time is an argument, in seconds.

A round is a micro-batch. Between rounds the driver asks: is the primary reachable, are there messages in the queues?
For a single drain it peeks, otherwise `IdlePolls` has long polls under way; queues that are known to have more messages
need neither.

| what happened                          | the next round                   | of a single drain                        |
| -------------------------------------- | -------------------------------- | ---------------------------------------- |
| the round moved something              | at once, if there is more        | at once                                  |
| the round moved nothing                | after 1, 2, 4 … 120 s            | within 5 s; over when messages were held |
|                                        |                                  | back, or nothing came for `patience_s`   |
| nothing is in the queues               | when something arrives           | over                                     |
| primary or secondary cannot be reached | after 1, 2, 4 … 30 s             | an error                                 |
| a queue refuses to be looked at        | after 1, 2, 4 … 30 s             | an error, unless others have messages    |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pairbus.pairing.policy import BUSY_WAIT_S
from pairbus.spark.syphon_job.journal import TaskReport
from pairbus.spark.syphon_job.shares import Account, TaskPlan, TaskPump, ran_at_once, round_s, worked_s
from pairbus.syphon.decide.pace import PAUSE_MAX_S, Budget
from pairbus.syphon.send import AHEAD

PAUSE_S = 1.0
ONCE_PAUSE_MAX_S = 5.0
UNHEALTHY_MAX_S = 30.0
WAIT_S, WAIT_MAX_S = 0.25, 5.0  # in a task, for messages that must be there: they have been seen
LEARNT_ROUNDS = 30
LOCK_MIN_S = 5.0  # of a queue at Service Bus
IN_HAND = AHEAD + 2  # batches that a pump has in hand, of one message at least


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits one task, and orders the rounds."""

    lanes: int = 1
    "Pumps for each queue. With more than one the order of messages is not kept."
    tasks: int | None = None
    "Tasks that run at once and share the pumps of a round; None: as many as Spark says, or as the first round shows."
    max_messages: int = 100_000
    max_s: float = 10.0
    patience_s: float = 75.0
    "Patience of a single drain with messages that others have locked; longer than the lock of a backlog queue."


class GrowingPause:
    """Doubles the pause from one time to the next."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s = first_s

    def next(self) -> float:
        now_s, self._next_s = self._next_s, min(self._next_s * 2, self._max_s)
        return now_s

    def reset(self) -> None:
        self._next_s = self._first_s


class Rounds:
    """Plan of rounds. `once`: a drain that ends. Otherwise `is_over` never becomes true."""

    def __init__(self, quotas: Quotas, *, once: bool, max_messages_per_s: float | None) -> None:
        self._quotas = quotas
        self._once = once
        self._budget = Budget(max_messages_per_s)
        self._account = Account()
        self._gap_s = 0.0
        "Seconds from the end of the tasks of one round to the start of those of the next, where rounds follow at once."
        self._idle_at: float | None = None
        "Time at which the last round was over, or planned if it was the first."
        self._learnt: int | None = None
        "Tasks that ran at once where more were planned."
        self._learnt_for = 0
        "Rounds for which `_learnt` is used: a task that was retried may have caused it."
        self._left_out: frozenset[str] = frozenset()
        "Queues with messages for which the last round was too small."
        self._fruitless = GrowingPause(PAUSE_S, ONCE_PAUSE_MAX_S if once else PAUSE_MAX_S)
        self._unhealthy = GrowingPause(PAUSE_S, UNHEALTHY_MAX_S)
        self._wait = GrowingPause(WAIT_S, WAIT_MAX_S)
        self._wait_s = self._wait.next()
        self._next_at = float("-inf")
        self._moved_at: float | None = None
        self._held = False
        self.is_over = False
        self.more: frozenset[str] = frozenset()
        "Queues that are known to have more messages, without a look."

    def pause_s(self, now: float) -> float:
        """Return how long until the next look."""
        return max(self._next_at - now, 0.0)

    def unhealthy(self, now: float) -> float:
        """Note that a namespace cannot be reached; return how long until the next look."""
        pause_s = self._unhealthy.next()
        self._next_at = now + pause_s
        return pause_s

    def nothing_there(self, now: float) -> None:
        self._unhealthy.reset()
        self._fruitless.reset()
        self._next_at = now
        self.is_over = self._once

    def something_there(self, now: float) -> None:
        self._unhealthy.reset()
        if self._moved_at is None:
            self._moved_at = now  # patience begins with the first look

    def throttled(self, now: float) -> None:
        """Note that the secondary asks for a pause. After `patience_s` a single drain ends without knowing the rest."""
        self.something_there(now)
        assert self._moved_at is not None
        self._next_at = now + BUSY_WAIT_S
        self.is_over = self._once and now - self._moved_at >= self._quotas.patience_s

    def ended(self, reports: Iterable[TaskReport], now: float) -> None:
        """Note that a round is over."""
        reports = list(reports)
        self.more = self._left_out | {report.queue for report in reports if report.more}
        self._held = self._held or any(report.held for report in reports)
        self._settle(reports, now)
        if any(report.moved or report.dead_lettered for report in reports):
            self._moved_at = now
            self._fruitless.reset()
            self._wait.reset()
            self._wait_s = self._wait.next()
            self._next_at = now
            return
        self.more = frozenset()
        self._wait_s = self._wait.next()
        self._next_at = now + self._fruitless.next()
        waited_s = now - (now if self._moved_at is None else self._moved_at)
        self.is_over = self._once and (self._held or waited_s >= self._quotas.patience_s)

    def _settle(self, reports: list[TaskReport], now: float) -> None:
        """Account for the messages that the round moved, and learn how many tasks ran at once."""
        at_once = ran_at_once(reports)
        self._learnt_for -= 1
        if at_once is not None:
            self._learnt, self._learnt_for = at_once, LEARNT_ROUNDS
        elif not self.more or self._learnt_for <= 0:
            self._learnt = None
        rate = self._budget.rate_per_s(now)
        if rate is not None:
            moved = sum(report.moved for report in reports)
            self._account.spent(moved, rate, now, all_used=bool(self.more))
            if self._idle_at is not None and reports:
                self._gap_s = max(now - self._idle_at - worked_s(reports), 0.0)
            self._idle_at = now if self.more else None
        if any(report.busy for report in reports):
            self._budget.busy(now)

    def tasks(self, tick: int, queues: list[tuple[str, int | None]], now: float) -> list[TaskPlan]:
        """Plan a round over these queues, each with the time of its creation.

        The pumps of a task run at once in one process, and share its part of quota and budget.
        """
        quotas, rate = self._quotas, self._budget.rate_per_s(now)
        queues = self._few_enough(tick, queues, rate)
        pumps = [TaskPump(queue, number, created_ms) for number in range(quotas.lanes) for queue, created_ms in queues]
        slots = self._learnt or quotas.tasks
        count = max(min(len(pumps), slots or len(pumps)), 1)
        max_s = quotas.max_s if rate is None else round_s(quotas.max_s, self._gap_s)
        per_s = None if rate is None else self._account.rate(rate, max_s, now)
        self._idle_at = now if self._idle_at is None else self._idle_at
        return [
            TaskPlan(tick, index, count, mine, quotas.max_messages, max_s, self._wait_s, per_s)
            for index in range(count)
            if (mine := tuple(pumps[index::count]))
        ]

    def _few_enough(
        self, tick: int, queues: list[tuple[str, int | None]], rate: float | None
    ) -> list[tuple[str, int | None]]:
        """Leave queues out, in turns, when the budget is so low that locks of messages in hand would run out."""
        most = len(queues) if rate is None else max(int(rate * LOCK_MIN_S / 2 / IN_HAND / self._quotas.lanes), 1)
        first = tick * most % len(queues) if most < len(queues) else 0
        turned = queues[first:] + queues[:first]
        self._left_out = frozenset(queue for queue, _ in turned[most:])
        return turned[:most]
