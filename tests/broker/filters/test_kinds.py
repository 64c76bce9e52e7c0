"""The durable form of filters and actions."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.types import Int, Long, Timestamp
from pairbus.errors import InvalidDescription
from pairbus.filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    SqlAction,
    SqlFilter,
    TrueFilter,
    action_from_json,
    action_to_json,
    filter_from_json,
    filter_to_json,
    type_name,
)

VALUES = st.one_of(
    st.text(max_size=10),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.floats(allow_nan=False),
    st.booleans(),
    st.integers(-(2**40), 2**40).map(Timestamp),
    st.timedeltas(),
    st.uuids(),
    st.binary(max_size=10),
)
MAPS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)
FILTERS = st.one_of(
    st.builds(SqlFilter, st.text(max_size=20), MAPS),
    st.builds(CorrelationFilter, st.none() | st.text(max_size=5), st.none() | st.text(max_size=5), properties=MAPS),
    st.just(TrueFilter()),
    st.just(FalseFilter()),
)


def typed(values: Any) -> list[tuple[str, type]]:
    return [(key, type(value)) for key, value in values.items()]


@given(described=FILTERS)
def test_filters_survive_json_with_their_types(described: Filter) -> None:
    again = filter_from_json(json.loads(json.dumps(filter_to_json(described))))
    assert again == described
    for name in ("parameters", "properties"):
        assert typed(getattr(again, name, {})) == typed(getattr(described, name, {}))


@given(action=st.builds(SqlAction, st.text(max_size=20), MAPS))
def test_actions_survive_json_with_their_types(action: SqlAction) -> None:
    again = action_from_json(json.loads(json.dumps(action_to_json(action))))
    assert again == action and typed(again.parameters) == typed(action.parameters)


def test_stored_form_is_stable() -> None:
    """Stores keep it: a later version must read what this one writes."""
    described = SqlFilter("a = @p", {"@p": timedelta(seconds=1), "q": Int(5), "r": UUID(int=1), "s": b"x", "t": 1.5})
    assert filter_to_json(described) == {
        "kind": "sql",
        "expression": "a = @p",
        "parameters": {
            "@p": {"type": "duration", "value": 1_000_000},
            "q": {"type": "int", "value": 5},
            "r": {"type": "guid", "value": "00000000-0000-0000-0000-000000000001"},
            "s": {"type": "bytes", "value": "eA=="},
            "t": {"type": "double", "value": "1.5"},
        },
    }
    assert filter_to_json(CorrelationFilter(label="x")) == {"kind": "correlation", "label": "x", "properties": {}}
    assert filter_to_json(TrueFilter()) == {"kind": "true", "expression": "1=1"}


def test_nan_survives_json() -> None:
    """JSON has no number for it."""
    again = action_from_json(json.loads(json.dumps(action_to_json(SqlAction("x", {"p": math.nan})))))
    assert str(again.parameters["p"]) == "nan"


def test_plain_integers_are_longs() -> None:
    assert type_name(5) == "long" and type_name(True) == "boolean" and type_name(Int(5)) == "int"
    with pytest.raises(InvalidDescription, match="type list is not supported"):
        bad: Any = [1]
        type_name(bad)


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"kind": "other"},
        {"kind": "sql"},
        {"kind": "sql", "expression": "x", "more": 1},
        {"kind": "sql", "expression": "x", "parameters": {"p": {"type": "odd", "value": 1}}},
        {"kind": "sql", "expression": "x", "parameters": {"p": {"type": "guid", "value": "no"}}},
        {"kind": "sql", "expression": "x", "parameters": {"p": 5}},
    ],
)
def test_unknown_stored_form_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(InvalidDescription):
        filter_from_json(stored)
