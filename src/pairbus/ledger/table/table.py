"""Adds rows to a ledger's table, each once, and counts those of files that an interrupted run has left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pairbus.ledger.rows import LOST_ROWS, SETTLED, SETTLEMENTS, RemovedFile
from pairbus.ledger.table.lines import NAMES, NUMBERS
from pairbus.ledger.table.lost import files_named, without
from pairbus.ledger.table.manifest import Manifest, ManifestEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET = "parquet"
FORMATS = (PARQUET, "delta", "iceberg")
ROW_DDL = ", ".join(f"`{name}` {'bigint' if name in NUMBERS else 'string'}" for name in NAMES)
TABLE_DDL = f"{ROW_DDL}, source string, position bigint, day string"
TABLE_NAMES = (*NAMES, "source", "position", "day")

NAMES_FILES = f"kind = '{LOST_ROWS}' and details like '%\"removed\":%'"
"Condition of rows that name removed files."

LOST_SETTLEMENTS = f"try_cast(get_json_object(details, '$.{SETTLEMENTS}') as bigint)"
"Settlements among the operations of a row of lost rows."
_SETTLED = f"case kind when '{SETTLED}' then billable_operations when '{LOST_ROWS}' then {LOST_SETTLEMENTS} end"
"Settlements among the billable operations of a row."


def read_table(spark: SparkSession, place: str, format: str) -> DataFrame | None:
    """Return the rows of a table; None when there is none yet. Rows of earlier releases have no source."""
    from pyspark.errors import AnalysisException

    rows = spark.read.format(format)
    if format == PARQUET:
        rows = rows.schema(TABLE_DDL.replace("day string", "day date"))
    try:
        table = rows.load(place).select(*TABLE_NAMES)
        _ = table.schema  # over Connect, the place is looked up when a frame is asked for something
    except AnalysisException:
        return None
    return table


def add_rows(
    spark: SparkSession,
    rows: DataFrame,
    place: str,
    before: Manifest,
    reached: Mapping[str, ManifestEntry],
    lost: Sequence[Mapping[str, Any]],
) -> int:
    """Add rows, except those that the table has; return their number.

    `reached`: the files that were read, with their new positions. `lost`: those of the rows that name removed files.
    """
    from pyspark.sql import functions as F

    rows = rows.select(*TABLE_NAMES)
    interrupted = [key for key in (*before.pending, *before.ahead) if key in reached]
    fresh = [key for key in reached if key not in before.files] if before.adopted else []
    table = read_table(spark, place, before.format) if interrupted or fresh or lost else None
    if table is not None and interrupted:
        present = table.where(F.col("source").isin(interrupted)).select("source", "position")
        rows = rows.join(present, ["source", "position"], "left_anti")
    if table is not None and fresh:
        rows = _without_adopted(rows, table, fresh)
    if lost:
        rows = _without_known(spark, rows, table, before, reached, lost)
    count = rows.count()
    if count:
        ordered = rows.select(*TABLE_NAMES).repartition("day")
        ordered.write.format(before.format).mode("append").partitionBy("day").save(place)
    return count


def rows_ahead(spark: SparkSession, place: str, state: Manifest, keys: Collection[str]) -> dict[str, RemovedFile]:
    """Return those files of which the table has rows behind the known position, with the sums of all their rows."""
    from pyspark.sql import functions as F

    table = read_table(spark, place, state.format) if keys else None
    if table is None:
        return {}
    own = table.where(F.col("source").isin(list(keys)))
    ends = own.groupBy("source").agg(F.max("position").alias("last")).collect()
    sources = [row["source"] for row in ends if row["last"] >= state.position(row["source"])]
    return _sums_of(own, sources) if sources else {}


def _without_adopted(rows: DataFrame, table: DataFrame, fresh: Sequence[str]) -> DataFrame:
    """Return the rows without those that the table has from a release that did not note the source of a row.

    A row has the random id of its process, so it is the same row when all fields are alike; only `details` was written
    in another form. Of several rows alike, as many are left out as the table has.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    names = [name for name in NAMES if name != "details"]
    text = F.to_json(F.struct(*names))
    alike = Window.partitionBy("text")
    mine = rows.where(F.col("source").isin(list(fresh))).withColumn("text", text)
    days = mine.select(F.to_date("day").alias("day")).distinct()
    stored = table.where("source is null").join(days, "day", "left_semi").select(text.alias("text"))
    stored = stored.withColumn("turn", F.row_number().over(alike.orderBy("text")))
    numbered = mine.withColumn("turn", F.row_number().over(alike.orderBy("source", "position")))
    present = numbered.join(stored, ["text", "turn"], "left_semi").select("source", "position")
    return rows.join(present, ["source", "position"], "left_anti")


# ── rows that name removed files ──


def removed_by_name(lost: Sequence[Mapping[str, Any]]) -> dict[str, RemovedFile]:
    """Return the removed files that rows of lost rows name."""
    return {name: sums for row in lost for name, sums in files_named(row).items()}


def _without_known(
    spark: SparkSession,
    rows: DataFrame,
    table: DataFrame | None,
    before: Manifest,
    reached: Mapping[str, ManifestEntry],
    lost: Sequence[Mapping[str, Any]],
) -> DataFrame:
    """Return the rows to add, without the sums of removed files whose rows are in the table."""
    files = {**before.files, **reached}
    removed = removed_by_name(lost)
    in_table = {name: sums for name, sums in removed.items() if name in files and files[name].position >= sums.size}
    seen_files = {*files, *before.pending, *before.ahead}
    in_parts = [name for name in removed if name not in in_table and name in seen_files]
    if in_parts:
        in_table |= _sums_of(rows if table is None else rows.unionByName(table), in_parts)
    changed = [(row["source"], row["position"], without(row, in_table)) for row in lost]
    places = spark.createDataFrame([place[:2] for place in changed], "source string, position bigint")
    rows_left = [new for *_, new in changed if new is not None]
    if not rows_left:
        return rows.join(places, ["source", "position"], "left_anti").select(*TABLE_NAMES)
    again = spark.createDataFrame([[row.get(name) for name in TABLE_NAMES] for row in rows_left], TABLE_DDL)
    added = again.join(rows.select("source", "position"), ["source", "position"], "left_semi")
    others = rows.join(places, ["source", "position"], "left_anti")
    return others.select(*TABLE_NAMES).unionByName(added.select(*TABLE_NAMES))


def _sums_of(rows: DataFrame, names: Sequence[str]) -> dict[str, RemovedFile]:
    """Return the sums of the rows of files, without those rows that name removed files."""
    from pyspark.sql import functions as F

    own = rows.where(F.col("source").isin(list(names)) & ~F.coalesce(F.expr(NAMES_FILES), F.lit(False)))
    amounts = [
        F.sum(F.coalesce(F.expr(each), F.lit(0))) for each in ("`count`", "billable_operations", "bytes", _SETTLED)
    ]
    sums = own.groupBy("source").agg(F.count("*").alias("rows"), *amounts).collect()
    return {row["source"]: RemovedFile(0, *row[1:]) for row in sums}
