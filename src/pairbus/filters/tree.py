"""The syntax tree of filters and actions. Every node knows the column at which it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    column: int


# ── values ──


@dataclass(frozen=True, slots=True)
class Literal(Node):
    value: Any
    "None is NULL. Parameters become literals when the text is parsed."


@dataclass(frozen=True, slots=True)
class Property(Node):
    name: str
    is_system: bool = False


@dataclass(frozen=True, slots=True)
class PropertyOf(Node):
    """property(name): an application property whose name is computed."""

    name: Node


@dataclass(frozen=True, slots=True)
class NewId(Node):
    pass


@dataclass(frozen=True, slots=True)
class Sign(Node):
    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Arithmetic(Node):
    """Operations of equal precedence from left to right. One node for a whole chain keeps the tree flat."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


# ── conditions ──


@dataclass(frozen=True, slots=True)
class Condition(Node):
    pass


@dataclass(frozen=True, slots=True)
class Compare(Condition):
    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class In(Condition):
    operand: Node
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like(Condition):
    operand: Node
    pattern: Node
    escape: Node | None


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    operand: Node


@dataclass(frozen=True, slots=True)
class Exists(Condition):
    operand: Property


@dataclass(frozen=True, slots=True)
class Not(Condition):
    operand: Node


@dataclass(frozen=True, slots=True)
class And(Condition):
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Condition):
    operands: tuple[Node, ...]


# ── statements of an action ──


@dataclass(frozen=True, slots=True)
class Set(Node):
    target: Property
    value: Node


@dataclass(frozen=True, slots=True)
class Remove(Node):
    target: Property
