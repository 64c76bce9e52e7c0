"""Lines of `pairbus syphon` and `pairbus redrive`: events, the live line, the summary.

On a terminal one line is written over; elsewhere each line has its time and its level, as in a log.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pairbus.cli.pipeline.left import NOTHING_LEFT, Left
from pairbus.cli.standard import ProgressLine, one_line, say
from pairbus.pairing.events import (
    DeadLettered,
    DestinationSkipped,
    Event,
    MaybeDuplicated,
    Moved,
    NotCompleted,
    PrimaryReachable,
    PrimaryUnreachable,
    PumpPaused,
    Stayed,
)
from pairbus.syphon import SyphonProgress

WARNINGS = (DeadLettered, DestinationSkipped, MaybeDuplicated, NotCompleted, Stayed)
Level = Literal["INFO", "WARNING"]


@dataclass(frozen=True, slots=True)
class Counted:
    """Messages in the backlog queues at one moment, and the progress of the syphon then."""

    messages: int
    queues: int
    "Number of queues that had messages."
    then: SyphonProgress

    def waiting(self, now: SyphonProgress) -> int:
        """Return how many messages wait now: moved and dead-lettered ones have left, blocked ones are still there."""
        left = _left_queues(now) - _left_queues(self.then)
        return max(self.messages - left, now.blocked + now.uncompleted)


class QueueTally:
    """The sum of messages that are or were in the queues, from counts and from a progress that lags behind.

    Tasks of Spark report the messages that they moved at their end. So a count and the progress of the same moment do
    not add up: messages are missing from both. A later progress has them, and perhaps messages that were there at the
    count.
    """

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._counts: deque[tuple[float, int]] = deque()
        "Times and results of the counts within the last `lag_s` seconds, and of the last one before."
        self._sum: int | None = None

    def counted(self, messages: int, queues: int, progress: SyphonProgress, now: float) -> Counted:
        """Take a count, and the progress of the same moment, into account."""
        left = _left_queues(progress)
        self._counts.append((now, messages))
        while len(self._counts) > 1 and self._counts[1][0] <= now - self._lag_s:
            self._counts.popleft()
        at, earlier = self._counts[0]
        at_least, at_most = messages + left, earlier + left
        if self._sum is None or self._lag_s == 0:
            self._sum = at_least
        elif at <= now - self._lag_s:
            self._sum = min(self._sum, at_most)
        self._sum = max(self._sum, at_least)
        return Counted(self._sum - left, queues, progress)


def _left_queues(progress: SyphonProgress) -> int:
    return progress.moved - progress.uncompleted + progress.dead_lettered


class SyphonTelling:
    """Messages of one run to its operator."""

    def __init__(
        self, primary: str, secondary: str, *, verbose: bool = False, wall_s: Callable[[], float] = time.time
    ) -> None:
        self.counted: Counted | None = None
        self.counts = False
        "True when the secondary lets us count its messages."
        self._primary = primary
        self._secondary = secondary
        self._verbose = verbose
        self._wall_s = wall_s
        self._line = ProgressLine()
        self._reasons: Counter[str] = Counter()
        self._paused: dict[str, str] = {}
        "Reason of the last pause that was reported, by queue."
        self._unreachable: tuple[PrimaryUnreachable, float] | None = None
        "The last failed try, and its time."

    # ── lines ──

    def line(self, text: str, level: Level = "INFO") -> None:
        """Write one line, with time and level where standard error is no terminal."""
        self._line.clear()
        if not sys.stderr.isatty():
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall_s()))
            text = f"{moment} {level:<7} {text}"
        say(one_line(text))

    def live(self, text: str) -> None:
        """Write over the last line of a terminal."""
        self._line.show(text)

    def clear(self) -> None:
        self._line.clear()

    # ── events ──

    def heard(self, event: Event, progress: Callable[[], SyphonProgress]) -> None:
        """Report an event, if the operator should look at it; with --verbose, every event."""
        match event:
            case PrimaryUnreachable():
                self._unreachable = event, self._wall_s()
                if self._verbose or not sys.stderr.isatty() or event.next_try_s is None:
                    details = f": {event.reason}" if self._verbose or event.next_try_s is None else ""
                    self.line(self._away_line(event, 0.0, progress()) + details, "WARNING")
            case PrimaryReachable():
                self._unreachable = None
                self.line(str(event))
            case PumpPaused():
                if self._verbose or self._paused.get(event.queue) != event.reason:
                    self._paused[event.queue] = event.reason
                    self.line(str(event), "WARNING")
            case Moved():
                self._paused.pop(event.queue, None)
                if self._verbose:
                    self.line(str(event))
            case DestinationSkipped():
                self._reasons[f"{event.path}: {event.reason}"] += 1
                self.line(str(event), "WARNING")
            case _ if isinstance(event, WARNINGS) or self._verbose:
                self.line(str(event), "WARNING" if isinstance(event, WARNINGS) else "INFO")

    def problems(self, met: Mapping[str, int]) -> None:
        """Report each problem of a job on Spark once. `met`: how often it was met so far."""
        for text, count in dict(met).items():  # another thread changes it
            if text not in self._reasons:
                self.line(text, "WARNING")
            self._reasons[text] = count

    # ── how far it is ──

    def progress(self, now: SyphonProgress) -> str:
        """Return the live line: the state of the primary while it is away, otherwise counts that add up."""
        if self._unreachable is not None:
            event, told_s = self._unreachable
            return self._away_line(event, self._wall_s() - told_s, now)
        waiting = None if self.counted is None else self.counted.waiting(now)
        under_way = max((waiting or 0) - now.blocked - now.uncompleted, 0)
        eta = f", {under_way / now.per_s:.0f} s to go" if under_way and now.per_s >= 1 else ""
        return (
            f"{many(now.queues, 'queue')}, {'?' if waiting is None else waiting} waiting, {now.moved} moved,"
            f" {now.per_s:.0f}/s{eta}, {now.blocked} blocked, {now.dead_lettered} dead-lettered, {now.errors} errors"
        )

    def _away_line(self, event: PrimaryUnreachable, passed_s: float, now: SyphonProgress) -> str:
        if self.counted is not None:
            count = self.counted.waiting(now)
            wait = f"{many(count, 'message')} wait{'s' if count == 1 else ''} in {many(self.counted.queues, 'queue')}"
        else:
            why = "the last count failed" if self.counts else "that needs the Manage claim on the secondary"
            wait = f"messages in {many(now.queues, 'queue')} are not counted ({why})"
        again = "" if event.next_try_s is None else f"; next try in {max(event.next_try_s - passed_s, 0.0):.0f} s"
        return f"primary {self._primary} unreachable for {event.for_s + passed_s:.0f} s; {wait}{again}"

    def summary(self, now: SyphonProgress, left: Left, *, once: bool, stopped: bool) -> bool:
        """Print how it ended; return whether a single drain left messages behind."""
        self.clear()
        print(summary_line(now, left))
        if now.blocked:
            for reason, _ in self._reasons.most_common(5):
                self.line(reason, "WARNING")
        if not once or left == NOTHING_LEFT:
            return False
        at_least, unseen = "" if left.is_all else "at least ", left.messages - now.blocked - now.uncompleted
        if stopped:
            self.line("stopped before everything was moved", "WARNING")
        elif not left.messages:
            self.line(f"{self._secondary} does not say whether anything is left", "WARNING")
        elif unseen > 0 and not now.is_away:
            behind = "are behind messages that could not be sent, " if now.blocked else ""
            self.line(
                f"{at_least}{unseen} of the remaining messages were not received: they {behind}arrived after the start,"
                " or are locked by another receiver (in a backlog queue for at most a minute)",
                "WARNING",
            )
        return True


def summary_line(now: SyphonProgress, left: Left) -> str:
    """Return one line whose numbers add up: messages that left their queues, and messages that stayed."""
    parts = [f"moved {many(now.moved, 'message')}"]
    if now.dead_lettered:
        parts.append(f"{now.dead_lettered} dead-lettered")
    if left.messages:
        at_home = f", of which {now.uncompleted} are at home and could not be completed" if now.uncompleted else ""
        parts.append(f"{'' if left.is_all else 'at least '}{left.messages} left{at_home}")
    return ", ".join(parts)


def many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
