"""When the Spark syphon makes its next round, and with which quotas. Pure: time is an argument, in seconds.

A round is a micro-batch. Between rounds the driver looks: is the primary there, is there anything in the queues? Every
look costs one peek for each queue of which it is not known that there is more.

| what happened                          | the next look, or round          | of a single drain                        |
| -------------------------------------- | -------------------------------- | ---------------------------------------- |
| the round moved something              | at once                          | at once                                  |
| the round moved nothing                | after 1, 2, 4 … 120 s            | within 5 s; over when messages were held |
|                                        |                                  | back, or nothing came for `patience_s`   |
| nothing is in the queues               | after 1, 2, 4 … `idle_max_s`     | over                                     |
| primary or secondary cannot be reached | after 1, 2, 4 … 30 s             | an error                                 |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pairbus.pairing.pace import PAUSE_MAX_S, Budget
from pairbus.spark.journal import Report
from pairbus.spark.lane import Lane

PAUSE_S = 1.0
ONCE_PAUSE_MAX_S = 5.0
UNHEALTHY_MAX_S = 30.0
WAIT_S, WAIT_MAX_S = 0.25, 5.0  # in a task, for messages that must be there: they have been seen


@dataclass(frozen=True, slots=True)
class Quotas:
    """How rounds follow each other, and what one task may do."""

    lanes: int = 1
    "Pumps for each queue. More than one gives up the order of messages."
    tasks: int | None = None
    "Of a round, sharing the pumps; None: as many as run at once with a local master, otherwise one for each pump."
    max_messages: int = 100_000
    max_s: float = 10.0
    idle_max_s: float = 60.0
    patience_s: float = 75.0
    "Of a single drain, for messages that somebody else has locked; more than the lock of a backlog queue."


class Pause:
    """Doubles from one time to the next."""

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s = first_s

    def next(self) -> float:
        now_s, self._next_s = self._next_s, min(self._next_s * 2, self._max_s)
        return now_s

    def reset(self) -> None:
        self._next_s = self._first_s


class Rounds:
    """`once`: a drain that ends. Otherwise `is_over` never becomes true."""

    def __init__(self, quotas: Quotas, *, once: bool, max_messages_per_s: float | None) -> None:
        self._quotas = quotas
        self._once = once
        self._budget = Budget(max_messages_per_s)
        self._fruitless = Pause(PAUSE_S, ONCE_PAUSE_MAX_S if once else PAUSE_MAX_S)
        self._idle = Pause(PAUSE_S, quotas.idle_max_s)
        self._unhealthy = Pause(PAUSE_S, UNHEALTHY_MAX_S)
        self._wait = Pause(WAIT_S, WAIT_MAX_S)
        self._wait_s = self._wait.next()
        self._next_at = float("-inf")
        self._moved_at: float | None = None
        self._held = False
        self.is_over = False
        self.more: frozenset[str] = frozenset()
        "Queues of which there is more, without a look."

    def pause_s(self, now: float) -> float:
        """How long until the next look."""
        return max(self._next_at - now, 0.0)

    def unhealthy(self, now: float) -> float:
        """A namespace cannot be reached; how long until the next look."""
        pause_s = self._unhealthy.next()
        self._next_at = now + pause_s
        return pause_s

    def nothing_there(self, now: float) -> None:
        self._unhealthy.reset()
        self._fruitless.reset()
        self._next_at = now + self._idle.next()
        self.is_over = self._once

    def something_there(self, now: float) -> None:
        self._unhealthy.reset()
        self._idle.reset()
        if self._moved_at is None:
            self._moved_at = now  # patience begins with the first look

    def ended(self, reports: Iterable[Report], now: float) -> None:
        """A round is over."""
        reports = list(reports)
        self.more = frozenset(report.queue for report in reports if report.more)
        self._held = self._held or any(report.held for report in reports)
        if any(report.busy for report in reports):
            self._budget.busy(now)
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

    def tasks(self, tick: int, queues: list[tuple[str, int | None]], now: float) -> list[list[Lane]]:
        """The lanes of each task of a round over these queues (each with the time of its creation).

        Budget and quota are shared out: the lanes of a round run at once, those of a task in one process.
        """
        quotas, rate = self._quotas, self._budget.rate_per_s(now)
        count = len(queues) * quotas.lanes
        tasks = max(min(count, quotas.tasks or count), 1)
        per_s = None if rate is None else rate / max(count, 1)
        max_messages = max(quotas.max_messages // -(-count // tasks), 1) if count else quotas.max_messages
        lanes = [
            Lane(tick, queue, number, created_ms, max_messages, quotas.max_s, self._wait_s, per_s)
            for number in range(quotas.lanes)
            for queue, created_ms in queues
        ]
        return [lanes[index::tasks] for index in range(tasks) if lanes[index::tasks]]
