"""Computes the availability of entities, and outages as the report shows them, from sums. No Spark here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import groupby

from pairbus.ledger.rows import FAILED_SEND
from pairbus.report.model import DeadLetters, Delay, EntityAvailability, EntityOutage
from pairbus.report.rules.availability import UnhealthyTime
from pairbus.report.rules.bill import Cell, Diversion, Trouble
from pairbus.report.rules.times import text_of

ALL = "*"


@dataclass(frozen=True, slots=True)
class MessageCounts:
    diverted: int = 0
    moved: int = 0
    duplicated: int = 0
    maybe_duplicated: int = 0

    def plus(self, *others: int) -> MessageCounts:
        return MessageCounts(*(mine + other for mine, other in zip(astuple(self), others, strict=True)))


def availability_of(
    cells: Iterable[Cell],
    messages: Mapping[str, MessageCounts],
    dead: Iterable[DeadLetters],
    delays: Mapping[str, Delay],
) -> tuple[list[EntityAvailability], EntityAvailability]:
    """Return the availability of each entity, sorted by name, and of all together."""
    metered: dict[str, list[int]] = {}
    for cell in cells:
        index = _metered_as(cell)
        if index is not None:
            metered.setdefault(cell.entity, [0, 0, 0])[index] += cell.count
    dead_lettered: dict[str, int] = {}
    for letters in dead:
        dead_lettered[letters.entity] = dead_lettered.get(letters.entity, 0) + letters.messages
    nothing = [0, 0, 0]
    entities = [
        _entity(
            name, metered.get(name, nothing), messages.get(name, MessageCounts()), dead_lettered.get(name, 0), delays
        )
        for name in sorted({*metered, *messages, *dead_lettered})
    ]
    sums = [sum(column) for column in zip(nothing, *metered.values(), strict=True)]
    counts = MessageCounts()
    for each in messages.values():
        counts = counts.plus(*astuple(each))
    return entities, _entity(ALL, sums, counts, sum(dead_lettered.values()), delays)


def _metered_as(cell: Cell) -> int | None:
    """Return the index of the count to which operations belong: 0 sent, 1 failed, 2 pings; None: to none."""
    if cell.kind == "send" and (cell.side, cell.cause, cell.is_ok) == ("primary", "application", True):
        return 0
    places: dict[str, int] = {FAILED_SEND: 1, "ping": 2}
    return places.get(cell.kind)


def _entity(
    name: str, metered: Sequence[int], counts: MessageCounts, dead_lettered: int, delays: Mapping[str, Delay]
) -> EntityAvailability:
    sent, failed, pings = metered
    attempted = sent + counts.diverted + failed
    return EntityAvailability(
        entity=name,
        sent=sent,
        diverted=counts.diverted,
        failed=failed,
        moved=counts.moved,
        duplicated=counts.duplicated,
        maybe_duplicated=counts.maybe_duplicated,
        dead_lettered=dead_lettered,
        pings=pings,
        with_pairing_percent=100 * (sent + counts.diverted) / attempted if attempted else 100.0,
        without_pairing_percent=100 * sent / attempted if attempted else 100.0,
        delay=delays.get(name),
    )


def outages_of(
    outages: Sequence[UnhealthyTime], diversions: Iterable[Diversion], troubles: Iterable[Trouble]
) -> tuple[EntityOutage, ...]:
    """Return outages with their messages and failed sends, sorted by entity and beginning."""
    by_outage = sorted(diversions, key=lambda each: each.outage)
    groups = {number: list(group) for number, group in groupby(by_outage, key=lambda each: each.outage)}
    failed = {trouble.outage: trouble.count for trouble in troubles if trouble.kind == FAILED_SEND}
    return tuple(_outage(span, groups.get(number, []), failed.get(number, 0)) for number, span in enumerate(outages))


def _outage(span: UnhealthyTime, diversions: Sequence[Diversion], failed: int) -> EntityOutage:
    diverted, waiting = sum(each.messages for each in diversions), sum(each.waiting for each in diversions)
    drained_ms = max((each.drained_ms for each in diversions if each.drained_ms is not None), default=None)
    away_ms = span.failed_over_ms
    return EntityOutage(
        entity=span.entity,
        begins=text_of(span.begins_ms),
        failed_over=None if away_ms is None else text_of(away_ms),
        recovered=text_of(span.ends_ms) if span.is_over else None,
        drained=None if drained_ms is None or waiting else text_of(drained_ms),
        forced=span.forced,
        reason=span.reason,
        clients=len(span.runs),
        time_to_divert_s=None if away_ms is None else (away_ms - span.begins_ms) / 1000,
        failed_sends=failed,
        diverted=diverted,
        waiting=waiting,
    )
