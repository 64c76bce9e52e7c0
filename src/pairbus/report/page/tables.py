"""Tables that scroll in a box of their own where the page is narrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pairbus.report.page.markup import Html, join, tag
from pairbus.report.page.words import count


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """The first cell of a row is its head. A head that begins with `#` is of numbers: they stand at the right."""
    numbers = [head.startswith("#") for head in heads]
    right = ["n" if number else None for number in numbers]
    titles = [head.removeprefix("#") for head in heads]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", tag("span", caption)),
            tag(
                "thead",
                tag("tr", *(tag("th", t, scope="col", class_=side) for t, side in zip(titles, right, strict=True))),
            ),
            tag("tbody", *(_row(row, right) for row in rows)),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _row(cells: Sequence[object], right: Sequence[str | None]) -> Html:
    head, *rest = cells
    return tag(
        "tr",
        tag("th", head, scope="row", class_=right[0]),
        *(tag("td", cell, class_=side) for cell, side in zip(rest, right[1:], strict=True)),
    )


def folded(summary: str, content: object) -> Html:
    """Long things, shown on demand."""
    return tag("details", tag("summary", summary), content)


def long_table(
    summary: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]], most: int = 200
) -> Html:
    """Folded, and cut after `most` rows, which is said."""
    note = ""
    if len(rows) > most:
        note = f"The first {count(most)} of {count(len(rows))} rows; the JSON and Parquet files have all of them."
    shown = table(caption, heads, rows[:most])
    return folded(summary, join([shown, tag("p", note, class_="note")] if note else [shown]))


def pairs(entries: Iterable[tuple[object, object]]) -> Html:
    """Words and their meaning."""
    return tag("dl", *(tag("div", tag("dt", term), tag("dd", meaning)) for term, meaning in entries), class_="pairs")
