"""LIKE patterns."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.filters.errors import FilterEvaluationError
from pairbus.filters.like import PatternError, like
from tests.broker.filters.reference import PATTERNS, matches

CASES = [
    ("", "", True),
    ("", "a", False),
    ("%", "", True),
    ("%%", "anything", True),
    ("a%", "a", True),
    ("%a", "ba", True),
    ("%a%", "bab", True),
    ("a%a", "a", False),
    ("a%a", "aa", True),
    ("_", "", False),
    ("_", "a", True),
    ("_", "ab", False),
    ("%_", "", False),
    ("_%", "a", True),
    ("a_c%e", "abcde", True),
    ("a_c%e", "abcd", False),
    ("a.c", "abc", False),
    ("%\n%", "a\nb", True),
    ("_", "\n", True),
    ("_", "\U0001f600", True),
    ("!%", "%", True),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "value", "expected"), CASES)
def test_pattern_matches_whole_text(pattern: str, value: str, expected: bool) -> None:
    assert like(pattern, "!" if "!" in pattern else None)(value) is expected


@settings(max_examples=500, deadline=None)
@given(pattern=PATTERNS, value=st.text(alphabet="ab%_!", max_size=8))
def test_matcher_agrees_with_regular_expressions(pattern: str, value: str) -> None:
    assert like(pattern, "!")(value) is matches(value, pattern, "!")


@pytest.mark.parametrize(("escape", "pattern"), [("", "a"), ("ab", "a"), ("!", "a!")])
def test_wrong_escape_is_an_error(escape: str, pattern: str) -> None:
    with pytest.raises(PatternError):
        like(pattern, escape)


@pytest.mark.parametrize(
    "pattern", ["%a_" * 300, "%" + "_a" * 400 + "b%", "%a%a%a%a%a%a%a%a%a%a%a%a%b", "_" * 1000 + "%b"]
)
def test_hostile_pattern_takes_linear_time(pattern: str) -> None:
    """A backtracking matcher would take years; this one takes milliseconds, and two seconds is a busy machine."""
    match = like(pattern)
    begin = time.process_time()
    match("a" * 32_768)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("pattern", ["%x%y%", "a%x%y", "%aab%aab%", "a%b%a"])
def test_pattern_of_texts_is_searched_as_fast_as_they_are(pattern: str) -> None:
    """A topic may have 2 000 such filters, which all see each message: 200 of them took six seconds."""
    match = like(pattern)
    value = "a" * 262_144
    begin = time.process_time()
    for _ in range(200):
        assert not match(value)
    assert time.process_time() - begin < 2


def test_pattern_with_any_character_compares_no_endless_value() -> None:
    """It needs a hundred times as long for each character; the service takes no longer property."""
    assert like("%a_b%")("x" * 32_765 + "acb")
    with pytest.raises(FilterEvaluationError, match="at most 32768 characters, the value has 32769"):
        like("%a_b%")("x" * 32_766 + "acb")
