"""ISO-8601 durations as the administration API and the configuration file write them."""

from __future__ import annotations

import re

from pairbus.broker.description import DAY_MS, UNLIMITED_MS

UNLIMITED_TEXT = "P10675199DT2H48M5.4775807S"
"The longest .NET TimeSpan, which clients read as: never. Some write its end differently, hence UNLIMITED_MS."

_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000
# Months and years have no fixed length; the service refuses them and so do we.
_DURATION = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,12})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,12})H)?(?:([0-9]{1,12})M)?(?:([0-9]{1,12})(?:[.,]([0-9]{1,12}))?S)?)?",
    re.ASCII,
)


def parse_duration(text: str) -> int | None:
    """Return milliseconds, or None for unlimited. Raises ValueError for any other text, also one with a sign."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an ISO-8601 duration such as PT30S, PT5M or P1DT12H")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    fraction_ms = int((match[5] or "0").ljust(3, "0")[:3])
    duration_ms = days * DAY_MS + hours * _HOUR_MS + minutes * _MINUTE_MS + seconds * 1000 + fraction_ms
    return None if duration_ms >= UNLIMITED_MS else duration_ms


def parse_limited_duration(text: str) -> int:
    """Return milliseconds, for settings that cannot be unlimited."""
    duration_ms = parse_duration(text)
    if duration_ms is None:
        raise ValueError(f"{text!r} is unlimited; this setting needs a limit")
    return duration_ms


def format_duration(duration_ms: int | None) -> str:
    """Write a duration as `P1DT2H3M4.5S`; unlimited is written the way the service does."""
    if duration_ms is None:
        return UNLIMITED_TEXT
    days, rest = divmod(duration_ms, DAY_MS)
    hours, rest = divmod(rest, _HOUR_MS)
    minutes, rest = divmod(rest, _MINUTE_MS)
    seconds, fraction_ms = divmod(rest, 1000)
    second_text = f"{seconds}.{fraction_ms:03}".rstrip("0").rstrip(".") if fraction_ms else f"{seconds}"
    time = "".join(
        f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M"), (second_text, "S")) if value not in (0, "0")
    )
    return f"P{f'{days}D' if days else ''}{f'T{time}' if time else ''}" if days or time else "PT0S"
