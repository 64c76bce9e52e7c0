"""The table of faults, a fault as a value, and which fault meets an event; no clock and no socket."""

from __future__ import annotations

import time
from itertools import cycle
from typing import Any

import pytest

from pairbus.errors import FaultNotFound, InvalidFault
from pairbus.faults import KINDS, Fault, Faults, Load, Pace, Place, read_duration
from pairbus.faults.active import ACTIVE_MAX


def fault(kind: str, **fields: Any) -> Fault:
    return Fault.read({"kind": kind, **fields})


def faults(*dice: float) -> Faults:
    numbers = cycle(dice or (0.0,))
    return Faults(lambda: next(numbers))


def meets(active: Faults, entity: str = "orders", direction: str = "send", now: float = 0.0) -> str | None:
    found = active.meet(Place.MESSAGE, direction, entity, now)
    return None if found is None else found.fault.kind.name


# ── values ──


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_as_it_was_written(kind: str) -> None:
    """Control routes, the command line and a person's notes exchange JSON."""
    one = fault(kind)
    assert Fault.read(one.to_json()) == one
    assert one.kind.meets.endswith(".") and one.kind.places


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("5m", 300), ("1h", 3600), ("1.5m", 90), ("7", 7), (7, 7), (0.25, 0.25), (0, 0)],
)
def test_durations_are_numbers_or_texts(given: object, seconds: float) -> None:
    assert read_duration(given) == seconds
    assert fault("stall", for_s=given).for_s == seconds


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "kind None is not known; accepted are refuse, black-hole"),
        ({"kind": "flood"}, "kind 'flood' is not known"),
        ({"kind": ["stall"]}, "kind \\['stall'\\] is not known"),
        ({"kind": "stall", "delay_s": 1}, "stall: 'delay_s' is not known; accepted are kind, entity"),
        ({"kind": "stall", "for_s": "soon"}, "stall: for_s: 'soon' is no duration; accepted are seconds"),
        ({"kind": "stall", "for_s": -1}, "for_s: -1 is no duration"),
        ({"kind": "stall", "for_s": True}, "for_s: True is no duration"),
        ({"kind": "stall", "for_s": float("nan")}, "for_s: nan is no duration"),
        ({"kind": "stall", "for_s": 10**400}, "is no duration; accepted are .*, up to 100 years"),
        ({"kind": "stall", "for_s": "9" * 400}, "is no duration"),
        ({"kind": "stall", "for_s": "900000h"}, "for_s: '900000h' is no duration"),
        ({"kind": "delay", "delay_s": 1e18}, "delay: delay_s: 1e\\+18 is no duration"),
        ({"kind": "delay", "delay_s": "x"}, "delay: delay_s: 'x' is no duration"),
        ({"kind": "bandwidth", "bytes_per_s": 10**400}, "accepted is a number from 1 to 1000000000000"),
        ({"kind": "bandwidth", "bytes_per_s": 0}, "bandwidth: bytes_per_s 0 is wrong; accepted is a number from 1"),
        ({"kind": "stall", "direction": "contact"}, "direction 'contact' is wrong; accepted: send, receive, manage"),
        ({"kind": "stall", "direction": ["send"]}, "direction \\['send'\\] is wrong"),
        ({"kind": "disk-full", "direction": "send"}, "it takes no direction"),
        ({"kind": "stall", "entity": ""}, "entity '' is wrong; accepted is a path"),
        ({"kind": "stall", "entity": 3}, "entity 3 is wrong"),
        ({"kind": "refuse", "entity": "orders"}, "refuse: it meets the whole namespace, so it takes no entity"),
        ({"kind": "black-hole", "entity": "orders"}, "for one entity use stall"),
        ({"kind": "stall", "probability": 0}, "probability 0 is wrong; accepted is a number above 0, up to 1"),
        ({"kind": "stall", "probability": 1.1}, "probability 1.1 is wrong"),
        ({"kind": "stall", "count": 0}, "count 0 is wrong; accepted is a whole number from 1"),
        ({"kind": "stall", "count": 1.5}, "count 1.5 is wrong"),
        ({"kind": "latency", "count": 1}, "latency: it acts all the time, so it takes no count"),
    ],
)
def test_wrong_fields_are_named_with_what_is_accepted(fields: dict[str, Any], says: str) -> None:
    """A fault that is silently wider or longer than it looks spoils the test that it was made for."""
    with pytest.raises(InvalidFault, match=says):
        Fault.read(fields)


