"""Adds the records of workers on the driver: there are few of them, however large the ledger is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pairbus.ledger.table.names import file_number
from pairbus.report.model import DeadLetters
from pairbus.report.passes.records import (
    CellSum,
    FilePiece,
    LettersSum,
    LinePlace,
    MessagesSum,
    MessageStep,
    RateSum,
    RunEnd,
    Singles,
    StateChange,
    TroubleSum,
    Wait,
    WaySum,
)
from pairbus.report.rules.availability import Transition
from pairbus.report.rules.bill import Cell, Diversion, Trouble
from pairbus.report.rules.cells import STEPS, Cells
from pairbus.report.rules.entities import MessageCounts
from pairbus.report.rules.rates import Rates


@dataclass(slots=True)
class RowSums:
    """Sums of the pass over all rows."""

    pieces: list[FilePiece] = field(default_factory=list)
    places: list[LinePlace] = field(default_factory=list)
    steps: list[MessageStep] = field(default_factory=list)
    "Steps that came to the driver: all of a small ledger, none of a large one."
    rates: Rates = field(default_factory=Rates)
    _cells: Cells = field(default_factory=Cells)
    _runs: dict[str, int] = field(default_factory=dict)
    _changes: list[StateChange] = field(default_factory=list)
    counts: dict[str, MessageCounts] = field(default_factory=dict)
    letters: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, record: Any) -> None:
        """Add a record of the first stage."""
        match record:
            case MessageStep():
                self.steps.append(record)
            case CellSum():
                self._cells.merge(record)
            case RateSum():
                self.rates.merge(record)
            case FilePiece():
                self.pieces.append(record)
            case LinePlace():
                self.places.append(record)
            case StateChange():
                self._changes.append(record)
            case RunEnd(run, last_ms):
                self._runs[run] = max(last_ms, self._runs.get(run, last_ms))
            case Singles(entity, diverted, moved, maybe):
                _count(self.counts, entity, diverted, moved, 0, maybe)
            case LettersSum(entity, reason, messages):
                _letters(self.letters, entity, reason, messages)
            case _:
                raise TypeError(f"{record!r} is no record of the pass over the rows")

    def step(self) -> str:
        """Return the time that each cell has: hour, day or month."""
        return STEPS[self._cells.grain]

    def cells(self) -> list[Cell]:
        return [
            Cell(*cell[:5], bool(cell.is_ok), cell.hour, cell.counted, cell.operations, cell.bytes)
            for cell in self._cells.sums()
        ]

    def transitions(self) -> tuple[list[Transition], dict[str, int]]:
        """Return transitions run by run, in the order in which they were written, and run → time of its last row.

        Within a run the clock may go back, so the places of rows decide. A run of whose files one has another name than
        a ledger gives has no such order: there the times of the rows decide.
        """
        number = {each.path: file_number(each.path) for each in self._changes}
        by_time = {each.run for each in self._changes if number[each.path] is None}

        def place(each: StateChange) -> tuple[Any, ...]:
            first = (each.time_ms, each.path) if each.run in by_time else (number[each.path],)
            return each.run, *first, each.block, each.line

        order = sorted(self._changes, key=place)
        steps = [
            Transition(each.run, each.entity, each.event, each.time_ms, each.reason, bool(each.forced))
            for each in order
        ]
        return steps, self._runs

    def period(self) -> tuple[int, int] | None:
        """Return the times of the first and the last row."""
        firsts = [piece.first_ms for piece in self.pieces if piece.first_ms is not None]
        lasts = [piece.last_ms for piece in self.pieces if piece.last_ms is not None]
        return (min(firsts), max(lasts)) if firsts else None


@dataclass(slots=True)
class MessageSums:
    """Sums over messages, from any number of parts of them."""

    counts: dict[str, MessageCounts]
    letters: dict[tuple[str, str], int]
    waits: list[Wait] = field(default_factory=list)
    "Waits that came to the driver: all of a small ledger, none of a large one."
    _troubles: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    _ways: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)

    def add(self, record: Any) -> None:
        """Add a record of the second stage."""
        match record:
            case Wait():
                self.waits.append(record)
            case MessagesSum(entity, diverted, moved, duplicated, maybe):
                _count(self.counts, entity, diverted, moved, duplicated, maybe)
            case LettersSum(entity, reason, messages):
                _letters(self.letters, entity, reason, messages)
            case TroubleSum():
                sums = self._troubles.setdefault(record[:2], [0, 0, 0])
                for index, amount in enumerate(record[2:]):
                    sums[index] += amount
            case WaySum():
                way = self._ways.setdefault(record[:5], [0, 0, None])
                way[0] += record.messages
                way[1] += record.waiting
                way[2] = max((time for time in (way[2], record.drained_ms) if time is not None), default=None)
            case _:
                raise TypeError(f"{record!r} is no record of messages")

    def diversions(self) -> list[Diversion]:
        return [
            Diversion(outage, entity, queue, moved_queue, bool(is_moved), *sums)
            for (entity, queue, moved_queue, outage, is_moved), sums in self._ways.items()
        ]

    def troubles(self) -> list[Trouble]:
        return [Trouble(outage, kind, *sums) for (kind, outage), sums in self._troubles.items()]

    def dead_letters(self) -> list[DeadLetters]:
        return [DeadLetters(*key, messages) for key, messages in sorted(self.letters.items())]


def _count(counts: dict[str, MessageCounts], entity: str, *numbers: int) -> None:
    counts[entity] = counts.get(entity, MessageCounts()).plus(*numbers)


def _letters(letters: dict[tuple[str, str], int], entity: str, reason: str, messages: int) -> None:
    letters[entity, reason] = letters.get((entity, reason), 0) + messages


def gathered(records: Iterable[Any], into: Any) -> Any:
    """Add all records to `into`, and return it."""
    for record in records:
        into.add(record)
    return into
