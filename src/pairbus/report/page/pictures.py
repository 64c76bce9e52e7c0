"""Sections with pictures: states and backlog over time, added delay."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pairbus.report.model import BacklogPoint, Report
from pairbus.report.page import plots
from pairbus.report.page.frame import closer, nothing, section, share_of
from pairbus.report.page.markup import Html, join, name, tag
from pairbus.report.page.scales import Tick, count_labels, duration_ticks, number_ticks, time_ticks
from pairbus.report.page.tables import long_table
from pairbus.report.page.words import THIN, Calendar, count, counted, duration, moment, shortened

LANES_MAX = 20
HINTS = 60
STATES = {"SUSPECT": ("suspect", "suspect"), "FAILED_OVER": ("failed", "failed over")}
"""State → colour and words."""


def states(report: Report, calendar: Calendar) -> Html:
    """A lane for each entity, those with an outage first; and a closer view of the largest outage."""
    troubled = dict.fromkeys(span.entity for span in report.availability.states)
    names = [*troubled, *(one.entity for one in report.availability.entities if one.entity not in troubled)]
    if not names:
        return section("states", "States", nothing("No entity was used in this period."))
    near = _largest(report, calendar)
    closer_look = ""
    if near is not None:
        caption = f"The largest outage, {calendar.between(near)}"
        within = _bars(report, calendar, near)
        closer_look = _timeline(report, calendar, near, [one for one in troubled if one in within], caption)
    return section(
        "states",
        "States",
        tag("p", _states_sentence(len(names), len(troubled))),
        plots.legend(
            [
                ("healthy", "healthy"),
                ("suspect", "suspect: sends fail"),
                ("failed", "failed over: sends are diverted"),
                ("backlog", "healthy, backlog coming home"),
            ]
        ),
        _timeline(report, calendar, calendar, names, "The whole period" if near else ""),
        closer_look,
        _states_table(report, calendar) if troubled else "",
    )


def _largest(report: Report, calendar: Calendar) -> Calendar | None:
    """A window around the outage that diverted most messages, and around outages that overlap it."""
    spans = [
        (outage.diverted, moment(outage.begins), moment(outage.drained or outage.recovered or report.ends))
        for outage in report.availability.outages
        if outage.failed_over is not None
    ]
    if not spans:
        return None
    _, begins, ends = max(spans)
    for _, first, last in sorted(spans, key=lambda span: span[1]):
        if first <= ends and last >= begins:
            begins, ends = min(begins, first), max(ends, last)
    return closer(calendar, begins, ends)


def _timeline(report: Report, calendar: Calendar, window: Calendar, names: Sequence[str], caption: str) -> Html:
    bars = _bars(report, calendar, window)
    ticks = time_ticks(window)
    lanes = join(
        tag("div", tag("span", name(shortened(one)), title=one), plots.lane(one, bars[one], ticks), class_="row")
        for one in names[:LANES_MAX]
    )
    axis = tag("div", tag("span"), plots.axis_below(ticks), class_="row")
    left = len(names) - LANES_MAX
    words = tag("figcaption", caption) if caption else ""
    rest = nothing(f"{counted(left, 'more entity', 'more entities')} not drawn.") if left > 0 else ""
    return tag("figure", words, lanes, axis, rest, class_="timeline")


def _bars(report: Report, calendar: Calendar, window: Calendar) -> dict[str, list[plots.Bar]]:
    """Bars by entity, for times when it was not healthy, or healthy with messages still coming home."""
    bars: dict[str, list[plots.Bar]] = defaultdict(list)

    def add(entity: str, begins: str, ends: str, colour: str, words: str) -> None:
        if moment(ends) >= window.begins and moment(begins) <= window.ends:
            length = duration((moment(ends) - moment(begins)).total_seconds())
            said = f"{words} {calendar.time(begins)} – {calendar.time(ends)}, {length}"
            bars[entity].append(plots.Bar(share_of(window, begins), share_of(window, ends), colour, said))

    for span in report.availability.states:
        add(span.entity, span.begins, span.ends, *STATES.get(span.state, ("suspect", span.state)))
    for outage in report.availability.outages:
        if outage.recovered is not None and outage.drained is not None and outage.drained > outage.recovered:
            add(outage.entity, outage.recovered, outage.drained, "backlog", "healthy, backlog coming home")
    return bars


def _states_sentence(entities: int, troubled: int) -> str:
    if not troubled:
        return f"{counted(entities, 'entity', 'entities').capitalize()}, healthy all the time."
    if troubled == entities:
        who = "The only entity" if entities == 1 else f"All {count(entities)} entities"
    else:
        who = f"{count(troubled)} of {count(entities)} entities"
    rest = "; the others stayed healthy" if entities > troubled else ""
    return f"{who} had trouble{rest}. Each is shown in the worst state that any of its clients saw."


def _states_table(report: Report, calendar: Calendar) -> Html:
    rows = [
        (
            name(span.entity),
            STATES.get(span.state, ("", span.state))[1],
            calendar.time(span.begins),
            calendar.time(span.ends),
            duration((moment(span.ends) - moment(span.begins)).total_seconds()),
        )
        for span in report.availability.states
    ]
    return long_table("States as a table", "States", ("entity", "state", "#from", "#to", "#for"), rows)


def backlog(report: Report, calendar: Calendar) -> Html:
    points = report.availability.backlog
    if not any(point.waiting for point in points):
        return section("backlog", "Backlog", nothing("No message waited in a backlog queue in this period."))
    deepest = max(points, key=lambda point: point.waiting)
    oldest = max(points, key=lambda point: point.oldest_s)
    last = points[-1]
    sentence = (
        f"At most {counted(deepest.waiting, 'message')} waited, at {calendar.time(deepest.time)} UTC; "
        f"the oldest was {duration(oldest.oldest_s)} old, at {calendar.time(oldest.time)} UTC. "
        + (f"At the end {count(last.waiting)} waited." if last.waiting else "At the end none waited.")
    )
    busy = [moment(point.time) for point in points if point.waiting]
    near = closer(calendar, busy[0], busy[-1])
    window = near or calendar
    shares = [share_of(window, point.time) for point in points]
    hints = list(_hints(points, shares, calendar))
    ticks = time_ticks(window)
    when = f", {calendar.between(window)}" if near else ""
    depth = number_ticks(deepest.waiting, whole=True)
    return section(
        "backlog",
        "Backlog",
        tag("p", sentence),
        tag(
            "figure",
            tag("figcaption", f"Messages in all backlog queues and spools{when}"),
            plots.curve(
                "Backlog depth",
                sentence,
                [(x, point.waiting) for x, point in zip(shares, points, strict=True)],
                plots.YAxis(depth, count_labels(depth)),
                ticks,
                steps=True,
                colour="backlog",
                hints=hints,
            ),
        ),
        tag(
            "figure",
            tag("figcaption", f"Age of the oldest message{when}"),
            plots.curve(
                "Age of the oldest message",
                sentence,
                [(x, point.oldest_s) for x, point in zip(shares, points, strict=True)],
                plots.YAxis(*duration_ticks(oldest.oldest_s)),
                ticks,
                steps=False,
                colour="age",
                hints=hints,
                height=110,
            ),
        ),
        long_table(
            "Backlog as a table",
            "Backlog over time",
            ("#time (UTC)", "#waiting", "#oldest"),
            [(calendar.time(p.time), count(p.waiting), duration(p.oldest_s)) for p in points],
        ),
    )


def _hints(points: Sequence[BacklogPoint], shares: Sequence[float], calendar: Calendar) -> Iterator[plots.Bar]:
    """Tooltips of the curve: the period is cut into HINTS pieces, and each shows its deepest backlog."""
    for number in range(HINTS):
        left, right = number / HINTS, (number + 1) / HINTS
        first, end = bisect_left(shares, left), bisect_left(shares, right)
        within = points[max(first - 1, 0) : max(end, 1)]
        worst = max(within, key=lambda point: point.waiting)
        if worst.waiting:
            oldest_s = max(point.oldest_s for point in within)
            words = f"{calendar.time(worst.time)}: {counted(worst.waiting, 'message')}, the oldest {duration(oldest_s)}"
            yield plots.Bar(left, right, "", words)


def delays(report: Report) -> Html:
    delay, bins = report.availability.total.delay, report.availability.delays
    title = "Added delay"
    if delay is None or not bins:
        return section("delay", title, nothing("No diverted message came home in this period."))
    sentence = (
        f"Of {counted(delay.messages, 'message')} that came home, half were there within {duration(delay.p50_s)} of "
        f"being diverted, 95{THIN}% within {duration(delay.p95_s)}, 99{THIN}% within "
        f"{duration(delay.p99_s)}, all within {duration(delay.max_s)}."
    )
    lower = [0.0, *(limit for limit, _ in bins[:-1])]
    words = [
        f"{duration(low)} to {duration(high)}: {counted(n, 'message')}"
        for low, (high, n) in zip(lower, bins, strict=True)
    ]
    depth = number_ticks(max(n for _, n in bins), whole=True)
    percentiles = (("p50", delay.p50_s), ("p95", delay.p95_s), ("p99", delay.p99_s))
    plot = plots.columns(
        title,
        sentence,
        [[plots.Stack(n, "backlog", said)] for (_, n), said in zip(bins, words, strict=True)],
        plots.YAxis(depth, count_labels(depth)),
        _bin_ticks([limit for limit, _ in bins]),
        marks=[Tick(_place(value, bins), f"{key} {duration(value)}") for key, value in percentiles],
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


def _growing(bins: Sequence[tuple[float, int]]) -> str:
    """Words of the caption for columns that are equally wide on the page but not in time; else empty."""
    steps = [after - before for (before, _), (after, _) in pairwise(bins)]
    return "; columns to the right are longer spans of time" if steps and max(steps) > 1.5 * min(steps) else ""


def _bin_ticks(limits: Sequence[float]) -> list[Tick]:
    """Ticks at the limits between columns: all of them when they are few, else about eight."""
    every = max(len(limits) // 8, 1)
    chosen = range(every, len(limits) + 1, every)
    return [
        Tick(0.0, "0"),
        *(Tick(n / len(limits), duration(limits[n - 1]), minor=n // every % 2 == 1) for n in chosen),
    ]


def _place(value: float, bins: Sequence[tuple[float, int]]) -> float:
    """Position of a delay among columns of equal width, from 0 to 1."""
    limits = [limit for limit, _ in bins]
    number = min(bisect_left(limits, value), len(limits) - 1)
    low, high = ([0.0, *limits])[number], limits[number]
    within = (value - low) / (high - low) if high > low else 1.0
    return (number + min(max(within, 0.0), 1.0)) / len(limits)
