"""Times at which a failed-over entity is asked again."""

from __future__ import annotations

import pytest

from pairbus.pairing.failover import SendingEntity
from pairbus.pairing.pings import Pings

ORDERS, BILLS = SendingEntity("orders", 0.0), SendingEntity("bills", 0.0)


def test_the_first_ping_comes_one_interval_after_the_failover() -> None:
    pings = Pings(60.0, 1)
    pings.start(ORDERS, 100.0)
    assert pings.next_due() == 160.0
    assert pings.due(159.9) == []
    assert pings.due(160.0) == [ORDERS]


def test_the_next_ping_comes_one_interval_after_the_last_one_ended() -> None:
    """A slow answer never makes two at once."""
    pings = Pings(60.0, 1)
    pings.start(ORDERS, 0.0)
    assert pings.due(60.0) == [ORDERS]
    assert pings.due(1000.0) == [], "the ping is still under way"
    assert pings.next_due() is None
    assert not pings.ended(ORDERS, False, 65.0)
    assert pings.next_due() == 125.0


@pytest.mark.parametrize(("interval_s", "timeout_s"), [(1.0, 1.0), (5.0, 5.0), (60.0, 5.0)])
def test_ping_time_out_is_the_interval_or_five_seconds(interval_s: float, timeout_s: float) -> None:
    assert Pings(interval_s, 1).timeout_s == timeout_s


def test_several_pings_in_a_row_can_be_demanded() -> None:
    """Against flapping: a refusal in between begins the count anew."""
    pings = Pings(10.0, 2)
    pings.start(ORDERS, 0.0)
    verdicts = []
    for number, accepted in enumerate([True, False, True, True], start=1):
        assert pings.due(number * 10.0) == [ORDERS]
        verdicts.append(pings.ended(ORDERS, accepted, number * 10.0))
    assert verdicts == [False, False, False, True]


def test_a_throttled_ping_waits_as_long_as_the_service_asks() -> None:
    pings = Pings(1.0, 1)
    pings.start(ORDERS, 0.0)
    pings.due(1.0)
    pings.ended(ORDERS, False, 2.0, wait_s=10.0)
    assert pings.next_due() == 12.0


def test_entities_are_pinged_each_in_its_own_time() -> None:
    pings = Pings(60.0, 1)
    pings.start(ORDERS, 0.0)
    pings.start(BILLS, 30.0)
    assert pings.due(60.0) == [ORDERS]
    assert pings.next_due() == 90.0
    assert pings.due(90.0) == [BILLS]


def test_an_answer_that_comes_after_the_recovery_changes_nothing() -> None:
    pings = Pings(60.0, 1)
    pings.start(ORDERS, 0.0)
    pings.due(60.0)
    pings.stop(ORDERS)
    assert not pings.ended(ORDERS, True, 61.0)
    assert pings.next_due() is None


def test_a_refusal_is_news_once_for_each_failover() -> None:
    pings = Pings(60.0, 1)
    pings.start(ORDERS, 0.0)
    assert [pings.refusal_is_news(ORDERS), pings.refusal_is_news(ORDERS)] == [True, False]
    pings.start(ORDERS, 500.0)
    assert pings.refusal_is_news(ORDERS)
    pings.stop(ORDERS)
    assert not pings.refusal_is_news(ORDERS)


def test_clearing_stops_all() -> None:
    pings = Pings(60.0, 1)
    pings.start(ORDERS, 0.0)
    pings.clear()
    assert pings.due(1000.0) == []


def test_pings_of_a_loop_that_is_gone_are_made_again() -> None:
    """A forked process hears nothing of pings under way in its parent: without this its entities stay away for ever."""
    pings = Pings(10.0, 1)
    pings.start(ORDERS, 0.0)
    pings.start(BILLS, 5.0)
    assert pings.due(15.0) == [ORDERS, BILLS] and pings.next_due() is None
    pings.forget_running()
    assert pings.next_due() == 10.0 and pings.due(15.0) == [ORDERS, BILLS]


def test_pings_that_are_due_within_a_moment_are_one_round() -> None:
    """Two hundred entities that fail over one after the other would open two hundred connections an interval."""
    pings = Pings(60.0, 1, lambda: 0.5)
    pings.start(ORDERS, 0.0)
    pings.start(BILLS, 0.4)
    assert pings.next_due() == 60.5
    assert pings.due(60.5) == [ORDERS, BILLS]
    pings.ended(ORDERS, False, 62.0)
    pings.ended(BILLS, False, 62.3)
    assert pings.due(122.4) == [] and pings.due(122.5) == [ORDERS, BILLS]


@pytest.mark.parametrize(("interval_s", "latest"), [(1.0, 1.1), (5.0, 5.5), (60.0, 61.0), (1800.0, 1801.0)])
def test_jitter_is_a_tenth_of_the_interval_and_a_second_at_most(interval_s: float, latest: float) -> None:
    """Clients that lost their primary at the same moment do not ping it at the same moment for ever."""
    pings = Pings(interval_s, 1, lambda: 1.0)
    pings.start(ORDERS, 0.0)
    assert pings.next_due() == pytest.approx(latest)
