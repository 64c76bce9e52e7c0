"""Descriptions of filters and actions, and their durable JSON form.

Values of parameters and of correlation properties keep their type: `str`, `Int` (32 bits), `Long` or a plain `int`
(64 bits), `float` (double), `bool`, `Timestamp` (date and time, milliseconds since 1970), `timedelta`, `UUID`, `bytes`.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any
from uuid import UUID

from pairbus.amqp.types import Int, Long, Timestamp, encode
from pairbus.errors import InvalidDescription

Value = str | int | float | bool | timedelta | UUID | bytes
"Value of a parameter or of a correlation property; `Int`, `Long` and `Timestamp` are kinds of int."


class LocalTime(Timestamp):
    """A date and time that a rule names without a zone: it counts as UTC, and is shown without a zone again."""

    __slots__ = ()


VALUE_SIZE_MAX = 32_768  # encoded: a property has at most 32 KB on Azure
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Filter that selects the messages for which an SQL condition is true."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    "Values of the @names in the expression; the key may be written with or without the @."


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Filter that selects the messages that have all of these values; a field that is None is not looked at."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)
    "Application properties."


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Filter that selects every message."""

    expression: str = "1=1"


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Filter that selects no message."""

    expression: str = "1=0"


@dataclass(frozen=True, slots=True)
class SqlAction:
    """Action that changes the properties of the copy that a matching rule delivers."""

    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    "Values of the @names in the expression; the key may be written with or without the @."


Filter = SqlFilter | CorrelationFilter | TrueFilter | FalseFilter

_FILTERS: dict[str, type[Any]] = {
    "sql": SqlFilter,
    "correlation": CorrelationFilter,
    "true": TrueFilter,
    "false": FalseFilter,
}
_FILTER_NAMES = {kind: name for name, kind in _FILTERS.items()}


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    python: type[Any]
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


# repr of a double keeps every digit, and infinity and NaN, for which JSON has no number.
_TYPES = (
    _Type("string", str, str, str),
    _Type("int", Int, int, Int),
    _Type("long", Long, int, Long),
    _Type("double", float, repr, float),
    _Type("boolean", bool, bool, bool),
    _Type("datetime", Timestamp, int, Timestamp),
    _Type("local datetime", LocalTime, int, LocalTime),
    _Type("duration", timedelta, lambda v: v // _MICROSECOND, lambda v: timedelta(microseconds=v)),
    _Type("guid", UUID, str, UUID),
    _Type("bytes", bytes, lambda v: b64encode(v).decode(), b64decode),
)
_BY_NAME = {row.name: row for row in _TYPES}
_BY_PYTHON = {row.python: row for row in _TYPES} | {int: _BY_NAME["long"]}


def type_name(value: Value) -> str:
    """Return the name of the value's type: string, int, long, double, boolean, datetime, duration, guid or bytes."""
    row = _BY_PYTHON.get(type(value))
    if row is None:
        raise InvalidDescription(f"a parameter or property of type {type(value).__name__} is not supported")
    return row.name


def without_kind(value: Value) -> Value:
    """Return the value as messages hold it: a time no longer says whether a zone was named."""
    return Timestamp(value) if isinstance(value, LocalTime) else value


def check_value(name: str, value: Value) -> Value:
    """Return the value as messages hold it, or refuse one that no message could hold: InvalidDescription names it."""
    type_name(value)
    value = without_kind(value)
    try:
        size = len(encode(Long(value // _MICROSECOND * 10) if isinstance(value, timedelta) else value))
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise InvalidDescription(f"the value of {name!r:.60} is out of the range of its type") from error
    if size > VALUE_SIZE_MAX:
        raise InvalidDescription(f"the value of {name!r:.60} has {size} bytes; {VALUE_SIZE_MAX} are allowed")
    return value


def filter_to_json(described: Filter) -> dict[str, Any]:
    """Return the durable form of a filter: a dict that `json.dumps` can write."""
    return {"kind": _FILTER_NAMES[type(described)], **_written(described)}


def filter_from_json(stored: Mapping[str, Any]) -> Filter:
    """Read the durable form of a filter; InvalidDescription when it is not one."""
    kind = _FILTERS.get(stored.get("kind", ""))
    if kind is None:
        raise InvalidDescription(
            f"filter kind {stored.get('kind')!r:.40} is not known; known are {', '.join(_FILTERS)}"
        )
    read: Filter = _read(kind, {key: value for key, value in stored.items() if key != "kind"})
    return read


def action_to_json(action: SqlAction) -> dict[str, Any]:
    """Return the durable form of an action: a dict that `json.dumps` can write."""
    return _written(action)


def action_from_json(stored: Mapping[str, Any]) -> SqlAction:
    """Read the durable form of an action; InvalidDescription when it is not one."""
    read: SqlAction = _read(SqlAction, stored)
    return read


def _written(described: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in (row.name for row in fields(described)):
        value = getattr(described, name)
        if isinstance(value, Mapping):
            value = {key: {"type": type_name(v), "value": _BY_PYTHON[type(v)].write(v)} for key, v in value.items()}
        if value is not None:
            values[name] = value
    return values


def _read(kind: type[Any], stored: Mapping[str, Any]) -> Any:
    try:
        values = {}
        for name, value in stored.items():
            if isinstance(value, Mapping):
                value = {key: _BY_NAME[typed["type"]].read(typed["value"]) for key, typed in value.items()}
            values[name] = value
        return kind(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidDescription(f"stored {kind.__name__} cannot be read: {error!r:.120}") from error
