"""Index of correlation filters by the texts that they ask for, so that a message is not compared with every filter.

Filters that ask for the same fields are in one table, by the texts of these fields. A topic may have thousands of
filters, and hardly more than a few sets of fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from pairbus.filters.compile import Evaluate
from pairbus.filters.errors import FilterEvaluationError
from pairbus.filters.view import MessageView


class WantedText(NamedTuple):
    """One field that a correlation filter compares with a text."""

    name: str
    read: Evaluate
    text: str


K = TypeVar("K", bound=Hashable)


class _Table(NamedTuple, Generic[K]):
    reads: list[Evaluate]
    by_texts: dict[tuple[str, ...], list[K]]
    keys: Counter[K]
    "Every key of the table, and the number of its filters there."


class TextTables(Generic[K]):
    """Keys of filters by the texts that the filters ask for. A key may have any number of filters."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, ...], _Table[K]] = {}

    def __len__(self) -> int:
        return len(self._tables)

    def add(self, key: K, texts: Sequence[WantedText]) -> None:
        """Add a filter that asks for these texts, at least one."""
        names = tuple(each.name for each in texts)
        table = self._tables.get(names)
        if table is None:
            table = self._tables[names] = _Table([each.read for each in texts], {}, Counter())
        table.by_texts.setdefault(tuple(each.text for each in texts), []).append(key)
        table.keys[key] += 1

    def remove(self, key: K, texts: Sequence[WantedText]) -> None:
        """Remove a filter that was added."""
        names, wanted = tuple(each.name for each in texts), tuple(each.text for each in texts)
        table = self._tables[names]
        table.by_texts[wanted].remove(key)
        if not table.by_texts[wanted]:
            del table.by_texts[wanted]
        table.keys[key] -= 1
        if not table.keys[key]:
            del table.keys[key]
        if not table.keys:
            del self._tables[names]

    def keys(self, view: MessageView) -> list[K]:
        """Return the keys of all filters that may select the message, in no order, some of them perhaps repeated.

        FilterEvaluationError: the message cannot be read.
        """
        keys: list[K] = []
        for table in self._tables.values():
            values = [read(view) for read in table.reads]
            if all(isinstance(value, str) for value in values):
                keys += table.by_texts.get(tuple(values), ())
            elif None not in values:  # a value of another kind, which the filters themselves compare
                keys += table.keys
        return keys


class TextIndex:
    """Places of filters in a list of rules; `wanted`: the texts of each, None for a rule that is always a candidate."""

    def __init__(self, wanted: Iterable[Sequence[WantedText] | None]) -> None:
        self._others: list[int] = []
        self._tables: TextTables[int] = TextTables()
        self._size = 0
        for place, texts in enumerate(wanted):
            self._size += 1
            if texts:
                self._tables.add(place, texts)
            else:
                self._others.append(place)

    @property
    def is_worth_it(self) -> bool:
        """True when there are many more filters than tables."""
        return self._size - len(self._others) >= 4 * max(len(self._tables), 1)

    def places(self, view: MessageView) -> Sequence[int]:
        """Return the places of the rules that may select the message, ascending."""
        try:
            return sorted([*self._others, *self._tables.keys(view)])
        except FilterEvaluationError:  # the message cannot be read: the rule that meets it first is to be named
            return range(self._size)
