"""Line numbers of damaged lines, and of lines where a clock went back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.sql import Window
from pyspark.sql import functions as F

from pairbus.report.model import Damage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN_MAX = 100  # places that are named; the others are counted
JUMP_MS = 1000  # the row of a second is written when the second is over, behind events of that second


@dataclass(frozen=True, slots=True)
class Places:
    damaged: int
    clock_jumps: int
    shown: tuple[Damage, ...]
    "The first places, sorted by file and line."


def find_places(staged: DataFrame, folder: Path) -> Places:
    """Find damaged lines and clocks that went back, with line numbers: a sort of a few numbers for each row.

    A clock went back when the time of a row is more than a second before that of the usable row above it. In compacted
    files rows have no order; damage there has the number of the row within the file.
    """
    spark = staged.sparkSession
    lines = staged.where("not is_table").select(
        "file", "block", "id", "reason", F.expr("nvl2(reason, null, time_ms)").alias("time_ms")
    )
    in_order = Window.partitionBy("file").orderBy("block", "id")
    above = F.last("time_ms", ignorenulls=True).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    numbered = lines.withColumn("line", F.row_number().over(in_order)).withColumn("back_ms", above - F.col("time_ms"))
    found = numbered.where((F.col("back_ms") > JUMP_MS) | F.col("reason").isNotNull())
    of_tables = staged.where("is_table and reason is not null").select(
        "file", "reason", (F.col("id") + 1).alias("line"), F.lit(None).cast("bigint").alias("back_ms")
    )
    place = str(folder / "places")
    found.select("file", "reason", "line", "back_ms").unionByName(of_tables).write.parquet(place)
    places = spark.read.schema("file bigint, reason string, line bigint, back_ms bigint").parquet(place)
    damaged, jumps = places.agg(F.count("reason"), F.count_if(F.col("reason").isNull())).collect()[0]
    shown = _shown(staged, places) if damaged or jumps else ()
    return Places(damaged, jumps, shown)


def _shown(staged: DataFrame, places: DataFrame) -> tuple[Damage, ...]:
    names = staged.groupBy("file").agg(F.first("path").alias("path"))
    first = places.join(names, "file").orderBy("path", "line").limit(SHOWN_MAX).collect()
    return tuple(
        Damage(unquote(urlsplit(row["path"]).path), row["line"], row["reason"] or _back(row["back_ms"]))
        for row in first
    )


def _back(back_ms: int) -> str:
    return f"the clock went back by {back_ms / 1000:.3f} s; the row is used"
