"""Makes the bill from sums of operations. No Spark here, and no float: money is Decimal, averages are fractions.

Laws of this file.
 1. All operations cost the same: the price of all of them, each month by its tiers, divided by their number.
 2. Amounts of a report have nine decimal places, and the total is the sum of its parts as they are shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import get_args

from pairbus.errors import ConfigError
from pairbus.ledger.estimate import Counting
from pairbus.ledger.prices import PriceSheet
from pairbus.ledger.rows import FAILED_SEND
from pairbus.report.model import PARTS, Amount, Bill, BillLine, OutageBill, Prices
from pairbus.report.rules.availability import UnhealthyTime
from pairbus.report.rules.cells import MONTHLY, begin_of
from pairbus.report.rules.times import HOUR_MS, hour_of, text_of

SPOOL = "spool"
DIVERTING = ("failover", "spool")
"Causes of sends to a backlog queue."
GEO_UNITS, GEO_REGIONS = 1, 2
_DIGITS = Decimal(1).scaleb(-9)
_PRECISE = Context(prec=60)


@dataclass(frozen=True, slots=True)
class Cell:
    """Metered operations of one kind in one hour."""

    namespace: str
    side: str
    entity: str
    kind: str
    cause: str
    is_ok: bool
    hour: int
    "Hours since 1970, at the beginning of the cell's hour, day or month."
    count: int
    operations: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Diversion:
    """Messages of one outage that took the same way home."""

    outage: int
    "Number of the outage; -1: none."
    entity: str
    queue: str | None
    "Backlog queue to which they were diverted first, or `spool`."
    moved_queue: str | None
    "Backlog queue from which they were moved; None also when the row does not say."
    is_moved: bool
    "True when a syphon moved them."
    messages: int
    waiting: int
    drained_ms: int | None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Pings or failed sends within an outage."""

    outage: int
    kind: str
    count: int
    operations: int
    bytes: int


def part_of(kind: str, cause: str, side: str) -> str:
    """Return the part of the bill for an operation. Operations of unknown cause (lost rows) are the application's."""
    if cause == "pairing" or (kind == "empty receive" and cause == "syphon"):
        return "idle"
    if cause == "failover" or (cause == "spool" and side == "secondary"):
        return "during"
    return "after" if cause == "syphon" else "application"


def is_diverted_send(cell: Cell) -> bool:
    return cell.kind == "send" and cell.side == "secondary" and cell.is_ok and cell.cause in DIVERTING


def is_way_back(cell: Cell) -> bool:
    return cell.kind == "receive" and cell.side == "secondary" and cell.cause == "syphon"


@dataclass(frozen=True, slots=True)
class Tariffs:
    """Prices and rules that the user chose."""

    prices: PriceSheet
    geo: PriceSheet
    counting: str
    operations_before: int | None

    def __post_init__(self) -> None:
        if self.counting not in get_args(Counting):
            raise ConfigError(f"counting is {self.counting!r}; it must be one of {', '.join(get_args(Counting))}")


def make_bill(
    cells: Iterable[Cell],
    outages: Sequence[UnhealthyTime],
    diversions: Iterable[Diversion],
    troubles: Iterable[Trouble],
    tariffs: Tariffs,
    period_ms: int,
) -> tuple[Bill, Prices]:
    prices, counting, operations_before = tariffs.prices, tariffs.counting, tariffs.operations_before
    metered = [cell for cell in cells if cell.kind != FAILED_SEND]
    paid = [cell for cell in metered if counting == "strict" or cell.kind != "complete"]
    before = prices.included_operations if operations_before is None else operations_before
    total = sum(cell.operations for cell in paid)
    tariff = Tariff(prices, _charge(paid, tariffs), total)
    parts = _parts(paid, tariff)
    alone = _sum([*(cell for cell in paid if _part(cell) == "application"), *filter(is_diverted_send, paid)])
    crossing = sum(cell.bytes for cell in paid if is_diverted_send(cell) or is_way_back(cell))
    hours = _PRECISE.divide(Decimal(period_ms), Decimal(HOUR_MS))
    base = _shown(prices.base(hours, len({cell.namespace for cell in metered if cell.namespace})))
    all_money = sum((amount.money for amount in parts.values()), Decimal(0))
    sent_bytes = sum(cell.bytes for cell in paid if is_diverted_send(cell) or _is_own_send(cell))
    bill = Bill(
        total=Amount(total, sum(cell.bytes for cell in paid), all_money),
        parts=parts,
        alone=tariff.amount(*alone),
        bandwidth=Amount(0, crossing, _shown(prices.bandwidth(crossing))),
        base=base,
        lines=_lines(paid, tariff),
        outages=tuple(_outage_bills(outages, diversions, troubles, Averages(metered), tariff, counting)),
        geo_replication=_geo_replication(tariffs, hours, sent_bytes),
        with_pairing=all_money + base,
    )
    return bill, Prices(prices.name, prices.currency, prices.date, prices.source, counting, before)


def _geo_replication(tariffs: Tariffs, hours: Decimal, sent_bytes: int) -> Decimal | None:
    geo = tariffs.geo
    if geo.currency != tariffs.prices.currency:
        return None
    return _shown(geo.capacity(hours, GEO_UNITS, GEO_REGIONS) + geo.replication(sent_bytes))


def _charge(paid: Iterable[Cell], tariffs: Tariffs) -> Decimal:
    """Return the price of all operations. Tiers begin anew with each month in UTC.

    Earlier operations that the user names belong to the first month. When none are named, the included operations are
    taken to be used up in every month.
    """
    prices, operations_before = tariffs.prices, tariffs.operations_before
    months: dict[int, int] = defaultdict(int)
    for cell in paid:
        months[begin_of(MONTHLY, cell.hour)] += cell.operations
    charge = Decimal(0)
    for number, month in enumerate(sorted(months)):
        before = prices.included_operations if operations_before is None else operations_before if number == 0 else 0
        charge = _PRECISE.add(charge, prices.charge(before, months[month]))
    return charge


