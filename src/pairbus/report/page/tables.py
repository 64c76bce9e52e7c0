"""Tables that scroll in a box of their own when the page is narrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pairbus.report.page.markup import Html, join, tag
from pairbus.report.page.words import count


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Make a table. The first cell of a row is its head. A head that begins with `#` aligns its column to the right."""
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
    """Content that the reader can unfold."""
    return tag("details", tag("summary", summary), content)


def long_table(
    summary: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]], most: int = 200
) -> Html:
    """A folded table; with more than `most` rows it is cut, and a note says so."""
    note = ""
    if len(rows) > most:
        note = f"The first {count(most)} of {count(len(rows))} rows; the JSON and Parquet files have all of them."
    shown = table(caption, heads, rows[:most])
    return folded(summary, join([shown, tag("p", note, class_="note")] if note else [shown]))


def pairs(entries: Iterable[tuple[object, object]]) -> Html:
    """A list of terms and their values."""
    return tag("dl", *(tag("div", tag("dt", term), tag("dd", meaning)) for term, meaning in entries), class_="pairs")
