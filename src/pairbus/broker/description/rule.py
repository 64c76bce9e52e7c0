"""A rule of a subscription: a filter and, where a copy is to be changed, an action."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar
from uuid import UUID

from pairbus.broker.description.common import check_name, check_path, dump, known_values
from pairbus.errors import InvalidDescription

DEFAULT_RULE = "$Default"
EXPRESSION_LENGTH_MAX = 1024
PROPERTIES_MAX = 256  # parameters of an expression, or properties of a correlation filter

_INTEGERS = {
    "byte": (-(1 << 7), (1 << 7) - 1),
    "unsignedByte": (0, (1 << 8) - 1),
    "short": (-(1 << 15), (1 << 15) - 1),
    "unsignedShort": (0, (1 << 16) - 1),
    "int": (-(1 << 31), (1 << 31) - 1),
    "unsignedInt": (0, (1 << 32) - 1),
    "long": (-(1 << 63), (1 << 63) - 1),
    "unsignedLong": (0, (1 << 64) - 1),
}
_DURATION = re.compile(
    r"(-?)P(?:([0-9]{1,9})D)?(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,12})(?:\.([0-9]{1,12}))?S)?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A value as a rule names it: its XML schema type and its text, kept as they were given."""

    type: str
    text: str

    @property
    def value(self) -> Any:
        """The value as a Python object; ValueError when the text does not fit the type."""
        if self.type in _INTEGERS:
            low, high = _INTEGERS[self.type]
            if not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", self.text, re.ASCII) or not low <= int(self.text) <= high:
                raise ValueError(f"{self.text!r} is not of the type {self.type}")
            return int(self.text)
        try:
            return _READERS[self.type](self.text)
        except KeyError:
            raise ValueError(f"the type {self.type!r} is not known") from None
        except (ValueError, OverflowError, InvalidOperation):
            raise ValueError(f"{self.text!r} is not of the type {self.type}") from None


def typed_value(value: Any) -> TypedValue:
    """Give a Python value the type that the SDKs give it; ValueError when a rule cannot hold it."""
    match value:
        case str():
            return TypedValue("string", value)
        case bool():
            return TypedValue("boolean", str(value).lower())
        case int():
            low, high = _INTEGERS["int"]
            return TypedValue("int" if low <= value <= high else "long", str(int(value)))
        case float():
            return TypedValue("double", str(float(value)))
        case datetime():
            return TypedValue("dateTime", value.isoformat())
        case UUID():
            return TypedValue("guid", str(value))
    raise ValueError(f"a value of the type {type(value).__name__} cannot be compared by a rule")


def _boolean(text: str) -> bool:
    found = {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower())
    if found is None:
        raise ValueError(text)
    return found


def _time(text: str) -> datetime:
    # .NET writes seven digits of a second, Python reads six.
    moment = datetime.fromisoformat(re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", text.strip()))
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _span(text: str) -> timedelta:
    match = _DURATION.fullmatch(text.strip())
    if match is None or text.strip().endswith(("P", "T")):
        raise ValueError(text)
    sign, days, hours, minutes, seconds, fraction = match.groups()
    span = timedelta(
        days=int(days or 0),
        hours=int(hours or 0),
        minutes=int(minutes or 0),
        seconds=int(seconds or 0),
        microseconds=int((fraction or "").ljust(6, "0")[:6]),
    )
    return -span if sign else span


_READERS: dict[str, Any] = {
    "string": str,
    "anyURI": str,
    "char": str,
    "boolean": _boolean,
    "double": float,
    "float": float,
    "decimal": Decimal,
    "dateTime": _time,
    "duration": _span,
    "guid": UUID,
}
Properties = dict[str, TypedValue]


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A predicate over the message's properties."""

    expression: str
    parameters: Properties = field(default_factory=dict)
    "By name, with the leading `@`."


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Selects every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Selects no message."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Equality with every field that is set."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SqlAction:
    """Changes to the copy that the rule selects."""

    expression: str
    parameters: Properties = field(default_factory=dict)


Filter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter
_FILTERS: dict[str, Any] = {kind.__name__: kind for kind in (SqlFilter, TrueFilter, FalseFilter, CorrelationFilter)}


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """One rule's settings."""

    KIND: ClassVar[str] = "rule"
    IMMUTABLE: ClassVar[tuple[str, ...]] = ()

    topic: str
    subscription: str
    name: str
    filter: Filter = field(default_factory=TrueFilter)
    action: SqlAction | None = None
    created_ms: int = 0
    updated_ms: int = 0

    @property
    def path(self) -> str:
        return f"{self.topic}/Subscriptions/{self.subscription}/Rules/{self.name}"

    def to_json(self) -> str:
        return dump(self, filter=_part_to_json(self.filter), action=self.action and _part_to_json(self.action))

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> RuleDescription:
        """Read the durable form."""
        known = known_values(cls, values)
        action = values.get("action")
        return cls(
            **{
                **known,
                "filter": _part_from_json(values["filter"], _FILTERS),
                "action": action and _part_from_json(action, {"SqlAction": SqlAction}),
            }
        )

    def checked(self) -> RuleDescription:
        """Return the description with normal names, or raise InvalidDescription. Expressions are compiled elsewhere."""
        for part, what in ((self.filter, "filter"), (self.action, "action")):
            place = f"{what} of rule {self.name!r}"
            if isinstance(part, SqlFilter | SqlAction):
                if not part.expression.strip():
                    raise InvalidDescription(f"{place}: the SQL expression is empty")
                if len(part.expression) > EXPRESSION_LENGTH_MAX:
                    raise InvalidDescription(
                        f"{place}: the SQL expression has {len(part.expression)} characters;"
                        f" {EXPRESSION_LENGTH_MAX} are allowed"
                    )
                _check_properties(place, part.parameters)
            elif isinstance(part, CorrelationFilter):
                _check_properties(place, part.properties)
                if part == CorrelationFilter():
                    raise InvalidDescription(f"{place}: a correlation filter needs at least one property to compare")
        return replace(
            self,
            topic=check_path(self.topic, "topic"),
            subscription=check_name(self.subscription, "subscription"),
            name=check_name(self.name, "rule"),
        )


def _check_properties(place: str, properties: Properties) -> None:
    if len(properties) > PROPERTIES_MAX:
        raise InvalidDescription(f"{place}: {len(properties)} properties; {PROPERTIES_MAX} are allowed")
    for name, typed in properties.items():
        if not name:
            raise InvalidDescription(f"{place}: a property has no name")
        try:
            _ = typed.value
        except ValueError as error:
            raise InvalidDescription(f"{place}: property {name!r}: {error}") from None


def _part_to_json(part: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"type": type(part).__name__}
    for each in fields(part):
        value = getattr(part, each.name)
        values[each.name] = {n: [t.type, t.text] for n, t in value.items()} if isinstance(value, dict) else value
    return values


def _part_from_json(values: dict[str, Any], kinds: dict[str, Any]) -> Any:
    kind = kinds[values["type"]]
    return kind(
        **{
            name: {n: TypedValue(*pair) for n, pair in value.items()} if isinstance(value, dict) else value
            for name, value in known_values(kind, values).items()
        }
    )
