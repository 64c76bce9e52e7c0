"""LIKE patterns."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
