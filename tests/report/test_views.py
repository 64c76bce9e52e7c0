"""The views in SQL on a ledger's table, compared with plain Python and with the report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pairbus.ledger.prices import PriceSheet, load
from pairbus.ledger.rows import encode
from tests.report import plain
from tests.report.conftest import HAND, NOW_S, SEEDS
from tests.report.kept import without_newer
from tests.report.worlds import NOON_S, RandomWorld, Writer, hand_ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Table:
    read: plain.Read
    views: dict[str, DataFrame]


@pytest.fixture(params=[HAND, *(f"seed {number}" for number in SEEDS)])
def table(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Table:
    from pairbus.ledger.table import compact_ledgers, register_views

    folder, place = tmp_path / "ledger", tmp_path / "table"
    if request.param == HAND:
        hand_ledger(folder)
    else:
        RandomWorld(int(request.param.removeprefix("seed "))).write(folder)
        for path in folder.glob("*.jsonl"):
            path.write_bytes(b"".join(without_newer(path.read_bytes())))
    compact_ledgers(spark, [folder], place)
    return Table(plain.read(folder), register_views(spark, place))


def rows_of(view: DataFrame, *columns: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in view.selectExpr(*columns).collect()]


@pytest.mark.spark
def test_views_give_the_figures_of_plain_python(table: Table) -> None:
    """One test for all views, because compaction takes longer than they do."""
    read, views = table.read, table.views
    bill_lines = rows_of(
        views["bill_lines"],
        *("namespace", "side", "entity", "kind", "part", "date_format(hour, \"yyyy-MM-dd'T'HH:mm'Z'\")"),
        *("operations", "bytes"),
    )
    assert {row[:6]: row[6:] for row in bill_lines} == plain.lines(read.rows, "strict")
    times = "unix_millis(begins)", "unix_millis(recovered)"
    outages = rows_of(views["outages"], "entity", *times, "forced", "clients", "reason")
    assert sorted(row[:5] for row in outages) == [
        (
            group[0].entity,
            plain.begins(group),
            plain.recovered(group),
            any(view.forced for view in group),
            len({view.run for view in group}),
        )
        for group in read.outages
    ]
    moves = rows_of(views["moves"], "entity", "message_id", "queue", "unix_millis(moved_at)", "moves")
    times_moved = Counter((row.entity, row.message_id) for row in read.rows if row.kind == "moved" and row.message_id)
    assert {row[:2]: row[4] for row in moves} == times_moved
    by_message = {(row[0], row[1]): row for row in moves}
    for message in read.messages:
        if message.moved_from is not None:
            assert by_message[message.entity, message.message_id][2] == message.moved_from


@pytest.mark.spark
def test_settlements_among_lost_rows_are_operations_of_their_own(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path
) -> None:
    """The documented way of counting does not bill them, so they must be told apart from the other operations."""
    from pairbus.ledger.table import compact_ledgers, register_views
    from pairbus.report.job import make_report

    writer, place = Writer("api", 1, "aaaaaaaa"), tmp_path / "table"
    writer.meter(NOON_S, "send", "orders", count=3)
    amounts = {"count": 10, "billable_operations": 12, "bytes": 500, "rows": 4}
    writer.lines.append(encode(writer.author.row(NOON_S, "lost rows", **amounts, details={"settlements": 4})))
    writer.write(tmp_path / "ledger")
    compact_ledgers(spark, [tmp_path / "ledger"], place)
    views = register_views(spark, place)
    columns = "kind", "`count`", "billable_operations", "bytes"
    assert sorted(rows_of(views["operations"], *columns)) == [
        ("complete", 4, 4, 0),
        ("lost rows", 6, 8, 500),
        ("send", 3, 3, 0),
    ]
    made = make_report(spark, [place], prices=sheet, geo=load("geo-replication"), now_s=NOW_S)
    billed = views["bill_lines"].where("kind <> 'complete'").agg({"operations": "sum"}).collect()[0][0]
    assert billed == made.bill.total.operations == 11
