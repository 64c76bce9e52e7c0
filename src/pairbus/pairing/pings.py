"""The schedule of pings, which ask an unavailable entity whether it accepts sends again.

The first ping is sent one interval after the failover, each next one an interval after the last one ended, so that two
never run at once. Several successes in a row can be required, against flapping.

A ping may be a moment later than that, by a tenth of the interval and by a second at most: entities whose pings are due
within this moment are pinged together, on one connection, and the pings of clients that failed over together part
by a random jitter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pairbus.pairing.failover import SendingEntity

CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
TIME_TO_LIVE_S = 1.0
TIMEOUT_MAX_S = 5.0
SLACK, SLACK_MAX_S = 0.1, 1.0  # part of the interval, and seconds, by which a ping may be late at most


@dataclass(slots=True)
class _Course:
    entity: SendingEntity
    due: float
    in_a_row: int = 0
    running: bool = False
    refusal_told: bool = False


class Pings:
    """The pings of one paired client."""

    def __init__(self, interval_s: float, required: int, jitter: Callable[[], float] = lambda: 0.0) -> None:
        """`jitter` returns a number from 0 to 1, at random."""
        self._interval_s = interval_s
        self._slack_s = min(interval_s * SLACK, SLACK_MAX_S)
        self._jitter = jitter
        self._planned_at = 0.0
        "Time of the pings that were planned last."
        self._required = required
        self._courses: dict[str, _Course] = {}

    @property
    def timeout_s(self) -> float:
        return min(self._interval_s, TIMEOUT_MAX_S)

    def start(self, entity: SendingEntity, now: float) -> None:
        self._courses[entity.path] = _Course(entity, self._due_from(now + self._interval_s))

    def stop(self, entity: SendingEntity) -> None:
        self._courses.pop(entity.path, None)

    def clear(self) -> None:
        self._courses.clear()

    def due(self, now: float) -> list[SendingEntity]:
        """Return the entities to ping now; each ping is under way until `ended` is called for it."""
        courses = [course for course in self._courses.values() if course.due <= now and not course.running]
        for course in courses:
            course.running = True
        return [course.entity for course in courses]

    def next_due(self) -> float | None:
        return min((course.due for course in self._courses.values() if not course.running), default=None)

    def ended(self, entity: SendingEntity, accepted: bool, now: float, *, wait_s: float = 0.0) -> bool:
        """Return True when enough pings in a row were accepted. `wait_s`: pause that a throttled peer asked for."""
        course = self._courses.get(entity.path)
        if course is None:
            return False  # recovered or cleared while the ping was under way
        course.running = False
        course.due = self._due_from(now + max(self._interval_s, wait_s))
        course.in_a_row = course.in_a_row + 1 if accepted else 0
        return course.in_a_row >= self._required

    def _due_from(self, earliest: float) -> float:
        """Return the time of the pings that were planned last when it is near enough, or a new time."""
        if not earliest <= self._planned_at <= earliest + self._slack_s:
            self._planned_at = earliest + self._slack_s * self._jitter()
        return self._planned_at

    def forget_running(self) -> None:
        """Forget the pings under way, because their process or loop is gone; the entities are pinged again."""
        for course in self._courses.values():
            course.running = False

    def refusal_is_news(self, entity: SendingEntity) -> bool:
        """Return True for the first refusal of this failover: only that one is told."""
        course = self._courses.get(entity.path)
        if course is None or course.refusal_told:
            return False
        course.refusal_told = True
        return True
