"""Correlation filters by the texts that they ask for: those that select a message are found without a try of each.

Filters that ask for the same fields are in one table, by the texts of these fields. A subscription may have thousands
of filters, and hardly more than a few sets of fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pairbus.filters.compile import Evaluate
from pairbus.filters.errors import FilterEvaluationError
from pairbus.filters.view import MessageView


class WantedText(NamedTuple):
    """One field that a correlation filter compares with a text."""

    name: str
    read: Evaluate
    text: str


class _Table(NamedTuple):
    reads: list[Evaluate]
    by_texts: dict[tuple[str, ...], list[int]]
    places: list[int]


class TextIndex:
    """Places of filters in a list of rules; `wanted`: the texts of each, None for a rule that is always a candidate."""

    def __init__(self, wanted: Iterable[Sequence[WantedText] | None]) -> None:
        self._others: list[int] = []
        tables: dict[tuple[str, ...], _Table] = {}
        self._size = 0
        for place, texts in enumerate(wanted):
            self._size += 1
            if not texts:
                self._others.append(place)
                continue
            names = tuple(each.name for each in texts)
            table = tables.setdefault(names, _Table([each.read for each in texts], {}, []))
            table.by_texts.setdefault(tuple(each.text for each in texts), []).append(place)
            table.places.append(place)
        self._tables = list(tables.values())

    @property
    def is_worth_it(self) -> bool:
        """True when there are many more filters than tables."""
        return self._size - len(self._others) >= 4 * max(len(self._tables), 1)

    def places(self, view: MessageView) -> Sequence[int]:
        """Return the places of the rules that may select the message, ascending."""
        found = list(self._others)
        try:
            for table in self._tables:
                values = [read(view) for read in table.reads]
                if all(isinstance(value, str) for value in values):
                    found += table.by_texts.get(tuple(values), ())
                elif None not in values:  # a value of another kind, which the filters themselves compare
                    found += table.places
        except FilterEvaluationError:  # the message cannot be read: the rule that meets it first is to be named
            return range(self._size)
        found.sort()
        return found
