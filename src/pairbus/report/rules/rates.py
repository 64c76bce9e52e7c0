"""Counts sends over time: accepted directly, diverted and failed, in up to 500 spans of equal length.

A span is 1, 2, 4 … seconds long and begins at a multiple of its length. A worker that sees more than SPANS_MAX spans
uses longer ones. The whole then has more than POINTS_MAX too, so the order of parts changes nothing.
"""

from __future__ import annotations

from typing import Any

from pairbus.ledger.rows import FAILED_SEND
from pairbus.report.model import RatePoint
from pairbus.report.passes.records import RateSum
from pairbus.report.rules.times import text_of

POINTS_MAX = 500
SPANS_MAX = 4096
DIRECT, DIVERTED, FAILED = 0, 1, 2


class Rates:
    """Sums of messages by span."""

    def __init__(self) -> None:
        self._grain = 0
        "Exponent: a span has 2 to this power seconds."
        self._sums: dict[int, list[int]] = {}

    def row(self, fields: dict[str, Any], time_ms: int) -> None:
        """Count a row of a ledger, if it tells of a send."""
        get, kind = fields.get, fields["kind"]
        if kind == "send":
            if get("side") == "primary" and get("cause") == "application" and get("outcome") == "ok":
                self._add(time_ms // 1000, DIRECT, get("count") or 0)
        elif kind == "diverted":
            self._add(time_ms // 1000, DIVERTED, 1)
        elif kind == FAILED_SEND:
            self._add(time_ms // 1000, FAILED, get("count") or 0)

    def merge(self, part: RateSum) -> None:
        self._coarsen(part.grain)
        for index, messages in enumerate((part.direct, part.diverted, part.failed)):
            self._add(part.second, index, messages)

    def sums(self) -> list[RateSum]:
        return [RateSum(self._grain, second, *sums) for second, sums in self._sums.items()]

    def points(self, begins_ms: int, ends_ms: int) -> tuple[RatePoint, ...]:
        """Return spans with a message, in order, in the shortest length that gives at most POINTS_MAX spans."""
        first, last, grain = begins_ms // 1000, ends_ms // 1000, 0
        while (last >> grain) - (first >> grain) >= POINTS_MAX:
            grain += 1
        self._coarsen(grain)
        length_s = 1 << self._grain
        return tuple(
            RatePoint(text_of(second * 1000), length_s, *sums)
            for second, sums in sorted(self._sums.items())
            if any(sums)
        )

    def _add(self, second: int, index: int, messages: int) -> None:
        second = second >> self._grain << self._grain
        sums = self._sums.get(second)
        if sums is None:
            sums = self._sums[second] = [0, 0, 0]
            if len(self._sums) > SPANS_MAX:
                sums[index] += messages
                self._coarsen(self._grain + 1)
                return
        sums[index] += messages

    def _coarsen(self, grain: int) -> None:
        if grain <= self._grain:
            return
        before, self._sums, self._grain = self._sums, {}, grain
        for second, sums in before.items():
            into = self._sums.setdefault(second >> grain << grain, [0, 0, 0])
            for index, messages in enumerate(sums):
                into[index] += messages
