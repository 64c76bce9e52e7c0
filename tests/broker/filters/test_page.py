"""docs/filters.md: its examples compile, and its lists and limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from pairbus.filters import SqlAction, SqlFilter, compile_action, compile_filter
from pairbus.filters.actions import ID_LENGTH_MAX, SETTABLE
from pairbus.filters.kinds import VALUE_SIZE_MAX
from pairbus.filters.lexer import TEXT_LENGTH_MAX
from pairbus.filters.like import PATTERN_LENGTH_MAX
from pairbus.filters.operators import STRING_LENGTH_MAX
from pairbus.filters.parser import NESTING_MAX, STATEMENTS_MAX
from pairbus.filters.view import SYSTEM
from tests.pages import blocks_of

PAGE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text(encoding="utf-8")


def names_in(sentence: str) -> list[str]:
    """Give the names of the list that begins with this sentence and ends with a full stop."""
    return re.findall(r"`(\w+)`", PAGE[PAGE.index(sentence) :].split(". ", 1)[0])


def test_examples_of_the_page_compile() -> None:
    lines: dict[str, list[str]] = {"sql": [], "sql-action": []}
    for block in blocks_of("test_examples_of_the_page_compile"):
        lines[block.language] += block.text.splitlines()
    filters, actions = lines["sql"], lines["sql-action"]
    assert len(filters) > 15 and len(actions) > 3
    for text in filters:
        compile_filter(SqlFilter(text))
    for text in actions:
        compile_action(SqlAction(text))


def test_lists_of_system_properties_are_complete() -> None:
    assert sorted(name.lower() for name in names_in("System properties:")) == sorted(SYSTEM)
    assert names_in("An action may change these system properties:") == list(SETTABLE)


def test_limits_of_the_page_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([\d ]+\d) ", PAGE, re.MULTILINE))
    found = {name: int(number.replace(" ", "")) for name, number in rows.items()}
    assert list(found.values()) == [
        TEXT_LENGTH_MAX,
        STATEMENTS_MAX,
        NESTING_MAX,
        PATTERN_LENGTH_MAX,
        STRING_LENGTH_MAX,
        VALUE_SIZE_MAX,
        ID_LENGTH_MAX,
    ]
