"""Conversions of SET: a new value takes the type of the property that it replaces, where that is possible."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from pairbus.amqp.types import (
    Byte,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from pairbus.filters.errors import FilterEvaluationError
from pairbus.filters.operators import BOOL, GUID, INTEGER, INTEGER_MAX, INTEGER_MIN, KINDS, REAL, STRING, as_text
from pairbus.filters.view import TIMESPAN

_MICROSECOND = timedelta(microseconds=1)
_MAX_TEXT = 64  # digits of a number, characters of a date: longer texts are not converted


def converted(value: Any, existing: Any) -> Any:
    """Return the value in the type of the existing property; the value as it is where no conversion exists."""
    if type(existing) is Described and existing.descriptor != TIMESPAN:
        return value
    convert = _CONVERTERS.get(type(existing))
    if convert is None or value is None or type(value) is type(existing):
        return value
    result = convert(value)
    return value if result is None else result


def storable(value: Any) -> Any:
    """Return the value in a form that AMQP has: durations are described as .NET does, in ticks of 100 nanoseconds."""
    if type(value) is not timedelta:
        return value
    ticks = value // _MICROSECOND * 10
    if not INTEGER_MIN <= ticks <= INTEGER_MAX:
        raise FilterEvaluationError(f"overflow: no property holds a duration of {value.days} days")
    return Described(TIMESPAN, Long(ticks))


def _integer(python: type[int], low: int, high: int) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        kind = KINDS.get(type(value))
        if kind == STRING and len(value) <= _MAX_TEXT and _DIGITS.fullmatch(value):
            value = int(value)
        elif not (kind == INTEGER or (kind == REAL and value.is_integer())):
            return None
        return python(int(value)) if low <= value <= high else None

    return convert


def _real(python: type[float]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        kind = KINDS.get(type(value))
        if kind == STRING and not (len(value) <= _MAX_TEXT and _DECIMAL.fullmatch(value)):
            return None
        if kind not in (STRING, INTEGER, REAL):
            return None
        number = python(value)
        try:
            struct.pack(">f" if python is Float else ">d", number)
        except OverflowError:  # no single-precision number is that large
            return None
        return number

    return convert


def _string(value: Any) -> Any:
    return as_text(value) if KINDS.get(type(value)) in (STRING, INTEGER, REAL, BOOL, GUID) else None


def _symbol(value: Any) -> Any:
    text = _string(value)
    return Symbol(text) if text is not None and text.isascii() else None


def _bool(value: Any) -> Any:
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def _guid(value: Any) -> Any:
    return UUID(value) if isinstance(value, str) and _GUID.fullmatch(value) else None


def time_of(value: Any) -> Timestamp | None:
    """Return a date and time: the value itself, or that of an ISO 8601 text, in which no zone means UTC."""
    if type(value) is Timestamp:
        return value
    match = _TIME.fullmatch(value) if isinstance(value, str) and len(value) <= _MAX_TEXT else None
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, zone_hour, zone_minute = match.groups(default="0")
    numbers = [int(part) for part in (year, month, day, hour, minute, second)]
    if not all(low <= part <= high for part, (low, high) in zip(numbers, _TIME_RANGES, strict=True)):
        return None
    if numbers[2] > _MONTH_DAYS[numbers[1] - 1] + (numbers[1] == 2 and _is_leap(numbers[0])):
        return None
    zone = (int(zone_hour) * 60 + int(zone_minute)) * (-1 if sign == "-" else 1)
    seconds = ((_days(*numbers[:3]) * 24 + numbers[3]) * 60 + numbers[4] - zone) * 60 + numbers[5]
    return Timestamp(seconds * 1000 + int(fraction[:3].ljust(3, "0")))


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days(year: int, month: int, day: int) -> int:
    """Count the days from 1970-01-01 to a date of the Gregorian calendar."""
    before = year - 1
    leap_days = before // 4 - before // 100 + before // 400
    in_year = sum(_MONTH_DAYS[: month - 1]) + (month > 2 and _is_leap(year)) + day
    return before * 365 + leap_days + in_year - _DAYS_TO_1970


def span_of(value: Any) -> timedelta | None:
    """Return a duration: the value itself, or that of .NET's text [-][days.]hours:minutes[:seconds[.fraction]]."""
    if type(value) is timedelta:
        return value
    match = _SPAN.fullmatch(value) if isinstance(value, str) and len(value) <= _MAX_TEXT else None
    if match is None:
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups(default="0")
    span = timedelta(
        days=int(days),
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(seconds),
        microseconds=int(fraction[:6].ljust(6, "0")),
    )
    return -span if sign == "-" else span


def _described(value: Any) -> Any:
    span = span_of(value)
    return None if span is None else storable(span)


_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_TO_1970 = 719_163
_TIME_RANGES = ((1, 9999), (1, 12), (1, 31), (0, 23), (0, 59), (0, 59))
_DIGITS = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?(?:Z|([+-])([0-9]{2}):([0-9]{2}))?)?"
)
_SPAN = re.compile(r"(-)?(?:([0-9]{1,7})\.)?([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,7}))?)?")

_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    Byte: _integer(Byte, -(2**7), 2**7 - 1),
    Short: _integer(Short, -(2**15), 2**15 - 1),
    Int: _integer(Int, -(2**31), 2**31 - 1),
    Long: _integer(Long, -(2**63), 2**63 - 1),
    UByte: _integer(UByte, 0, 2**8 - 1),
    UShort: _integer(UShort, 0, 2**16 - 1),
    UInt: _integer(UInt, 0, 2**32 - 1),
    ULong: _integer(ULong, 0, 2**64 - 1),
    float: _real(float),
    Float: _real(Float),
    str: _string,
    Symbol: _symbol,
    bool: _bool,
    UUID: _guid,
    Timestamp: time_of,
    Described: _described,
}
