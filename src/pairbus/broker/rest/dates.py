"""Dates and spans of time as the REST API writes them; Unix milliseconds inside."""

from __future__ import annotations

import re
from calendar import monthrange, timegm
from email.utils import formatdate

TIME_MAX_MS = 253_402_300_799_999  # the end of the year 9999
TIME_MIN_MS = -62_135_596_800_000  # the beginning of the year 1

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY = "(?:mon|tue|wed|thu|fri|sat|sun)"
_TIME = r"(?P<hour>\d{2}):(?P<minute>\d{2}):(?P<second>\d{2})"
# The three forms of RFC 2616, 3.3.1.
_HTTP_FORMS = [
    re.compile(form, re.IGNORECASE | re.ASCII)
    for form in (
        rf"{_DAY}, (?P<day>\d{{2}}) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_TIME} GMT",
        rf"{_DAY}[a-z]*, (?P<day>\d{{2}})-(?P<month>[a-z]{{3}})-(?P<year>\d{{2}}) {_TIME} GMT",
        rf"{_DAY} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",
    )
]
_ISO = re.compile(
    rf"(?P<year>\d{{4}})-(?P<month>\d{{2}})-(?P<day>\d{{2}})[T ]{_TIME}(?:\.(?P<fraction>\d{{1,9}}))?"
    r"(?:Z|(?P<sign>[+-])(?P<zone_hour>\d{2}):(?P<zone_minute>\d{2}))?",
    re.IGNORECASE | re.ASCII,
)
_SPAN = re.compile(
    r"(?:(?P<days>\d{1,8})\.)?(?P<hours>\d{1,2}):(?P<minutes>\d{1,2})(?::(?P<seconds>\d{1,2})(?:\.(?P<fraction>\d{1,7}))?)?",
    re.ASCII,
)


def read_http_date(text: str) -> int | None:
    """Read a date of HTTP; None: the text is none."""
    for form in _HTTP_FORMS:
        if match := form.fullmatch(text):
            month = match["month"].lower()
            year = int(match["year"])
            if len(match["year"]) == 2:
                year += 1900 if year >= 70 else 2000
            return _unix_ms(year, _MONTHS.index(month) + 1, match) if month in _MONTHS else None
    return None


def read_date(text: str) -> int | None:
    """Read a date of HTTP or of ISO 8601, which is UTC unless it says otherwise; None: the text is none."""
    text = text.strip()
    match = _ISO.fullmatch(text)
    if match is None:
        return read_http_date(text)
    time_ms = _unix_ms(int(match["year"]), int(match["month"]), match)
    if time_ms is None:
        return None
    time_ms += int((match["fraction"] or "0").ljust(3, "0")[:3])
    if match["sign"]:
        offset_ms = (int(match["zone_hour"]) * 60 + int(match["zone_minute"])) * 60_000
        time_ms -= offset_ms if match["sign"] == "+" else -offset_ms
    return time_ms if TIME_MIN_MS <= time_ms <= TIME_MAX_MS else None


def write_http_date(time_ms: int) -> str | None:
    """Write a date as HTTP does, without milliseconds; None: its year has not four digits."""
    if not TIME_MIN_MS <= time_ms <= TIME_MAX_MS:
        return None
    return formatdate(time_ms // 1000, usegmt=True)


def read_span(text: str) -> int | None:
    """Read a .NET time span, `[days.]hours:minutes[:seconds[.fraction]]`, as milliseconds; None: the text is none."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        return None
    hours, minutes, seconds = int(match["hours"]), int(match["minutes"]), int(match["seconds"] or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    fraction_ms = int((match["fraction"] or "0").ljust(3, "0")[:3])
    return (((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms


def _unix_ms(year: int, month: int, match: re.Match[str]) -> int | None:
    day, hour, minute, second = (int(match[name]) for name in ("day", "hour", "minute", "second"))
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= monthrange(year, month)[1]:
        return None
    if hour > 23 or minute > 59 or second > 59:
        return None
    return timegm((year, month, day, hour, minute, second)) * 1000
