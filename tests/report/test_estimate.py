"""Estimated cost of pairing: the published numbers come out, and every other number is recomputed here by hand."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.ledger.estimate import POLLS_PER_HOUR, Assumptions, Estimate, estimate
from pairbus.ledger.prices import load
from pairbus.syphon.decide.settings import POLL_S

STANDARD, GEO = load("standard"), load("geo-replication")
HOUR_S = 3_600


def assumed(**other: Any) -> Assumptions:
    """Ten entities, one client, nothing sent, an hour of outage."""
    usual: dict[str, Any] = {
        "sheet": STANDARD,
        "geo": GEO,
        "entities": 10,
        "clients": 1,
        "messages_per_second": Decimal(0),
        "size_bytes": 1_024,
        "outage_s": HOUR_S,
    }
    return Assumptions(**usual | other)


def operations(made: Estimate) -> dict[str, int]:
    return {line.kind: line.operations for line in made.lines}


def money(made: Estimate) -> dict[str, Decimal]:
    return {line.kind: line.money for line in made.lines}


# ── published numbers ──


def test_ten_idle_queues_are_polled_28_800_times_in_30_days() -> None:
    """40 an hour, 960 a day; 2.3 cents once the included operations are used, nothing before."""
    [idle] = estimate(assumed()).idle
    assert (idle.per_hour, idle.per_day, idle.per_30_days) == (40, 960, 28_800)
    assert idle.money == Decimal("0.02304")
    assert estimate(assumed(operations_before=0)).idle[0].money == 0


def test_the_table_of_idle_syphons_also_has_those_that_were_assumed() -> None:
    """Beside the well-known ten queues, so that the two can be compared."""
    ten, own = estimate(assumed(backlog_queue_count=25, syphons=2)).idle
    assert (ten.queues, ten.per_30_days) == (10, 28_800)
    assert (own.queues, own.syphons, own.per_hour, own.per_day, own.per_30_days) == (25, 2, 200, 4_800, 144_000)
    assert (
        operations(estimate(assumed(backlog_queue_count=25, syphons=2, days=15)))["polls of empty backlog queues"]
        == 72_000
    )


def test_a_poll_waits_as_long_as_the_syphon_does() -> None:
    """The estimate must use the same length of a poll as the syphon."""
    assert POLLS_PER_HOUR * POLL_S == HOUR_S


def test_a_hundred_clients_ping_fifty_entities_300_000_times_in_an_hour() -> None:
    """24 cents."""
    made = estimate(assumed(clients=100, entities=50))
    assert made.pings == operations(made)["pings"] == 300_000
    assert money(made)["pings"] == Decimal("0.24")


@pytest.mark.parametrize(("counting", "added", "cost"), [("documented", 20_000_000, 16), ("strict", 30_000_000, 24)])
def test_ten_million_diverted_messages_add_two_or_three_operations_each(counting: Any, added: int, cost: int) -> None:
    """Four instead of two; with settlements six instead of three. 16 or 24 dollars at 0.80 for a million."""
    made = estimate(assumed(messages_per_second=Decimal(1_000), outage_s=10_000, days=1, counting=counting))
    assert made.diverted == 10_000_000
    pings_and_polls = made.pings + 960
    assert made.paired.operations - made.alone.operations == added + pings_and_polls
    assert STANDARD.charge(STANDARD.included_operations, added) == cost


# ── the outage ──


@pytest.mark.parametrize(
    ("outage_s", "failover_s", "ping_s", "failed_over_s", "pings"),
    [
        (3_600, 60, 60, 3_600, 60),
        (3_600, 0, 60, 3_660, 61),
        (3_600, 60, 1, 3_541, 3_541),
        (61, 60, 60, 61, 1),
        (60, 60, 60, 0, 0),
        (0, 0, 60, 0, 0),
        (100, 10, 60, 150, 2),
    ],
)
def test_entity_is_failed_over_until_the_first_ping_arrives(
    outage_s: int, failover_s: int, ping_s: int, failed_over_s: int, pings: int
) -> None:
    """The entity is back at most one ping interval after the outage. An outage shorter than the failover interval
    diverts nothing.
    """
    made = estimate(
        assumed(
            entities=1,
            outage_s=outage_s,
            failover_interval_s=failover_s,
            ping_interval_s=ping_s,
            messages_per_second=Decimal(3),
        )
    )
    assert (made.failed_over_s, made.pings, made.diverted) == (failed_over_s, pings, 3 * failed_over_s)
    assert made.failed == 3 * min(outage_s, failover_s)


def test_every_diverted_message_crosses_the_regions_twice() -> None:
    """A message goes there and back, and each way is billed at its size, by the byte."""
    made = estimate(assumed(messages_per_second=Decimal(10), size_bytes=100_000))
    assert made.diverted == 36_000
    assert made.backlog_bytes == 3_600_000_000 and made.crossing_bytes == 7_200_000_000
    assert made.paired.bandwidth_money == Decimal("0.144") and made.alone.bandwidth_money == 0


@pytest.mark.parametrize(("size", "each"), [(0, 1), (1, 1), (65_536, 1), (65_537, 2), (262_144, 4)])
def test_every_started_64_kb_of_a_message_is_an_operation(size: int, each: int) -> None:
    """The size counts in all four places where a message is sent or received; a poll or a ping is one operation."""
    made = estimate(assumed(messages_per_second=Decimal(1), size_bytes=size))
    counts = operations(made)
    assert counts["diverted sends"] == counts["receives by the syphon"] == counts["second sends"] == 3_600 * each
    assert counts["receives from the primary"] == 2_592_000 * each
    assert counts["sends to the primary"] == (2_592_000 - 3_600) * each
    assert (counts["pings"], counts["polls of empty backlog queues"]) == (600, 28_800)


def test_the_backlog_is_drained_at_the_budget() -> None:
    """Rounded up to a second."""
    made = estimate(assumed(messages_per_second=Decimal(10), budget_per_second=Decimal(7)))
    assert made.drain_s == -(-36_000 // 7)


# ── the bill ──


def test_the_bill_is_the_sum_of_its_parts() -> None:
    """Recomputed from the sheet, with tiers that are crossed and connections that are charged."""
    made = estimate(assumed(clients=100, entities=50, messages_per_second=Decimal(200)))
    alone, paired = 1_036_800_000, 1_036_800_000 + 28_800 + 300_000 + 2 * 720_000
    assert (made.alone.operations, made.paired.operations) == (alone, paired)
    assert made.alone.operations_money == 87 * Decimal("0.80") + (alone - 87_000_000) * Decimal("0.0000005")
    assert made.paired.operations_money == 87 * Decimal("0.80") + (paired - 87_000_000) * Decimal("0.0000005")
    assert made.alone.base_money == made.paired.base_money == 720 * Decimal("0.01344")
    open_hours = 718 * 5_001 + 2 * (2 * 5_000 + 100 + 2)
    assert made.connections_alone == 5_000 and made.connections_peak == 10_102
    assert made.paired.connections_money == (Decimal(open_hours) / 744 - 1_000) * Decimal("0.03")
    assert made.alone.connections_money == (Decimal(720 * 5_000) / 744 - 1_000) * Decimal("0.03")
    assert made.added == made.paired.money - made.alone.money


def test_the_money_of_the_lines_is_that_of_the_operations() -> None:
    """Each operation costs the same, as in the report; the sums agree except for the rounding of a division."""
    made = estimate(assumed(messages_per_second=Decimal(77), counting="strict"))
    assert sum(operations(made).values()) == made.paired.operations
    assert abs(sum(money(made).values()) - made.paired.operations_money) < Decimal("1e-20")


def test_the_same_traffic_on_geo_replication_pays_two_regions_and_every_message() -> None:
    """Messages of all days, not only those of the outage."""
    made = estimate(assumed(messages_per_second=Decimal(10), units=2))
    sent_gb = Decimal(10 * 86_400 * 30 * 1_024) / 10**9
    assert made.geo == 2 * 2 * 720 * Decimal("0.9275") + sent_gb * Decimal("0.09")
    assert made.geo_ratio == made.geo / made.paired.money


def test_a_pair_of_premium_namespaces_pays_the_units_of_both() -> None:
    """Operations cost nothing in the Premium tier."""
    made = estimate(assumed(sheet=load("premium"), messages_per_second=Decimal(10)))
    assert made.paired.operations_money == 0 and made.paired.operations > 0
    assert made.paired.base_money == 2 * made.alone.base_money == 2 * 720 * Decimal("0.9275")


def test_prices_in_another_currency_are_not_compared() -> None:
    """Rates of exchange are not on the sheets."""
    made = estimate(assumed(sheet=replace(STANDARD, currency="EUR")))
    assert made.geo is None and made.geo_ratio is None
    assert any("USD, not in EUR" in note for note in made.notes)


def test_without_an_outage_pairing_costs_its_polls_and_connections() -> None:
    """No pings are sent, and no messages are diverted or moved."""
    made = estimate(assumed(outage_s=0, messages_per_second=Decimal(5)))
    assert made.paired.operations - made.alone.operations == 28_800
    assert (made.pings, made.diverted, made.drain_s, made.crossing_bytes) == (0, 0, 0, 0)
    assert made.connections_peak == 11


def test_what_the_service_would_refuse_is_noted() -> None:
    """A namespace takes 5 000 connections and, on Standard, 1 000 operations a second."""
    busy = " ".join(estimate(assumed(clients=600, messages_per_second=Decimal(400))).notes)
    assert "6 601 connections" in busy and "need 1 200 operations a second" in busy
    calm = " ".join(estimate(assumed(messages_per_second=Decimal(1))).notes)
    assert "connections" not in calm and "a second" not in calm


# ── for any assumptions ──


@given(
    st.integers(1, 100),
    st.integers(1, 100),
    st.decimals(0, 2_000, places=3),
    st.integers(0, 300_000),
    st.integers(0, 86_400),
    st.sampled_from(["documented", "strict"]),
)
def test_pairing_never_makes_the_bill_smaller(
    entities: int, clients: int, rate: Decimal, size: int, outage_s: int, counting: Any
) -> None:
    """No line of the bill is negative, with any assumptions."""
    made = estimate(
        assumed(
            entities=entities,
            clients=clients,
            messages_per_second=rate,
            size_bytes=size,
            outage_s=outage_s,
            counting=counting,
            days=1,
        )
    )
    assert made.added >= 0 and all(line.operations >= 0 and line.money >= 0 for line in made.lines)
    assert sum(line.operations for line in made.lines) == made.paired.operations


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("entities", 0),
        ("clients", 0),
        ("syphons", 0),
        ("ping_interval_s", 0),
        ("days", 0),
        ("days", 32),
        ("outage_s", -1),
        ("outage_s", 31 * 86_400),
        ("budget_per_second", Decimal(0)),
        ("messages_per_second", Decimal(-1)),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(field: str, value: Any) -> None:
    """Prices are those of one month, so no more than that can be asked for."""
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        estimate(assumed(**{field: value}))


def test_a_float_is_refused() -> None:
    """A float would make money inexact."""
    with pytest.raises(TypeError, match="messages_per_second"):
        estimate(assumed(messages_per_second=0.1))
