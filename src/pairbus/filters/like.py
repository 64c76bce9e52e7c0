"""LIKE patterns → functions that match a text in time proportional to its length, whatever the pattern is.

Between two % the first place that fits is as good as any later one, so a pattern without _ is a chain of string
searches, each of which begins where the one before ended. A pattern with _ steps a set of positions in the pattern,
held in the bits of one integer, through the text, without backtracking. That takes a hundred times as long, and a topic
may have 2 000 such filters: so the text has the length that the service allows a property.
"""

from __future__ import annotations

from collections.abc import Callable

from pairbus.filters.errors import FilterEvaluationError
from pairbus.filters.operators import STRING_LENGTH_MAX

PATTERN_LENGTH_MAX = 1024  # of a pattern that comes from a property; patterns in the filter are limited by its text

Matcher = Callable[[str], bool]
_ANY_RUN, _ANY_ONE = object(), object()


class PatternError(ValueError):
    """The pattern or its escape character cannot be used; the text says why."""


def like(pattern: str, escape: str | None = None) -> Matcher:
    """Compile a pattern in which % is any run of characters and _ any one character; PatternError when it is wrong."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise PatternError(f"a LIKE pattern has at most {PATTERN_LENGTH_MAX} characters, this one {len(pattern)}")
    if escape is not None and len(escape) != 1:
        raise PatternError(f"ESCAPE takes one character, not {escape!r:.42}")
    parts = _parts(pattern, escape)
    return _steps(parts) if _ANY_ONE in parts else _search(parts)


def _parts(pattern: str, escape: str | None) -> list[object]:
    """Return characters, _ANY_ONE and _ANY_RUN; several % in a row become one."""
    parts: list[object] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise PatternError(f"the LIKE pattern ends with its escape character {escape!r}")
            parts.append(escaped)
        elif character == "_":
            parts.append(_ANY_ONE)
        elif character != "%":
            parts.append(character)
        elif not parts or parts[-1] is not _ANY_RUN:
            parts.append(_ANY_RUN)
    return parts


def _search(parts: list[object]) -> Matcher:
    """Return the string searches of a pattern without _."""
    texts = [""]
    for part in parts:
        if isinstance(part, str):
            texts[-1] += part
        else:
            texts.append("")
    if len(texts) == 1:
        [text] = texts
        return lambda value: value == text
    first, *middle, last = texts
    if len(middle) == 1 and not first and not last:
        [text] = middle
        return lambda value: text in value
    return _chain(first, middle, last)


def _chain(first: str, middle: list[str], last: str) -> Matcher:
    """Return the matcher of texts with any run between them."""

    def match(value: str) -> bool:
        end = len(value) - len(last)
        at = len(first)
        if end < at or not value.startswith(first) or not value.endswith(last):
            return False
        for text in middle:
            place = value.find(text, at, end)
            if place < 0:
                return False
            at = place + len(text)
        return True

    return match


def _steps(parts: list[object]) -> Matcher:
    """Return the matcher. Bit i of `state`: the text so far matches the first i parts that take one character each."""
    stays = anyone = size = 0
    takes: dict[str, int] = {}
    for part in parts:
        if part is _ANY_RUN:
            stays |= 1 << size
            continue
        if isinstance(part, str):
            takes[part] = takes.get(part, 0) | 1 << size
        else:
            anyone |= 1 << size
        size += 1
    takes = {character: bits | anyone for character, bits in takes.items()}
    done = 1 << size
    is_open = bool(stays & done)

    def match(value: str) -> bool:
        if len(value) > STRING_LENGTH_MAX:
            text = f"LIKE with _ compares at most {STRING_LENGTH_MAX} characters, the value has {len(value)}"
            raise FilterEvaluationError(text)
        state = 1
        for character in value:
            state = (state & takes.get(character, anyone)) << 1 | state & stays
            if not state:
                return False
            if is_open and state & done:
                return True
        return bool(state & done)

    return match
