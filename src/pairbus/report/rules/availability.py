"""Finds outages in transitions. No Spark here: transitions are few, and their order matters.

A span is one process's view of one entity, from the first failure to the recovery. Spans of one entity that overlap are
one outage. When a process ends in the middle of an outage, its span ends with its last row; the outage is over only if
another of its processes recovers later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from pairbus.report.model import StateSpan
from pairbus.report.rules.times import text_of

SUSPECTED, FAILED_OVER, RECOVERED, CLEARED = "Suspected", "FailedOver", "Recovered", "PairingCleared"
TRANSITIONS = (SUSPECTED, FAILED_OVER, RECOVERED, CLEARED)


@dataclass(frozen=True, slots=True)
class Transition:
    run: str
    entity: str
    "Path of the entity; empty for PairingCleared, which concerns all entities."
    event: str
    time_ms: int
    reason: str
    forced: bool


@dataclass(frozen=True, slots=True)
class UnhealthyTime:
    """Time in which an entity was not healthy, for one process or, merged, for all."""

    entity: str
    begins_ms: int
    failed_over_ms: int | None
    ends_ms: int
    is_over: bool
    "True when the span ended with a recovery, False when it ended with the last row."
    forced: bool
    reason: str
    runs: frozenset[str]


def spans(transitions: Iterable[Transition], last_row_ms: dict[str, int]) -> list[UnhealthyTime]:
    """Return the spans of each process and entity. Transitions of one process are in order; `last_row_ms` is by run."""
    open_spans: dict[tuple[str, str], UnhealthyTime] = {}
    ended: list[UnhealthyTime] = []
    for step in transitions:
        key = step.run, step.entity
        span = open_spans.get(key)
        if step.event == CLEARED:
            of_run = [other for other in open_spans if other[0] == step.run]
            ended += [_over(open_spans.pop(other), step.time_ms) for other in of_run]
        elif step.event == RECOVERED:
            if span is not None:
                ended.append(_over(open_spans.pop(key), step.time_ms))
        else:
            span = span or UnhealthyTime(
                step.entity, step.time_ms, None, step.time_ms, False, False, step.reason, frozenset([step.run])
            )
            if step.event == FAILED_OVER:
                first_ms = max(span.begins_ms, step.time_ms) if span.failed_over_ms is None else span.failed_over_ms
                span = replace(span, failed_over_ms=first_ms, forced=span.forced or step.forced)
            open_spans[key] = span
    for (run, _), span in open_spans.items():
        ended.append(replace(span, ends_ms=max(span.begins_ms, last_row_ms.get(run, span.begins_ms))))
    return ended


def _over(span: UnhealthyTime, time_ms: int) -> UnhealthyTime:
    # The clock may have gone back since: nothing ends before it began.
    return replace(span, ends_ms=max(span.begins_ms, span.failed_over_ms or span.begins_ms, time_ms), is_over=True)


def merged(views: Iterable[UnhealthyTime]) -> list[UnhealthyTime]:
    """Return outages, sorted by entity and beginning. Their reason is that of the first process that saw them."""
    outages = []
    by_entity = attrgetter("entity")
    for _, group in groupby(sorted(views, key=lambda span: (span.entity, span.begins_ms, span.ends_ms)), by_entity):
        outage: UnhealthyTime | None = None
        for span in group:
            if outage is None or span.begins_ms > outage.ends_ms:
                outages += [outage] if outage else []
                outage = span
            else:
                outage = _together(outage, span)
        outages += [outage] if outage else []
    return outages


def _together(one: UnhealthyTime, other: UnhealthyTime) -> UnhealthyTime:
    times = [time for time in (one.failed_over_ms, other.failed_over_ms) if time is not None]
    last = max(one, other, key=lambda span: (span.ends_ms, span.is_over))
    return replace(
        one,
        failed_over_ms=min(times, default=None),
        ends_ms=last.ends_ms,
        is_over=last.is_over,
        forced=one.forced or other.forced,
        runs=one.runs | other.runs,
    )


def states(views: Sequence[UnhealthyTime]) -> list[StateSpan]:
    """Return the worst state of each entity that any process saw, as time spans that do not overlap."""
    spans: list[StateSpan] = []
    by_entity = attrgetter("entity")
    for entity, group in groupby(sorted(views, key=by_entity), by_entity):
        for state, begins_ms, ends_ms in _worst(list(group)):
            spans.append(StateSpan(entity, state, text_of(begins_ms), text_of(ends_ms)))
    return spans


def _worst(views: Sequence[UnhealthyTime]) -> Iterator[tuple[str, int, int]]:
    """Walk over the times of all changes, counting the processes in each state."""
    changes: dict[int, list[int]] = {}
    for span in views:
        away_ms = span.ends_ms if span.failed_over_ms is None else min(span.failed_over_ms, span.ends_ms)
        for index, begins_ms, ends_ms in ((0, span.begins_ms, away_ms), (1, away_ms, span.ends_ms)):
            changes.setdefault(begins_ms, [0, 0])[index] += 1
            changes.setdefault(ends_ms, [0, 0])[index] -= 1
    suspect = away = since_ms = 0
    state = ""
    for time_ms, (suspects, aways) in sorted(changes.items()):
        suspect, away = suspect + suspects, away + aways
        now = "FAILED_OVER" if away else "SUSPECT" if suspect else ""
        if now != state:
            if state:
                yield state, since_ms, time_ms
            state, since_ms = now, time_ms


def floor_second(time_ms: int) -> int:
    return time_ms // 1000 * 1000
