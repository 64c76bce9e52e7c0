"""Milliseconds since 1970 as texts of the ledger, converted here alone, so that equal times have equal texts."""

from __future__ import annotations

from pairbus.ledger.rows import time_text

HOUR_MS = 3_600_000


def text_of(time_ms: int) -> str:
    return time_text(time_ms / 1000)  # a float is exact enough: milliseconds need four digits less than it has


def hour_of(hour: int) -> str:
    """Return the text of an hour, given in hours since 1970: 2026-03-01T12:00Z."""
    return f"{text_of(hour * HOUR_MS)[:16]}Z"
