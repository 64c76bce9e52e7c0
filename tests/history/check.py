"""The checker: a pure function from a complete history to a verdict.

A history is complete when every sender and receiver has stopped and everything that the broker still holds has been
drained into it. Only then does "not found" mean "gone".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields

from tests.history.events import Attempt, Drained, Event, Kind, Outcome, Received, Sent, Settled

_REMOVES = (Kind.COMPLETE, Kind.DELETE)
_COUNTS = ("attempts", "accepted", "failed", "unknown")
_HARMLESS = ("recovered", "expired")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of messages (an id counts once), then the ids of each finding."""

    attempts: int
    accepted: int
    "Sends with outcome ok."
    failed: int
    unknown: int
    lost: tuple[str, ...]
    "Accepted, and neither drained nor removed by a receiver nor expired."
    duplicated: tuple[str, ...]
    "Seen as more than one stored message."
    recovered: tuple[str, ...]
    "Outcome unknown, and found: the broker had stored it. Harmless."
    unexpected: tuple[str, ...]
    "Found although never attempted, or although its send definitely failed."
    misrouted: tuple[str, ...]
    "Found on an entity to which it was not sent."
    altered: tuple[str, ...]
    "Found with another content than was sent."
    expired: tuple[str, ...]
    "Accepted, not found, and its time to live was over when the drain ended. Harmless."
    redelivered_after_complete: tuple[str, ...]
    "Delivered or drained again after an acknowledged removal."

    @property
    def ok(self) -> bool:
        """True if all findings are harmless."""
        return not any(getattr(self, f.name) for f in fields(self) if f.name not in _COUNTS + _HARMLESS)

    def __str__(self) -> str:
        counts = ", ".join(
            f"{name} {len(value) if isinstance(value, tuple) else value}"
            for name, value in ((f.name.replace("_", " "), getattr(self, f.name)) for f in fields(self))
        )
        examples = [
            f"  {f.name.replace('_', ' ')}: {', '.join(ids[:10])}{' …' if len(ids) > 10 else ''}"
            for f in fields(self)
            if f.name not in _COUNTS + _HARMLESS and (ids := getattr(self, f.name))
        ]
        return "\n".join([f"{'OK' if self.ok else 'FAULT'}: {counts}", *examples])


class _Sends:
    """Facts known about the attempts to send one id."""

    __slots__ = ("digests", "entities", "expires_ms", "outcome")

    def __init__(self) -> None:
        self.entities: set[str] = set()
        self.digests: set[str] = set()
        self.expires_ms: int | None = None
        self.outcome = Outcome.FAILED

    def attempt(self, event: Attempt) -> None:
        self.entities.add(event.entity)
        self.digests.add(event.digest)
        self.expires_ms = event.expires_ms
        # The attempt counts as unanswered until a later event has its answer.
        self.outcome = Outcome.OK if self.outcome is Outcome.OK else Outcome.UNKNOWN

    def sent(self, outcome: Outcome, unanswered_before: bool) -> None:
        # One success decides. A retry that failed does not prove that an earlier unanswered attempt failed too.
        if self.outcome is not Outcome.OK and not (outcome is Outcome.FAILED and unanswered_before):
            self.outcome = outcome


def check(history: Iterable[Event], *, drain_ended_ms: int) -> Verdict:
    """Judge a complete history. `drain_ended_ms` is the Unix time of the drain's end: it decides what has expired."""
    sends: dict[str, _Sends] = {}
    unanswered: dict[str, int] = defaultdict(int)
    copies: dict[str, set[tuple[str, int]]] = defaultdict(set)
    drained: set[tuple[str, str, int]] = set()
    maybe_removed: set[str] = set()
    removed: set[tuple[str, str, int]] = set()
    misrouted, altered, redelivered, drained_twice = set[str](), set[str](), set[str](), set[str]()

    for event in history:
        match event:
            case Attempt():
                sends.setdefault(event.id, _Sends()).attempt(event)
                unanswered[event.id] += 1
            case Sent():
                unanswered[event.id] -= event.outcome is not Outcome.UNKNOWN
                sends[event.id].sent(event.outcome, unanswered[event.id] > 0)
            case Settled():
                if event.kind in _REMOVES and event.outcome is not Outcome.FAILED:
                    maybe_removed.add(event.id)
                    if event.outcome is Outcome.OK:
                        removed.add((event.id, event.entity, event.sequence_number))
            case Received() | Drained():
                stored = (event.id, event.entity, event.sequence_number)
                copies[event.id].add(stored[1:])
                if stored in removed:
                    redelivered.add(event.id)
                if isinstance(event, Drained):
                    if stored in drained:
                        drained_twice.add(event.id)
                    drained.add(stored)
                if event.id in sends and event.entity not in sends[event.id].entities:
                    misrouted.add(event.id)
                if event.id in sends and event.digest not in sends[event.id].digests:
                    altered.add(event.id)

    by_outcome = {o: {id for id, s in sends.items() if s.outcome is o} for o in Outcome}
    gone = by_outcome[Outcome.OK] - {id for id, _, _ in drained} - maybe_removed
    expired = {id for id in gone if (at := sends[id].expires_ms) is not None and at <= drain_ended_ms}
    found = set(copies)
    return Verdict(
        attempts=len(sends),
        accepted=len(by_outcome[Outcome.OK]),
        failed=len(by_outcome[Outcome.FAILED]),
        unknown=len(by_outcome[Outcome.UNKNOWN]),
        lost=tuple(sorted(gone - expired)),
        duplicated=tuple(sorted({id for id, seen in copies.items() if len(seen) > 1} | drained_twice)),
        recovered=tuple(sorted(by_outcome[Outcome.UNKNOWN] & found)),
        unexpected=tuple(sorted((found - set(sends)) | (by_outcome[Outcome.FAILED] & found))),
        misrouted=tuple(sorted(misrouted)),
        altered=tuple(sorted(altered)),
        expired=tuple(sorted(expired)),
        redelivered_after_complete=tuple(sorted(redelivered)),
    )
