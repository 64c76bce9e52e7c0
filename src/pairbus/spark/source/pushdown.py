"""Turns filters that Spark hands to a batch read into bounds of sequence number and time.

Imported only where Spark hands filters over: versions that do not do so lack the classes of filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from pairbus.spark.source.batch_reader import HIGHEST, LOWEST, Bounds, PeekReader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FilteringPeekReader(PeekReader):
    """A PeekReader that takes filters from Spark: only for users who ask for it by option.

    Spark 4.3 keeps the reader of a data frame with the filters of the first query that had some, and uses it for every
    other query of the same frame, which then lacks rows. And it refuses readers that have this method at all when its
    filter push-down is switched off: hence a class of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take filters; called once, before `partitions`. Spark evaluates the filters that are given back."""
        for condition in filters:
            bounds = narrowed(self._bounds, condition)
            if bounds is not None:
                self._bounds = bounds
            if bounds is None or isinstance(condition, In):  # only the lowest and highest value of a list are used
                yield condition


def narrowed(bounds: Bounds, condition: Filter) -> Bounds | None:
    """Return the bounds narrowed by a filter on sequence_number or enqueued_time; None for every other filter."""
    attribute: Any = getattr(condition, "attribute", None)
    if attribute not in (("sequence_number",), ("enqueued_time",)):
        return None
    timed = attribute == ("enqueued_time",)
    value: Any = getattr(condition, "value", None)
    values = [_number(one, timed) for one in (value if isinstance(condition, In) else [value])]
    numbers = [number for number in values if number is not None]
    if not numbers or len(numbers) < len(values):
        return None
    low, high = min(numbers), max(numbers)
    if isinstance(condition, GreaterThan):
        low, high = low + 1, HIGHEST
    elif isinstance(condition, GreaterThanOrEqual):
        high = HIGHEST
    elif isinstance(condition, LessThan):
        low, high = LOWEST, high - 1
    elif isinstance(condition, LessThanOrEqual):
        low = LOWEST
    elif not isinstance(condition, EqualTo | In):
        return None
    if timed:
        return replace(
            bounds,
            enqueued_from_us=max(bounds.enqueued_from_us, low),
            enqueued_to_us=min(bounds.enqueued_to_us, high),
        )
    return replace(bounds, first=max(bounds.first, low), last=min(bounds.last, high))


def _number(value: object, timed: bool) -> int | None:
    if timed:
        aware = isinstance(value, datetime) and value.tzinfo is not None
        return (value - _EPOCH) // timedelta(microseconds=1) if aware and isinstance(value, datetime) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