# ── the set ──


@pytest.mark.parametrize(
    ("pattern", "entity", "is_met"),
    [
        (None, "orders", True),
        (None, "$cbs", False),
        ("$cbs", "$cbs", True),
        ("*", "$cbs", False),
        ("Orders", "oRDERS", True),
        ("orders", "orders2", False),
        ("orders*", "orders2", True),
        ("*", "a/b/c", True),
        ("a.c", "abc", False),
        ("events/*", "events/Subscriptions/audit", True),
        ("events", "events/Subscriptions/audit", False),
        ("Events/subscriptions/Audit", "events/Subscriptions/audit", True),
        ("*/Subscriptions/audit", "events/subscriptions/audit", True),
    ],
)
def test_patterns_are_paths_with_stars_in_any_case(pattern: str | None, entity: str, is_met: bool) -> None:
    active = faults()
    active.add(fault("stall", entity=pattern), 0.0)
    assert (meets(active, entity) is not None) is is_met


def test_direction_and_place_must_fit() -> None:
    active = faults()
    active.add(fault("throttle", direction="receive"), 0.0)
    assert meets(active, direction="send") is None
    assert meets(active, direction="receive") == "throttle"
    assert active.meet(Place.CONNECT, "receive", "orders", 0.0) is None


def test_fault_ends_when_its_time_is_over() -> None:
    """An event after the end is not met, also when the owner has not looked since."""
    active = faults()
    active.add(fault("stall", for_s="30s"), 100.0)
    active.add(fault("throttle"), 100.0)
    assert (meets(active, now=129.9), meets(active, now=130.0)) == ("stall", "throttle")
    assert active.next_end() == 130.0
    assert active.expire(129.9) == []
    assert [one.fault.kind.name for one in active.expire(130.0)] == ["stall"]
    assert (active.next_end(), len(active)) == (None, 1)


def test_probability_is_drawn_for_each_event() -> None:
    active = faults(0.2, 0.7, 0.4999, 0.5)
    active.add(fault("throttle", probability=0.5), 0.0)
    assert [meets(active) for _ in range(4)] == ["throttle", None, "throttle", None]


def test_count_is_used_up_by_what_is_met() -> None:
    """An event that the dice spare does not count."""
    active = faults(0.9, 0.1, 0.1, 0.1)
    active.add(fault("throttle", probability=0.5, count=2), 0.0)
    assert [meets(active) for _ in range(4)] == [None, "throttle", "throttle", None]
    assert len(active) == 0


def test_kind_that_holds_stays_after_its_count() -> None:
    """The end of the fault would release the messages that it holds: a stall of one message would be no stall."""
    active = faults()
    [number] = [active.add(fault("stall", count=1), 0.0).id]
    assert [meets(active), meets(active)] == ["stall", None]
    assert [one.id for one in active.clear(number)] == [number]


def test_first_fault_that_meets_decides() -> None:
    active = faults()
    active.add(fault("quota", entity="other"), 0.0)
    active.add(fault("throttle", count=1), 0.0)
    active.add(fault("time-out"), 0.0)
    assert [meets(active), meets(active)] == ["throttle", "time-out"]


