"""Draws states, send rate, backlog and its age over one time axis: the whole period, and each incident from nearer."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from pairbus.report.model import BacklogPoint, RatePoint, Report
from pairbus.report.page import plots
from pairbus.report.page.frame import closer, nothing, section, share_of
from pairbus.report.page.markup import Html, join, name, tag
from pairbus.report.page.scales import Tick, count_labels, duration_ticks, number_ticks, time_ticks
from pairbus.report.page.tables import folded, folds, long_table
from pairbus.report.page.words import (
    Calendar,
    count,
    counted,
    duration,
    is_own,
    listed,
    moment,
    shortened,
)
from pairbus.report.rules.incidents import Incident, largest

LANES_MAX = 12
CLOSER_MAX = 6
HINTS = 60
SAME = 0.01
"""Part of the width within which two bars count as equal: some pixels."""
SEEN = 0.08
"""Least part of the height of failed sends: one of them among thousands must be visible."""
STATES = {"SUSPECT": ("suspect", "suspect"), "FAILED_OVER": ("failed", "failed over")}
"""State → colour and words."""
SENDS = (("healthy", "accepted directly"), ("backlog", "diverted"), ("failed", "failed"))
"""Colour and words of the send rates, in the order of the fields of RatePoint."""
LEGEND = (
    ("healthy", "healthy"),
    ("suspect", "suspect: sends fail"),
    ("failed", "failed over: sends are diverted"),
    ("backlog", "healthy, backlog coming home"),
)

Point = TypeVar("Point", BacklogPoint, RatePoint)


@dataclass(frozen=True, slots=True)
class ChartRow:
    """Entities with the same bars."""

    names: list[str]
    bars: list[plots.Bar]


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """Time axis that the rows of a figure share, and their height."""

    window: Calendar
    ticks: Sequence[Tick]
    marks: Sequence[Tick]
    height: int

    def curves(
        self, title: str, words: str, curves: Sequence[plots.Curve], axis: plots.YAxis, *hints: plots.Bar
    ) -> Html:
        return plots.curves(title, words, curves, axis, self.ticks, marks=self.marks, hints=hints, height=self.height)


def happened(report: Report, calendar: Calendar, incidents: Sequence[Incident]) -> Html:
    """Return the section of pictures over time, with all their numbers as tables."""
    troubled = dict.fromkeys(span.entity for span in report.availability.states)
    others = [one.entity for one in report.availability.entities if one.entity not in troubled]
    names = [*troubled, *(one for one in others if not is_own(one))]
    if not names:
        sentences = f"No entity was used in this period. {_backlog_sentence(report, calendar)}"
        return section("states", "What happened", nothing(sentences))
    near = [(each, window) for each in incidents if (window := _window(calendar, each)) is not None]
    marked = None if near else largest(incidents)
    first = largest([each for each, _ in near])
    return section(
        "states",
        "What happened",
        tag("p", _sentence(len(names), len(troubled)), " ", _backlog_sentence(report, calendar)),
        plots.legend(LEGEND),
        _figure(report, calendar, calendar, names, "The whole period" if near else "", marked),
        *(
            folded(
                f"From nearer: {calendar.between(window)}, {listed(each.entities)}",
                _figure(report, calendar, window, each.entities, "", each),
                is_open=each is first,
            )
            for each, window in near[:CLOSER_MAX]
        ),
        folds(
            _states_table(report, calendar) if troubled else "",
            _backlog_table(report, calendar),
            _rates_table(report, calendar),
        ),
    )


def _window(calendar: Calendar, incident: Incident) -> Calendar | None:
    return closer(calendar, moment(incident.begins), moment(incident.ends))


def _figure(
    report: Report, calendar: Calendar, window: Calendar, names: Sequence[str], caption: str, marked: Incident | None
) -> Html:
    ticks = time_ticks(window)
    marks = [] if marked is None else _marks(marked, calendar, window)
    lanes = lanes_of(names, _bars(report, calendar, window))
    rows = [
        tag("div", tag("span", _lane_title(lane), title=", ".join(lane.names[:20])), drawn, class_="row")
        for lane in lanes[:LANES_MAX]
        for drawn in [plots.lane(listed(lane.names), lane.bars, ticks, marks)]
    ]
    left = sum(len(lane.names) for lane in lanes[LANES_MAX:])
    return tag(
        "figure",
        tag("figcaption", caption) if caption else "",
        tag("div", tag("span"), plots.marks_above(marks), class_="row") if marks else "",
        *rows,
        nothing(f"{counted(left, 'more entity', 'more entities')} not drawn.") if left else "",
        *_curves(report, calendar, ChartFrame(window, ticks, marks, 80 if marks else 56)),
        tag("div", tag("span"), plots.axis_below(ticks), class_="row"),
        class_="timeline",
    )


def _marks(incident: Incident, calendar: Calendar, window: Calendar) -> list[Tick]:
    times = (
        ("first failure", incident.begins),
        ("diverted", incident.failed_over),
        ("primary back", incident.recovered),
        ("drained", incident.drained),
    )
    return [
        Tick(share_of(window, time), f"{words} {calendar.time(time)}", more=calendar.local_of(time))
        for words, time in times
        if time is not None
    ]


# ── lanes ──


def lanes_of(names: Sequence[str], bars: dict[str, list[plots.Bar]]) -> list[ChartRow]:
    """Return lanes in the order of their first entities; entities whose bars look the same share one."""
    lanes: list[ChartRow] = []
    for one in names:
        mine = bars.get(one, [])
        same = next((lane for lane in lanes if _look_the_same(lane.bars, mine)), None)
        if same is None:
            lanes.append(ChartRow([one], mine))
        else:
            same.names.append(one)
    return lanes


def _look_the_same(some: Sequence[plots.Bar], others: Sequence[plots.Bar]) -> bool:
    return len(some) == len(others) and all(
        one.colour == other.colour and abs(one.left - other.left) < SAME and abs(one.right - other.right) < SAME
        for one, other in zip(some, others, strict=True)
    )


def _lane_title(lane: ChartRow) -> Html:
    first, more = name(shortened(lane.names[0])), len(lane.names) - 1
    if more == 1:
        return join([first, " and ", name(shortened(lane.names[1]))])
    return join([first, f" and {count(more)} more"]) if more else first


def _bars(report: Report, calendar: Calendar, window: Calendar) -> dict[str, list[plots.Bar]]:
    """Return bars by entity, for times when it was not healthy, or healthy with messages still coming home."""
    bars: dict[str, list[plots.Bar]] = defaultdict(list)

    def add(entity: str, begins: str, ends: str, colour: str, words: str) -> None:
        if moment(ends) >= window.begins and moment(begins) <= window.ends:
            length = duration((moment(ends) - moment(begins)).total_seconds())
            label = f"{words} {calendar.time(begins)} – {calendar.time(ends)}, {length}"
            bars[entity].append(plots.Bar(share_of(window, begins), share_of(window, ends), colour, label))

    for span in report.availability.states:
        add(span.entity, span.begins, span.ends, *STATES.get(span.state, ("suspect", span.state)))
    for outage in report.availability.outages:
        if outage.recovered is not None and outage.drained is not None and outage.drained > outage.recovered:
            add(outage.entity, outage.recovered, outage.drained, "backlog", "healthy, backlog coming home")
    return bars


# ── curves ──


def _curves(report: Report, calendar: Calendar, frame: ChartFrame) -> Iterator[Html]:
    rates = within(report.availability.rates, frame.window)
    if rates:
        yield _rate_row(rates, frame)
    points = within(report.availability.backlog, frame.window)
    if not any(point.waiting for point in points):
        return
    shares = [share_of(frame.window, point.time) for point in points]
    deepest, oldest_s = max(point.waiting for point in points), max(point.oldest_s for point in points)
    depth = number_ticks(deepest, 2, whole=True)
    waiting = plots.Curve([(x, float(point.waiting)) for x, point in zip(shares, points, strict=True)], "backlog")
    ages = plots.Curve([(x, point.oldest_s) for x, point in zip(shares, points, strict=True)], "age", steps=False)
    summary, axis = f"At most {counted(deepest, 'message')} waited.", plots.YAxis(depth, count_labels(depth))
    hints = _hints(points, shares, calendar)
    yield _plot_row("Backlog", "messages that wait", frame.curves("Backlog", summary, [waiting], axis, *hints))
    summary, axis = f"At most {duration(oldest_s)}.", plots.YAxis(*duration_ticks(oldest_s, 2))
    yield _plot_row("Age", "of the oldest message", frame.curves("Age of the oldest message", summary, [ages], axis))


def _plot_row(title: str, words: object, plot: Html) -> Html:
    return tag("div", tag("span", tag("strong", title), tag("small", words)), plot, class_="row plotted")


def within(points: Sequence[Point], window: Calendar) -> list[Point]:
    """Return the points of a window, and one on each side of it."""
    times = [moment(point.time) for point in points]
    first, end = bisect_left(times, window.begins), bisect_left(times, window.ends)
    return list(points[max(first - 1, 0) : end + 1])


def _rate_row(points: Sequence[RatePoint], frame: ChartFrame) -> Html:
    amounts = [[getattr(point, key) / point.seconds for point in points] for key in ("direct", "diverted", "failed")]
    top = max(max(values) for values in amounts)
    steps = number_ticks(top, 2)
    colours = [(colour, words) for (colour, words), values in zip(SENDS, amounts, strict=True) if any(values)]
    amounts[-1] = [max(value, SEEN * steps[-1]) if value else 0.0 for value in amounts[-1]]
    curves = [
        plots.Curve(list(_steps(points, values, frame.window)), colour, is_solid=colour == "failed")
        for (colour, _), values in zip(SENDS, amounts, strict=True)
        if any(values)
    ]
    summary = f"At most {top:.3g} messages a second."
    legend = join(
        join([tag("span", class_=f"swatch {colour}", aria_hidden="true"), words, tag("br")])
        for colour, words in colours
    )
    axis = plots.YAxis(steps, [f"{step:g}/s" if step else "0" for step in steps])
    return _plot_row("Sends", legend, frame.curves("Sends a second", summary, curves, axis))


def _steps(points: Sequence[RatePoint], values: Sequence[float], window: Calendar) -> Iterator[tuple[float, float]]:
    """Yield the steps of a rate; spans that are left out are zero."""
    ends = window.begins
    yield 0.0, 0.0
    for point, value in zip(points, values, strict=True):
        begins = moment(point.time)
        if begins > ends:
            yield _share(window, (ends - window.begins).total_seconds()), 0.0
        yield _share(window, (begins - window.begins).total_seconds()), value
        ends = begins + timedelta(seconds=point.seconds)
    yield _share(window, (ends - window.begins).total_seconds()), 0.0


def _share(window: Calendar, seconds: float) -> float:
    return min(max(seconds / window.seconds, 0.0), 1.0) if window.seconds > 0 else 0.0


def _hints(points: Sequence[BacklogPoint], shares: Sequence[float], calendar: Calendar) -> Iterator[plots.Bar]:
    """Yield tooltips of the curve: the window is cut into HINTS pieces, and each shows its deepest backlog."""
    for number in range(HINTS):
        left, right = number / HINTS, (number + 1) / HINTS
        first, end = bisect_left(shares, left), bisect_left(shares, right)
        points_here = points[max(first - 1, 0) : max(end, 1)]
        worst = max(points_here, key=lambda point: point.waiting)
        if worst.waiting:
            oldest_s = max(point.oldest_s for point in points_here)
            words = f"{calendar.time(worst.time)}: {counted(worst.waiting, 'message')}, the oldest {duration(oldest_s)}"
            yield plots.Bar(left, right, "", words)


# ── words and tables ──


def _sentence(entities: int, troubled: int) -> str:
    if not troubled:
        return f"{counted(entities, 'entity', 'entities').capitalize()}, healthy all the time."
    if troubled == entities:
        subject = "The only entity" if entities == 1 else f"All {count(entities)} entities"
    else:
        subject = f"{count(troubled)} of {count(entities)} entities"
    rest = "; the others stayed healthy" if entities > troubled else ""
    return f"{subject} had trouble{rest}. Each is shown in the worst state that any of its clients saw."


def _backlog_sentence(report: Report, calendar: Calendar) -> str:
    points = report.availability.backlog
    if not any(point.waiting for point in points):
        return "No message waited in a backlog queue in this period."
    deepest = max(points, key=lambda point: point.waiting)
    oldest = max(points, key=lambda point: point.oldest_s)
    last = points[-1]
    return (
        f"At most {counted(deepest.waiting, 'message')} waited, at {calendar.both(deepest.time)}; "
        f"the oldest was {duration(oldest.oldest_s)} old, at {calendar.both(oldest.time)}. "
        + (f"At the end {count(last.waiting)} waited." if last.waiting else "At the end none waited.")
    )


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
    return long_table("States as a table", "States; times are UTC", ("entity", "state", "#from", "#to", "#for"), rows)


def _backlog_table(report: Report, calendar: Calendar) -> Html:
    points = report.availability.backlog
    if not any(point.waiting for point in points):
        return Html("")
    rows = [(calendar.time(p.time), count(p.waiting), duration(p.oldest_s)) for p in points]
    return long_table("Backlog as a table", "Backlog over time", ("#time (UTC)", "#waiting", "#oldest"), rows)


def _rates_table(report: Report, calendar: Calendar) -> Html:
    points = report.availability.rates
    if not points:
        return Html("")
    rows = [(calendar.time(p.time), *map(count, (p.direct, p.diverted, p.failed))) for p in points]
    caption = f"Messages in spans of {duration(points[0].seconds)}; spans without a send are left out"
    heads = ("#from (UTC)", "#accepted directly", "#diverted", "#failed")
    return long_table("Sends as a table", caption, heads, rows)
