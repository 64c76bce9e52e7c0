"""Builds HTML from values. Every value that is not `Html` is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = {"br", "meta", "link", "hr"}
# Not allowed in HTML, or not in UTF-8: a JSON file may contain half a surrogate pair.
UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """This text is HTML already, and is not escaped again."""

    __slots__ = ()


def text(value: object) -> Html:
    """Escape a value, unless it is `Html`."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(UNFIT.sub("\ufffd", str(value)), quote=True))


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(text(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Make an element: `tag("td", 5, class_="n")`. Attributes that are None or False are left out; `_` becomes `-`."""
    attribute_text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Html(f"<{name}{attribute_text}>")
    return Html(f"<{name}{attribute_text}>{join(children)}</{name}>")


def name(value: str) -> Html:
    """Return the name of an entity or file, isolated so that right-to-left letters do not reorder the text."""
    return tag("bdi", value)
