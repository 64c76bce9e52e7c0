"""The syntax tree of filters and actions. Every node knows the column at which it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FilterNode:
    column: int


# ── values ──


@dataclass(frozen=True, slots=True)
class Literal(FilterNode):
    value: Any
    "Value of the literal; None is NULL. Parameters become literals when the text is parsed."


@dataclass(frozen=True, slots=True)
class Property(FilterNode):
    name: str
    is_system: bool = False


@dataclass(frozen=True, slots=True)
class PropertyOf(FilterNode):
    """property(name): an application property whose name is computed."""

    name: FilterNode


@dataclass(frozen=True, slots=True)
class NewId(FilterNode):
    pass


@dataclass(frozen=True, slots=True)
class Sign(FilterNode):
    operator: str
    operand: FilterNode


@dataclass(frozen=True, slots=True)
class Arithmetic(FilterNode):
    """Operations of equal precedence from left to right. One node for a whole chain keeps the tree flat."""

    first: FilterNode
    rest: tuple[tuple[str, FilterNode], ...]


# ── conditions ──


@dataclass(frozen=True, slots=True)
class Condition(FilterNode):
    pass


@dataclass(frozen=True, slots=True)
class Compare(Condition):
    operator: str
    left: FilterNode
    right: FilterNode


@dataclass(frozen=True, slots=True)
class In(Condition):
    operand: FilterNode
    items: tuple[FilterNode, ...]


@dataclass(frozen=True, slots=True)
class Like(Condition):
    operand: FilterNode
    pattern: FilterNode
    escape: FilterNode | None


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    operand: FilterNode


@dataclass(frozen=True, slots=True)
class Exists(Condition):
    operand: Property


@dataclass(frozen=True, slots=True)
class Not(Condition):
    operand: FilterNode


@dataclass(frozen=True, slots=True)
class And(Condition):
    operands: tuple[FilterNode, ...]


@dataclass(frozen=True, slots=True)
class Or(Condition):
    operands: tuple[FilterNode, ...]


# ── statements of an action ──


@dataclass(frozen=True, slots=True)
class Set(FilterNode):
    target: Property
    value: FilterNode


@dataclass(frozen=True, slots=True)
class Remove(FilterNode):
    target: Property
