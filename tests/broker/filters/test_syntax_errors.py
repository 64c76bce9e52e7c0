"""Texts that are not filters or actions: the error names the column and what was expected there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pairbus.amqp.types import Int
from pairbus.errors import InvalidDescription
from pairbus.filters import (
    CorrelationFilter,
    FilterSyntaxError,
    SqlAction,
    SqlFilter,
    compile_action,
    compile_filter,
)
from tests.broker.filters.world import evaluate, view_of

FILTERS = [
    ("", 1, "expected an operand, but the text is empty"),
    ("   ", 4, "expected an operand, but the text is empty"),
    ("color = 'a' AND )", 17, "expected an operand after AND, found ')'"),
    ("AND a = 1", 1, "expected an operand, found 'AND'"),
    ("a =", 4, "expected an operand after '=', found the end of the text"),
    ("a = = 1", 5, "expected an operand after '=', found '='"),
    ("a = 1 b = 2", 7, "expected AND, OR or the end of the text after '1', found 'b'"),
    ("a = b = c", 7, "expected AND, OR or the end of the text after 'b', found '='"),
    ("flag", 5, "expected a comparison such as '=' after 'flag', found the end of the text"),
    ("a = 1 AND flag", 15, "expected a comparison"),
    ("flag OR a = 1", 6, "expected a comparison such as '=' after 'flag', found 'OR'"),
    ("NOT flag", 9, "expected a comparison"),
    ("(a = 1) + 1 = 2", 2, "expected a value, found a condition"),
    ("a = (b = 1)", 6, "expected a value, found a condition"),
    ("-(a = 1) = 2", 3, "expected a value, found a condition"),
    ("(a = 1", 7, "expected ')' after '1', found the end of the text"),
    ("a = 1)", 6, "expected AND, OR or the end of the text after '1', found ')'"),
    ("a IN ()", 7, "expected an operand after '(', found ')'"),
    ("a IN (1", 8, "expected ',' or ')' after '1'"),
    ("a IN 1", 6, "expected '(' after IN, found '1'"),
    ("a NOT 1", 7, "expected IN or LIKE after NOT, found '1'"),
    ("a LIKE", 7, "expected an operand after LIKE"),
    ("a LIKE 'x!' ESCAPE '!'", 8, "the LIKE pattern ends with its escape character '!'"),
    ("a LIKE 'x' ESCAPE 'ab'", 8, "ESCAPE takes one character, not 'ab'"),
    ("a LIKE 'x' ESCAPE ''", 8, "ESCAPE takes one character, not ''"),
    ("a IS 1", 6, "expected NULL or NOT NULL after IS, found '1'"),
    ("a IS NOT 1", 10, "expected NULL after NOT, found '1'"),
    ("a + 1 IS NULL", 1, "expected a property before IS NULL"),
    ("EXISTS a", 8, "expected '(' after EXISTS, found 'a'"),
    ("EXISTS(1)", 8, "expected a property after '(', found '1'"),
    ("EXISTS(p('a'))", 9, "expected ')' after 'p', found '('"),
    ("nonsense(1) = 2", 1, "unknown function 'nonsense'; known are newid(), property(name) and p(name)"),
    ("newid(1) = 2", 7, "expected ')' after '(', found '1'"),
    ("property() = 2", 10, "expected an operand after '(', found ')'"),
    ("sys. = 1", 6, "expected the name of a property after '.', found '='"),
    ("user.a.b = 1", 7, "expected a comparison such as '=' after 'a', found '.'"),
    ("like = 1", 1, "expected an operand, found 'like'"),
    ("a = 'open", 5, "the \"'\" has no closing \"'\""),
    ("[open = 1", 1, "the '[' has no closing ']'"),
    ("[] = 1", 1, "the name of a property is empty"),
    ("a = #", 5, "unexpected character '#'"),
    ("_a = 1", 1, "unexpected character '_'; names that do not begin with a letter stand in brackets: [_name]"),
    ("a = 12x", 7, "unexpected 'x' in a number"),
    ("a = 9223372036854775808", 5, "the integer 9223372036854775808 is larger than 9223372036854775807"),
    ("a = 1E999", 5, "the number 1E999 is too large"),
    ("a = @", 5, "expected the name of a parameter after '@'"),
    ("a = @missing", 5, "the parameter @missing has no value"),
    ("a = '\ud800'", 6, "half of a surrogate pair is not a character"),
    ("a = 1;", 6, "expected AND, OR or the end of the text after '1', found ';'"),
]  # fmt: skip
ACTIONS = [
    ("", 1, "expected SET or REMOVE, but the text is empty"),
    ("color = 1", 1, "expected SET or REMOVE, found 'color'"),
    ("SET", 4, "expected a property after SET, found the end of the text"),
    ("SET a", 6, "expected '=' after 'a'"),
    ("SET a = ", 9, "expected an operand after '='"),
    ("SET a = b = 1", 11, "expected SET or REMOVE after 'b', found '='"),
    ("SET a = (b = 1)", 10, "expected a value, found a condition"),
    ("SET 1 = 1", 5, "expected a property after SET, found '1'"),
    ("SET a = 1;; SET b = 1", 11, "expected SET or REMOVE after ';', found ';'"),
    ("REMOVE", 7, "expected a property after REMOVE"),
    ("REMOVE a b", 10, "expected SET or REMOVE after 'a', found 'b'"),
    ("SET sys.SequenceNumber = 1", 5, "sys.SequenceNumber cannot be changed; an action may change ContentType,"),
    ("REMOVE sys.Nonsense", 8, "sys.Nonsense cannot be changed"),
    ("REMOVE sys.MessageId", 8, "sys.MessageId cannot be removed: every message has one"),
    ("SET a = 1;" * 33, 321, "an action has at most 32 statements"),
]  # fmt: skip


def make_filter(text: str) -> Any:
    return compile_filter(SqlFilter(text))


def make_action(text: str) -> Any:
    return compile_action(SqlAction(text))


@pytest.mark.parametrize(
    ("make", "text", "column", "problem"),
    [(make_filter, *row) for row in FILTERS] + [(make_action, *row) for row in ACTIONS],
)
def test_error_names_the_column_and_the_expectation(make: Any, text: str, column: int, problem: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        make(text)
    assert str(caught.value).startswith(f"column {column}: {problem}")
    assert caught.value.column == column
    assert isinstance(caught.value, InvalidDescription)


@pytest.mark.parametrize("make", [make_filter, make_action])
def test_texts_of_1024_characters_are_the_longest(make: Any) -> None:
    """The limit of Azure."""
    text = {make_filter: "a = 'x'", make_action: "SET a = 1"}[make]
    make(text.ljust(1024))
    with pytest.raises(FilterSyntaxError, match="column 1025: the text has 1025 characters; 1024 are allowed"):
        make(text.ljust(1025))


@pytest.mark.parametrize(
    ("before", "middle", "after"),
    [("(", "a = 1", ")"), ("NOT ", "a = 1", ""), ("-", "a = 1", ""), ("p(", "a", ") = 1"), ("((-", "a", ")) = 1")],
)
def test_deep_nesting_is_refused_and_never_a_recursion_error(before: str, middle: str, after: str) -> None:
    """Hostile texts fit thousands of levels into the allowed length."""
    count = 1000 // len(before)
    with pytest.raises(FilterSyntaxError, match="nested deeper than 32 levels"):
        make_filter((before * count + middle)[:1024])
    make_filter(before * 8 + middle + after.replace(" = 1", "") * 8 + " = 1" * (" = 1" in after))


def test_long_flat_texts_compile_and_evaluate() -> None:
    """Chains are no nesting, however long."""
    view = view_of({"a": 1})
    assert evaluate("+".join("1" * 500) + "=500", view) is True
    assert evaluate("*".join("1" * 500) + "=a", view) is True
    assert evaluate(" OR ".join(["a=2"] * 140 + ["a=1"]), view) is True
    assert evaluate(" AND ".join(["a=1"] * 125), view) is True
    assert evaluate(f"a IN ({','.join('2' * 500)},1)", view) is True


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([1], "type list is not supported"),
        (2**63, "the value of '@p' is out of the range of its type"),
        (Int(2**31), "the value of '@p' is out of the range of its type"),
        (timedelta.max, "the value of '@p' is out of the range of its type"),
        ("\ud800", "the value of '@p' is out of the range of its type"),
        ("x" * 40_000, "the value of '@p' has 40005 bytes; 32768 are allowed"),
    ],
    ids=["list", "long", "int", "duration", "surrogate", "size"],
)
def test_value_that_no_message_can_hold_is_refused(value: Any, problem: str) -> None:
    """An action could not store it, and comparing it could fail."""
    with pytest.raises(InvalidDescription, match=problem):
        compile_filter(SqlFilter("a = @p", {"@p": value}))
    with pytest.raises(InvalidDescription, match=problem.replace("@p", "a")):
        compile_filter(CorrelationFilter(properties={"a": value}))
