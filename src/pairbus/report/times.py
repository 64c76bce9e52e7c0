"""Milliseconds since 1970 as the ledger writes times. One place, because no other conversion is exact and alike."""

from __future__ import annotations

from pairbus.ledger.rows import time_text

HOUR_MS = 3_600_000


def text_of(time_ms: int) -> str:
    return time_text(time_ms / 1000)  # a float holds milliseconds of this millennium with four digits to spare


def hour_of(hour: int) -> str:
    """Of hours since 1970: 2026-03-01T12:00Z."""
    return f"{text_of(hour * HOUR_MS)[:16]}Z"
