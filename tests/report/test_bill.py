"""The bill, recomputed row by row; and the same numbers in files."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest

from pairbus.errors import ConfigError, LedgerNewer
from pairbus.ledger.estimate import Counting
from pairbus.ledger.prices import PriceSheet, load
from pairbus.ledger.rows import Author, encode
from pairbus.report.files import read_json, write_json, write_parquet
from pairbus.report.model import PARTS, Amount
from pairbus.report.passes.records import CellSum
from pairbus.report.passes.sums import RowSums, gathered
from pairbus.report.passes.tally import RowsElsewhere, TaskSums
from pairbus.report.rules.bill import Cell, Tariffs, make_bill, part_of
from pairbus.report.rules.cells import DAILY, HOURLY, MONTHLY, begin_of
from tests.report import plain
from tests.report.conftest import BEFORE, NOW_S, World
from tests.report.example import example_report

NEAR = Fraction(1, 10**9)  # amounts are shown with nine digits


def money_of(world: World, operations: Fraction | int, crossing_bytes: int = 0) -> Fraction:
    rows = plain.paid(world.read.rows, world.counting)
    months = Counter(dict.fromkeys(sorted({row.time[:7] for row in rows}), 0))
    for row in rows:
        months[row.time[:7]] += row.billable_operations or 0
    charges = [plain.charge(world.sheet, 0 if at else BEFORE, count) for at, count in enumerate(months.values())]
    rate = sum(charges, Fraction(0)) / plain.operations(rows)
    return rate * operations + Fraction(world.sheet.bandwidth_per_gb) * crossing_bytes / 10**9


def check(amount: Amount, operations: int, size: int, money: Fraction) -> None:
    assert (amount.operations, amount.bytes) == (operations, size)
    assert abs(Fraction(amount.money) - money) <= NEAR


@pytest.mark.spark
def test_every_line_is_the_sum_of_its_rows(world: World) -> None:
    """Lines are by namespace, side, entity, kind, part and hour; none is missing and none is there twice."""
    bill = world.report.bill
    keys = [(line.namespace, line.side, line.entity, line.kind, line.part, line.hour) for line in bill.lines]
    assert len(set(keys)) == len(keys)
    shown = {key: (line.operations, line.bytes) for key, line in zip(keys, bill.lines, strict=True)}
    assert shown == plain.lines(world.read.rows, world.counting)
    for line in bill.lines:
        assert abs(Fraction(line.money) - money_of(world, line.operations)) <= NEAR


@pytest.mark.spark
def test_parts_add_up_to_the_total(world: World) -> None:
    """The sums agree to the last digit that is shown."""
    bill, rows = world.report.bill, plain.paid(world.read.rows, world.counting)
    assert tuple(bill.parts) == PARTS
    for name, amount in bill.parts.items():
        mine = [row for row in rows if plain.part(row) == name]
        crossing = [row for row in mine if plain.is_diverted_send(row) or plain.is_way_back(row)]
        count = plain.operations(mine)
        check(amount, count, plain.size(mine), money_of(world, count, plain.size(crossing)))
    assert bill.total == Amount(
        sum(amount.operations for amount in bill.parts.values()),
        sum(amount.bytes for amount in bill.parts.values()),
        sum((amount.money for amount in bill.parts.values()), Decimal(0)),
    )
    assert bill.total.operations == plain.operations(rows)


@pytest.mark.spark
def test_without_pairing_every_diverted_message_would_have_been_one_send(world: World) -> None:
    """The sends would have gone to a primary that never failed."""
    rows = plain.paid(world.read.rows, world.counting)
    alone = [row for row in rows if plain.part(row) == "application" or plain.is_diverted_send(row)]
    count = plain.operations(alone)
    check(world.report.bill.alone, count, plain.size(alone), money_of(world, count))


@pytest.mark.spark
def test_bandwidth_base_and_geo_replication_are_those_of_the_sheets(world: World) -> None:
    """Bytes across regions count once; base is for two namespaces and all hours; application sends are replicated."""
    bill, rows = world.report.bill, world.read.rows
    crossing = plain.size(row for row in rows if plain.is_diverted_send(row) or plain.is_way_back(row))
    check(bill.bandwidth, 0, crossing, Fraction(world.sheet.bandwidth_per_gb) * crossing / 10**9)
    times = [plain.ms(row.time) for row in rows]
    hours = Fraction(max(times) - min(times), 3_600_000)
    namespaces = {row.namespace for row in rows if row.billable_operations is not None and row.namespace}
    assert abs(Fraction(bill.base) - Fraction(world.sheet.base_per_hour) * hours * len(namespaces)) <= NEAR
    own = [row for row in rows if (row.kind, row.side, row.outcome) == ("send", "primary", "ok")]
    own = [row for row in own if row.cause in ("application", "spool")]
    sent = plain.size([*own, *filter(plain.is_diverted_send, rows)])
    geo = (
        Fraction(world.geo.messaging_unit_per_hour) * 2 * hours + Fraction(world.geo.replication_per_gb) * sent / 10**9
    )
    assert bill.geo_replication is not None
    assert abs(Fraction(bill.geo_replication) - geo) <= NEAR
    assert bill.with_pairing == bill.total.money + bill.base


@pytest.mark.spark
def test_an_outage_costs_its_pings_and_the_way_of_its_messages(world: World) -> None:
    """Each step costs the average of the rows of its queue."""
    outages = world.read.outages
    assert len(world.report.bill.outages) == len(outages)
    for number, shown in enumerate(world.report.bill.outages):
        during, after = plain.outage_bill(world.read, number, world.counting)
        assert (shown.entity, plain.ms(shown.begins)) == (outages[number][0].entity, plain.begins(outages[number]))
        for amount, (operations, size, crossing) in ((shown.during, during), (shown.after, after)):
            money = money_of(world, round(operations), round(crossing))
            check(amount, round(operations), round(size), money)


@pytest.mark.spark
def test_the_numbers_of_the_ledger_by_hand_are_obvious(by_hand: World) -> None:
    """103 sends, receives and lists before; then 2 failed sends, 4 diverted ones, 2 pings, and the way home."""
    bill = by_hand.report.bill
    assert {name: amount.operations for name, amount in bill.parts.items()} == {
        "application": 202,
        "idle": 3 + 2,
        "during": 4 + 2,
        "after": 5 + 4,
    }
    assert bill.alone.operations == 202 + 4
    # All operations lie within the first tier: 1.00 for a million. Of bandwidth a GB costs 1000.
    assert bill.parts["application"].money == Decimal("0.000202000")
    assert bill.parts["during"].money == Decimal("0.000006000") + Decimal("0.004000000")
    assert bill.bandwidth.money == Decimal("0.009000000")
    assert bill.base == Decimal("0.020000000")
    assert bill.geo_replication == Decimal("1.855000000") + Decimal("0.000009360")
    (outage,) = bill.outages
    # 2 pings and 4 sends; for each of 3 messages a receive and a send.
    assert (outage.during.operations, outage.after.operations) == (6, 6)
    assert (outage.during.money, outage.after.money) == (Decimal("0.004006000"), Decimal("0.003006000"))
    assert by_hand.report.prices.operations_before == BEFORE
    assert by_hand.report.prices.currency == "EUR"


@pytest.mark.spark
def test_the_json_file_reads_back_to_the_same_report(world: World, tmp_path: Path) -> None:
    """Decimals, floats, everything."""
    write_json(world.report, tmp_path / "report.json")
    assert read_json(tmp_path / "report.json") == world.report


def test_money_is_text_in_json_and_decimal_in_parquet(tmp_path: Path) -> None:
    """Readers of the files never get a binary fraction."""
    import pyarrow as pa
    from pyarrow import parquet

    report = example_report()
    write_json(report, tmp_path / "report.json")
    assert read_json(tmp_path / "report.json") == report
    assert f'"base": "{report.bill.base}"' in (tmp_path / "report.json").read_text(encoding="utf-8")
    write_parquet(report, tmp_path / "tables")
    lines = parquet.read_table(tmp_path / "tables" / "lines.parquet")
    assert lines.schema.field("money").type == pa.decimal128(38, 9)
    assert lines.column("money").to_pylist() == [round(line.money, 9) for line in report.bill.lines]
    outages = parquet.read_table(tmp_path / "tables" / "outages.parquet").to_pylist()
    assert [row["recovered"] for row in outages] == [outage.recovered for outage in report.availability.outages]
    bills = parquet.read_table(tmp_path / "tables" / "outage_bills.parquet").to_pylist()
    assert [row["during_money"] for row in bills] == [round(each.during.money, 9) for each in report.bill.outages]
    entities = parquet.read_table(tmp_path / "tables" / "entities.parquet").to_pylist()
    assert entities[-1]["entity"] == "*"


def test_a_report_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """A later version could be misread."""
    write_json(replace(example_report(), schema=2), tmp_path / "report.json")
    with pytest.raises(LedgerNewer, match="schema 2"):
        read_json(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("kind", "cause", "side", "part"),
    [
        ("send", "application", "primary", "application"),
        ("empty receive", "application", "primary", "application"),
        ("send", "spool", "primary", "application"),
        ("lost rows", "", "", "application"),
        ("send", "of another meter", "", "application"),
        ("empty receive", "syphon", "secondary", "idle"),
        ("management", "pairing", "secondary", "idle"),
        ("ping", "failover", "primary", "during"),
        ("send", "failover", "secondary", "during"),
        ("send", "spool", "secondary", "during"),
        ("receive", "syphon", "secondary", "after"),
        ("send", "syphon", "primary", "after"),
        ("renew", "syphon", "secondary", "after"),
    ],
)
def test_every_operation_belongs_to_one_part(kind: str, cause: str, side: str, part: str) -> None:
    """The table of docs/report.md."""
    assert part_of(kind, cause, side) == part


def cell(kind: str = "send", operations: int = 1, cause: str = "application", hour: int = 492_323) -> Cell:
    return Cell("n", "primary", "orders", kind, cause, True, hour, operations, operations, 0)


def test_strict_counting_pays_for_settlements_and_documented_does_not() -> None:
    """Sources disagree, so that it is a switch."""
    sheet, geo = load("standard"), load("geo-replication")
    cells = [cell(operations=3), cell("complete", 5)]
    totals = [
        make_bill(cells, [], [], [], Tariffs(sheet, geo, counting, None), 0)[0].total.operations
        for counting in ("documented", "strict")
    ]
    assert totals == [3, 8]
    with pytest.raises(ConfigError, match="documented, strict"):
        Tariffs(sheet, geo, "free", None)


@pytest.mark.parametrize("is_table", [False, True], ids=["lines", "table"])
def test_settlements_in_lost_rows_are_counted_like_others(is_table: bool) -> None:
    """A full folder must not make documented counting dearer; a row that does not tell them is billed as a whole."""
    sums = TaskSums(RowsElsewhere(), is_table=is_table)
    author, values = Author("c", 1, "aaaaaaaa"), {"count": 9, "billable_operations": 10, "bytes": 5, "rows": 2}
    for details in ({"files": 1, "removed": {"a": [900, 2, 9, 10, 5, 4]}, "settlements": 4}, None):
        row = author.row(NOW_S, "lost rows", **values, since="2026-03-01T00:00:00.000Z", details=details)
        if is_table:
            sums.row({**asdict(row), "details": details and json.dumps(details)}, 0)
        else:
            sums.line(encode(row)[:-1])
    sums.finish()
    cells = gathered([record for record in sums.out if isinstance(record, CellSum)], RowSums()).cells()
    tariffs = [Tariffs(load("standard"), load("geo-replication"), counting, None) for counting in get_args(Counting)]
    bills = [make_bill(cells, [], [], [], each, 0)[0].total for each in tariffs]
    assert [(total.operations, total.bytes) for total in bills] == [(16, 10), (20, 10)]


def test_sheets_of_different_currencies_are_not_compared(tmp_path: Path) -> None:
    """The price sheet of geo-replication is in USD; its amount is no number of euros."""
    sheet, geo = load("standard"), load("geo-replication")
    euros = Tariffs(replace(sheet, currency="EUR"), geo, "documented", None)
    bill, _ = make_bill([cell()], [], [], [], euros, 3_600_000)
    assert bill.geo_replication is None
    assert make_bill([cell()], [], [], [], Tariffs(sheet, geo, "documented", None), 0)[0].geo_replication == 0
    report = replace(example_report(), bill=bill)
    write_json(report, tmp_path / "report.json")
    assert read_json(tmp_path / "report.json") == report


def test_price_tier_that_ends_mid_ledger_is_shared_by_all() -> None:
    """An operation costs the same for any purpose and at any time."""
    sheet, geo = load("standard"), load("geo-replication")
    cells = [cell(operations=10), cell(operations=30, cause="syphon")]
    bill, prices = make_bill(cells, [], [], [], Tariffs(sheet, geo, "documented", 100_000_000 - 20), 0)
    assert bill.total.money == Decimal("0.000026000")  # 20 × 0.80 and 20 × 0.50, for a million
    assert bill.parts["after"].money == Decimal("0.000019500")
    free, prices = make_bill(cells, [], [], [], Tariffs(sheet, geo, "documented", 0), 0)
    assert free.total.money == 0
    default, prices = make_bill(cells, [], [], [], Tariffs(sheet, geo, "documented", None), 0)
    assert prices.operations_before == sheet.included_operations
    assert default.total.money == Decimal("0.000032000")


@pytest.mark.parametrize("before", [None, 0, 20_000_000])
@pytest.mark.parametrize("grain", [HOURLY, DAILY, MONTHLY])
def test_each_month_is_charged_by_its_own_tiers(before: int | None, grain: int) -> None:
    """Azure counts the operations of a month: a report on a year must not put December into the tier that January
    reached, nor count the included operations once instead of twelve times."""
    sheet, geo = load("standard"), load("geo-replication")
    begins = [datetime(2026, month, 1, tzinfo=UTC) for month in range(1, 13)]
    year = [
        cell(operations=15_000_000, hour=begin_of(grain, int(begin.timestamp()) // 3600 + hour))
        for begin in begins
        for hour in (0, 27 * 24 + 23)
    ]
    months = [year[at : at + 2] for at in range(0, 24, 2)]
    bill, prices = make_bill(year, [], [], [], Tariffs(sheet, geo, "documented", before), 0)
    later = None if before is None else 0
    alone = [
        make_bill(cells, [], [], [], Tariffs(sheet, geo, "documented", later if at else before), 0)[0].total.money
        for at, cells in enumerate(months)
    ]
    assert bill.total.money == sum(alone)
    assert prices.operations_before == (sheet.included_operations if before is None else before)
    if before is None:
        assert bill.total.money == 12 * Decimal(24)  # 30 million × 0.80


def test_a_ledger_without_operations_costs_nothing() -> None:
    """No division by zero happens."""
    sheet: PriceSheet = load("standard")
    bill, _ = make_bill([], [], [], [], Tariffs(sheet, load("geo-replication"), "strict", None), 0)
    assert bill.total == Amount(0, 0, Decimal("0E-9"))
    assert bill.lines == ()
