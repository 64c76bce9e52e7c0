"""A report as a morning with an outage would give it: built in code, and small enough to follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import ceil

from pairbus.report.model import (
    PARTS,
    SCHEMA,
    Amount,
    Availability,
    BacklogPoint,
    Bill,
    BillLine,
    Damage,
    DeadLetters,
    Delay,
    EntityAvailability,
    EntityOutage,
    OutageBill,
    Prices,
    RatePoint,
    Report,
    ReportSource,
    StateSpan,
)

BEGINS = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
HOURS = 6
LENGTH_S = HOURS * 3600
RATE = Decimal("0.0000008")
BYTES = 812  # size of a message
PRIMARY, SECONDARY = "contoso.servicebus.windows.net", "fabrikam.servicebus.windows.net"
PER_S = {"orders": 2.0, "payments": 0.5, "shipping-labels": 0.2}
# Entity → seconds from BEGINS: first failure, diverted, recovered.
DOWN_S = {"orders": (7334.25, 7344.5, 8392.0), "payments": (7351.0, 7361.125, 8401.5)}
SPAN_S = 64
HOME_FROM_S, HOME_PER_S = 8405.0, 6.0
TROUBLE = {"dead": {"payments": 2}, "failed": {"orders": 3}, "maybe": {"orders": 4}}

Odd = dict[str, dict[str, int]]


def at(seconds: float) -> str:
    return (BEGINS + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def journeys() -> list[tuple[str, float, float]]:
    """(entity, diverted, home) of every diverted message, in seconds from BEGINS; the syphon takes them in order."""
    left = [
        (begins + number / PER_S[entity], entity)
        for entity, (_, begins, ends) in DOWN_S.items()
        for number in range(int((ends - begins) * PER_S[entity]))
    ]
    return [
        (entity, away, max(HOME_FROM_S + number / HOME_PER_S, away))
        for number, (away, entity) in enumerate(sorted(left))
    ]


def example_report(*, trouble: bool = False) -> Report:
    """Two outages and a suspicion, everything home. `trouble`: dead letters, failed sends, a damaged ledger too."""
    odd = TROUBLE if trouble else {key: {} for key in TROUBLE}
    travelled = journeys()
    return Report(
        schema=SCHEMA,
        made_at="2026-03-01T15:02:11.480Z",
        version="0.4.0",
        begins=at(0),
        ends=at(LENGTH_S),
        seconds=float(LENGTH_S),
        source=_source() if trouble else ReportSource(5, 104_377, 0, (), 0, 0),
        prices=Prices(
            "standard", "USD", "2026-03-01", "Azure's pricing page for Service Bus, East US", "documented", 13_000_000
        ),
        bill=_bill(travelled),
        availability=_availability(travelled, odd),
    )


def empty_report() -> Report:
    """A ledger in which nothing went wrong, nor anything else."""
    full = example_report()
    nothing = Amount(0, 0, Decimal(0))
    availability = Availability((), _entity("*", 0, [], {key: {} for key in TROUBLE}), (), (), (), (), ())
    bill = Bill(nothing, dict.fromkeys(PARTS, nothing), nothing, nothing, Decimal(0), (), (), Decimal(0), Decimal(0))
    source = ReportSource(1, 1, 0, (), 0, 0)
    return replace(full, ends=full.begins, seconds=0.0, source=source, bill=bill, availability=availability)


def _source() -> ReportSource:
    damage = (
        Damage("ledger/2026-03-01-orders-api-4711-9f3c2a1b-0.jsonl", 40112, "the line is cut"),
        Damage("ledger/2026-03-01-payments-api-12-03d1f7aa-0.jsonl", 0, "the file is empty"),
    )
    return ReportSource(files=5, rows=104_377, damaged=2, damage=damage, lost_rows=312, clock_jumps=1)


def _availability(travelled: list[tuple[str, float, float]], odd: Odd) -> Availability:
    entities = tuple(_entity(entity, per_s, travelled, odd) for entity, per_s in PER_S.items())
    waits = [home - away for _, away, home in travelled]
    total = EntityAvailability(
        entity="*",
        sent=sum(one.sent for one in entities),
        diverted=sum(one.diverted for one in entities),
        failed=sum(one.failed for one in entities),
        moved=sum(one.moved for one in entities),
        duplicated=sum(one.duplicated for one in entities),
        maybe_duplicated=sum(one.maybe_duplicated for one in entities),
        dead_lettered=sum(one.dead_lettered for one in entities),
        pings=sum(one.pings for one in entities),
        with_pairing_percent=_percent(
            sum(one.sent + one.diverted for one in entities), sum(one.failed for one in entities)
        ),
        without_pairing_percent=_percent(
            sum(one.sent for one in entities), sum(one.failed + one.diverted for one in entities)
        ),
        delay=_delay(waits),
    )
    width_s = 60.0
    limits = [width_s * number for number in range(1, ceil(max(waits) / width_s) + 1)]
    histogram = tuple((limit, sum(limit - width_s < wait <= limit for wait in waits)) for limit in limits)
    return Availability(
        entities=entities,
        total=total,
        outages=tuple(_outages(travelled, odd)),
        states=tuple(_states()),
        backlog=tuple(_backlog(travelled)),
        dead_letters=tuple(
            DeadLetters("payments", reason, 1)
            for reason in ("its time to live ended before it came home", "the primary refuses it: message too large")
            if odd["dead"]
        ),
        delays=histogram,
        rates=tuple(_rates(travelled, odd)),
    )


def _entity(entity: str, per_s: float, travelled: list[tuple[str, float, float]], odd: Odd) -> EntityAvailability:
    mine = [home - away for name, away, home in travelled if name == entity]
    first, _, recovered = DOWN_S.get(entity, (0.0, 0.0, 0.0))
    sent = int((LENGTH_S - (recovered - first)) * per_s)
    failed, dead = odd["failed"].get(entity, 0), odd["dead"].get(entity, 0)
    return EntityAvailability(
        entity=entity,
        sent=sent,
        diverted=len(mine),
        failed=failed,
        moved=len(mine) - dead,
        duplicated=0,
        maybe_duplicated=odd["maybe"].get(entity, 0),
        dead_lettered=dead,
        pings=35 if mine else 0,
        with_pairing_percent=_percent(sent + len(mine), failed),
        without_pairing_percent=_percent(sent, failed + len(mine)),
        delay=_delay(mine) if mine else None,
    )


def _percent(good: int, bad: int) -> float:
    return 100 * good / (good + bad) if good + bad else 100.0


def _delay(waits: list[float]) -> Delay:
    ordered = sorted(waits)
    p50, p95, p99 = (ordered[ceil(len(ordered) * share) - 1] for share in (0.5, 0.95, 0.99))
    return Delay(len(ordered), p50, p95, p99, ordered[-1])


def _outages(travelled: list[tuple[str, float, float]], odd: Odd) -> Iterator[EntityOutage]:
    for entity, (first, diverts, recovered) in DOWN_S.items():
        mine = [home for name, _, home in travelled if name == entity]
        yield EntityOutage(
            entity=entity,
            begins=at(first),
            failed_over=at(diverts),
            recovered=at(recovered),
            drained=at(max(mine)),
            forced=False,
            reason="no answer within 5 s",
            clients=3 if entity == "orders" else 2,
            time_to_divert_s=diverts - first,
            failed_sends=odd["failed"].get(entity, 0),
            diverted=len(mine),
            waiting=0,
        )
    suspected = at(16_210.0), None, at(16_214.5), None
    yield EntityOutage("shipping-labels", *suspected, False, "the service is busy", 1, None, 0, 0, 0)


def _states() -> Iterator[StateSpan]:
    for entity, (first, diverts, recovered) in DOWN_S.items():
        yield StateSpan(entity, "SUSPECT", at(first), at(diverts))
        yield StateSpan(entity, "FAILED_OVER", at(diverts), at(recovered))
    yield StateSpan("shipping-labels", "SUSPECT", at(16_210.0), at(16_214.5))


def _backlog(travelled: list[tuple[str, float, float]]) -> Iterator[BacklogPoint]:
    yield BacklogPoint(at(0), 0, 0.0)
    for now in range(7340, 9200, 10):
        there = [away for _, away, home in travelled if away <= now < home]
        yield BacklogPoint(at(now), len(there), now - min(there) if there else 0.0)
    yield BacklogPoint(at(LENGTH_S), 0, 0.0)


def _rates(travelled: list[tuple[str, float, float]], odd: Odd) -> Iterator[RatePoint]:
    failed = {first: odd["failed"].get(entity, 0) for entity, (first, _, _) in DOWN_S.items()}
    for begins in range(0, LENGTH_S, SPAN_S):
        ends = begins + SPAN_S
        up_s = {
            entity: SPAN_S - max(min(ends, recovered) - max(begins, first), 0)
            for entity, (first, _, recovered) in DOWN_S.items()
        }
        direct = sum(int(per_s * up_s.get(entity, SPAN_S)) for entity, per_s in PER_S.items())
        diverted = sum(begins <= away < ends for _, away, _ in travelled)
        errors = sum(number for first, number in failed.items() if begins <= first < ends)
        yield RatePoint(at(begins), SPAN_S, direct, diverted, errors)


def fleet_report() -> Report:
    """Two outages of twenty queues each, hours apart: what a namespace that fails looks like."""
    report, names = example_report(), [f"orders-{number}" for number in range(1, 21)]
    there = report.availability
    outage, entity, bill = there.outages[0], there.entities[0], report.bill.outages[0]
    spans = [span for span in there.states if span.entity == outage.entity]
    outages, states, bills = [], [], []
    for late_s in (0, 9000):
        for number, one in enumerate(names):
            shift_s = late_s + number * 0.11  # clients notice an outage at slightly different times
            begins, failed_over, recovered, drained = (
                later(time, shift_s) for time in (outage.begins, outage.failed_over, outage.recovered, outage.drained)
            )
            reason = f"no connection to contoso.servicebus.windows.net:5671: [Errno 111] Connect call failed ({number})"
            moved = replace(outage, begins=begins, failed_over=failed_over, recovered=recovered, drained=drained)
            outages.append(replace(moved, entity=one, reason=reason, diverted=65))
            bills.append(replace(bill, entity=one, begins=begins))
            states += [
                replace(span, entity=one, begins=later(span.begins, shift_s), ends=later(span.ends, shift_s))
                for span in spans
            ]
    first, last = there.backlog[0], there.backlog[-1]
    again = [replace(point, time=later(point.time, 9000)) for point in there.backlog[1:-1]]
    availability = replace(
        there,
        entities=tuple(replace(entity, entity=one) for one in names),
        outages=tuple(sorted(outages, key=lambda one: (one.entity, one.begins))),
        states=tuple(sorted(states, key=lambda one: (one.entity, one.begins))),
        backlog=(first, *there.backlog[1:-1], *again, last),
    )
    lines = tuple(
        replace(line, entity=one, money=line.money / 20)
        for line in report.bill.lines
        for one in (names if line.side == "primary" else [line.entity])
    )
    return replace(report, availability=availability, bill=replace(report.bill, outages=tuple(bills), lines=lines))


def later(time: str | None, seconds: float) -> str:
    assert time is not None
    return at((datetime.fromisoformat(time) - BEGINS).total_seconds() + seconds)


def _bill(travelled: list[tuple[str, float, float]]) -> Bill:
    lines = tuple(_lines(travelled))
    bandwidth = Amount(0, 2 * BYTES * len(travelled), Decimal(2 * BYTES * len(travelled)) * Decimal("0.02") / 10**9)
    parts = {part: _sum(line for line in lines if line.part == part) for part in PARTS}
    all_lines = _sum(lines)
    total = replace(all_lines, money=all_lines.money + bandwidth.money)
    own = parts["application"]
    operations = own.operations + len(travelled)
    alone = Amount(operations, own.bytes + BYTES * len(travelled), operations * RATE)
    base = Decimal("0.0135") * HOURS
    geo = Decimal("0.9275") * 2 * HOURS + Decimal("0.05") * own.bytes / 10**9
    outages = tuple(
        OutageBill(entity, at(first), _priced(len(mine) + 35, 1), _priced(2 * len(mine), 2))
        for entity, (first, _, _) in DOWN_S.items()
        if (mine := [one for one in travelled if one[0] == entity])
    )
    return Bill(total, parts, alone, bandwidth, base, lines, outages, geo, total.money + base)


def _priced(operations: int, bytes_each: int) -> Amount:
    return Amount(operations, operations * bytes_each * BYTES, operations * RATE)


def _sum(lines: Iterable[BillLine]) -> Amount:
    total = Amount(0, 0, Decimal(0))
    for line in lines:
        total = Amount(total.operations + line.operations, total.bytes + line.bytes, total.money + line.money)
    return total


def _lines(travelled: list[tuple[str, float, float]]) -> Iterator[BillLine]:
    queues = [f"contoso/x-servicebus-transfer/{number}" for number in range(10)]
    for number in range(HOURS):
        hour = (BEGINS + timedelta(hours=number)).strftime("%Y-%m-%dT%H:%MZ")
        gone = [one for one in travelled if number * 3600 <= one[1] < (number + 1) * 3600]
        home = [one for one in travelled if number * 3600 <= one[2] < (number + 1) * 3600]

        def line(side: str, entity: str, kind: str, part: str, operations: int, hour: str = hour) -> BillLine:
            host = PRIMARY if side == "primary" else SECONDARY
            sizes = 0 if kind in ("empty receive", "ping") else operations * BYTES
            return BillLine(host, side, entity, kind, part, hour, operations, sizes, operations * RATE)

        for entity, per_s in PER_S.items():
            away = sum(one[0] == entity for one in gone)
            sent = int(3600 * per_s) - away
            yield line("primary", entity, "send", "application", sent)
            yield line("primary", entity, "receive", "application", sent + sum(one[0] == entity for one in home))
            if away:
                yield line("primary", entity, "ping", "during", 35 if entity in DOWN_S else 0)
            if home:
                yield line("primary", entity, "send", "after", sum(one[0] == entity for one in home))
        for place, queue in enumerate(queues):
            yield line("secondary", queue, "empty receive", "idle", 4)
            if gone:
                yield line("secondary", queue, "send", "during", len(gone[place::10]))
            if home:
                yield line("secondary", queue, "receive", "after", len(home[place::10]))
