"""HTML from values. Whatever is not HTML already is escaped, so that nothing can be forgotten."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = {"br", "meta", "link", "hr"}
# Not allowed in HTML, or not in UTF-8: half a surrogate pair can come out of a JSON file.
UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Html:
    """A value as HTML; what is HTML stays."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(UNFIT.sub("\ufffd", str(value)), quote=True))


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(text(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """`tag("td", 5, class_="number")`. Attributes that are None or False are left out; `_` is `-`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def name(value: str) -> Html:
    """Of an entity, a message, a file: may break anywhere, and cannot turn the text around it."""
    return tag("bdi", value)