def test_faults_are_cleared_by_number_or_all() -> None:
    active = faults()
    one, two = (active.add(fault("stall"), 5.0) for _ in range(2))
    assert active.clear(one.id) == [one]
    with pytest.raises(FaultNotFound, match=f"there is no fault {one.id}; active are: {two.id}"):
        active.clear(one.id)
    assert active.clear() == [two]
    assert active.clear() == []
    assert active.add(fault("stall"), 5.0).id == 3, "a number is never given twice"


def test_shown_fault_says_what_is_left() -> None:
    active = faults()
    one = active.add(fault("throttle", entity="Orders", for_s=30, count=2), 100.0)
    meets(active, now=110.0)
    shown = one.to_json(110.0)
    assert (shown["id"], shown["entity"], shown["left_s"], shown["left"]) == (1, "Orders", 20.0, 1)
    assert repr(one) == "<Active 1 throttle of Orders send,receive,manage>"


def test_number_of_faults_is_bounded() -> None:
    """Each event looks at all active faults."""
    active = faults()
    for _ in range(ACTIVE_MAX):
        active.add(fault("quota"), 0.0)
    with pytest.raises(InvalidFault, match="clear some before you add more"):
        active.add(fault("quota"), 0.0)


# ── load and pace ──


def test_load_refuses_what_is_beyond_its_rate() -> None:
    load = Load(5, lambda: 0.0, 0.0)
    taken = [load.take("orders", is_partitioned=False, now=0.0) for _ in range(7)]
    assert taken == [True] * 5 + [False] * 2
    assert [load.take("other", is_partitioned=False, now=0.2) for _ in range(2)] == [True, False]
    later = [load.take("orders", is_partitioned=False, now=100.0) for _ in range(7)]
    assert later == [True] * 5 + [False] * 2, "a pause of any length leaves one second's worth"


def test_partitioned_entity_has_sixteen_budgets() -> None:
    """A partitioned entity is throttled less often than the rest of the namespace, and does not spend the budget
    of the others.
    """
    dice = cycle(number / 16 for number in range(16))
    load = Load(1, lambda: next(dice), 0.0)
    assert [load.take("orders", is_partitioned=True, now=0.0) for _ in range(17)] == [True] * 16 + [False]
    assert load.take("plain", is_partitioned=False, now=0.0)


def test_rate_below_one_still_passes_an_operation() -> None:
    load = Load(0.5, lambda: 0.0, 0.0)
    assert [load.take("a", is_partitioned=False, now=now) for now in (0.0, 1.0, 2.0)] == [True, False, True]


def test_latency_keeps_the_order_of_bytes() -> None:
    """Jitter must not let a later answer overtake an earlier one: it is one stream."""
    active = faults()
    dice = iter([1.0, 0.0])
    pace = Pace(lambda: next(dice))
    lines = [active.add(fault("latency", delay_s=1, jitter_s=2), 0.0)]
    assert [pace.leaves_at(10, lines, 0.0), pace.leaves_at(10, lines, 0.5)] == [3.0, 3.0]


def test_bandwidth_counts_bytes() -> None:
    active = faults()
    pace = Pace(lambda: 0.0)
    lines = [active.add(fault("bandwidth", bytes_per_s=100), 0.0)]
    assert [pace.leaves_at(100, lines, 0.0), pace.leaves_at(50, lines, 0.0)] == [1.0, 1.5]
    assert pace.leaves_at(100, lines, 10.0) == 11.0, "an idle line saves nothing up"


@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*a*a*b", "a*a*a*a*a*a*a*a*b", "*".join("a" * 30) + "*b*"])
def test_pattern_with_many_stars_takes_linear_time(pattern: str) -> None:
    """Seven stars held the broker up for six seconds, at each event."""
    active = faults()
    active.add(fault("stall", entity=pattern), 0.0)
    begin = time.process_time()
    for _ in range(100):
        assert meets(active, "a" * 260) is None
    assert time.process_time() - begin < 1
    assert meets(active, "a" * 260 + "b") == "stall"
