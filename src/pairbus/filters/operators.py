"""The operators of filters on values: the kinds of values that they take, and their results.

None is *unknown*: a property that is missing or null. An operator with an unknown operand, or with operands that it
does not take, gives unknown. Numbers are promoted as in C#: integers are computed in 64 bits, an integer that meets a
double becomes one. Overflow of integers and of times, and integer division by zero, are errors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from pairbus.amqp.types import (
    Byte,
    Char,
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

STRING_LENGTH_MAX = 32_768  # of a string that + makes: a property has at most 32 KB on Azure
INTEGER_MIN, INTEGER_MAX, UNSIGNED_MAX = -(2**63), 2**63 - 1, 2**64 - 1

BOOL, INTEGER, REAL, STRING, TIME, SPAN, GUID, BYTES = (
    "bool",
    "integer",
    "real",
    "string",
    "time",
    "span",
    "guid",
    "bytes",
)
KINDS: dict[type, str] = {
    bool: BOOL,
    **dict.fromkeys((int, Byte, Short, Int, Long, UByte, UShort, UInt, ULong), INTEGER),
    **dict.fromkeys((float, Float), REAL),
    **dict.fromkeys((str, Symbol, Char), STRING),
    Timestamp: TIME,
    timedelta: SPAN,
    UUID: GUID,
    bytes: BYTES,
}
"Kind of each type; lists, maps, decimals and described values have none, and are unknown to every operator."
_kind_of = KINDS.get

# ── comparison ──

_ORDERED = frozenset({INTEGER, REAL, STRING, TIME, SPAN})
_NUMBERS = frozenset({INTEGER, REAL})

Comparison = Callable[[Any, Any], bool | None]


def _comparison(test: Callable[[Any, Any], bool], is_order: bool) -> Comparison:
    def compare(left: Any, right: Any) -> bool | None:
        kind = _kind_of(type(left))
        other = _kind_of(type(right))
        if kind != other:
            return test(float(left), float(right)) if kind in _NUMBERS and other in _NUMBERS else None
        if kind is None or (is_order and kind not in _ORDERED):
            return None
        return test(left, right)

    return compare


TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
COMPARISONS = {name: _comparison(test, name not in ("=", "<>")) for name, test in TESTS.items()}
equal = COMPARISONS["="]

# ── arithmetic ──

OperatorFunction = Callable[[Any, Any], Any]


def _integers(name: str, compute: Callable[[int, int], int]) -> OperatorFunction:
    def apply(left: Any, right: Any) -> int:
        result = compute(int(left), int(right))
        highest = UNSIGNED_MAX if type(left) is ULong or type(right) is ULong else INTEGER_MAX
        if not INTEGER_MIN <= result <= highest:
            raise FilterEvaluationError(f"overflow: {left} {name} {right} does not fit into 64 bits")
        return ULong(result) if result > INTEGER_MAX else result

    return apply


def _divide(left: int, right: int) -> int:
    """Divide towards zero, as C# does."""
    if not right:
        raise FilterEvaluationError(f"division by zero: {left} / 0")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    if not right:
        raise FilterEvaluationError(f"division by zero: {left} % 0")
    return left - right * _divide(left, right)


def _real_divide(left: float, right: float) -> float:
    """Divide as IEEE 754 says: doubles have infinity and NaN, and no error."""
    if right:
        return left / right
    if not left or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _real_remainder(left: float, right: float) -> float:
    return math.nan if not right or math.isinf(left) else math.fmod(left, right)


def _reals(compute: Callable[[float, float], float]) -> OperatorFunction:
    return lambda left, right: compute(float(left), float(right))


def _times(compute: OperatorFunction) -> OperatorFunction:
    def apply(left: Any, right: Any) -> Any:
        try:
            result = compute(left, right)
        except OverflowError as error:
            raise FilterEvaluationError("overflow: a date or duration is out of its range") from error
        if type(result) is Timestamp and not INTEGER_MIN <= result <= INTEGER_MAX:
            raise FilterEvaluationError("overflow: a date is out of its range")
        return result

    return apply


_MILLISECOND = timedelta(milliseconds=1)


def _concatenate(left: Any, right: Any) -> str:
    result = as_text(left) + as_text(right)
    if len(result) > STRING_LENGTH_MAX:
        raise FilterEvaluationError(f"a string of {len(result)} characters; {STRING_LENGTH_MAX} are allowed")
    return result


def as_text(value: Any) -> str:
    """Return the text of a string, number, boolean or GUID, as C# writes it."""
    if isinstance(value, float):
        return str(int(value)) if abs(value) < 1e15 and value == int(value) else float.__repr__(value)
    return str(value) if not isinstance(value, int) or type(value) is bool else int.__repr__(value)


def _numbers(name: str, integers: Callable[[int, int], int], reals: Callable[[float, float], float]) -> Any:
    """Return the rows of an operator for the four pairs of integer and real."""
    real = _reals(reals)
    return {
        (INTEGER, INTEGER): _integers(name, integers),
        (INTEGER, REAL): real,
        (REAL, INTEGER): real,
        (REAL, REAL): real,
    }


_TEXTUAL = (STRING, INTEGER, REAL, BOOL, GUID)
_OPERATIONS: dict[str, dict[tuple[str, str], OperatorFunction]] = {
    "+": {
        **_numbers("+", operator.add, operator.add),
        **dict.fromkeys([(STRING, other) for other in _TEXTUAL], _concatenate),
        **dict.fromkeys([(other, STRING) for other in _TEXTUAL], _concatenate),
        (TIME, SPAN): _times(lambda time, span: Timestamp(int(time) + span // _MILLISECOND)),
        (SPAN, TIME): _times(lambda span, time: Timestamp(int(time) + span // _MILLISECOND)),
        (SPAN, SPAN): _times(operator.add),
    },
    "-": {
        **_numbers("-", operator.sub, operator.sub),
        (TIME, TIME): _times(lambda left, right: (int(left) - int(right)) * _MILLISECOND),
        (TIME, SPAN): _times(lambda time, span: Timestamp(int(time) - span // _MILLISECOND)),
        (SPAN, SPAN): _times(operator.sub),
    },
    "*": _numbers("*", operator.mul, operator.mul),
    "/": _numbers("/", _divide, _real_divide),
    "%": _numbers("%", _remainder, _real_remainder),
}


def _operation(rows: dict[tuple[str, str], OperatorFunction]) -> OperatorFunction:
    def apply(left: Any, right: Any) -> Any:
        row = rows.get((_kind_of(type(left)), _kind_of(type(right))))  # type: ignore[arg-type]
        return None if row is None else row(left, right)

    return apply


OPERATIONS = {name: _operation(rows) for name, rows in _OPERATIONS.items()}


def negated(value: Any) -> Any:
    """Compute unary minus."""
    kind = _kind_of(type(value))
    if kind == INTEGER:
        return OPERATIONS["-"](0, value)
    if kind == SPAN:
        return OPERATIONS["-"](timedelta(0), value)
    return -value if kind == REAL else None


def unchanged(value: Any) -> Any:
    """Compute unary plus, which only numbers and durations have."""
    return value if _kind_of(type(value)) in (INTEGER, REAL, SPAN) else None
