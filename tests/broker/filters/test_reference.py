"""Compiled filters against the plain evaluator of `reference`, on random filters and messages."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pairbus.amqp.types import Long
from pairbus.filters import (
    FilterEvaluationError,
    FilterSyntaxError,
    SqlAction,
    SqlFilter,
    compile_action,
    compile_filter,
)
from pairbus.filters.view import comparable
from tests.broker.filters.reference import CONDITIONS, MESSAGES, Failed, Tree, render, walk
from tests.broker.filters.world import view_of


@settings(max_examples=300, deadline=None)
@given(tree=CONDITIONS, user=MESSAGES, label=st.none() | st.sampled_from(["a", "ab", "%"]))
def test_compiled_filter_agrees_with_reference_evaluator(tree: Tree, user: dict[str, Any], label: str | None) -> None:
    """Text, precedence, types, unknown values and errors: all of it, for any filter and message."""
    expression = render(tree)
    assume(len(expression) <= 1024)
    view = view_of(user, subject=label, known={"seq": 7})
    folded = {name.lower(): comparable(value) for name, value in user.items()}
    try:
        expected: Any = walk(tree, folded, {"label": label, "sessionid": None, "sequencenumber": Long(7)})
    except Failed:
        expected = FilterEvaluationError
    found: Any
    try:
        found = compile_filter(SqlFilter(expression))(view)
    except FilterEvaluationError:
        found = FilterEvaluationError
    assert found is expected, expression


WORDS = st.sampled_from(
    ["a", "sys.Label", "user.b", "[c]", "[d", '"e"', "'x'", "''", "1", "2.5", "1E5", "@p", "@", "AND", "OR", "NOT",
     "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "(", ")", ",", ";", ".", "=", "<>", "!=", "<", ">=",
     "+", "-", "*", "/", "%", "newid()", "p(", "SET", "REMOVE", "[", "'", '"', "9223372036854775808", "_", "#",
     "\ud800", "\x00"]
)  # fmt: skip
NOISE = st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: raw.decode("latin-1"))


@settings(max_examples=300, deadline=None)
@given(text=NOISE | st.lists(WORDS, max_size=25).map(" ".join) | st.lists(WORDS, max_size=25).map("".join))
def test_any_text_compiles_or_names_a_column(text: str) -> None:
    """Administrators get an answer to every text, and never an internal error."""
    for make in (lambda: compile_filter(SqlFilter(text, {"@p": 1})), lambda: compile_action(SqlAction(text, {"p": 1}))):
        try:
            make()
        except FilterSyntaxError as error:
            assert 1 <= error.column <= len(text) + 1
            assert str(error).startswith(f"column {error.column}: ")
