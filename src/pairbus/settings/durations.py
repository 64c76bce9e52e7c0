"""Durations as people write them (`90`, `30s`, `1h30m`, `2d`) and as XML and .NET do (`PT5M`, `P1DT12H`).

One parser for each way of writing; everything else of the product that reads or writes a duration calls it.
"""

from __future__ import annotations

import re
from datetime import timedelta

DAY_MS = 24 * 60 * 60 * 1000
UNLIMITED_MS = 10_675_199 * DAY_MS
"A duration at or above .NET's TimeSpan.MaxValue in whole days means: never."
UNLIMITED = timedelta(milliseconds=UNLIMITED_MS)
UNLIMITED_TEXT = "P10675199DT2H48M5.4775807S"
"The longest .NET TimeSpan, which clients read as: never. Some write its end differently, hence UNLIMITED_MS."
NEVER = "never"
"People's word for an unlimited duration."

UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
EXPECTED = "write seconds, or a duration such as 30s, 5m, 1h30m, 2d or PT5M"

_NUMBER = r"(?:\d{1,12}(?:\.\d{1,18})?|\.\d{1,18})"
_PLAIN = re.compile(_NUMBER, re.ASCII)
_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|d|w)", re.ASCII)
# Months and years have no fixed length; the service refuses them and so do we.
_ISO = re.compile(
    r"(-?)P(?=[0-9T])(?:([0-9]{1,12})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,12})H)?(?:([0-9]{1,12})M)?(?:([0-9]{1,12})(?:[.,]([0-9]{1,12}))?S)?)?",
    re.ASCII,
)
_MICROSECOND = timedelta(microseconds=1)


# ── as people write them ──


def seconds_of(text: str) -> float | None:
    """Read a duration of any way of writing as seconds; None when the text is no duration. None has a sign."""
    text = text.strip()
    if _PLAIN.fullmatch(text):
        return float(text)
    microseconds = _iso_microseconds(text.upper())
    if microseconds is not None:
        return None if text.startswith("-") else microseconds / 1_000_000
    end, seconds = 0, 0.0
    for part in _PART.finditer(text.lower()):
        if part.start() != end:
            return None
        end, seconds = part.end(), seconds + float(part[1]) * UNIT_S[part[2]]
    return seconds if end == len(text) and end else None


def short_text(seconds: float) -> str:
    """Write a duration as people do, in one unit: `500ms`, `30s`, `90m`, `14d`."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % UNIT_S[unit] == 0:
            return f"{seconds / UNIT_S[unit]:.0f}{unit}"
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


# ── as XML writes them: ISO 8601 ──


def parse_duration(text: str) -> int | None:
    """Return milliseconds, or None for unlimited. Raises ValueError for any other text, also one with a sign."""
    microseconds = None if "-" in text else _iso_microseconds(text.strip())
    if microseconds is None:
        raise ValueError(f"{text!r} is not an ISO-8601 duration such as PT30S, PT5M or P1DT12H")
    duration_ms = microseconds // 1000
    return None if duration_ms >= UNLIMITED_MS else duration_ms


def parse_limited_duration(text: str) -> int:
    """Return milliseconds, for settings that cannot be unlimited."""
    duration_ms = parse_duration(text)
    if duration_ms is None:
        raise ValueError(f"{text!r} is unlimited; this setting needs a limit")
    return duration_ms


def parse_span(text: str) -> timedelta:
    """Return a duration that may have a sign. ValueError: the text is none; OverflowError: it is too long."""
    microseconds = _iso_microseconds(text.strip())
    if microseconds is None:
        raise ValueError(text)
    return timedelta(microseconds=microseconds)


def format_duration(duration_ms: int | None) -> str:
    """Write milliseconds as `P1DT2H3M4.5S`; None, which is unlimited, is written the way the service does."""
    return UNLIMITED_TEXT if duration_ms is None else _iso_text(duration_ms * 1000)


def format_span(span: timedelta) -> str:
    return _iso_text(span // _MICROSECOND)


def _iso_microseconds(text: str) -> int | None:
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:5])
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    microseconds = whole * 1_000_000 + int((match[6] or "0").ljust(6, "0")[:6])
    return -microseconds if match[1] else microseconds


def _iso_text(microseconds: int) -> str:
    """Write a duration as .NET does: days, hours, minutes and seconds, without those that are zero."""
    sign = "-" if microseconds < 0 else ""
    whole, fraction = divmod(abs(microseconds), 1_000_000)
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    second_text = f"{seconds}.{fraction:06}".rstrip("0") if fraction else f"{seconds}"
    parts = ((hours, "H"), (minutes, "M"), (second_text, "S"))
    time = "".join(f"{value}{unit}" for value, unit in parts if value not in (0, "0"))
    return f"{sign}P{f'{days}D' if days else ''}{f'T{time}' if time else ''}" if days or time else "PT0S"
