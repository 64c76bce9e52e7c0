"""LIKE patterns → functions that match a text in time proportional to its length, whatever the pattern is.

The usual patterns (x, x%, %x, %x%) are string searches. All others step a set of positions in the pattern, held in
the bits of one integer, through the text, without backtracking.
"""

from __future__ import annotations

from collections.abc import Callable

PATTERN_LENGTH_MAX = 1024  # of a pattern that comes from a property; patterns in the filter are limited by its text

Matcher = Callable[[str], bool]
_ANY_RUN, _ANY_ONE = object(), object()


class PatternError(ValueError):
    """The pattern or its escape character cannot be used; the text says why."""


def like(pattern: str, escape: str | None = None) -> Matcher:
    """Compile a pattern in which % is any run of characters and _ any one character; PatternError."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise PatternError(f"a LIKE pattern has at most {PATTERN_LENGTH_MAX} characters, this one {len(pattern)}")
    if escape is not None and len(escape) != 1:
        raise PatternError(f"ESCAPE takes one character, not {escape!r:.42}")
    parts = _parts(pattern, escape)
    return _search(parts) or _steps(parts)


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


def _search(parts: list[object]) -> Matcher | None:
    """Return a string search where the pattern is one text with % at most at its ends."""
    open_start = bool(parts) and parts[0] is _ANY_RUN
    open_end = len(parts) > open_start and parts[-1] is _ANY_RUN
    middle = [part for part in parts[open_start : len(parts) - open_end] if isinstance(part, str)]
    if len(middle) != len(parts) - open_start - open_end:
        return None
    text = "".join(middle)
    if open_start and open_end:
        return lambda value: text in value
    if open_start:
        return lambda value: value.endswith(text)
    if open_end:
        return lambda value: value.startswith(text)
    return lambda value: value == text


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
        state = 1
        for character in value:
            state = (state & takes.get(character, anyone)) << 1 | state & stays
            if not state:
                return False
            if is_open and state & done:
                return True
        return bool(state & done)

    return match
