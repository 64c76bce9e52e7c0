"""Converts times of messages: milliseconds since 1970 on the wire, ISO-8601 in UTC in JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_text(time_ms: int) -> str | None:
    """Write a time as `2026-01-31T12:00:00.000Z`; None outside of the years 1 … 9999."""
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of(value: Any) -> int | None:
    """Read milliseconds since 1970, or an ISO-8601 text, which is UTC unless it has a zone; None for other values."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
