"""The journal of a location as rows of Spark, and the removal of its old days.

A folder is read by Spark itself. The keys of an object store are listed on the driver and its objects read in tasks, by
the contract of `storage/`: Spark need not have a file system for it.

    LOCATION/journal/closed-2026-11-15      that day is in the table, and its journal was removed or is being removed

Removing a day takes many calls. The mark `closed-…` comes first, and a day with a mark is not read any more: a part of
a day's journal is never taken for the whole day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from pairbus.spark.storage.entries import delete_all
from pairbus.spark.syphon_job.journal import JOURNAL, Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_DDL = (
    "schema int, outcome string, queue string, queue_created_ms bigint, sequence_number bigint, message_id string,"
    " destination string, size_bytes bigint, enqueued_ms bigint, first_attempt_ms bigint, at_ms bigint, attempt string,"
    " reason string"
)
KEYS_PER_TASK = 200
_CLOSED, _DAY = "closed-", "day="
_LINE = pa.schema([pa.field("day", pa.string()), pa.field("line", pa.string())])


@dataclass(frozen=True, slots=True)
class JournalParts:
    """Parts of a journal, listed where the driver is."""

    names: list[str]
    "Records of days that are not closed: `day=2026-11-15/ATTEMPT.jsonl`."
    closed: list[str]
    "Days whose journal was removed."
    sizes: dict[str, int]
    "Day that is not closed → a number that grows with its journal: bytes in a folder, objects in an object store."


def find(place: Location) -> JournalParts:
    names = place.storage.list(JOURNAL)
    closed = sorted(name.removeprefix(_CLOSED) for name in names if name.startswith(_CLOSED))
    open_days = [name for name in names if name.endswith(".jsonl") and _day_of(name) not in closed]
    sizes: Counter[str] = Counter()
    for name in open_days:
        sizes[_day_of(name)] += 1 if place.folder is None else _size_of(place.folder / JOURNAL / name)
    return JournalParts(open_days, closed, dict(sizes))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # a record without entries is removed when its task ends


def read_rows(spark: SparkSession, place: Location, parts: JournalParts, days: Collection[str]) -> DataFrame | None:
    """Return every whole line of some days that are not closed, with its day; None when there are none."""
    from pyspark.sql import functions as F

    names = [name for name in parts.names if _day_of(name) in days]
    if not names:
        return None
    if place.folder is not None:
        journal = place.folder / JOURNAL.rstrip("/")
        folders = [f"{journal}/{_DAY}{day}" for day in sorted({_day_of(name) for name in names})]
        rows = spark.read.option("basePath", str(journal)).schema(f"{ROW_DDL}, day string").json(folders)
    else:
        keys = spark.createDataFrame([(name,) for name in names], "name string")
        spread = keys.repartition(-(-len(names) // KEYS_PER_TASK))
        lines = spread.mapInArrow(_Reader(place), "day string, line string")
        rows = lines.select(F.from_json("line", ROW_DDL).alias("row"), "day").select("row.*", "day")
    return rows.where(F.col("at_ms").isNotNull())  # a line that a kill has torn is null in all columns


class _Reader:
    """Reader of objects in a task: names in, lines out."""

    def __init__(self, place: Location) -> None:
        self._place = place

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = self._place.storage
        for batch in batches:
            for name in batch.column(0).to_pylist():
                data = storage.get(JOURNAL + name)
                lines = (data or b"").decode("utf-8").splitlines()
                if lines:
                    columns = [pa.array([_day_of(name)] * len(lines), pa.string()), pa.array(lines, pa.string())]
                    yield pa.RecordBatch.from_arrays(columns, schema=_LINE)


def close_days(place: Location, before: str) -> None:
    """Remove the journal of the days before this one, which are in the table."""
    names = [name for name in place.storage.list(JOURNAL) if name.endswith(".jsonl") and _day_of(name) < before]
    for day in sorted({_day_of(name) for name in names}):
        place.storage.put_new(f"{JOURNAL}{_CLOSED}{day}", b"{}")
    delete_all(place.storage, [JOURNAL + name for name in names])


def _day_of(name: str) -> str:
    return name.partition("/")[0].removeprefix(_DAY)
