"""The text format, read back by Prometheus' own parser."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pairbus.telemetry.metrics.entities import EntityGauges, entity_families, labels_of
from pairbus.telemetry.metrics.text import Family, Histogram, labels, number, render, render_all

# Lone surrogates are not text that can be sent; the other characters end a line for `str.splitlines`, which the parser
# of the test uses and Prometheus does not.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"))


@given(TEXTS, TEXTS, st.integers(-(2**53), 2**53))
def test_any_text_survives_as_a_label_and_as_help(name: str, text: str, value: int) -> None:
    """Quotes, backslashes and ends of lines in names of entities must not become lines of their own."""
    family = Family("a_b", "gauge", text, [("", labels(name=name, other="x"), value)])
    [found] = text_string_to_metric_families(render(family))
    assert [(one.name, one.labels, one.value) for one in found.samples] == [
        ("a_b", {"name": name, "other": "x"}, value)
    ]
    assert found.type == "gauge"


@given(st.floats())
def test_any_number_is_read_back(value: float) -> None:
    """Infinities have a spelling of their own."""
    assert float(number(value)) == value or (math.isnan(value) and number(value) == "NaN")


def test_buckets_of_a_histogram_add_up() -> None:
    """A value on a bound belongs to its bucket, as the format says."""
    times = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        times.observe(value)
    [found] = text_string_to_metric_families(render(Family("t_seconds", "histogram", "T", times.samples('q="a"'))))
    assert found.type == "histogram"
    assert {(one.name, one.labels.get("le")): one.value for one in found.samples} == {
        ("t_seconds_bucket", "0.1"): 2,
        ("t_seconds_bucket", "1.0"): 3,
        ("t_seconds_bucket", "+Inf"): 4,
        ("t_seconds_sum", None): 7.65,
        ("t_seconds_count", None): 4,
    }
    assert all(one.labels["q"] == "a" for one in found.samples) and times.count == 4


def test_family_that_comes_twice_is_refused() -> None:
    """Prometheus drops the whole scrape then."""
    family = Family("a", "gauge", "A", [])
    with pytest.raises(ValueError, match="twice"):
        list(render_all([family, family]))


@pytest.mark.parametrize(("name", "kind"), [("a-b", "gauge"), ("1a", "gauge"), ("", "gauge"), ("sent", "counter")])
def test_name_that_prometheus_would_refuse_is_an_error(name: str, kind: str) -> None:
    """Counters end with `_total`, as every exporter's do."""
    with pytest.raises(ValueError, match="name"):
        Family(name, kind, "", [])  # type: ignore[arg-type]


def test_unknown_count_has_no_sample() -> None:
    """A 0 in its place would be a lie."""
    rows = [EntityGauges(labels_of("contoso", "a"), 3, size_bytes=None), EntityGauges(labels_of("contoso", "b"), None)]
    found = {family.name: family.samples for family in entity_families("queue", rows)}
    assert found["servicebus_queue_active_messages"] == [("", 'name="a",namespace_name="contoso"', 3)]
    assert "servicebus_queue_size_bytes" not in found
