"""Typed values of rules as text: names and spelling of XML schema types, for XML and for configuration files."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pairbus.amqp.types import Int, Long, Timestamp
from pairbus.filters import LocalTime, Value, type_name
from pairbus.settings.durations import format_span, parse_span

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def value_from_text(kind: str, text: str) -> Value:
    """Read a value of an XML schema type; ValueError when the type is not known or the text does not fit."""
    row = _TYPES.get(kind)
    if row is None:
        raise ValueError(f"the type {kind!r} is not known; known are {', '.join(_TYPES)}")
    try:
        value: Value = row(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r:.80} is not of the type {kind}") from None
    return value


def value_to_text(value: Value) -> tuple[str, str]:
    """Return the XML schema type and the text of a value."""
    kind = type_name(value)
    match value:
        case bool():
            return kind, str(value).lower()
        case float():
            return kind, _XML_DOUBLES.get(repr(value), repr(value))
        case timedelta():
            return kind, format_span(value)
        case bytes():
            return "base64Binary", b64encode(value).decode()
        case Timestamp():
            moment = _EPOCH + int(value) * _MILLISECOND
            if isinstance(value, LocalTime):
                moment = moment.replace(tzinfo=None)
            return "dateTime", moment.isoformat(timespec="milliseconds" if int(value) % 1000 else "seconds")
    return kind, str(value)


_XML_DOUBLES = {"inf": "INF", "-inf": "-INF", "nan": "NaN"}


def _integer(low: int, high: int, make: Callable[[int], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", text, re.ASCII) or not low <= int(text) <= high:
            raise ValueError(text)
        return make(int(text))

    return read


def _boolean(text: str) -> bool:
    flag = {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower())
    if flag is None:
        raise ValueError(text)
    return flag


def _double(text: str) -> float:
    if "_" in text:  # Python allows underscores in numbers
        raise ValueError(text)
    return float(text)


def _time(text: str) -> Timestamp:
    # .NET writes seven digits of a second, Python reads six.
    moment = datetime.fromisoformat(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text.strip()))
    if moment.tzinfo is None:
        return LocalTime((moment.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND)
    return Timestamp((moment - _EPOCH) // _MILLISECOND)


_TYPES: dict[str, Callable[[str], Any]] = {
    "string": str,
    "int": _integer(-(1 << 31), (1 << 31) - 1, Int),
    "long": _integer(-(1 << 63), (1 << 63) - 1, Long),
    "double": _double,
    "boolean": _boolean,
    "dateTime": _time,
    "duration": parse_span,
    "guid": lambda text: UUID(text.strip()),
    "base64Binary": lambda text: b64decode(text, validate=True),
    # Types of .NET that the broker keeps as the next larger type:
    "byte": _integer(-(1 << 7), (1 << 7) - 1, Int),
    "unsignedByte": _integer(0, (1 << 8) - 1, Int),
    "short": _integer(-(1 << 15), (1 << 15) - 1, Int),
    "unsignedShort": _integer(0, (1 << 16) - 1, Int),
    "unsignedInt": _integer(0, (1 << 32) - 1, Long),
    "unsignedLong": _integer(0, (1 << 63) - 1, Long),
    "float": _double,
    "decimal": _double,
    "anyURI": str,
    "char": str,
}
