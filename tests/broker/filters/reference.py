"""A plain evaluator of filter trees, written apart from the compiler, and random trees with their texts.

A tree is a tuple: its name, then its parts. `render` writes it as text with no more parentheses than precedence
needs, so that the parser's precedence is tested too. `Failed` is the evaluation error.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from pairbus.amqp.types import (
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Long,
    Symbol,
    Timestamp,
    UByte,
    ULong,
)

Tree = tuple[Any, ...]


class Failed(Exception):
    """Overflow, or division by zero."""


# ── evaluation ──


def group(value: Any) -> str:
    """Give the group of values that compare with each other; empty for values that compare with nothing."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, Timestamp):
        return "time"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, Decimal):
        return ""
    for kind, name in ((str, "string"), (timedelta, "span"), (UUID, "guid"), (bytes, "bytes")):
        if isinstance(value, kind):
            return name
    return ""


def walk(tree: Tree, user: dict[str, Any], system: dict[str, Any]) -> Any:  # noqa: PLR0911 - one return for each case
    """Evaluate a tree: a value, or True, False, or None for unknown."""
    name, *parts = tree
    if name == "literal":
        return parts[0]
    if name == "user":
        return user.get(parts[0].lower())
    if name == "system":
        return system[parts[0].lower()]
    if name == "exists":
        return parts[0].lower() in user
    if name in ("and", "or"):
        return walk_logic(name == "or", parts, user, system)
    if name == "in":
        value = walk(parts[0], user, system)
        if value is None:
            return None
        return any(compare("=", value, walk(item, user, system)) is True for item in parts[1])
    values = [walk(part, user, system) for part in parts if isinstance(part, tuple)]
    if name == "null":
        return values[0] is None
    if name == "not":
        return None if values[0] is None else values[0] is False
    if name == "like":
        return matches(values[0], values[1], parts[2])
    if name == "sign":
        return sign(parts[0], values[0])
    if name == "compare":
        return compare(parts[0], *values)
    return compute(parts[0], *values)


def walk_logic(decisive: bool, parts: list[Tree], user: dict[str, Any], system: dict[str, Any]) -> bool | None:
    left: bool | None = walk(parts[0], user, system)
    if left == decisive:
        return decisive
    right: bool | None = walk(parts[1], user, system)
    if right == decisive:
        return decisive
    return None if left is None or right is None else not decisive


def compare(operator: str, left: Any, right: Any) -> bool | None:
    """Compare two values; None when they do not compare."""
    kind = group(left)
    if not kind or kind != group(right):
        return None
    if kind == "number" and (isinstance(left, float) or isinstance(right, float)):
        left, right = float(left), float(right)
    if operator in ("=", "<>", "!="):
        same = bool(left == right)
        return same if operator == "=" else not same
    if kind in ("bool", "guid", "bytes"):
        return None
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator])


def matches(value: Any, pattern: Any, escape: str | None) -> bool | None:
    if not isinstance(value, str) or not isinstance(pattern, str):
        return None
    parts, at = [], 0
    while at < len(pattern):
        if pattern[at] == escape:
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(pattern[at], re.escape(pattern[at])))
        at += 1
    return re.fullmatch("".join(parts), value, re.DOTALL) is not None


def sign(operator: str, value: Any) -> Any:
    if group(value) not in ("number", "span"):
        return None
    if operator == "+":
        return value
    return bounded(-int(value), False) if isinstance(value, int) else -value


def bounded(value: int, unsigned: bool) -> int:
    if not -(1 << 63) <= value < (1 << (64 if unsigned else 63)):
        raise Failed
    return ULong(value) if value >= 1 << 63 else value


def text(value: Any) -> str:
    if isinstance(value, float):
        whole = math.isfinite(value) and abs(value) < 1e15 and value == math.trunc(value)
        return str(math.trunc(value)) if whole else repr(float(value))
    return str(value)


