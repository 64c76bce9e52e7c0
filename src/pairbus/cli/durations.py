"""Durations as users write them: `90`, `90s`, `5m`, `1h30m`, `2d` or `PT5M`. One parser for all options."""

from __future__ import annotations

import re
from typing import Any

import typer

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PARTS = re.compile(r"(\d{1,12}(?:\.\d{1,7})?)(ms|s|m|h|d|w)", re.ASCII)
_PLAIN = re.compile(r"\d{1,12}(\.\d{1,7})?", re.ASCII)
_ISO = re.compile(
    r"P(?=.)(?:(\d{1,8})D)?(?:T(?=.)(?:(\d{1,8})H)?(?:(\d{1,8})M)?(?:(\d{1,8}(?:\.\d{1,7})?)S)?)?", re.ASCII
)
EXPECTED = "write seconds, or a duration such as 30s, 5m, 1h30m, 2d or PT5M"


def seconds_of(text: str) -> float | None:
    """Read a duration as seconds; None when the text is no duration."""
    text = text.strip()
    if _PLAIN.fullmatch(text):
        return float(text)
    found = _ISO.fullmatch(text.upper())
    if found is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return days * 86_400 + hours * 3600 + minutes * 60 + seconds
    at, total = 0, 0.0
    for part in _PARTS.finditer(text.lower()):
        if part.start() != at:
            return None
        at, total = part.end(), total + float(part[1]) * _UNITS[part[2]]
    return total if at == len(text) and at else None


def parsed(text: str | float) -> float:
    """Parse the value of an option; the error for a wrong one says what is right."""
    if isinstance(text, int | float):
        return float(text)  # a default
    found = seconds_of(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; {EXPECTED}")
    return found


def duration_option(*names: str, help: str, low: float = 0.0, high: float | None = None, **settings: Any) -> Any:
    """Make an option that takes a duration, and returns seconds within `low` … `high`."""

    def checked(value: float | None) -> float | None:
        if value is not None and (value < low or (high is not None and value > high)):
            upper = "" if high is None else f" and at most {high:g} s"
            raise typer.BadParameter(f"{value:g} s; it must be at least {low:g} s{upper}")
        return value

    settings = {"metavar": "DURATION", **settings}
    return typer.Option(*names, help=help, parser=parsed, callback=checked, **settings)
