"""Draws plots as inline SVG whose letters keep their size at every width.

An `svg` here is the area between the axes. Horizontal positions are percentages, so that the browser stretches the plot
and not the letters. Curves cannot be written in percentages: they are drawn 1000 wide in a frame of their own, which is
stretched. Labels are outside the area, in the padding that the style sheet gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pairbus.report.page.markup import Html, join, tag
from pairbus.report.page.scales import Tick

WIDE = 1000


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in an area, from left to right as shares of its width, with the name of a colour and a tooltip."""

    left: float
    right: float
    colour: str
    words: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A piece of a stacked column or lane: amount, colour and tooltip."""

    amount: float
    colour: str
    words: str


@dataclass(frozen=True, slots=True)
class YAxis:
    ticks: Sequence[float]
    labels: Sequence[str]

    @property
    def top(self) -> float:
        return self.ticks[-1]


def part(share: float) -> str:
    """Return a share as a percentage for SVG: 0.12345 → 12.35%"""
    return f"{share * 100:.2f}".rstrip("0").rstrip(".") + "%"


def picture(title: str, description: str, height: int, *content: object, class_: str = "plot") -> Html:
    """Return an svg with a title and a description for screen readers."""
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *content,
        class_=class_,
        role="img",
        width="100%",
        height=height,
    )


def time_axis(ticks: Sequence[Tick], height: int, *, lines: bool = True, labels: bool = True) -> Html:
    def drawn() -> Iterator[Html]:
        for tick in ticks:
            if lines:
                yield tag("line", x1=part(tick.at), x2=part(tick.at), y1=0, y2=height, class_="grid")
            if labels:
                anchor = "start" if tick.at < 0.03 else "end" if tick.at > 0.97 else "middle"
                narrow = "tick minor" if tick.minor else "tick"
                yield tag("text", tick.label, x=part(tick.at), y=height + 18, text_anchor=anchor, class_=narrow)

    return join(drawn())


def y_axis(axis: YAxis, height: int) -> Html:
    def drawn() -> Iterator[Html]:
        for value, label in zip(axis.ticks, axis.labels, strict=True):
            y = round(height * (1 - value / axis.top), 1)
            yield tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="base" if value == 0 else "grid")
            yield tag("text", label, x=-8, y=y + 4, text_anchor="end", class_="tick")

    return join(drawn())


def lane(title: str, bars: Sequence[Bar], ticks: Sequence[Tick], marks: Sequence[Tick] = (), height: int = 18) -> Html:
    """Return a line of a timeline: healthy except where it has bars."""
    drawn = (
        tag(
            "rect",
            tag("title", bar.words),
            x=part(bar.left),
            width=part(max(bar.right - bar.left, 0.0)),
            y=1,
            height=height - 2,
            class_=f"bar {bar.colour}",
        )
        for bar in bars
    )
    words = "; ".join(bar.words for bar in bars) or "healthy all the time"
    whole = tag("rect", tag("title", title), x=0, y=1, width="100%", height=height - 2, rx=3, class_="healthy quiet")
    grid, over = time_axis(ticks, height, labels=False), mark_lines(marks, height)
    return picture(title, words, height, whole, grid, join(drawn), over, class_="lane")


def axis_below(ticks: Sequence[Tick]) -> Html:
    """Return the labels of a timeline, under its last lane."""
    return tag("svg", time_axis(ticks, -6, lines=False), class_="axis", width="100%", height=14, aria_hidden="true")


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of a plot: points as (share of the width, value); with `steps` a value lasts until the next one."""

    points: Sequence[tuple[float, float]]
    colour: str
    steps: bool = True
    is_solid: bool = False
    "True: an area without a line, which is invisible where it is zero."


def curves(
    title: str,
    description: str,
    lines: Sequence[Curve],
    axis: YAxis,
    ticks: Sequence[Tick],
    *,
    marks: Sequence[Tick] = (),
    hints: Sequence[Bar] = (),
    height: int = 90,
) -> Html:
    """Return curves over a time axis whose labels are elsewhere."""
    frame = tag(
        "svg",
        *(piece for curve in lines for piece in _drawn(curve, axis, height)),
        x=0,
        y=0,
        width="100%",
        height=height,
        viewBox=f"0 0 {WIDE} {height}",
        preserveAspectRatio="none",
    )
    hovers = (
        tag(
            "rect",
            tag("title", hint.words),
            x=part(hint.left),
            width=part(hint.right - hint.left),
            y=0,
            height=height,
            class_="hint",
        )
        for hint in hints
    )
    grid = time_axis(ticks, height, labels=False)
    return picture(
        title, description, height, grid, y_axis(axis, height), frame, mark_lines(marks, height), join(hovers)
    )


