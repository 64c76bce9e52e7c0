"""Checks lines of ledgers: a line has fields that can be counted, or there is a reason as text.

A line is usable when `pairbus.ledger.rows.decode` accepts it, its time is valid, and its numbers are possible. Most
lines are as a ledger writes them and are judged here in a few microseconds; any other line goes through `usable`, which
decides. This file does not import Spark: its functions run in the workers of Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from pairbus.errors import LedgerNewer
from pairbus.ledger.rows import SCHEMA, Row, decode

NUMBERS = ("schema", "pid", "count", "billable_operations", "bytes", "rows")
AMOUNTS = ("count", "billable_operations", "bytes", "rows")
NAMES = tuple(field.name for field in fields(Row))
REQUIRED = frozenset(NAMES[:6])
AMOUNT_MAX = 10**15  # a petabyte in one row; sums of thousands of such rows still fit 64 bits
REASON_MAX = 200  # characters
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
NOT_POSSIBLE = "a field is missing, or not possible"
"Reason of a damaged row of a table, which has no text to quote from."

_TYPES = {name: int if name in NUMBERS else dict if name == "details" else str for name in NAMES}
_TIMES_MAX = 100_000
_times_ms: dict[str, int] = {}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]


def usable(line: bytes) -> Row:
    """Decode and check a line; ValueError has the reason as text."""
    try:
        row = decode(line)
    except LedgerNewer as newer:
        raise ValueError(f"unknown version: {newer}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"cut, or not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    time_ms_of(row.time)
    for name in AMOUNTS:
        if not 0 <= (getattr(row, name) or 0) <= AMOUNT_MAX:
            raise ValueError(f"{name} is {getattr(row, name)}")
    if not -(2**63) <= row.pid < 2**63:
        raise ValueError(f"pid is {row.pid}")
    check_texts([getattr(row, name) for name in NAMES])
    return row


def check_texts(values: object) -> None:
    """Check the texts in a value of JSON; ValueError when one has half of a surrogate pair: Spark cannot store it."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def time_ms_of(text: str) -> int:
    """Convert a time of a ledger into milliseconds since 1970; ValueError when it is not a time."""
    time_ms = _times_ms.get(text)
    if time_ms is None:
        if TIME.fullmatch(text) is None:
            raise ValueError(f"time is {text!r}")
        time_ms = (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND
        if len(_times_ms) >= _TIMES_MAX:
            _times_ms.clear()
        _times_ms[text] = time_ms
    return time_ms


def fields_of(line: bytes) -> dict[str, Any]:
    """Parse a usable line into its fields, absent ones left out; ValueError as in `usable`."""
    try:
        text = line.decode()
        fields, end = _scan(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return _slowly(line)
    if b"\\ud" in line or b"\\uD" in line:  # an escaped surrogate
        return _slowly(line)
    if end != len(text) or type(fields) is not dict or not _is_valid(fields):
        return _slowly(line)
    return fields


def _slowly(line: bytes) -> dict[str, Any]:
    row = usable(line)
    return {name: value for name in NAMES if (value := getattr(row, name)) is not None}


def _is_valid(fields: dict[str, Any]) -> bool:
    """Return True when fields are certainly valid; otherwise `usable` must decide."""
    for name, value in fields.items():
        kind = _TYPES.get(name)
        if type(value) is not kind and kind is not None:
            return False
        if kind is int and not 0 <= value <= AMOUNT_MAX:
            return False
    if not fields.keys() >= REQUIRED or fields["schema"] > SCHEMA:
        return False
    try:
        time_ms_of(fields["time"])
    except ValueError:
        return False
    return True


def check_values(values: dict[str, Any]) -> None:
    """Check the fields of a row of a table, absent ones None; ValueError when they are not possible."""
    if any(values.get(name) is None for name in REQUIRED) or values["schema"] > SCHEMA:
        raise ValueError(NOT_POSSIBLE)
    for name in AMOUNTS:
        if not 0 <= (values.get(name) or 0) <= AMOUNT_MAX:
            raise ValueError(NOT_POSSIBLE)
    try:
        time_ms_of(values["time"])
    except ValueError:
        raise ValueError(NOT_POSSIBLE) from None
