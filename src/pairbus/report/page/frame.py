"""All sections are built of these parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from pairbus.report.page.markup import Html, join, tag
from pairbus.report.page.words import Calendar, moment


def section(key: str, title: str, *content: object, is_estimate: bool = False) -> Html:
    """Return a section with its heading; one badge says that all its money is estimated."""
    badge = join([" ", tag("small", "estimate", class_="badge")]) if is_estimate else ""
    return tag("section", tag("h2", title, badge, id=key), *content, aria_labelledby=key)


def contents(entries: Iterable[tuple[str, str]]) -> Html:
    """Return a list of links to sections, from (id, title) of each."""
    links = (tag("li", tag("a", title, href=f"#{key}")) for key, title in entries)
    return tag("nav", tag("ul", *links), aria_label="Contents", class_="contents")


def nothing(sentence: str) -> Html:
    """Return the sentence of a section that has no content."""
    return tag("p", sentence, class_="nothing")


def share_of(calendar: Calendar, time: str) -> float:
    """Return the position of a time in the period, from 0 to 1."""
    if calendar.seconds <= 0:
        return 0.0
    return min(max((moment(time) - calendar.begins).total_seconds() / calendar.seconds, 0.0), 1.0)


def closer(calendar: Calendar, begins: datetime, ends: datetime) -> Calendar | None:
    """Return a window around a time span with a margin; None unless it is much shorter than the period."""
    margin = max((ends - begins) / 10, timedelta(seconds=0.5))
    window = replace(calendar, begins=max(calendar.begins, begins - margin), ends=min(calendar.ends, ends + margin))
    return window if 0 < window.seconds < calendar.seconds / 2 else None