def _drawn(curve: Curve, axis: YAxis, height: int) -> Iterator[Html]:
    shape = _path(curve.points, axis, height, steps=curve.steps)
    solid = " solid" if curve.is_solid else ""
    yield tag("path", d=f"{shape}V{height}H0Z", class_=f"area {curve.colour}{solid}")
    if not curve.is_solid:
        yield tag("path", d=shape, class_=f"line {curve.colour}")


def mark_lines(marks: Sequence[Tick], height: int) -> Html:
    """Return marks without labels."""
    return join(tag("line", x1=part(mark.at), x2=part(mark.at), y1=-8, y2=height + 8, class_="mark") for mark in marks)


def marks_above(marks: Sequence[Tick]) -> Html:
    """Return labels of marks, over the first lane of a figure, one below the other."""
    height = 15 * len(marks)
    drawn = join(_marked(marks, height, from_y=0))
    return tag("svg", drawn, class_="plot marks", width="100%", height=height, aria_hidden="true")


def _path(points: Sequence[tuple[float, float]], axis: YAxis, height: int, *, steps: bool) -> str:
    commands: list[str] = []
    last_y = ""
    for share, value in points:
        x, y = f"{share * WIDE:.4g}", f"{height * (1 - value / axis.top):.4g}"
        if not commands:
            commands.append(f"M0 {y}")
        if steps:
            commands.append("" if y == last_y else f"H{x}V{y}")
        else:
            commands.append(f"L{x} {y}")
        last_y = y
    return "".join(commands) + f"H{WIDE}"


def columns(
    title: str,
    description: str,
    stacks: Sequence[Sequence[Stack]],
    axis: YAxis,
    ticks: Sequence[Tick],
    *,
    marks: Sequence[Tick] = (),
    height: int = 160,
) -> Html:
    """Return stacked columns side by side; `marks` are vertical lines across them, with a label on top."""
    width = 1 / max(len(stacks), 1)

    def drawn() -> Iterator[Html]:
        for number, stack in enumerate(stacks):
            top = float(height)
            for piece in stack:
                if tall := height * piece.amount / axis.top:
                    top -= tall
                    yield tag(
                        "rect",
                        tag("title", piece.words),
                        x=part((number + 0.08) * width),
                        width=part(width * 0.84),
                        y=f"{top:.2f}",
                        height=f"{tall:.2f}",
                        class_=f"bar {piece.colour}",
                    )

    return picture(
        title,
        description,
        height,
        y_axis(axis, height),
        join(drawn()),
        time_axis(ticks, height, lines=False),
        join(_marked(marks, height, from_y=-15 * len(marks))),
    )


def _marked(marks: Sequence[Tick], height: int, from_y: int) -> Iterator[Html]:
    """Yield marks with labels, one below the other from `from_y` on, so that labels of near marks can be read.

    A label stands on the side of its mark where the plot has more room, and above the heads of the marks there.
    """
    marks = sorted(marks, key=lambda mark: mark.at if mark.at <= 0.5 else 2 - mark.at)
    heads = [from_y + 15 * number for number in range(len(marks))]
    for mark, y in zip(marks, heads, strict=True):
        yield tag("line", x1=part(mark.at), x2=part(mark.at), y1=y, y2=height, class_="mark")
    for mark, y in zip(marks, heads, strict=True):  # labels are drawn over all lines
        more = tag("tspan", mark.more, class_="minor") if mark.more else ""
        beside = tag("tspan", mark.label, more, dx=-6 if mark.at > 0.5 else 6)
        anchor = "end" if mark.at > 0.5 else "start"
        yield tag("text", beside, x=part(mark.at), y=y + 9, text_anchor=anchor, class_="tick strong")


def stacked_lane(title: str, stack: Sequence[Stack], whole: float, height: int = 18) -> Html:
    """Return a lane with the parts of a whole from left to right."""

    def drawn() -> Iterator[Html]:
        left = 0.0
        for piece in stack:
            width = piece.amount / whole if whole else 0.0
            if width:
                yield tag(
                    "rect",
                    tag("title", piece.words),
                    x=part(left),
                    width=part(width),
                    y=0,
                    height=height,
                    class_=f"bar {piece.colour}",
                )
            left += width

    words = "; ".join(piece.words for piece in stack)
    return picture(title, words, height, join(drawn()), class_="lane")


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """Return a legend of colours, from (colour, words) of each entry."""
    return tag(
        "ul",
        *(tag("li", tag("span", class_=f"swatch {colour}", aria_hidden="true"), words) for colour, words in entries),
        class_="legend",
    )
