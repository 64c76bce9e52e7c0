"""Syntax trees → nested functions of a message, built once when a rule is created.

A compiled condition gives True, False or None (unknown); only True selects. AND stops at the first False, OR at the
first True, from left to right. The comparison of an application property with a constant, of which most filters
are made, is one function without calls of other compiled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from pairbus.filters.errors import FilterEvaluationError, FilterSyntaxError
from pairbus.filters.like import PatternError, like
from pairbus.filters.operators import (
    COMPARISONS,
    INTEGER,
    KINDS,
    OPERATIONS,
    STRING,
    TESTS,
    equal,
    negated,
    unchanged,
)
from pairbus.filters.tree import (
    And,
    Arithmetic,
    Compare,
    Exists,
    FilterNode,
    In,
    IsNull,
    Like,
    Literal,
    NewId,
    Not,
    Or,
    Property,
    PropertyOf,
    Sign,
)
from pairbus.filters.view import SYSTEM, MessageView

Evaluate = Callable[[MessageView], Any]
Test = Callable[[MessageView], bool | None]

_SIGNS = {"+": unchanged, "-": negated}
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compiled(node: FilterNode) -> Evaluate:
    """Compile a value or a condition."""
    return _COMPILERS[type(node)](node)


# ── values ──


def _literal(node: Literal) -> Evaluate:
    value = node.value
    return lambda view: value


def _property(node: Property) -> Evaluate:
    if node.is_system:
        return _system(node)
    name = node.name.lower()

    def read(view: MessageView) -> Any:
        user = view.user
        if user is None:
            user = view.load_user()
        return user.get(name)

    return read


def _system(node: Property) -> Evaluate:
    read = SYSTEM.get(node.name.lower())
    if read is not None:
        return read

    def fail(view: MessageView) -> Any:
        raise FilterEvaluationError(f"the system property sys.{node.name} does not exist")

    return fail


def _property_of(node: PropertyOf) -> Evaluate:
    name_of = compiled(node.name)

    def read(view: MessageView) -> Any:
        name = name_of(view)
        return view.load_user().get(name.lower()) if isinstance(name, str) else None

    return read


def _new_id(node: NewId) -> Evaluate:
    return lambda view: uuid4()


def _sign(node: Sign) -> Evaluate:
    folded = _folded(node)
    if isinstance(folded, Literal):
        return _literal(folded)
    operand, change = compiled(node.operand), _SIGNS[node.operator]
    return lambda view: change(operand(view))


def _arithmetic(node: Arithmetic) -> Evaluate:
    first = compiled(node.first)
    rest = [(OPERATIONS[name], compiled(operand)) for name, operand in node.rest]

    def compute(view: MessageView) -> Any:
        value = first(view)
        for operation, operand in rest:
            value = operation(value, operand(view))
        return value

    return compute


# ── conditions ──


def _compare(node: Compare) -> Test:
    left, right, name = _folded(node.left), _folded(node.right), node.operator
    if isinstance(left, Literal):
        left, right, name = right, left, _FLIPPED[name]
    if isinstance(right, Literal):
        if isinstance(left, Literal):
            result = COMPARISONS[name](left.value, right.value)
            return lambda view: result
        if isinstance(left, Property) and not left.is_system:
            return _compare_with_constant(left.name.lower(), name, right.value)
    compare, read_left, read_right = COMPARISONS[name], compiled(left), compiled(right)
    return lambda view: compare(read_left(view), read_right(view))


def route_of(node: FilterNode) -> tuple[str, str] | None:
    """Return (property, text) of a condition that is false at once where the property is another text; else None.

    Conditions are evaluated from left to right, so only the first one of an AND decides before the others are seen.
    """
    first = node.operands[0] if isinstance(node, And) else node
    if not isinstance(first, Compare) or first.operator != "=":
        return None
    left, right = first.left, first.right
    if isinstance(left, Literal):
        left, right = right, left
    if isinstance(left, Property) and not left.is_system and isinstance(right, Literal) and type(right.value) is str:
        return left.name.lower(), right.value
    return None


def _folded(node: FilterNode) -> FilterNode:
    """Return a signed number as a literal, unless that is an error: errors belong to the evaluation."""
    if isinstance(node, Sign) and isinstance(node.operand, Literal):
        try:
            return Literal(node.column, _SIGNS[node.operator](node.operand.value))
        except FilterEvaluationError:
            return node
    return node


def _compare_with_constant(name: str, operator: str, constant: Any) -> Test:
    """Return the test that compares values of the constant's own kind at once, and all others in the general way."""
    compare, test, kind = COMPARISONS[operator], TESTS[operator], KINDS.get(type(constant))
    direct: frozenset[type] = frozenset()
    if kind in (STRING, INTEGER):
        direct = frozenset(python for python, other in KINDS.items() if other == kind)

    def check(view: MessageView) -> bool | None:
        user = view.user
        if user is None:
            user = view.load_user()
        value = user.get(name)
        if type(value) in direct:
            return test(value, constant)
        return compare(value, constant)

    return check


