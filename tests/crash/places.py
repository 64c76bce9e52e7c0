"""Places where accepted messages must be found, beside being found at all."""

from __future__ import annotations

from collections.abc import Iterable

from tests.crash.load import SHORT_DEAD
from tests.history.events import Attempt, Drained, Event, Kind, Outcome, Place, Settled

_AFTER = {Kind.DEFER: Place.DEFERRED, Kind.DEAD_LETTER: Place.DEAD_LETTER}


def misplaced(history: Iterable[Event]) -> list[str]:
    """Messages that were drained from a place where nothing that was acknowledged can have put them."""
    allowed: dict[str, set[Place]] = {}
    wrong: list[str] = []
    for event in history:
        match event:
            case Attempt():
                allowed.setdefault(event.id, _at_first(event))
            case Settled() if event.kind in _AFTER:
                place = _AFTER[event.kind]
                if event.outcome is Outcome.OK:
                    allowed[event.id] = {place}
                elif event.outcome is Outcome.UNKNOWN:
                    allowed[event.id].add(place)
            case Drained() if event.place not in allowed.get(event.id, set(Place)):
                wrong.append(f"{event.id} in {event.place}, not in {sorted(allowed[event.id])}")
            case _:
                pass
    return wrong


def _at_first(sent: Attempt) -> set[Place]:
    if sent.id.startswith("far-"):
        return {Place.SCHEDULED}
    if sent.id.startswith("soon-"):
        return {Place.SCHEDULED, Place.QUEUE}
    return {Place.QUEUE, Place.DEAD_LETTER} if sent.entity == SHORT_DEAD else {Place.QUEUE}
