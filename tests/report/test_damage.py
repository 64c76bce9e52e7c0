"""Ledgers that are damaged: every place is named, and the rest is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pairbus.errors import ConfigError
from pairbus.ledger.prices import PriceSheet, load
from pairbus.ledger.rows import decode
from pairbus.ledger.table.lines import usable
from pairbus.report.model import Report
from pairbus.report.passes.sources import find_sources
from tests.report.conftest import NOW_S, World
from tests.report.worlds import BROKEN, NOON_S, ODD_BUT_WHOLE, Writer, hand_ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def report_of(spark: SparkSession, sheet: PriceSheet, *ledgers: Path | str) -> Report:
    from pairbus.report.job import make_report

    return make_report(spark, ledgers, prices=sheet, geo=load("geo-replication"), now_s=NOW_S)


@pytest.mark.spark
def test_damage_of_every_kind_is_named_with_file_and_line(world: World) -> None:
    """Lines are torn, of a wrong type or later version, or the clock went back. Spark may split files anywhere."""
    source, read = world.report.source, world.read
    assert source.rows == len(read.rows)
    assert source.damaged == len(read.damaged)
    assert source.clock_jumps == len(read.jumps)
    assert source.files == len(list(world.folder.glob("*.jsonl")))
    shown = [(damage.file, damage.line) for damage in source.damage]
    assert shown == sorted([*read.damaged, *read.jumps])
    assert source.lost_rows == sum(row.rows or 0 for row in read.rows)
    assert all(damage.reason for damage in source.damage)


@pytest.mark.spark
def test_one_folder_with_all_kinds_of_damage(spark: SparkSession, sheet: PriceSheet, tmp_path: Path) -> None:
    """The folder's name is a pattern to Spark. It has broken and strange lines, empty and unreadable files."""
    folder = tmp_path / "a [b] {c} 100% d*"
    writer = Writer("api", 1, "aaaaaaaa")
    for number in range(200):
        writer.meter(NOON_S + number, "send", "orders")
    writer.meter(NOON_S + 100, "send", "orders")  # 99 s back
    writer.lines += [line + b"\n" for line in BROKEN + ODD_BUT_WHOLE]
    whole = writer.write(folder)
    (folder / "empty.jsonl").touch()
    (folder / "gone.jsonl").symlink_to(folder / "nowhere")
    (folder / "a-folder.jsonl").mkdir()
    made = report_of(spark, sheet, folder)
    assert made.source.files == 4
    files = {Path(damage.file).name: damage for damage in made.source.damage if damage.line == 0}
    assert files["empty.jsonl"].reason == "the file is empty"
    assert "No such file" in files["gone.jsonl"].reason
    assert "directory" in files["a-folder.jsonl"].reason
    lines = {damage.line: damage.reason for damage in made.source.damage if damage.file == str(whole)}
    first_broken = 202
    assert sorted(lines) == [201, *range(first_broken, first_broken + len(BROKEN)), first_broken + len(BROKEN)]
    assert lines[201] == "the clock went back by 99.000 s; the row is used"
    assert "unknown version" in lines[first_broken + 3]
    assert lines[first_broken + 4] == "pid is '1'"
    assert lines[first_broken + 5] == "entity is 7"
    assert (made.source.damaged, made.source.rows) == (len(BROKEN), 201 + len(ODD_BUT_WHOLE))
    (entity,) = made.availability.entities
    assert (entity.entity, entity.sent) == ("orders", 201 + 2)


@pytest.mark.spark
def test_compacted_ledgers_and_lines_are_counted_once(
    spark: SparkSession, sheet: PriceSheet, by_hand: World, tmp_path: Path
) -> None:
    """One file has grown since it was compacted, the other one is gone. The report is that of all rows."""
    from pairbus.spark.syphon_job.compaction import compact

    hand_ledger(tmp_path / "ledger")
    compact(spark, tmp_path / "location", ledgers=[tmp_path / "ledger"])
    next((tmp_path / "ledger").glob("*syphon*")).unlink()
    more = Writer("api", 11, "aaaaaaaa")
    more.meter(NOON_S + 1000, "send", "orders", count=7)
    more.write(tmp_path / "ledger", 1)
    (not_a_table := tmp_path / "not.parquet").write_bytes(b"PAR?")
    both = report_of(spark, sheet, tmp_path / "location", str(tmp_path / "ledger" / "*.jsonl"), not_a_table)
    before = by_hand.report
    assert both.source.rows == before.source.rows + 1
    assert both.bill.total.operations == before.bill.total.operations + 7
    assert both.availability.outages == before.availability.outages
    assert both.availability.backlog == before.availability.backlog
    assert [damage.file for damage in both.source.damage] == [str(not_a_table)]


@pytest.mark.spark
def test_a_report_of_nothing_usable_is_empty_and_says_why(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path
) -> None:
    """A full disk may leave nothing but an empty file."""
    (tmp_path / "a.jsonl").touch()
    made = report_of(spark, sheet, tmp_path)
    assert (made.source.rows, made.bill.total.operations, made.seconds) == (0, 0, 0.0)
    assert (made.availability.outages, made.availability.entities) == ((), ())
    assert [damage.reason for damage in made.source.damage] == ["the file is empty"]


def test_what_is_usable_is_what_the_ledger_can_decode() -> None:
    """A usable row also has a time, and numbers that can be summed."""
    for line in BROKEN:
        with pytest.raises(ValueError, match=r"."):
            usable(line)
    for line in ODD_BUT_WHOLE:
        assert usable(line) == decode(line)
    with pytest.raises(ValueError, match="nested too deeply"):
        usable(b"[" * 100_000)


def test_a_name_without_any_ledger_is_an_error(tmp_path: Path) -> None:
    """A report without it would be taken for a whole one."""
    for name in (tmp_path, tmp_path / "nowhere", f"{tmp_path}/*.jsonl"):
        with pytest.raises(ConfigError, match=r"There is no"):
            find_sources([name])


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """The file is named by its folder, by its name and by a pattern."""
    hand_ledger(tmp_path)
    file = next(tmp_path.glob("*.jsonl"))
    assert len(find_sources([tmp_path, file, f"{tmp_path}/*"]).lines) == 2
