"""Values of rules as text, and as filters compare them."""

from __future__ import annotations

import json

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Timestamp
from pairbus.broker.description.values import value_from_text, value_to_text
from pairbus.filters import CorrelationFilter, MessageView, SqlFilter, compile_filter, filter_from_json, filter_to_json

NOON_MS = 1_593_950_400_000


@pytest.mark.parametrize("text", ["2020-07-05T12:00:00", "2020-07-05T12:00:00.250", "2020-07-05T12:00:00+00:00"])
def test_time_of_a_rule_comes_back_as_it_was_named(text: str) -> None:
    """With a zone or without one, also after a restart."""
    stored = json.loads(json.dumps(filter_to_json(SqlFilter("at = @at", {"@at": value_from_text("dateTime", text)}))))
    found = filter_from_json(stored)
    assert isinstance(found, SqlFilter)
    assert value_to_text(found.parameters["@at"]) == ("dateTime", text)


@pytest.mark.parametrize("text", ["2020-07-05T12:00:00", "2020-07-05T14:00:00+02:00"])
def test_time_without_a_zone_counts_as_utc(text: str) -> None:
    """In parameters of SQL filters and in correlation filters."""
    body = Message(properties=Properties(message_id="m"), application_properties={"at": Timestamp(NOON_MS)}).encode()
    value = value_from_text("dateTime", text)
    for described in (SqlFilter("at = @at", {"@at": value}), CorrelationFilter(properties={"at": value})):
        assert compile_filter(described)(MessageView(body)) is True
