"""Ledgers as a table: every row once, however often and however interrupted it is compacted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from pairbus.errors import ConfigError, LedgerNewer
from pairbus.ledger.prices import PriceSheet, load
from pairbus.ledger.rows import RemovedFile
from pairbus.ledger.table import manifest
from pairbus.ledger.table.compaction import _rows_of
from pairbus.ledger.table.lines import NAMES, fields_of, usable
from pairbus.ledger.table.manifest import Manifest, ManifestEntry, line_of, read_manifest, write_manifest
from pairbus.ledger.table.names import source_key
from pairbus.ledger.table.table import ROW_DDL, add_rows
from pairbus.pairing import events
from tests.report.conftest import BEFORE, NOW_S
from tests.report.kept import without_newer
from tests.report.worlds import BROKEN, NOON_S, ODD_BUT_WHOLE, RandomWorld, Writer, hand_ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.report.model import Report

NAME = "2026-03-01-api-1-aaaaaaaa-0.jsonl"


def test_quick_parser_agrees_with_the_ledger_on_every_line() -> None:
    """A line that one takes and the other refuses would be counted by chance."""
    writer = Writer("api", 1, "aaaaaaaa")
    writer.meter(NOON_S, "send", "orders")
    for line in [*BROKEN, *ODD_BUT_WHOLE, *writer.lines]:
        try:
            row = usable(line)
        except ValueError as error:
            with pytest.raises(ValueError, match=r".") as caught:
                fields_of(line)
            assert str(caught.value) == str(error)
        else:
            read = fields_of(line)
            assert {name: read.get(name) for name in NAMES} == {name: getattr(row, name) for name in NAMES}


def test_ledger_file_is_known_by_its_name_in_any_folder() -> None:
    """A file with another name is known by its whole path, because several folders may have that name."""
    assert source_key(f"/a/{NAME}") == source_key(f"abfss://box@account/b/{NAME}") == NAME
    assert source_key("/a/b.jsonl") != source_key("/c/b.jsonl")


def rows_of(lines: Iterable[bytes], position: int, size: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and mark that a worker makes of a file."""
    import pyarrow as pa

    texts = list(lines)
    path = pa.array([f"file:///x/{quote(NAME)}"] * len(texts))
    batch = pa.RecordBatch.from_arrays([path, pa.array(texts, pa.binary())], names=["path", "value"])
    made = [row for out in _rows_of({NAME: (position, size)})(iter([batch])) for row in out.to_pylist()]
    return [row for row in made if row["end"] is None], made[-1]


def test_only_new_lines_whose_end_was_there_are_taken() -> None:
    """The file grows while it is read; its last line is torn."""
    writer = Writer("api", 1, "aaaaaaaa")
    for second in range(3):
        writer.meter(NOON_S + second, "send", "orders")
    lines = [line.rstrip(b"\n") for line in writer.lines]
    length = len(lines[0]) + 1
    taken, mark = rows_of([*lines, lines[0][:20]], length, 3 * length + 20)
    assert [row["position"] for row in taken] == [length, 2 * length]
    assert (mark["end"], mark["damaged"], taken[0]["day"]) == (3 * length, 0, "2026-03-01")
    taken, mark = rows_of([*lines[:2], b"{broken", *lines[2:]], 0, 10**6)
    assert (len(taken), mark["damaged"]) == (3, 1)
    assert rows_of(lines, 0, 2 * length - 1)[1]["end"] == length


def test_highest_round_that_can_be_read_is_the_state(tmp_path: Path) -> None:
    """A kill while a round is written leaves the one before it."""
    assert read_manifest(None, str(tmp_path)) is None
    for number, cut in ((4, 0), (5, 9)):
        folder = tmp_path / "_pairbus" / f"manifest-{number % 2}"
        folder.mkdir(parents=True)
        files = {NAME: {"path": "/x", "size": 9, "position": 7}}
        text = json.dumps({"version": 1, "round": number, "format": "parquet", "files": files, "pending": [NAME]})
        (folder / "part-0.txt").write_text(text[: len(text) - cut] + "\n")
    assert read_manifest(None, str(tmp_path)) == Manifest(4, "parquet", {NAME: ManifestEntry("/x", 9, 7)}, (NAME,))
    sums = RemovedFile(0, 5, 4, 3, 2, 1)
    text = json.dumps({"version": 1, **asdict(Manifest(6, "parquet", {NAME: ManifestEntry("/x", 9, 7, 0, sums)}))})
    (tmp_path / "_pairbus" / "manifest-0" / "part-0.txt").write_text(text + "\n")
    assert read_manifest(None, str(tmp_path)) == Manifest(6, "parquet", {NAME: ManifestEntry("/x", 9, 7, 0, sums)})
    (tmp_path / "_pairbus" / "manifest-1" / "part-0.txt").write_text(f'{{"version": {manifest.VERSION + 1}}}')
    with pytest.raises(LedgerNewer):
        read_manifest(None, str(tmp_path))


