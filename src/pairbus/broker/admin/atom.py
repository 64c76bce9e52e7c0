"""Atom documents of the administration API: entries, feeds, errors.

Answers have every element in the order of the service, because the JavaScript SDK throws when one is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from pairbus.broker.admin.xml import ATOM, INSTANCE, SERVICE

NEVER_TEXT = "0001-01-01T00:00:00Z"

Elements = Iterable[tuple[str, object]]


class Markup(str):
    """A whole element that is XML already."""

    __slots__ = ()


def entry(url: str, title: str, author: str, created_ms: int, updated_ms: int, kind: str, elements: Elements) -> str:  # noqa: PLR0917 - the elements of an entry
    """Write the entry of one entity. The JavaScript SDK reads the name in the path of the id, the Python SDK in the
    title."""
    return (
        f'<entry xmlns="{ATOM}"><id>{escape(url)}?api-version=2021-05</id><title type="text">{escape(title)}</title>'
        f"<published>{format_time(created_ms)}</published><updated>{format_time(updated_ms)}</updated>"
        f'<author><name>{escape(author)}</name></author><link rel="self" href={quoteattr(url)}/>'
        f'<content type="application/xml"><{kind} xmlns="{SERVICE}" xmlns:i="{INSTANCE}">{inside(elements)}</{kind}>'
        "</content></entry>"
    )


def feed(title: str, entries: Iterable[str], self_url: str, next_url: str | None, now_ms: int) -> str:
    """Write a page of entities. The Python SDK goes on only if there are exactly two links, the next page's second."""
    links = f'<link rel="self" href={quoteattr(self_url)}/>'
    if next_url is not None:
        links += f'<link rel="next" href={quoteattr(next_url)}/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escape(title)}</title><id>{escape(self_url)}</id>'
        f"<updated>{format_time(now_ms)}</updated>{links}{''.join(entries)}</feed>"
    )


def error_body(status: int, detail: str) -> str:
    # A name from the request may hold characters that XML 1.0 cannot contain.
    printable = re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", detail)
    return f"<Error><Code>{status}</Code><Detail>{escape(printable)}</Detail></Error>"


def inside(elements: Elements) -> str:
    """Write elements one after the other; those whose value is None are left out."""
    return "".join(_element(name, value) for name, value in elements if value is not None)


def format_time(time_ms: int) -> str:
    if time_ms <= 0:
        return NEVER_TEXT
    seconds, rest_ms = divmod(time_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ms:03}Z"


def _element(name: str, value: object) -> str:
    if isinstance(value, Markup):
        return value
    text = str(value).lower() if isinstance(value, bool) else escape(str(value))
    return f"<{name}>{text}</{name}>"
