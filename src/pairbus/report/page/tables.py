"""Renders tables: they scroll in a box of their own on a narrow page, fold when long, and hide columns of zeros."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pairbus.report.page.markup import Html, join, tag
from pairbus.report.page.words import count

ROWS_MAX = 10
"""Rows of a table that is not folded."""
SHOWN_MAX = 200
"""Rows of a folded table; the files have all of them."""
# 0, $0, CHF 0, 0 bytes, 0 s, 0 %: the forms of zero that pairbus.report.page.words writes.
NOTHING = re.compile(r"–|[^\d<]{0,4}0(\u202f(bytes|s|%))?")


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Make a table. The first cell of a row is its head. A head that begins with `#` aligns its column to the right.

    Columns of numbers that are zero in every row are left out, and named in the caption.
    """
    cells = [tuple(row) for row in rows]
    columns = [number for number in range(len(heads)) if number == 0 or not _is_zero(heads, cells, number)]
    hidden = [heads[number].removeprefix("#") for number in range(len(heads)) if number not in columns]
    if hidden:
        caption += f" (in no row, and left out: {', '.join(hidden)})"
    right = ["n" if heads[number].startswith("#") else None for number in columns]
    titles = [heads[number].removeprefix("#") for number in columns]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", tag("span", caption)),
            tag(
                "thead",
                tag("tr", *(tag("th", t, scope="col", class_=side) for t, side in zip(titles, right, strict=True))),
            ),
            tag("tbody", *(_row([row[number] for number in columns], right) for row in cells)),
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _is_zero(heads: Sequence[str], rows: Sequence[Sequence[object]], number: int) -> bool:
    return heads[number].startswith("#") and bool(rows) and all(NOTHING.fullmatch(str(row[number])) for row in rows)


def _row(cells: Sequence[object], right: Sequence[str | None]) -> Html:
    head, *rest = cells
    return tag(
        "tr",
        tag("th", head, scope="row", class_=right[0]),
        *(tag("td", cell, class_=side) for cell, side in zip(rest, right[1:], strict=True)),
    )


def folded(summary: object, content: object, *, is_open: bool = False, class_: str | None = None) -> Html:
    """Return content that the reader can unfold."""
    return tag("details", tag("summary", summary), content, open=is_open, class_=class_)


def long_table(summary: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """Return a folded table; with more than SHOWN_MAX rows it is cut, and a note says so."""
    return folded(summary, cut_table(caption, heads, rows))


def fitting_table(summary: str, caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """Return a table that is folded when it has more than ROWS_MAX rows."""
    return table(caption, heads, rows) if len(rows) <= ROWS_MAX else long_table(summary, caption, heads, rows)


def cut_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """Return a table of at most SHOWN_MAX rows, with a note when it has more."""
    beginning = table(caption, heads, rows[:SHOWN_MAX])
    if len(rows) <= SHOWN_MAX:
        return beginning
    note = f"The first {count(SHOWN_MAX)} of {count(len(rows))} rows; the JSON and Parquet files have all of them."
    return join([beginning, tag("p", note, class_="note")])


def folds(*parts: object) -> Html:
    """Return folded content side by side; unfolded content takes the whole width."""
    return tag("div", *parts, class_="folds") if any(parts) else Html("")


def pairs(entries: Iterable[tuple[object, object]]) -> Html:
    """Return a list of terms and their values."""
    return tag("dl", *(tag("div", tag("dt", term), tag("dd", meaning)) for term, meaning in entries), class_="pairs")
