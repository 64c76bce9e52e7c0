"""Filters of Spark that a batch read takes, where Spark hands them over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark.sql.worker.data_source_pushdown_filters", reason="this PySpark pushes no filters")
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pairbus.spark.options import Options
from pairbus.spark.source.batch_reader import Bounds
from pairbus.spark.source.pushdown import FilteringPeekReader, narrowed
from tests.brokers import BrokerProcess
from tests.spark.queues import options, place_of, put, text_message
from tests.spark.test_batch_read import LONG_AGO, read_all

BOUNDS = Bounds(10, 20)
NUMBER, TIME = ("sequence_number",), ("enqueued_time",)
AT = LONG_AGO + timedelta(microseconds=5)
AT_US = (AT - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("given_filter", "expected"),
    [
        (EqualTo(NUMBER, 15), Bounds(15, 15)),
        (GreaterThan(NUMBER, 15), Bounds(16, 20)),
        (GreaterThanOrEqual(NUMBER, 15), Bounds(15, 20)),
        (LessThan(NUMBER, 15), Bounds(10, 14)),
        (LessThanOrEqual(NUMBER, 15), Bounds(10, 15)),
        (LessThan(NUMBER, 99), Bounds(10, 20)),
        (In(NUMBER, (12, 18, 14)), Bounds(12, 18)),
        (EqualTo(TIME, AT), Bounds(10, 20, AT_US, AT_US)),
        (GreaterThan(TIME, AT), Bounds(10, 20, AT_US + 1)),
        (LessThan(TIME, AT), Bounds(10, 20, enqueued_to_us=AT_US - 1)),
        (EqualTo(("subject",), "x"), None),
        (EqualTo(("application_properties", "sequence_number"), 15), None),
        (EqualNullSafe(NUMBER, 15), None),
        (Not(EqualTo(NUMBER, 15)), None),
        (EqualTo(NUMBER, 15.5), None),
        (In(NUMBER, (12, None)), None),
        (GreaterThan(TIME, datetime(2000, 1, 1)), None),
    ],
)
def test_a_filter_narrows_the_bounds_or_is_left_to_spark(given_filter: Filter, expected: Bounds | None) -> None:
    """A filter read too narrowly would lose rows; one read too widely would let wrong rows pass, because Spark does
    not filter again."""
    assert narrowed(BOUNDS, given_filter) == expected


def test_of_a_list_spark_still_checks_the_members() -> None:
    """Only its ends narrow what is read."""
    reader = FilteringPeekReader(
        Options.parse(
            {"connectionString": place_of("Endpoint=sb://h;SharedAccessKeyName=k;SharedAccessKey=s"), "entity": "q"},
            "read",
        )
    )
    members, exact, foreign = In(NUMBER, (3, 9)), GreaterThan(NUMBER, 2), EqualTo(("subject",), "x")
    assert list(reader.pushFilters([members, exact, foreign])) == [members, foreign]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThan(NUMBER, 2), LessThan(NUMBER, 5)], [3, 4]),
        ([GreaterThan(NUMBER, 5), LessThan(NUMBER, 2)], []),
        ([GreaterThan(TIME, LONG_AGO), EqualTo(NUMBER, 2)], [2]),
        ([LessThan(TIME, LONG_AGO)], []),
    ],
)
def test_pushed_filters_decide_what_is_read(
    broker: BrokerProcess, queue_name: str, filters: list[Filter], expected: list[int]
) -> None:
    """Spark does not look at these again."""
    put(broker, queue_name, [text_message(f"m{number}") for number in range(1, 7)])
    reader = FilteringPeekReader(options(broker, "read", entity=queue_name))
    assert list(reader.pushFilters(filters)) == []
    assert [row["sequence_number"] for row in read_all(reader)] == expected
