"""Adds operations by hour, day or month: as fine as a report of bounded size allows.

There may be any number of entities and hours. As soon as there are more than CELLS_MAX cells, in one worker or in
total, they are summed by day, then by month. If a part has too many cells by hour, the whole has too many too, so the
order in which parts are joined does not change the result.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

from pairbus.report.passes.records import CellSum

CELLS_MAX = 20_000  # × 200 bytes = 4 MB of lines in a report
HOURLY, DAILY, MONTHLY = 0, 1, 2
STEPS = ("hour", "day", "month")
"Names of the grains."
DAY_HOURS = 24
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

CellKey = tuple[str | None, str | None, str | None, str, str | None, bool, int]
"Namespace, side, entity, kind, cause, whether it succeeded, and the hour since 1970."


class Cells:
    """Sums of metered rows by key, in the finest grain that keeps their number in bounds."""

    def __init__(self) -> None:
        self.grain = HOURLY
        self._sums: dict[CellKey, list[int]] = {}

    def add(self, key: CellKey, count: int, operations: int, bytes_: int) -> None:
        """Add one row or sum; the hour of `key` is a real hour, or one of this grain."""
        sums = self._sums.get(key)
        if sums is None:
            self._sums[key] = [count, operations, bytes_]
        else:
            sums[0] += count
            sums[1] += operations
            sums[2] += bytes_

    def merge(self, cell: CellSum) -> None:
        while self.grain < cell.grain:
            self._coarsen(self.grain + 1)
        hour = begin_of(self.grain, cell.hour)
        key = cell.namespace, cell.side, cell.entity, cell.kind, cell.cause, bool(cell.is_ok), hour
        self.add(key, cell.counted, cell.operations, cell.bytes)
        if len(self._sums) > CELLS_MAX and self.grain < MONTHLY:
            self._coarsen(self.grain + 1)

    def fit(self) -> None:
        """Bring keys into one form, and the number of cells into bounds if a coarser grain can."""
        if len(self._sums) > CELLS_MAX:
            self._coarsen(self.grain)
        while len(self._sums) > CELLS_MAX and self.grain < MONTHLY:
            self._coarsen(self.grain + 1)

    def sums(self) -> list[CellSum]:
        self._coarsen(self.grain)
        self.fit()
        return [
            CellSum(space or "", side or "", entity or "", kind, cause or "", int(is_ok), self.grain, hour, *sums)
            for (space, side, entity, kind, cause, is_ok, hour), sums in self._sums.items()
        ]

    def _coarsen(self, grain: int) -> None:
        """Sum by a grain, with names in lower case: they are compared without case."""
        before, self._sums, self.grain = self._sums, {}, grain
        for (space, side, entity, kind, cause, is_ok, hour), sums in before.items():
            names = (space or "").lower(), side or "", (entity or "").lower(), kind, cause or ""
            self.add((*names, is_ok, begin_of(grain, hour)), sums[0], sums[1], sums[2])


def begin_of(grain: int, hour: int) -> int:
    """Find the hour since 1970 at which the hour, day or month of `hour` begins."""
    if grain == HOURLY:
        return hour
    day = hour // DAY_HOURS
    return (day if grain == DAILY else _month(day)) * DAY_HOURS


@cache
def _month(day: int) -> int:
    return day - (_EPOCH + timedelta(days=day)).day + 1
