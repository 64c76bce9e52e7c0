"""The kept ledgers, whose reports are stored in `golden/`: each has a trait that a rule of the report must not lose.

python -m tests.report.kept        writes the stored reports anew, after a change that is meant to change figures
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import write_ledgers

from pairbus.ledger.prices import PriceSheet, load
from pairbus.ledger.table.lines import usable
from pairbus.pairing import events
from tests.report.worlds import NOON_S, QUEUES, RandomWorld, Writer, hand_ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent / "golden"
NOW_S = 1_772_500_000.0
OPERATIONS_BEFORE = 99_999_000  # the first price tier of the sheet in euros ends within the ledger
PLACE = "LEDGERS"
"Stands for the temporary folder in the stored reports."


@dataclass(frozen=True)
class Kept:
    write: Callable[[SparkSession, Path], list[Path]]
    "Writes ledgers into a folder, and returns the sources of the report."
    counting: str = "documented"
    in_euros: bool = False


def make_json(spark: SparkSession, name: str, folder: Path, euros: PriceSheet) -> str:
    """Return what `pairbus report --json` writes for a kept ledger, without the release and the temporary folder."""
    from pairbus.report.files import write_json
    from pairbus.report.job import make_report

    kept = KEPT[name]
    sheet = euros if kept.in_euros else load("standard")
    geo = replace(load("geo-replication"), currency=sheet.currency)
    before = OPERATIONS_BEFORE if kept.in_euros else None
    report = make_report(
        spark,
        kept.write(spark, folder),
        prices=sheet,
        geo=geo,
        counting=kept.counting,
        operations_before=before,
        now_s=NOW_S,
    )
    write_json(replace(report, version="0"), folder / "report.json")
    values = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return in_lines(values).replace(str(folder), PLACE)


def in_lines(values: object, depth: int = 0) -> str:
    """Return JSON with a line for each record of a list, so that a difference can be read."""
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(values, dict) and depth < 2:
        return (
            "{\n"
            + ",\n".join(f"{pad}{json.dumps(name)}: {in_lines(value, depth + 1)}" for name, value in values.items())
            + f"\n{end}}}"
        )
    if isinstance(values, list) and values:
        return "[\n" + ",\n".join(f"{pad}{json.dumps(each)}" for each in values) + f"\n{end}]"
    return json.dumps(values)


# ── the ledgers ──


def _by_hand(spark: SparkSession, folder: Path) -> list[Path]:
    hand_ledger(folder)
    return [folder]


def _random(seed: int) -> Callable[[SparkSession, Path], list[Path]]:
    """Several clients and a syphon; damaged lines of many kinds, lost rows, clocks that go back."""

    def write(spark: SparkSession, folder: Path) -> list[Path]:
        RandomWorld(seed).write(folder)
        return [folder]

    return write


def _long_outages(spark: SparkSession, folder: Path) -> list[Path]:
    """More seconds with a change of the backlog than its curve has points."""
    folder.mkdir(exist_ok=True)
    write_ledgers(folder, 4000)
    return [folder]


def _clock_steps(spark: SparkSession, folder: Path) -> list[Path]:
    """The clock goes back during outages, in files with the name that a ledger gives, and in one with another name."""
    first, last, other = (Writer("api", 1, "aaaaaaaa") for _ in range(3))
    first.meter(NOON_S - 3600, "send", "orders")
    first.event(NOON_S, events.Suspected("orders", "no answer", 60.0))
    first.event(NOON_S + 20, events.Diverted("orders", QUEUES[0], 1, ("early",), False))
    last.event(NOON_S + 60, events.FailedOver("orders", 60.0, 2, "no answer"))
    last.event(NOON_S - 30, events.Recovered("orders", 30.0, 4, "a ping"))
    last.event(NOON_S - 40, events.Moved("orders", QUEUES[0], 1, ("early",)))
    first.write(folder, 9)
    last.write(folder, 10)
    other.run = "cccccccc"
    other.event(NOON_S + 90, events.FailedOver("bills", 60.0, 2, "refused", True))
    other.event(NOON_S + 30, events.Suspected("bills", "before the step", 60.0))
    other.meter(NOON_S + 200, "send", "bills")
    other.write(folder).rename(folder / "copy.jsonl")
    return [folder]


def _partly_compacted(spark: SparkSession, folder: Path) -> list[Path]:
    """The table has the first rows of each file; one of the files was deleted after another compaction."""
    from pairbus.ledger.table import compact_ledgers

    ledger, table = folder / "ledger", folder / "table"
    RandomWorld(5).write(ledger)
    whole = {path: without_newer(path.read_bytes()) for path in sorted(ledger.glob("*.jsonl"))}
    for number, (path, lines) in enumerate(whole.items()):
        path.write_bytes(b"".join(lines[: len(lines) if number == 0 else len(lines) * number // len(whole)]))
    compact_ledgers(spark, [ledger], table)
    for path, lines in whole.items():
        path.write_bytes(b"".join(lines))
    next(iter(whole)).unlink()
    return [ledger, table]


def _earlier_table(spark: SparkSession, folder: Path) -> list[Path]:
    """A table without a manifest, as early releases wrote it; one file has grown since, one was deleted."""
    from pairbus.ledger.table.table import ROW_DDL

    ledger, table = folder / "ledger", folder / "table"
    hand_ledger(ledger)
    rows = spark.read.schema(ROW_DDL).json(str(ledger)).selectExpr("*", "substring(time, 1, 10) as day")
    rows.write.partitionBy("day").parquet(str(table))
    next(ledger.glob("*syphon*")).unlink()
    more = Writer("api", 11, "aaaaaaaa")
    more.meter(NOON_S + 1000, "send", "orders", count=7)
    with next(ledger.glob("*api*")).open("ab") as file:
        file.writelines(more.lines)
    for path in table.rglob("*.parquet"):  # Spark gives random names
        path.rename(path.with_name("rows.parquet"))
    return [ledger, table]


def without_newer(content: bytes) -> list[bytes]:
    """Return the lines without those of a later version, which would stop a compaction."""
    return [line for line in content.splitlines(keepends=True) if not _is_newer(line)]


def _is_newer(line: bytes) -> bool:
    try:
        usable(line)
    except ValueError as error:
        return str(error).startswith("unknown version")
    return False


KEPT = {
    "by hand": Kept(_by_hand),
    "several clients, damaged": Kept(_random(1), in_euros=True),
    "other clients, strict": Kept(_random(3), "strict", in_euros=True),
    "long outages": Kept(_long_outages),
    "clock steps": Kept(_clock_steps, "strict"),
    "partly compacted": Kept(_partly_compacted, in_euros=True),
    "earlier table": Kept(_earlier_table),
}


def file_of(name: str) -> Path:
    return GOLDEN / f"{name.replace(', ', '-').replace(' ', '-')}.json"


def _write_all() -> None:
    from pairbus.report.passes.sources import SMALL_CONF
    from pairbus.spark import local_session
    from tests.report.conftest import SHEET

    work = Path(tempfile.mkdtemp())
    (work / "plain.toml").write_text(SHEET, encoding="utf-8")
    spark = local_session("kept", "local[2,1]", **SMALL_CONF | {"spark.driver.memory": "512m"})
    for name in sys.argv[1:] or KEPT:
        text = make_json(spark, name, work / name, load(work / "plain.toml"))
        file_of(name).write_text(text + "\n", encoding="utf-8")
    spark.stop()
    shutil.rmtree(work)


if __name__ == "__main__":
    _write_all()
