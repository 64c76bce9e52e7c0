"""Estimates the cost of pairing: operations and money for some days with one outage, from a few assumptions.

Pure: assumptions in, numbers out. The counts are those of the worst case within the assumptions. The parts of the bill,
and the rule that shares the money among them, are those of the report, so that estimate and report can be compared.

In the outage, sends fail for the failover interval; then they are diverted, until the first ping after the outage, at
most one ping interval later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Literal

from pairbus.ledger import billable_operations
from pairbus.ledger.prices import PriceSheet

Counting = Literal["documented", "strict"]

POLLS_PER_HOUR = 4  # polls of one empty backlog queue by one syphon: a poll waits 15 minutes
REPLICATED_REGIONS = 2
NAMESPACE_CONNECTIONS_MAX = 5_000  # AMQP connections of one namespace
NAMESPACE_OPERATIONS_PER_SECOND = 1_000  # limit of a namespace in Basic and Standard
_HOUR_S = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    sheet: PriceSheet
    geo: PriceSheet
    "Prices of geo-replication, for comparison."
    entities: int
    clients: int
    "Number of client processes; each sends to every entity."
    messages_per_second: Decimal
    "Rate of all clients together."
    size_bytes: int
    "Size of one encoded message."
    outage_s: int
    "Length of the outage, of all entities of the primary; 0: no outage."
    days: int = 30
    backlog_queue_count: int = 10
    syphons: int = 1
    ping_interval_s: int = 60
    failover_interval_s: int = 60
    budget_per_second: Decimal = Decimal(200)
    "Rate at which all syphons together move messages home."
    units: int = 1
    "Messaging units of each namespace, in a tier that charges them."
    counting: Counting = "documented"
    "documented: settlements are free; strict: each settlement is an operation."
    operations_before: int | None = None
    "Earlier operations of the month. None: as many as are included, so that every further operation is charged."


@dataclass(frozen=True, slots=True)
class CostLine:
    """Operations of one kind, with their cost."""

    part: str
    "Part of the bill, as in the report: application, idle, during or after."
    kind: str
    operations: int
    money: Decimal


@dataclass(frozen=True, slots=True)
class IdleCost:
    """Cost of syphons while there is no backlog."""

    queues: int
    syphons: int
    per_hour: int
    per_day: int
    per_30_days: int
    money: Decimal
    "Cost of 30 days."


@dataclass(frozen=True, slots=True)
class EstimatedBill:
    """Cost of the assumed messages, with or without pairing."""

    operations: int
    operations_money: Decimal
    bandwidth_money: Decimal
    connections_money: Decimal
    base_money: Decimal

    @property
    def money(self) -> Decimal:
        return self.operations_money + self.bandwidth_money + self.connections_money + self.base_money


@dataclass(frozen=True, slots=True)
class Estimate:
    messages: int
    "Messages of all days."
    failed_over_s: int
    "Time for which sends are diverted; 0: the outage ends before the failover interval does."
    failed: int
    "Sends that end with an error before the failover; their callers are assumed to retry."
    diverted: int
    pings: int
    backlog_bytes: int
    "Size of the backlog when the outage ends."
    crossing_bytes: int
    "Bytes between the regions: to the backlog, and home."
    drain_s: int
    "Time that the syphons need to drain the backlog at their budget."
    connections_alone: int
    connections_peak: int
    "Connections at both namespaces while failed over."
    lines: tuple[CostLine, ...]
    "Operations with pairing; they add up to those of `paired`."
    alone: EstimatedBill
    "Cost of the same messages through a primary that never fails, without pairing."
    paired: EstimatedBill
    geo: Decimal | None
    "Cost of the same traffic with geo-replication; None when its price sheet has another currency."
    idle: tuple[IdleCost, ...]
    "Idle cost of ten queues and one syphon, and of the assumed numbers."
    notes: tuple[str, ...]
    "Remarks for the reader of the numbers."

    @property
    def added(self) -> Decimal:
        """Cost that pairing adds."""
        return self.paired.money - self.alone.money

    @property
    def geo_ratio(self) -> Decimal | None:
        """Cost of geo-replication divided by that of pairing; None when it cannot be compared."""
        return None if self.geo is None or not self.paired.money else self.geo / self.paired.money


def estimate(assumptions: Assumptions) -> Estimate:
    """Estimate operations and cost; ValueError, with the name of the field, for assumptions that make no sense."""
    _check(assumptions)
    messages = _ceil(assumptions.messages_per_second * assumptions.days * 24 * _HOUR_S)
    failed_over_s = 0
    if assumptions.outage_s > assumptions.failover_interval_s:
        failed_over_s = assumptions.outage_s - assumptions.failover_interval_s + assumptions.ping_interval_s
    diverted = min(_ceil(assumptions.messages_per_second * failed_over_s), messages)
    pings = assumptions.clients * assumptions.entities * (failed_over_s // assumptions.ping_interval_s)
    crossing = 2 * diverted * assumptions.size_bytes
    alone_operations, counts = _operations(assumptions, messages, diverted, pings)
    alone_peaks, paired_peaks = _peaks(assumptions, failed_over_s)
    alone = _bill(assumptions, alone_operations, 0, alone_peaks, namespaces=1)
    paired = _bill(assumptions, sum(count for _, _, count in counts), crossing, paired_peaks, namespaces=2)
    lines = tuple(CostLine(part, kind, count, _share(paired, count)) for part, kind, count in counts)
    return Estimate(
        messages=messages,
        failed_over_s=failed_over_s,
        failed=_ceil(assumptions.messages_per_second * min(assumptions.outage_s, assumptions.failover_interval_s)),
        diverted=diverted,
        pings=pings,
        backlog_bytes=diverted * assumptions.size_bytes,
        crossing_bytes=crossing,
        drain_s=_ceil(diverted / assumptions.budget_per_second),
        connections_alone=alone_peaks[0],
        connections_peak=max(paired_peaks),
        lines=lines,
        alone=alone,
        paired=paired,
        geo=_geo(assumptions, messages),
        idle=_idle_table(assumptions),
        notes=tuple(_notes(assumptions, diverted)),
    )


_RANGES: dict[str, tuple[int, int | None]] = {
    "entities": (1, None),
    "clients": (1, None),
    "messages_per_second": (0, None),
    "size_bytes": (0, None),
    "outage_s": (0, None),
    "days": (1, 31),  # included operations and tiers apply to one month
    "backlog_queue_count": (1, None),
    "syphons": (1, None),
    "ping_interval_s": (1, None),
    "failover_interval_s": (0, None),
    "budget_per_second": (0, None),
    "units": (1, None),
}


def _check(assumptions: Assumptions) -> None:
    for name, (least, most) in _RANGES.items():
        value = getattr(assumptions, name)
        if isinstance(value, float):
            raise TypeError(f"{name} is the float {value!r}; it must be exact")
        if value < least or (most is not None and value > most):
            raise ValueError(f"{name} is {value}; it must be " + (f"{least} … {most}" if most else f"at least {least}"))
    if not assumptions.budget_per_second:
        raise ValueError("budget_per_second is 0; nothing would come home")
    if assumptions.outage_s > assumptions.days * 24 * _HOUR_S:
        raise ValueError(f"outage_s is {assumptions.outage_s}; it must not be longer than the {assumptions.days} days")


def _operations(
    assumptions: Assumptions, messages: int, diverted: int, pings: int
) -> tuple[int, list[tuple[str, str, int]]]:
    """Return operations without pairing, and (part, kind, operations) with pairing. Each message is received once."""
    each = billable_operations([assumptions.size_bytes])
    polls = POLLS_PER_HOUR * 24 * assumptions.days * assumptions.backlog_queue_count * assumptions.syphons
    settled = messages if assumptions.counting == "strict" else 0
    settled_away = diverted if assumptions.counting == "strict" else 0
    counts = [
        ("application", "sends to the primary", (messages - diverted) * each),
        ("application", "receives from the primary", messages * each),
        ("application", "settlements", settled),
        ("idle", "polls of empty backlog queues", polls),
        ("during", "pings", pings),
        ("during", "diverted sends", diverted * each),
        ("after", "receives by the syphon", diverted * each),
        ("after", "second sends", diverted * each),
        ("after", "settlements by the syphon", settled_away),
    ]
    return 2 * messages * each + settled, counts


def _peaks(assumptions: Assumptions, failed_over_s: int) -> tuple[list[int], list[int]]:
    """Return the peak of open connections in each hour, without pairing and with it.

    The SDK opens one connection for each sender. A sender that is failed over has another one to its backlog queue, its
    client has one for pings, and a syphon has one to the secondary and, while it moves messages, one to the primary.
    """
    hours = assumptions.days * 24
    senders = assumptions.clients * assumptions.entities
    quiet = senders + assumptions.syphons
    busy = 2 * senders + assumptions.clients + 2 * assumptions.syphons
    touched = min(-(-failed_over_s // _HOUR_S) + 1, hours) if failed_over_s else 0  # the first is a part of an hour
    return [senders] * hours, [busy] * touched + [quiet] * (hours - touched)


def _bill(assumptions: Assumptions, operations: int, crossing: int, peaks: list[int], namespaces: int) -> EstimatedBill:
    sheet = assumptions.sheet
    return EstimatedBill(
        operations=operations,
        operations_money=sheet.charge(_before(assumptions), operations),
        bandwidth_money=sheet.bandwidth(crossing),
        connections_money=sheet.connections(peaks),
        base_money=sheet.base(assumptions.days * 24, namespaces, assumptions.units),
    )


def _before(assumptions: Assumptions) -> int:
    return (
        assumptions.sheet.included_operations
        if assumptions.operations_before is None
        else assumptions.operations_before
    )


def _share(bill: EstimatedBill, operations: int) -> Decimal:
    """Return the share of the bill for some operations: each costs the same, whichever tier it fell into."""
    return bill.operations_money * operations / bill.operations if bill.operations else Decimal(0)


def _geo(assumptions: Assumptions, messages: int) -> Decimal | None:
    if assumptions.geo.currency != assumptions.sheet.currency:
        return None
    capacity = assumptions.geo.capacity(assumptions.days * 24, assumptions.units, REPLICATED_REGIONS)
    return capacity + assumptions.geo.replication(messages * assumptions.size_bytes)


def _idle_table(assumptions: Assumptions) -> tuple[IdleCost, ...]:
    rows = []
    for queues, syphons in dict.fromkeys([(10, 1), (assumptions.backlog_queue_count, assumptions.syphons)]):
        hour = POLLS_PER_HOUR * queues * syphons
        money = assumptions.sheet.charge(_before(assumptions), hour * 24 * 30)
        rows.append(IdleCost(queues, syphons, hour, hour * 24, hour * 24 * 30, money))
    return tuple(rows)


def _notes(assumptions: Assumptions, diverted: int) -> Iterator[str]:
    sheet = assumptions.sheet
    if assumptions.outage_s and not diverted:
        yield "Nothing is diverted: the outage ends before the failover interval does, or nothing is sent."
    if assumptions.operations_before is None and sheet.included_operations:
        yield f"The {_spaced(sheet.included_operations)} operations included in a month are taken to be used up."
    at_primary = assumptions.clients * assumptions.entities + assumptions.clients + assumptions.syphons
    if at_primary > NAMESPACE_CONNECTIONS_MAX:
        most = _spaced(NAMESPACE_CONNECTIONS_MAX)
        yield f"{_spaced(at_primary)} connections are open at the primary; a namespace takes {most}."
    moved_per_second = assumptions.budget_per_second if diverted else 0
    needed = _ceil(
        2 * billable_operations([assumptions.size_bytes]) * (assumptions.messages_per_second + moved_per_second)
    )
    if sheet.tiers and needed > NAMESPACE_OPERATIONS_PER_SECOND:
        yield (
            f"Live traffic and the way home need {_spaced(needed)} operations a second at the primary;"
            f" Basic and Standard give a namespace {_spaced(NAMESPACE_OPERATIONS_PER_SECOND)}."
        )
    if assumptions.geo.currency != sheet.currency:
        yield f"Geo-replication is left out: its prices are in {assumptions.geo.currency}, not in {sheet.currency}."


def _ceil(value: Decimal) -> int:
    # A rate such as 1000/d is rounded in its last decimal digit; this must not add a message.
    # Numbers from 10¹⁵ on have no such digit: nine decimal places could be more digits than a Decimal has.
    rounded = round(value, 9) if value < 10**15 else value
    return int(rounded.to_integral_value(rounding=ROUND_CEILING))


def _spaced(count: int) -> str:
    return f"{count:,}".replace(",", " ")