def _in(node: In) -> Test:
    operand, items = compiled(node.operand), [_folded(item) for item in node.items]
    literals = [item.value for item in items if isinstance(item, Literal)]
    if len(literals) != len(items):
        return _in_computed(operand, [compiled(item) for item in items])
    texts = frozenset(value for value in literals if isinstance(value, str))
    others = [value for value in literals if not isinstance(value, str)]

    def check(view: MessageView) -> bool | None:
        value = operand(view)
        if isinstance(value, str):
            return value in texts
        if value is None:
            return None
        return any(equal(value, other) for other in others)

    return check


def _in_computed(operand: Evaluate, items: list[Evaluate]) -> Test:
    def check(view: MessageView) -> bool | None:
        value = operand(view)
        return None if value is None else any(equal(value, item(view)) for item in items)

    return check


def _like(node: Like) -> Test:
    operand = compiled(node.operand)
    pattern, escape = node.pattern, node.escape or Literal(node.column, "")
    if not (isinstance(pattern, Literal) and isinstance(escape, Literal)):
        return _like_computed(operand, compiled(pattern), None if node.escape is None else compiled(escape))
    if not isinstance(pattern.value, str) or not isinstance(escape.value, str):
        return lambda view: None
    try:
        match = like(pattern.value, None if node.escape is None else escape.value)
    except PatternError as error:
        raise FilterSyntaxError(pattern.column, str(error)) from error

    def check(view: MessageView) -> bool | None:
        value = operand(view)
        return match(value) if isinstance(value, str) else None

    return check


def _like_computed(operand: Evaluate, pattern: Evaluate, escape: Evaluate | None) -> Test:
    def check(view: MessageView) -> bool | None:
        value, wanted = operand(view), pattern(view)
        escaping = escape(view) if escape is not None else ""
        if not (isinstance(value, str) and isinstance(wanted, str) and isinstance(escaping, str)):
            return None
        try:
            return like(wanted, None if escape is None else escaping)(value)
        except PatternError as error:
            raise FilterEvaluationError(str(error)) from error

    return check


def _is_null(node: IsNull) -> Test:
    operand = compiled(node.operand)
    return lambda view: operand(view) is None


def _exists(node: Exists) -> Test:
    if node.operand.is_system:
        read = _system(node.operand)
        return lambda view: read(view) is not None
    name = node.operand.name.lower()
    return lambda view: name in view.load_user()


def _not(node: Not) -> Test:
    operand = compiled(node.operand)

    def check(view: MessageView) -> bool | None:
        value = operand(view)
        return None if value is None else not value

    return check


def _and(node: And) -> Test:
    return _until(False, [compiled(operand) for operand in node.operands])


def _or(node: Or) -> Test:
    return _until(True, [compiled(operand) for operand in node.operands])


def _until(decisive: bool, operands: list[Test]) -> Test:
    """Return the test that gives `decisive` as soon as one operand does, else unknown if one was, else the opposite."""

    def check(view: MessageView) -> bool | None:
        result: bool | None = not decisive
        for operand in operands:
            value = operand(view)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return check


_COMPILERS: dict[type[FilterNode], Callable[[Any], Evaluate]] = {
    Literal: _literal,
    Property: _property,
    PropertyOf: _property_of,
    NewId: _new_id,
    Sign: _sign,
    Arithmetic: _arithmetic,
    Compare: _compare,
    In: _in,
    Like: _like,
    IsNull: _is_null,
    Exists: _exists,
    Not: _not,
    And: _and,
    Or: _or,
}
