"""Draws the added delay as a histogram with bars from the data."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from pairbus.report.model import Report
from pairbus.report.page import plots
from pairbus.report.page.frame import nothing, section
from pairbus.report.page.markup import Html, tag
from pairbus.report.page.scales import Tick, count_labels, number_ticks
from pairbus.report.page.tables import long_table
from pairbus.report.page.words import THIN, count, counted, duration

LABELS_MAX = 8


def delays(report: Report) -> Html:
    delay, bars = report.availability.total.delay, report.availability.delays
    title = "Added delay"
    if delay is None or not bars:
        return section("delay", title, nothing("No diverted message came home in this period."))
    sentence = (
        f"Of {counted(delay.messages, 'message')} that came home, half were there within {duration(delay.p50_s)} of "
        f"being diverted, 95{THIN}% within {duration(delay.p95_s)}, 99{THIN}% within "
        f"{duration(delay.p99_s)}, all within {duration(delay.max_s)}."
    )
    start, bins = _shown(bars)
    limits = [start, *(limit for limit, _ in bins)]
    lower = limits[:-1]
    words = [
        f"{duration(low)} to {duration(high)}: {counted(n, 'message')}"
        for low, (high, n) in zip(lower, bins, strict=True)
    ]
    depth = number_ticks(max(n for _, n in bins), 3, whole=True)
    percentiles = (("p50", delay.p50_s), ("p95", delay.p95_s), ("p99", delay.p99_s))
    plot = plots.columns(
        title,
        sentence,
        [[plots.Stack(n, "backlog", label)] for (_, n), label in zip(bins, words, strict=True)],
        plots.YAxis(depth, count_labels(depth)),
        _bin_ticks(limits),
        marks=[Tick(_place(value, limits), f"{key} {duration(value)}") for key, value in percentiles],
        height=120,
    )
    rows = [(f"{duration(low)} to {duration(high)}", count(n)) for low, (high, n) in zip(lower, bins, strict=True)]
    return section(
        "delay",
        title,
        tag("p", sentence),
        tag(
            "figure",
            tag("figcaption", f"Messages by the time from their diversion until they were home{_growing(bins)}"),
            plot,
            class_="marked",
        ),
        long_table("Delays as a table", title, ("#delay", "#messages"), rows),
    )


def _shown(bars: Sequence[tuple[float, int]]) -> tuple[float, Sequence[tuple[float, int]]]:
    """Return where the columns begin, and the columns: empty first bars only say where the data begin."""
    first = next((number for number, (_, messages) in enumerate(bars) if messages), 0)
    return (bars[first - 1][0] if first else 0.0), bars[first:]


def _growing(bins: Sequence[tuple[float, int]]) -> str:
    """Return words of the caption for columns that are equally wide on the page but not in time; else empty."""
    steps = [after - before for (before, _), (after, _) in pairwise(bins)]
    return "; columns to the right are longer spans of time" if steps and max(steps) > 1.5 * min(steps) else ""


def _bin_ticks(limits: Sequence[float]) -> list[Tick]:
    """Return ticks at the limits between columns: all of them when they are few, else some at equal distances."""
    columns = len(limits) - 1
    every = -(-columns // LABELS_MAX)
    return [
        Tick(number / columns, duration(limits[number]) if limits[number] else "0", minor=number // every % 2 == 1)
        for number in range(0, columns + 1, every)
    ]


def _place(value: float, limits: Sequence[float]) -> float:
    """Return the position of a delay among columns of equal width, from 0 to 1."""
    number = min(max(bisect_left(limits, value), 1), len(limits) - 1)
    low, high = limits[number - 1], limits[number]
    within = (value - low) / (high - low) if high > low else 1.0
    return (number - 1 + min(max(within, 0.0), 1.0)) / (len(limits) - 1)
