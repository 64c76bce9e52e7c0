"""A rule of a subscription: a filter and, where a copy is to be changed, an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pairbus.broker.description.common import check_name, check_path, dump, known_values
from pairbus.errors import InvalidDescription
from pairbus.filters import (
    CorrelationFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
    action_from_json,
    action_to_json,
    compile_action,
    compile_filter,
    filter_from_json,
    filter_to_json,
)

DEFAULT_RULE = "$Default"
EXPRESSION_LENGTH_MAX = 1024
PROPERTIES_MAX = 256  # parameters of an expression, or properties of a correlation filter


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
        return dump(
            self,
            filter=filter_to_json(self.filter),
            action=None if self.action is None else action_to_json(self.action),
        )

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> RuleDescription:
        """Read the durable form."""
        action = values.get("action")
        parts = {
            "filter": filter_from_json(values["filter"]),
            "action": None if action is None else action_from_json(action),
        }
        return cls(**{**known_values(cls, values), **parts})

    def checked(self) -> RuleDescription:
        """Return the description with normal names, or raise InvalidDescription. Expressions are compiled to check
        them."""
        self._check_part("filter", self.filter)
        if self.action is not None:
            self._check_part("action", self.action)
        return replace(
            self,
            topic=check_path(self.topic, "topic"),
            subscription=check_name(self.subscription, "subscription"),
            name=check_name(self.name, "rule"),
        )

    def _check_part(self, what: str, part: Filter | SqlAction) -> None:
        place = f"{what} of rule {self.name!r}"
        values: Mapping[str, Value] = {}
        if isinstance(part, SqlFilter | SqlAction):
            length, values = len(part.expression), part.parameters
            if not part.expression.strip():
                raise InvalidDescription(f"{place}: the SQL expression is empty")
            if length > EXPRESSION_LENGTH_MAX:
                raise InvalidDescription(
                    f"{place}: the SQL expression has {length} characters; {EXPRESSION_LENGTH_MAX} are allowed"
                )
        elif isinstance(part, CorrelationFilter):
            values = part.properties
            if part == CorrelationFilter():
                raise InvalidDescription(f"{place}: a correlation filter needs at least one property to compare")
        if len(values) > PROPERTIES_MAX:
            raise InvalidDescription(f"{place}: {len(values)} properties; {PROPERTIES_MAX} are allowed")
        if "" in values:
            raise InvalidDescription(f"{place}: a property has no name")
        try:
            if isinstance(part, SqlAction):
                compile_action(part)
            else:
                compile_filter(part)
        except InvalidDescription as error:
            raise InvalidDescription(f"{place}: {error}") from None
