"""Tables of journals and ledgers: what a run adds, reads and leaves alone. The journals are written by hand."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pairbus.errors import ConfigError
from pairbus.ledger import Ledger
from pairbus.ledger.table.manifest import write_manifest
from pairbus.pairing.events import Moved
from pairbus.spark import compact
from pairbus.spark.syphon_job import compaction, journal_rows
from pairbus.spark.syphon_job.compaction import around
from pairbus.spark.syphon_job.journal import MOVED, JournalRow, Location, encode_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_days_around_the_chosen_ones_are_days_of_the_list() -> None:
    """A journal has no day on which nothing was moved."""
    days = ["01", "02", "05", "08", "09"]
    assert around(days, ["08"], 2, 0) == ["02", "05", "08"]
    assert around(days, ["01", "09"], 1, 1) == ["01", "02", "08", "09"]
    assert around(days, [], 3, 3) == []


def journal(location: Path, day: int, *ids: str, attempt: str = "a") -> None:
    """Append rows of messages to the journal of a day; their sequence numbers are the same on every day."""
    at = NOON + timedelta(days=day)
    at_ms = round(at.timestamp() * 1000)
    rows = [
        JournalRow(MOVED, "q", 1, int(name[1:]), name, "orders", 10, at_ms, None, at_ms, attempt, None) for name in ids
    ]
    record = Location(location).new_record(attempt, at.timestamp())
    record.append(b"".join(encode_rows(rows)))
    record.close()


def moves(spark: SparkSession, tables: Path) -> dict[str, tuple[str, int]]:
    """Day and attempts of each message; each is in the table once."""
    rows = spark.read.parquet(str(tables / "moves")).collect()
    found = {row["message_id"]: (str(row["day"])[-2:], row["attempts"]) for row in rows}
    assert len(found) == len(rows)
    return found


def ledger_of(folder: Path, client: str, message_id: str) -> Path:
    ledger = Ledger(folder, client=client, clock=NOON.timestamp)
    ledger.meter("primary", "contoso", "orders", "send", 100, 3)
    ledger.record(Moved("orders", "q", 1, (message_id,)), NOON.timestamp())
    assert ledger.close(10)
    return folder


@pytest.mark.spark
def test_run_with_another_ledger_keeps_rows_of_the_first(spark: SparkSession, tmp_path: Path) -> None:
    """Two hosts compact their own ledgers into the same tables, on the same day."""
    a, b = ledger_of(tmp_path / "a", "a", "m1"), ledger_of(tmp_path / "b", "b", "m2")
    journal(tmp_path / "location", 0, "m3")
    assert compact(spark, tmp_path / "location", ledgers=[a]).ledger_rows == 2
    assert compact(spark, tmp_path / "location", ledgers=[b]).ledger_rows == 2
    assert compact(spark, tmp_path / "location", ledgers=[a, b, tmp_path / "no rows yet"]).ledger_rows == 0
    rows = spark.read.parquet(str(tmp_path / "location" / "ledger")).collect()
    assert sorted(row["client"] for row in rows) == ["a", "a", "b", "b"]
    assert moves(spark, tmp_path / "location").keys() == {"m1", "m2", "m3"}


@pytest.mark.spark
def test_run_reads_only_days_that_changed_and_those_around(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A syphon compacts every hour for years. A message that is moved again keeps its day, and counts its attempts."""
    read: list[Collection[str]] = []
    read_rows = journal_rows.read_rows

    def recorded(*arguments: Any) -> Any:
        read.append(arguments[-1])
        return read_rows(*arguments)

    monkeypatch.setattr(compaction, "read_rows", recorded)
    for day in range(20):
        journal(tmp_path, day, f"m{day}")
    assert compact(spark, tmp_path).moves == 20
    assert compact(spark, tmp_path).days == ()
    journal(tmp_path, 19, "m18", "m30", attempt="b")
    assert compact(spark, tmp_path).days == ("2026-03-19", "2026-03-20")
    assert [len(days) for days in read] == [20, 7]
    expected = {f"m{day}": (f"{day + 1:02}", 1 + (day == 18)) for day in range(20)}
    assert moves(spark, tmp_path) == expected | {"m30": ("20", 1)}


@pytest.mark.spark
def test_run_killed_while_it_writes_is_repaired_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark removes the old files of a day before the new ones get their names."""
    journal(tmp_path, 0, "m0")
    journal(tmp_path, 1, "m1")
    compact(spark, tmp_path)
    journal(tmp_path, 1, "m2", attempt="b")
    writes = iter(range(9))

    def killed(*arguments: Any) -> None:
        if next(writes):
            raise KeyboardInterrupt
        write_manifest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            compact(spark, tmp_path)
    shutil.rmtree(tmp_path / "moves" / "day=2026-03-02")
    next(tmp_path.glob("journal/*/b.jsonl")).unlink()  # the sizes are again those of the run before
    assert compact(spark, tmp_path).days == ("2026-03-02",)
    assert moves(spark, tmp_path) == {"m0": ("01", 1), "m1": ("02", 1)}


@pytest.mark.spark
def test_moves_of_two_journals_do_not_share_a_location(spark: SparkSession, tmp_path: Path) -> None:
    """A day is written whole, so that one journal would remove the moves of the other."""
    for name in ("one", "other"):
        journal(tmp_path / name, 0, "m1")
    compact(spark, tmp_path / "one", tables=tmp_path / "tables")
    with pytest.raises(ConfigError, match=r"has the moves of the journal .*/one; name another location"):
        compact(spark, tmp_path / "other", tables=tmp_path / "tables")
    compact(spark, tmp_path / "one", tables=tmp_path / "tables")
