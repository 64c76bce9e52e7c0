"""Availability, recomputed row by row."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

import pytest

from pairbus.report.model import Delay, EntityAvailability
from pairbus.report.passes.records import RunEnd, StateChange
from pairbus.report.passes.sums import RowSums
from pairbus.report.rules.availability import Transition, UnhealthyTime, merged, spans, states
from tests.report import plain
from tests.report.conftest import World

COUNTS = ("sent", "diverted", "failed", "moved", "duplicated", "maybe_duplicated", "dead_lettered", "pings")


@pytest.mark.spark
def test_every_count_of_an_entity_is_that_of_its_rows(world: World) -> None:
    """Clients may write a path in any case; entities with no counts are left out."""
    rows, shown = world.read.rows, world.report.availability
    names = {row.entity for row in rows} | {letter[0] for letter in world.read.dead}
    expected = {
        name: counts for name in sorted(map(str, names)) if any((counts := plain.counts(world.read, name)).values())
    }
    assert [each.entity for each in shown.entities] == list(expected)
    for each in shown.entities:
        assert {name: getattr(each, name) for name in COUNTS} == {name: expected[each.entity][name] for name in COUNTS}
        check_percents(each)
    for name in COUNTS:
        assert getattr(shown.total, name) == sum(counts[name] for counts in expected.values())
    check_percents(shown.total)
    assert shown.total.entity == "*"


def check_percents(each: EntityAvailability) -> None:
    wanted = each.sent + each.diverted + each.failed
    stored = each.sent + each.diverted
    assert each.with_pairing_percent == pytest.approx(100 * stored / wanted if wanted else 100)
    assert each.without_pairing_percent == pytest.approx(100 * each.sent / wanted if wanted else 100)


@pytest.mark.spark
def test_delays_are_exact_nearest_ranks(world: World) -> None:
    """Delays of messages that came home, by entity and together; the histogram holds each of them once."""
    messages = [each for each in world.read.messages if each.home < plain.NEVER]
    shown = world.report.availability
    for each in [*shown.entities, shown.total]:
        mine = [message for message in messages if each.entity in (message.entity, "*")]
        values = [round(message.home - message.diverted) for message in mine]
        if not values:
            assert each.delay is None
            continue
        ranks = [plain.nearest_rank(values, percent) for percent in (50, 95, 99, 100)]
        assert each.delay == Delay(len(values), *ranks)
    assert len(shown.delays) <= 40
    limits = [0.0, *(limit for limit, _ in shown.delays)]
    assert limits == sorted(set(limits))
    every = [(message.home - message.diverted) / 1000 for message in messages]
    for low, (high, count) in zip(limits, shown.delays, strict=False):
        first = (low, high) == (limits[0], limits[1])
        assert count == sum((low < value or first) and value <= high for value in every)
    assert sum(count for _, count in shown.delays) == len(every)


@pytest.mark.spark
def test_outages_are_what_their_processes_saw_together(world: World) -> None:
    """An outage lasts from the first failure to the last recovery; its diverted messages and their ends are told."""
    rows = world.read.rows
    expected = world.read.outages
    shown = world.report.availability.outages
    assert len(shown) == len(expected)
    for number, (outage, views) in enumerate(zip(shown, expected, strict=True)):
        first = min(views, key=lambda view: view.begins)
        overs = [view.over for view in views if view.over is not None]
        mine = [m for m in world.read.messages if plain.outage_of(expected, m.entity, m.diverted) == number]
        waiting = [message for message in mine if message.ended == plain.NEVER]
        assert (outage.entity, plain.ms(outage.begins), outage.reason) == (first.entity, first.begins, first.reason)
        assert (outage.failed_over and plain.ms(outage.failed_over)) == min(overs, default=None)
        assert (outage.recovered and plain.ms(outage.recovered)) == plain.recovered(views)
        assert outage.time_to_divert_s == ((min(overs) - first.begins) / 1000 if overs else None)
        assert (outage.forced, outage.clients) == (any(v.forced for v in views), len({v.run for v in views}))
        assert (outage.diverted, outage.waiting) == (len(mine), len(waiting))
        drained = max(message.ended for message in mine) if mine and not waiting else None
        assert (outage.drained and plain.ms(outage.drained)) == drained
        failed = plain.within(expected, number, rows, "failed send")
        assert outage.failed_sends == sum(row.count or 0 for row in failed)


@pytest.mark.spark
def test_the_timeline_shows_the_worst_state_at_every_moment(world: World) -> None:
    """States are compared in the middle of every interval between two changes."""
    views = plain.views(world.read.rows)
    shown = world.report.availability.states
    for entity in sorted({view.entity for view in views}):
        mine = [view for view in views if view.entity == entity]
        edges = sorted({edge for view in mine for edge in (view.begins, view.over or view.begins, view.ends)})
        for low, high in pairwise(edges):
            middle = (low + high) / 2
            here = [s.state for s in shown if s.entity == entity and plain.ms(s.begins) <= middle < plain.ms(s.ends)]
            state = plain.state_at(views, entity, middle)
            assert here == ([state] if state else []), f"{entity} at {middle}"


@pytest.mark.spark
def test_backlog_is_right_at_every_point_and_has_its_maximum(world: World) -> None:
    """Depth and age of the oldest are compared with all messages; the ends of the period are points."""
    messages, points = world.read.messages, world.report.availability.backlog
    assert 2 <= len(points) <= 500
    assert (points[0].time, points[-1].time) == (world.report.begins, world.report.ends)
    times = [plain.ms(point.time) for point in points]
    assert times == sorted(set(times))
    for at, point in zip(times, points, strict=True):
        waiting = [message.diverted for message in messages if message.diverted <= at < message.ended]
        assert point.waiting == len(waiting)
        assert point.oldest_s == (at - min(waiting)) / 1000 if waiting else point.oldest_s == 0
    ends = {int(edge) // 1000 * 1000 + 999 for m in messages for edge in (m.diverted, m.ended) if edge < plain.NEVER}
    depths = [sum(m.diverted <= at < m.ended for m in messages) for at in ends]
    assert max(depths, default=0) == max(point.waiting for point in points)
    if len(ends) <= 498:
        assert {at for at in ends if times[0] < at < times[-1]} <= set(times)
    if len(ends) <= 249:
        longest_ms = max((m.ended - m.diverted for m in messages if m.ended < plain.NEVER), default=0)
        assert max(point.oldest_s for point in points) > longest_ms / 1000 - 1, (
            "the oldest message grows older while nothing happens"
        )


@pytest.mark.spark
def test_rates_are_the_sends_of_each_span(world: World) -> None:
    """Accepted directly, diverted and failed, in up to 500 spans of the shortest length that fits."""
    points = world.report.availability.rates
    assert 1 <= len(points) <= 500
    width_s = points[0].seconds
    shown = {plain.ms(point.time): (point.direct, point.diverted, point.failed) for point in points}
    assert shown == plain.rates(world.read.rows, width_s) and len(shown) == len(points)
    first, last = (plain.ms(text) // 1000 for text in (world.report.begins, world.report.ends))
    lengths = [length for length in (2**power for power in range(40)) if last // length - first // length < 500]
    assert width_s == lengths[0]


def test_dead_letters_are_counted_by_entity_and_reason(world: World) -> None:
    """Each message counts once for a reason; where its entity is unknown, it counts for the backlog queue."""
    letters = world.read.dead
    expected = {(entity, reason): 0 for entity, _, reason, _ in letters}
    for entity, _, reason, _ in letters:
        expected[entity, reason] += 1
    shown = {(each.entity, each.reason): each.messages for each in world.report.availability.dead_letters}
    assert shown == expected


@pytest.mark.spark
def test_the_outage_by_hand_is_told_as_it_was(by_hand: World) -> None:
    """Ten seconds to divert, a minute in all, drained 102.5 seconds after it began to fail."""
    (outage,) = by_hand.report.availability.outages
    assert asdict(outage) == {
        "entity": "orders",
        "begins": "2026-03-01T12:10:00.250Z",
        "failed_over": "2026-03-01T12:10:10.250Z",
        "recovered": "2026-03-01T12:11:00.250Z",
        "drained": "2026-03-01T12:11:42.500Z",
        "forced": False,
        "reason": "no answer",
        "clients": 1,
        "time_to_divert_s": 10.0,
        "failed_sends": 2,
        "diverted": 4,
        "waiting": 0,
    }
    orders = by_hand.report.availability.entities[-1]
    assert (orders.sent, orders.diverted, orders.failed, orders.moved) == (100, 4, 2, 3)
    assert (orders.duplicated, orders.maybe_duplicated, orders.dead_lettered, orders.pings) == (1, 1, 1, 2)
    assert orders.delay == Delay(3, 70.0, 80.0, 80.0, 80.0)
    assert max(point.waiting for point in by_hand.report.availability.backlog) == 4
    assert by_hand.report.seconds == 3600.0


# ── without Spark ──


def step(event: str, at_s: float, run: str = "a", entity: str = "orders", *, forced: bool = False) -> Transition:
    return Transition(run, entity, event, round(at_s * 1000), "no answer", forced)


def seen(*steps: Transition, last_s: float = 100.0) -> list[UnhealthyTime]:
    return spans(steps, {"a": round(last_s * 1000), "b": round(last_s * 1000)})


def test_an_outage_ends_with_its_last_process() -> None:
    """The entity is not back while a client still diverts."""
    (outage,) = merged(
        seen(
            step("Suspected", 1),
            step("Suspected", 2, "b"),
            step("FailedOver", 3),
            step("Recovered", 5),
            step("FailedOver", 6, "b"),
            step("Recovered", 9, "b"),
        )
    )
    assert (outage.begins_ms, outage.failed_over_ms, outage.ends_ms) == (1000, 3000, 9000)
    assert outage.is_over
    assert outage.runs == {"a", "b"}


def test_process_that_dies_in_an_outage_does_not_keep_it_open() -> None:
    """The last row of the dead process is its last word; the others go on."""
    views = spans(
        [step("FailedOver", 1), step("FailedOver", 2, "b"), step("Recovered", 9, "b"), step("Suspected", 20, "b")],
        {"a": 4000, "b": 30_000},
    )
    first, second = merged(views)
    assert (first.ends_ms, first.is_over) == (9000, True)
    assert (second.begins_ms, second.ends_ms, second.is_over) == (20_000, 30_000, False)


def change(event: str, at_s: float, file: str, line: int) -> StateChange:
    return StateChange("aaaaaaaa", "orders", event, "no answer", file, round(at_s * 1000), 0, 0, line)


def test_clock_that_goes_back_does_not_keep_an_outage_open() -> None:
    """A process writes its rows in their order. File 10 was written after file 9, though its name sorts before."""
    sums = RowSums()
    files = [f"file:///ledger/2026-03-01-api-1-aaaaaaaa-{number}.jsonl" for number in (9, 10)]
    for record in (change("Recovered", 100, files[1], 7), change("Suspected", 130, files[0], 9)):
        sums.add(record)
    sums.add(change("FailedOver", 190, files[0], 30))
    sums.add(RunEnd("aaaaaaaa", 500_000))
    (outage,) = merged(spans(*sums.transitions()))
    assert (outage.begins_ms, outage.failed_over_ms, outage.ends_ms) == (130_000, 190_000, 190_000)
    assert outage.is_over


def test_times_decide_where_a_file_has_another_name() -> None:
    """Several files may have been put together: the order of their lines says nothing."""
    sums = RowSums()
    for record in (change("Recovered", 190, "/all.jsonl", 1), change("FailedOver", 130, "/all.jsonl", 2)):
        sums.add(record)
    (outage,) = merged(spans(*sums.transitions()))
    assert (outage.begins_ms, outage.ends_ms, outage.is_over) == (130_000, 190_000, True)


def test_outage_does_not_divert_before_it_begins() -> None:
    """The clock went back between the first failure and the failover."""
    (outage,) = seen(step("Suspected", 20), step("FailedOver", 11), step("Recovered", 15))
    assert (outage.begins_ms, outage.failed_over_ms, outage.ends_ms) == (20_000, 20_000, 20_000)


def test_clearing_the_pairing_ends_every_outage_of_the_process() -> None:
    """Sends of that process go to the primary again, with any outcome; other processes are not concerned."""
    views = seen(
        step("FailedOver", 1, entity="orders"),
        step("Suspected", 2, entity="bills"),
        step("FailedOver", 3, "b"),
        step("PairingCleared", 7, entity=""),
    )
    assert [(v.entity, set(v.runs), v.ends_ms, v.is_over) for v in views] == [
        ("orders", {"a"}, 7000, True),
        ("bills", {"a"}, 7000, True),
        ("orders", {"b"}, 100_000, False),
    ]


def test_a_recovery_from_nothing_is_nothing() -> None:
    """The ledger may begin in the middle of an outage."""
    assert seen(step("Recovered", 5)) == []


def test_a_failover_by_hand_is_marked_and_needs_no_suspicion() -> None:
    """An outage that was forced begins with the failover itself."""
    (outage,) = merged(seen(step("FailedOver", 4, forced=True), step("Recovered", 5)))
    assert outage.forced
    assert outage.begins_ms == outage.failed_over_ms == 4000


def test_states_of_several_processes_make_one_line() -> None:
    """Suspect, then failed over as soon as one has, then suspect while only the other one is."""
    views = seen(
        step("Suspected", 1),
        step("Suspected", 2, "b"),
        step("FailedOver", 3),
        step("Recovered", 5),
        step("Recovered", 7, "b"),
    )
    line = [(each.state, each.begins[17:23], each.ends[17:23]) for each in states(views)]
    assert line == [
        ("SUSPECT", "01.000", "03.000"),
        ("FAILED_OVER", "03.000", "05.000"),
        ("SUSPECT", "05.000", "07.000"),
    ]
