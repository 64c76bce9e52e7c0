"""Options that take a duration, in every way of writing that `settings/durations.py` reads."""

from __future__ import annotations

from typing import Any

import typer

from pairbus.settings.durations import EXPECTED, seconds_of, short_text


def parsed(text: str | float) -> float:
    """Parse the value of an option; the error for a wrong one says what is right."""
    if isinstance(text, int | float):
        return float(text)  # a default
    seconds = seconds_of(text)
    if seconds is None:
        raise typer.BadParameter(f"{text!r} is no duration; {EXPECTED}")
    return seconds


def duration_option(*names: str, help: str, low: float = 0.0, high: float | None = None, **settings: Any) -> Any:
    """Make an option that takes a duration, and returns seconds within `low` … `high`."""

    def checked(value: float | None) -> float | None:
        if value is not None and (value < low or (high is not None and value > high)):
            upper = "" if high is None else f" and at most {short_text(high)}"
            raise typer.BadParameter(f"{short_text(value)}; it must be at least {short_text(low)}{upper}")
        return value

    settings = {"metavar": "DURATION", **settings}
    return typer.Option(*names, help=help, parser=parsed, callback=checked, **settings)