@pytest.mark.parametrize(
    ("state", "version"),
    [
        (Manifest(0, "parquet"), 1),
        (Manifest(0, "parquet", {NAME: ManifestEntry("/x", 9, 7)}, (NAME,), origin="/journal"), 1),
        (Manifest(0, "parquet", ahead={NAME: RemovedFile(0, 5, 4, 3, 2, 1)}), 2),
        (Manifest(0, "parquet", adopted=True), 2),
    ],
)
def test_earlier_release_refuses_a_table_that_it_would_count_twice(
    state: Manifest, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know rows without their file, nor rows of files that are still to be read; it reads other tables."""
    folder = tmp_path / "_pairbus" / "manifest-0"
    folder.mkdir(parents=True)
    (folder / "part-0.txt").write_text(line_of(state) + "\n")
    assert json.loads(line_of(state))["version"] == version
    assert read_manifest(None, str(tmp_path)) == state
    monkeypatch.setattr(manifest, "VERSION", 1)
    if version == 1:
        assert read_manifest(None, str(tmp_path)) == state
    else:
        with pytest.raises(LedgerNewer, match="version 2, and this version of Pairbus knows 1"):
            read_manifest(None, str(tmp_path))


def report_of(spark: SparkSession, sheet: PriceSheet, *ledgers: Path) -> Report:
    from pairbus.report.job import make_report

    geo = load("geo-replication")
    return make_report(spark, ledgers, prices=sheet, geo=geo, operations_before=BEFORE, now_s=NOW_S)


@pytest.mark.spark
def test_compaction_adds_every_row_once_whatever_is_killed(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path
) -> None:
    """Files grow between runs; one run ends between the rows and the manifest. Reports of both forms are the same."""
    from pairbus.ledger.table import compact_ledgers

    ledger, place = tmp_path / "ledger", tmp_path / "table"
    hand_ledger(ledger)
    files = sorted(ledger.glob("*.jsonl"))
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[: len(whole) // 2])
    first = compact_ledgers(spark, [ledger], place)
    assert (first.files, first.unchanged, first.damaged) == (2, 0, 0)
    again = compact_ledgers(spark, [ledger], place)
    assert (again.rows, again.files, again.unchanged) == (0, 0, 2)
    files[0].write_bytes(whole)
    second = compact_ledgers(spark, [ledger], place)
    assert second.files == 1
    expected = len(b"".join(file.read_bytes() for file in files).splitlines())
    assert first.rows + second.rows == expected
    shutil.rmtree(place / "_pairbus" / "manifest-1")  # the state after a kill before the last round
    state = read_manifest(spark, str(place))
    assert state is not None
    assert state.pending == (files[0].name,)
    before = report_of(spark, sheet, ledger)
    assert report_of(spark, sheet, ledger, place).bill == before.bill
    assert compact_ledgers(spark, [ledger], place).rows == 0
    assert spark.read.parquet(str(place)).count() == expected
    for sources in ((place,), (ledger, place)):
        made = report_of(spark, sheet, *sources)
        assert (made.bill, made.availability, made.source.rows) == (before.bill, before.availability, expected)


class Killed(Exception):
    """The process ends here."""


@pytest.mark.spark
@pytest.mark.parametrize(
    ("point", "fate"),
    [
        pytest.param("before the round", "stays", marks=pytest.mark.deep),
        pytest.param("in the open round", "is deleted", marks=pytest.mark.deep),
        pytest.param("after the rows", "stays", marks=pytest.mark.deep),
        ("after the rows", "grows"),
        ("after the rows", "is deleted"),
    ],
)
def test_compaction_of_other_ledger_follows_killed_one(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, fate: str
) -> None:
    """The killed run may have added rows of the first ledger, which the next run does not read."""
    from pairbus.ledger.table import compact_ledgers

    first, other, place = tmp_path / "first", tmp_path / "other", tmp_path / "table"
    mine, theirs = Writer("api", 1, "aaaaaaaa"), Writer("web", 2, "bbbbbbbb")
    for second in range(10):
        mine.meter(NOON_S + second, "send", "orders", count=3)
        theirs.meter(NOON_S + second, "send", "orders", count=5)
    mine.write(first)
    theirs.write(other)

    with monkeypatch.context() as patch:
        kill_compaction(patch, point)
        with pytest.raises(Killed):
            compact_ledgers(spark, [first], place)
    compact_ledgers(spark, [other], place)
    if fate == "grows":
        mine.meter(NOON_S + 20, "send", "orders", count=3)
        mine.write(first)
    has_rows = fate != "is deleted" or point == "after the rows"
    expected = 50 + 30 * has_rows + 3 * (fate == "grows")
    if fate == "is deleted":
        shutil.rmtree(first)
        sources = [other, place]
    else:
        sources = [first, other, place]
    assert report_of(spark, sheet, *sources).bill.total.operations == expected
    if fate != "is deleted":
        assert compact_ledgers(spark, [first], place).files == 1
    assert report_of(spark, sheet, place).bill.total.operations == expected
    total = spark.read.parquet(str(place)).agg({"billable_operations": "sum"}).collect()[0][0]
    assert total == expected, "what SQL sees is what the report sees"
    state = read_manifest(spark, str(place))
    assert state is not None
    assert not state.pending


def kill_compaction(patch: pytest.MonkeyPatch, point: str) -> None:
    """Let the next compaction end at a point, as a kill would."""
    from pairbus.ledger.table import compaction

    calls = iter(range(9))

    def killed_write(*arguments: Any) -> None:
        if next(calls) == (0 if point == "before the round" else 1):
            raise Killed
        write_manifest(*arguments)

    def killed_add(*arguments: Any) -> int:
        if point == "in the open round":
            raise Killed
        return add_rows(*arguments)

    patch.setattr(compaction, "write_manifest", killed_write)
    patch.setattr(compaction, "add_rows", killed_add)


@pytest.mark.spark
def test_second_compaction_at_the_same_time_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that overlap would both add the same rows."""
    from pairbus.ledger.table import compact_ledgers, compaction

    ledger, place = tmp_path / "ledger", tmp_path / "table"
    hand_ledger(ledger)
    refused: list[object] = []

    def during(*arguments: Any) -> int:
        if not refused:
            refused.append(None)
            with pytest.raises(ConfigError, match="is being compacted by another run"):
                compact_ledgers(spark, [ledger], place)
        return add_rows(*arguments)

    monkeypatch.setattr(compaction, "add_rows", during)
    first = compact_ledgers(spark, [ledger], place)
    assert first.rows == spark.read.parquet(str(place)).count() > 0
    assert compact_ledgers(spark, [ledger], place).rows == 0


@pytest.mark.spark
def test_table_of_earlier_release_is_continued(spark: SparkSession, sheet: PriceSheet, tmp_path: Path) -> None:
    """Releases up to 0.3 wrote whole days without `source`. One file is still there and has grown, one was deleted."""
    from pairbus.ledger.table import compact_ledgers, register_views

    ledger, place = tmp_path / "ledger", tmp_path / "table"
    hand_ledger(ledger)
    before = report_of(spark, sheet, ledger)
    old = spark.read.schema(ROW_DDL).json(str(ledger)).selectExpr("*", "substring(time, 1, 10) as day")
    old.write.partitionBy("day").parquet(str(place))
    next(ledger.glob("*syphon*")).unlink()
    more = Writer("api", 11, "aaaaaaaa")
    more.meter(NOON_S + 1000, "send", "orders", count=7)
    with next(ledger.glob("*api*")).open("ab") as file:
        file.writelines(more.lines)
    assert compact_ledgers(spark, [ledger], place).rows == 1
    assert compact_ledgers(spark, [ledger], place).rows == 0
    assert report_of(spark, sheet, ledger, place).bill.total.operations == before.bill.total.operations + 7
    register_views(spark, place)
    assert spark.table("ledger_rows").count() == before.source.rows + 1


@pytest.mark.spark
@pytest.mark.parametrize(
    "every",
    [pytest.param(28, marks=pytest.mark.deep), pytest.param(70, marks=pytest.mark.deep), 100],
    ids=lambda every: f"every {every} rows",
)
def test_operations_of_removed_files_are_billed_once(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path, every: int
) -> None:
    """A full folder removes files that the table may have already, wholly, in part or not at all, and later also the
    files in which it noted their sums. The table has a part of one removed file when the report is made (100)."""
    from pairbus.ledger import Ledger
    from pairbus.ledger.table import compact_ledgers, register_views

    folder, place, now = tmp_path / "ledger", tmp_path / "table", [NOON_S]
    ledger = Ledger(folder, client="api", clock=lambda: now[0], max_file_bytes=4096, max_folder_bytes=8192)
    for number in range(1, 141):
        ledger.meter("primary", "contoso", "orders", "send", 100, 10)
        now[0] += 1
        assert ledger.flush(10)
        if number % every == 0:
            compact_ledgers(spark, [folder], place)
    ledger.meter("primary", "contoso", "orders", "send", 100, 10)
    assert ledger.close(10)
    assert report_of(spark, sheet, folder, place).bill.total.operations == 1410
    compact_ledgers(spark, [folder], place)
    compact_ledgers(spark, [folder], place)
    views = register_views(spark, place)
    assert [row[0] for row in views["operations"].agg({"billable_operations": "sum"}).collect()] == [1410]
    assert report_of(spark, sheet, place).bill.total.operations == 1410


@pytest.mark.spark
def test_views_tell_what_the_report_tells(spark: SparkSession, sheet: PriceSheet, tmp_path: Path) -> None:
    """Outages, moves and the lines of the bill, of a random world."""
    from pairbus.ledger.table import compact_ledgers, register_views

    RandomWorld(3).write(tmp_path / "ledger")
    for file in (tmp_path / "ledger").glob("*.jsonl"):  # rows of a later version would stop the compaction
        file.write_bytes(b"".join(without_newer(file.read_bytes())))
    made = report_of(spark, sheet, tmp_path / "ledger")
    done = compact_ledgers(spark, [tmp_path / "ledger"], tmp_path / "table")
    assert done.damaged > 0
    views = register_views(spark, tmp_path / "table")
    found = [
        tuple(row)
        for row in views["outages"]
        .selectExpr("entity", "unix_millis(begins)", "unix_millis(recovered)", "forced", "reason", "clients")
        .orderBy("entity", "begins")
        .collect()
    ]
    assert found == [
        (each.entity, ms(each.begins), each.recovered and ms(each.recovered), each.forced, each.reason, each.clients)
        for each in made.availability.outages
    ]
    totals = spark.sql("SELECT sum(operations), count(*) FROM bill_lines WHERE kind <> 'complete'").collect()[0]
    assert tuple(totals) == (made.bill.total.operations, len(made.bill.lines))
    assert spark.sql("SELECT count_if(moves > 1) FROM moves").collect()[0][0] == made.availability.total.duplicated


@pytest.mark.spark
def test_outages_keep_the_order_in_which_they_were_written(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path
) -> None:
    """The clock goes back during the outage, so that the recovery has the earliest time. Table and views know the order
    too, also when only the first rows of a file are in the table."""
    from pairbus.ledger.table import compact_ledgers, register_views

    ledger, place = tmp_path / "ledger", tmp_path / "table"
    first, last = (Writer("api", 1, "aaaaaaaa") for _ in range(2))
    first.meter(NOON_S - 3600, "send", "orders")
    first.event(NOON_S, events.Suspected("orders", "no answer", 60.0))
    first.write(ledger, 9)
    last.event(NOON_S + 60, events.FailedOver("orders", 60.0, 2, "no answer"))
    last.write(ledger, 10)
    compact_ledgers(spark, [ledger], place)
    last.event(NOON_S - 30, events.Recovered("orders", 30.0, 4, "a ping"))
    last.write(ledger, 10)
    expected = [("orders", ms_of(NOON_S), ms_of(NOON_S + 60), ms_of(NOON_S + 60))]
    for sources in ((ledger,), (ledger, place)):
        assert outages_of(report_of(spark, sheet, *sources)) == expected
    compact_ledgers(spark, [ledger], place)
    assert outages_of(report_of(spark, sheet, place)) == expected
    register_views(spark, place)
    times = ", ".join(f"unix_millis({name})" for name in ("begins", "failed_over", "recovered"))
    assert [tuple(row) for row in spark.sql(f"SELECT entity, {times} FROM outages").collect()] == expected


@pytest.mark.spark
def test_times_of_views_are_shown_in_utc_with_their_zone(spark: SparkSession, tmp_path: Path) -> None:
    """The session, and this process, may be in a zone whose hours begin at half past. A path may have an apostrophe."""
    from pairbus.cli.pipeline.ledger import texts_of
    from pairbus.ledger.table import compact_ledgers, register_views

    writer, place = Writer("api", 1, "aaaaaaaa"), tmp_path / "l'été"
    writer.meter(NOON_S + 61, "send", "orders")
    writer.write(tmp_path / "ledger")
    compact_ledgers(spark, [tmp_path / "ledger"], place)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        views = register_views(spark, place)
        assert texts_of(views["operations"].select("time", "kind")) == [["2026-03-01T12:01:01.000Z", "send"]]
        assert texts_of(views["bill_lines"].select("hour")) == [["2026-03-01T12:00:00.000Z"]]
        assert texts_of(views["outages"]) == []
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


@pytest.mark.spark
def test_report_reads_table_whose_location_has_an_apostrophe(spark: SparkSession, tmp_path: Path) -> None:
    """The location of a table of another format than Parquet is a value of a query."""
    from pairbus.report.passes.sources import Sources
    from pairbus.report.passes.stages import pass_over
    from pairbus.report.passes.tally import RowsElsewhere

    place = str(tmp_path / "l'été")
    rows = spark.range(1).selectExpr(*(f"'x' as `{name}`" for name in (*NAMES, "source", "position")))
    rows.write.json(place)
    assert pass_over(spark, Sources((), (), (), others=((place, "json"),)), RowsElsewhere()).columns


def ms_of(at_s: float) -> int:
    return round(at_s * 1000)


def outages_of(report: Report) -> list[tuple[object, ...]]:
    return [
        (each.entity, *(time and ms(time) for time in (each.begins, each.failed_over, each.recovered)))
        for each in report.availability.outages
    ]


def ms(text: str) -> int:
    from pairbus.ledger.table.lines import time_ms_of

    return time_ms_of(text)


@pytest.mark.spark
def test_what_cannot_be_compacted_is_refused_before_a_byte_is_written(spark: SparkSession, tmp_path: Path) -> None:
    """A format that the session lacks, no ledger, a row of a later version, a table of somebody else."""
    from pairbus.ledger.table import compact_ledgers, register_views

    hand_ledger(tmp_path / "ledger")
    place = tmp_path / "table"
    for format_, words in (("delta", "does not know the format delta"), ("csv", "must be one of parquet, delta")):
        with pytest.raises(ConfigError, match=words):
            compact_ledgers(spark, [tmp_path / "ledger"], place, format=format_)
    with pytest.raises(ConfigError, match="There is no"):
        compact_ledgers(spark, [tmp_path / "nowhere"], place)
    with pytest.raises(ConfigError, match="There is no table"):
        register_views(spark, place)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.jsonl").write_bytes(b'{"schema": 99}\n')
    with pytest.raises(LedgerNewer):
        compact_ledgers(spark, [tmp_path / "new"], place)
    assert not place.exists()
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"file/table cannot be used: Not a directory$"):
        compact_ledgers(spark, [tmp_path / "ledger"], tmp_path / "file" / "table")
    spark.range(1).write.parquet(str(place))
    with pytest.raises(ConfigError, match="did not make"):
        compact_ledgers(spark, [tmp_path / "ledger"], place)


@pytest.mark.spark
def test_large_ledgers_give_the_same_report_as_small_ones(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of large ledgers are put together in Spark's workers, in several parts."""
    RandomWorld(1).write(tmp_path)
    small = report_of(spark, sheet, tmp_path)
    monkeypatch.setattr("pairbus.report.passes.sources.DRIVER_BYTES", 0)
    monkeypatch.setattr("pairbus.report.passes.stages.PART_BYTES", 400_000)
    assert report_of(spark, sheet, tmp_path) == small