@dataclass(frozen=True, slots=True)
class Tariff:
    sheet: PriceSheet
    charge: Decimal
    "Price of all operations."
    operations: int

    def amount(self, operations: int, bytes_: int, crossing_bytes: int = 0) -> Amount:
        money = self.sheet.bandwidth(crossing_bytes)
        if self.operations:
            share = _PRECISE.divide(_PRECISE.multiply(self.charge, Decimal(operations)), Decimal(self.operations))
            money = _PRECISE.add(money, share)
        return Amount(operations, bytes_, _shown(money))


def _shown(money: Decimal) -> Decimal:
    return money.quantize(_DIGITS, context=_PRECISE)


def _part(cell: Cell) -> str:
    return part_of(cell.kind, cell.cause, cell.side)


def _is_own_send(cell: Cell) -> bool:
    """Return whether these are accepted sends of the application to the primary, directly or from the spool."""
    return cell.kind == "send" and cell.side == "primary" and cell.is_ok and _part(cell) == "application"


def _sum(cells: Iterable[Cell]) -> tuple[int, int]:
    amounts = [(cell.operations, cell.bytes) for cell in cells]
    return sum(operations for operations, _ in amounts), sum(bytes_ for _, bytes_ in amounts)


def _parts(paid: Sequence[Cell], tariff: Tariff) -> dict[str, Amount]:
    """Return amounts by part. Bandwidth belongs to the part that used it: sends away to `during`, moves to `after`."""
    parts = {}
    for name in PARTS:
        cells = [cell for cell in paid if _part(cell) == name]
        crossing = sum(cell.bytes for cell in cells if is_diverted_send(cell) or is_way_back(cell))
        parts[name] = tariff.amount(*_sum(cells), crossing)
    return parts


def _lines(paid: Iterable[Cell], tariff: Tariff) -> tuple[BillLine, ...]:
    sums: dict[tuple[str, str, str, str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    for cell in paid:
        line = sums[cell.namespace, cell.side, cell.entity, cell.kind, _part(cell), cell.hour]
        line[0] += cell.operations
        line[1] += cell.bytes
    lines = []
    for (namespace, side, entity, kind, part, hour), (operations, bytes_) in sorted(sums.items()):
        if operations or bytes_:
            money = tariff.amount(operations, bytes_).money
            lines.append(BillLine(namespace, side, entity, kind, part, hour_of(hour), operations, bytes_, money))
    return tuple(lines)


# ── outages ──


class Averages:
    """Average operations and bytes of one message, for each step of its way, by queue or entity."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for cell in cells:
            step = _step(cell)
            if step is not None:
                sums = self._sums[step, cell.entity]
                for index, value in enumerate((cell.count, cell.operations, cell.bytes)):
                    sums[index] += value

    def of(self, step: str, entity: str | None) -> tuple[Fraction, Fraction]:
        """Return average operations and bytes of a step; one operation without bytes when the ledgers lack the rows."""
        count, operations, bytes_ = self._sums.get((step, entity or ""), (0, 0, 0))
        return (Fraction(operations, count), Fraction(bytes_, count)) if count else (Fraction(1), Fraction(0))


def _step(cell: Cell) -> str | None:
    if not cell.is_ok:
        return None
    if is_diverted_send(cell):
        return "divert"
    if cell.cause != "syphon":
        return None
    return {
        ("receive", "secondary"): "receive",
        ("send", "primary"): "send",
        ("complete", "secondary"): "complete",
    }.get((cell.kind, cell.side))


def _outage_bills(
    outages: Sequence[UnhealthyTime],
    diversions: Iterable[Diversion],
    troubles: Iterable[Trouble],
    averages: Averages,
    tariff: Tariff,
    counting: str,
) -> Iterable[OutageBill]:
    ways: dict[int, list[Diversion]] = defaultdict(list)
    for diversion in diversions:
        ways[diversion.outage].append(diversion)
    pings = {trouble.outage: trouble for trouble in troubles if trouble.kind == "ping"}
    for number, span in enumerate(outages):
        ping = pings.get(number)
        during = _Steps(averages, *((ping.operations, ping.bytes) if ping else (0, 0)))
        after = _Steps(averages)
        for way in ways[number]:
            stored_in = way.moved_queue if way.queue == SPOOL else way.queue
            if way.queue != SPOOL or way.is_moved:
                during.add("divert", stored_in, way.messages, is_crossing=True)
            if way.is_moved:
                after.add("receive", way.moved_queue, way.messages, is_crossing=True)
                after.add("send", way.entity, way.messages)
                if counting == "strict":
                    after.add("complete", way.moved_queue, way.messages)
        yield OutageBill(
            span.entity, text_of(span.begins_ms), during.amount(tariff.amount), after.amount(tariff.amount)
        )


class _Steps:
    """Sum of steps at their average, rounded to whole operations at the end."""

    def __init__(self, averages: Averages, operations: int = 0, bytes_: int = 0) -> None:
        self._averages = averages
        self._operations, self._bytes, self._crossing = Fraction(operations), Fraction(bytes_), Fraction(0)

    def add(self, step: str, entity: str | None, messages: int, *, is_crossing: bool = False) -> None:
        operations, bytes_ = self._averages.of(step, entity)
        self._operations += operations * messages
        self._bytes += bytes_ * messages
        if is_crossing:
            self._crossing += bytes_ * messages

    def amount(self, amount: Callable[[int, int, int], Amount]) -> Amount:
        return amount(round(self._operations), round(self._bytes), round(self._crossing))
