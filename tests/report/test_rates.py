"""Sends over time: the same points however the rows are cut into tasks."""

from __future__ import annotations

import random
from typing import Any

from pairbus.report.rules.rates import POINTS_MAX, SPANS_MAX, Rates

Rows = list[tuple[dict[str, Any], int]]


def some_rows(seconds: int, number: int) -> Rows:
    rng = random.Random(11)
    send: dict[str, Any] = {"kind": "send", "side": "primary", "cause": "application", "outcome": "ok", "count": 3}
    kinds: list[dict[str, Any]] = [
        send,
        {"kind": "diverted"},
        {"kind": "failed send", "count": 2},
        {"kind": "ping", "count": 1},
    ]
    return [(rng.choice(kinds), rng.randrange(seconds * 1000)) for _ in range(number)]


def gathered(rows: Rows, parts: int) -> Rates:
    whole = Rates()
    for part in range(parts):
        rates = Rates()
        for row, time_ms in rows[part::parts]:
            rates.row(row, time_ms)
        for each in rates.sums():
            whole.merge(each)
    return whole


def test_parts_of_any_number_give_the_same_points() -> None:
    """A task that saw too many spans took longer ones; that must not show."""
    seconds = 40 * SPANS_MAX
    rows = some_rows(seconds, 3 * SPANS_MAX)
    one, many = (gathered(rows, parts).points(0, seconds * 1000) for parts in (1, 7))
    assert one == many and POINTS_MAX // 2 < len(one) <= POINTS_MAX
    directly = sum(row.get("count", 0) for row, _ in rows if row["kind"] == "send")
    assert sum(point.direct for point in one) == directly


def test_a_short_period_is_shown_by_the_second() -> None:
    """A second without a send is left out."""
    send = {"kind": "send", "side": "primary", "cause": "application", "outcome": "ok", "count": 4}
    failed = {**send, "outcome": "error"}
    points = gathered([(send, 1999), (send, 1000), (failed, 3000), ({"kind": "diverted"}, 5000)], 2).points(0, 9000)
    assert [(point.time[-8:], point.seconds, point.direct, point.diverted) for point in points] == [
        (":01.000Z", 1, 8, 0),
        (":05.000Z", 1, 0, 1),
    ]