def compute(operator: str, left: Any, right: Any) -> Any:  # noqa: PLR0911 - one return for each case
    pair = (group(left), group(right))
    if pair == ("number", "number"):
        if isinstance(left, float) or isinstance(right, float):
            return compute_reals(operator, float(left), float(right))
        return compute_integers(operator, int(left), int(right), isinstance(left, ULong) or isinstance(right, ULong))
    if operator == "+" and "string" in pair and set(pair) <= {"string", "number", "bool", "guid"}:
        return text(left) + text(right)
    millisecond = timedelta(milliseconds=1)
    if operator == "-" and pair == ("time", "time"):
        return (int(left) - int(right)) * millisecond
    if operator in ("+", "-") and pair == ("time", "span"):
        return Timestamp(int(left) + (right // millisecond) * (1 if operator == "+" else -1))
    if operator == "+" and pair == ("span", "time"):
        return Timestamp(int(right) + left // millisecond)
    if operator in ("+", "-") and pair == ("span", "span"):
        return left + right if operator == "+" else left - right
    return None


def compute_integers(operator: str, left: int, right: int, unsigned: bool) -> int:
    if operator in "+-*":
        return bounded({"+": left + right, "-": left - right, "*": left * right}[operator], unsigned)
    if right == 0:
        raise Failed
    quotient = math.trunc(Fraction(left, right))
    return bounded(quotient if operator == "/" else left - quotient * right, unsigned)


def compute_reals(operator: str, left: float, right: float) -> float:
    if operator in "+-*":
        return {"+": left + right, "-": left - right, "*": left * right}[operator]
    if operator == "%":
        return math.fmod(left, right) if right != 0 and not math.isinf(left) else math.nan
    if right == 0:
        if left == 0 or math.isnan(left):
            return math.nan
        return math.inf if (math.copysign(1, left) > 0) == (math.copysign(1, right) > 0) else -math.inf
    return left / right


# ── texts ──

LEVELS = {"or": 1, "and": 2, "not": 3, "compare": 4, "in": 4, "like": 4, "null": 4, "sum": 5, "product": 6, "sign": 7}


def level(tree: Tree) -> int:
    if tree[0] == "compute":
        return LEVELS["sum" if tree[1] in "+-" else "product"]
    return LEVELS.get(tree[0], 9)


def inner(tree: Tree, lowest: int) -> str:
    """Write a part of a tree, in parentheses if it binds looser than `lowest`."""
    return render(tree) if level(tree) >= lowest else f"({render(tree)})"


def render(tree: Tree) -> str:  # noqa: PLR0911 - one return for each case
    name, *parts = tree
    if name == "literal":
        return literal(parts[0])
    if name == "user":
        return str(parts[0])
    if name == "system":
        return f"sys.{parts[0]}"
    if name == "exists":
        return f"EXISTS({parts[0]})"
    if name in ("and", "or"):
        return f"{inner(parts[0], level(tree))} {name} {inner(parts[1], level(tree) + 1)}"
    if name == "not":
        return f"NOT {inner(parts[0], 3)}"
    if name == "null":
        return f"{render(parts[0])} IS NULL"
    if name == "in":
        return f"{inner(parts[0], 5)} IN ({', '.join(render(item) for item in parts[1])})"
    if name == "like":
        escape = f" ESCAPE '{parts[2]}'" if parts[2] else ""
        return f"{inner(parts[0], 5)} LIKE {inner(parts[1], 5)}{escape}"
    if name == "sign":
        return f"{parts[0]} {inner(parts[1], 7)}"
    lowest = level(tree)
    return f"{inner(parts[1], 5 if name == 'compare' else lowest)} {parts[0]} {inner(parts[2], lowest + 1)}"


def literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "false"}[value]
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


# ── random trees and messages ──

LETTERS = st.text(alphabet="ab%_'", max_size=5)
GUIDS = st.sampled_from([UUID(int=1), UUID(int=2)])
TICKS = st.integers(-50, 50).map(lambda v: v * 10_000)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.sampled_from([Byte(-1), UByte(2), ULong(2**64 - 1), Long(2**53 + 1), Long(-(2**63))]),
    st.floats(),
    st.floats(width=32).map(Float),
    LETTERS,
    st.sampled_from([Symbol("ab"), Char("a")]),
    GUIDS,
    st.sampled_from([b"", b"ab", Decimal(b"\0\0\0\1"), [1], {"a": 1}, Described(Symbol("other"), 1)]),
    st.integers(-5, 5).map(Timestamp),
    TICKS.map(lambda v: Described(Symbol("com.microsoft:timespan"), Long(v))),
)
NAMES = st.sampled_from(["alpha", "Beta", "GAMMA", "delta"])
MESSAGES = st.dictionaries(NAMES, VALUES)
PROPERTIES = st.one_of(
    st.tuples(st.just("user"), st.sampled_from(["alpha", "beta", "Gamma", "DELTA", "missing"])),
    st.tuples(st.just("system"), st.sampled_from(["Label", "sessionid", "SequenceNumber"])),
)
LITERALS = st.tuples(
    st.just("literal"),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(0, 3),
        st.integers(0, 2**63 - 1),
        st.floats(0, allow_infinity=False, allow_nan=False),
        LETTERS,
    ),
)


def values(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.just("compute"), st.sampled_from("+-*/%"), children, children),
        st.tuples(st.just("sign"), st.sampled_from("+-"), children),
    )


EXPRESSIONS: st.SearchStrategy[Tree] = st.recursive(PROPERTIES | LITERALS, values, max_leaves=4)
PATTERNS = st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!", "!a"]), max_size=6).map("".join)
CONDITIONS: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(
        st.tuples(
            st.just("compare"), st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]), EXPRESSIONS, EXPRESSIONS
        ),
        st.tuples(st.just("in"), EXPRESSIONS, st.lists(EXPRESSIONS, min_size=1, max_size=4)),
        st.tuples(st.just("in"), PROPERTIES, st.lists(LITERALS, min_size=1, max_size=4)),
        st.tuples(st.just("like"), EXPRESSIONS, st.tuples(st.just("literal"), PATTERNS), st.just("!")),
        st.tuples(st.just("like"), PROPERTIES, EXPRESSIONS, st.none()),
        st.tuples(st.just("null"), PROPERTIES),
        st.tuples(st.just("exists"), NAMES),
    ),
    lambda children: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), children, children), st.tuples(st.just("not"), children)
    ),
    max_leaves=6,
)
