"""Journal and ledger as tables: Parquet by day, each moved message once.

    TABLES/moves/day=2026-11-15/*.parquet       a row for each message that a syphon moved or dead-lettered
    TABLES/ledger/day=2026-11-15/*.parquet      the rows of ledgers, as they are

TABLES is the journal's location when that is a folder. A journal in an object store has its tables where the caller
says: Spark must have a file system for them.

Laws of this file.
 1. A day is always written again from all known rows of it, so that compacting twice changes nothing.
 2. A message's day is that of its first attempt. Attempts are counted, they do not make rows.
 3. A day whose journal was removed is closed: it is never written again, and its messages appear on no later day.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.errors import ConfigError, LedgerNewer
from pairbus.ledger import SCHEMA as LEDGER_SCHEMA
from pairbus.ledger.rows import Row as LedgerRow
from pairbus.spark.journal import MOVED, SCHEMA, Location
from pairbus.spark.journal_rows import close_days, find, read_rows
from pairbus.spark.syphon_job import absolute, locate
from pairbus.storage.locations import is_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pairbus.spark.driver_side import DriverSide

Folder = str | os.PathLike[str]

KEY = ("queue", "queue_created_ms", "sequence_number", "message_id")
"Columns that identify a message. Sequence numbers begin again when a queue is deleted and created again."
CLOSED_DAYS_COMPARED = 3  # a lock lasts minutes: a message that is moved again was moved shortly before


@dataclass(frozen=True, slots=True)
class Compacted:
    moves: int
    "Rows written to the table of moves."
    ledger_rows: int
    days: tuple[str, ...]
    "Days of the moves that were written."


def compact(
    spark: SparkSession,
    location: Folder,
    *,
    ledgers: Sequence[Folder] = (),
    journal_kept_days: int | None = None,
    tables: Folder | None = None,
    storage_credential: str | None = None,
) -> Compacted:
    """Make the tables of a journal location, and of ledgers if there are any.

    May run while a syphon runs: rows that are written meanwhile come with the next run. With `journal_kept_days` the
    journal of older days is removed, once it is in the table. `tables`: where the tables go, any path that Spark can
    write; the location itself unless it is in an object store, which `storage_credential` opens.
    """
    from pairbus.spark.driver_side import DriverSide

    driver = DriverSide(spark)
    place = locate(driver, location, storage_credential)
    to = _tables_of(driver, place, tables)
    ledger = _read_ledgers(spark, driver.call(_ledger_files, [os.fspath(folder) for folder in ledgers]))
    moves = _moves(spark, driver, place, to, ledger)
    written, days = (0, ()) if moves is None else _write(moves, f"{to}/moves", SCHEMA)
    ledger_rows = 0 if ledger is None else _write(ledger, f"{to}/ledger", LEDGER_SCHEMA)[0]
    if journal_kept_days is not None:
        before = datetime.now(UTC) - timedelta(days=max(journal_kept_days, 1))
        driver.call(close_days, place, before.strftime("%Y-%m-%d"))
    return Compacted(written, ledger_rows, days)


def _tables_of(driver: DriverSide, place: Location, tables: Folder | None) -> str:
    if tables is not None:
        text = os.fspath(tables)
        return text if is_url(text) else str(absolute(driver, "tables", text))
    if place.folder is None:
        raise ConfigError(
            f"tables: the journal is in {place.root}, where Spark may not write: say where the tables of moves go"
        )
    return str(place.folder)


def _has_moves(to: str) -> bool:
    """Return whether there is a table to compare with; called where the driver is."""
    return is_url(to) or Path(to, "moves").is_dir()


# ── known rows ──


def _moves(
    spark: SparkSession, driver: DriverSide, place: Location, to: str, ledger: DataFrame | None
) -> DataFrame | None:
    from pyspark.sql import functions as F

    parts = []
    found = driver.call(find, place)
    rows = read_rows(spark, place, found)
    if rows is not None:
        parts.append(_once(rows))
    if ledger is not None:
        local = _of_ledger(ledger)
        if parts:
            local = local.join(parts[0].select("queue", "message_id").distinct(), ["queue", "message_id"], "left_anti")
        parts.append(local)
    if not parts:
        return None
    moves = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    closed = found.closed
    has_moves: bool = driver.call(_has_moves, to)
    if closed and has_moves:
        before = spark.read.parquet(f"{to}/moves").where(F.col("day").isin(closed[-CLOSED_DAYS_COMPARED:]))
        same = [moves[name].eqNullSafe(before[name]) for name in KEY]
        moves = moves.where(~F.col("day").isin(closed)).join(before, same, "left_anti")
    return moves


def _once(rows: DataFrame) -> DataFrame:
    """Return one row for each message."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # One run could read when the queue was created, another had no right to.
    alike = Window.partitionBy("queue", "sequence_number", "message_id")
    rows = rows.withColumn("queue_created_ms", F.coalesce("queue_created_ms", F.max("queue_created_ms").over(alike)))
    # Without a sequence number (dead letters) each row is a message: only the finished action is written, once.
    rows = rows.withColumn("single", F.when(F.col("sequence_number").isNull(), F.concat("attempt", F.col("at_ms"))))
    firsts = [
        F.min_by(name, "at_ms").alias(name)
        for name in ("destination", "size_bytes", "enqueued_ms", "first_attempt_ms", "attempt", "reason")
    ]
    grouped = rows.groupBy("outcome", *KEY, "single").agg(
        F.min("day").alias("day"),
        F.min("at_ms").alias("at_ms"),
        F.max("at_ms").alias("last_at_ms"),
        F.count("*").alias("attempts"),
        F.max("schema").alias("schema"),
        *firsts,
    )
    return _timed(grouped)


def _of_ledger(ledger: DataFrame) -> DataFrame:
    """Return the moves of syphons inside applications: a row was written after each completion."""
    from pyspark.sql import functions as F

    at_ms = F.unix_millis(F.to_timestamp("time"))
    moved = ledger.where(F.col("kind") == "moved").select(
        F.lit(MOVED).alias("outcome"),
        "queue",
        F.lit(None).cast("bigint").alias("queue_created_ms"),
        F.lit(None).cast("bigint").alias("sequence_number"),
        "message_id",
        "day",
        at_ms.alias("at_ms"),
        at_ms.alias("last_at_ms"),
        F.lit(1).cast("bigint").alias("attempts"),
        F.lit(SCHEMA).alias("schema"),
        F.col("entity").alias("destination"),
        *(F.lit(None).cast("bigint").alias(name) for name in ("size_bytes", "enqueued_ms", "first_attempt_ms")),
        F.concat_ws("-", "client", "run").alias("attempt"),
        F.lit(None).cast("string").alias("reason"),
    )
    return _timed(moved)


def _timed(moves: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return moves.select(
        "outcome",
        *KEY,
        "destination",
        "size_bytes",
        F.timestamp_millis("enqueued_ms").alias("enqueued_at"),
        F.timestamp_millis("first_attempt_ms").alias("first_attempt_at"),
        F.timestamp_millis("at_ms").alias("moved_at"),
        F.timestamp_millis("last_at_ms").alias("last_moved_at"),
        "attempts",
        "attempt",
        "reason",
        "schema",
        "day",
    )


def _ledger_files(folders: Sequence[str]) -> list[str]:
    return [str(path) for folder in folders for path in sorted(Path(folder).absolute().glob("*.jsonl"))]


def _read_ledgers(spark: SparkSession, paths: list[str]) -> DataFrame | None:
    from pyspark.sql import functions as F

    if not paths:
        return None
    numbers = {"schema", "pid", "count", "billable_operations", "bytes", "rows"}
    ddl = ", ".join(f"`{field.name}` {'bigint' if field.name in numbers else 'string'}" for field in fields(LedgerRow))
    rows = spark.read.schema(ddl).json(paths)
    return rows.where(F.col("kind").isNotNull()).withColumn("day", F.substring("time", 1, 10))


# ── the tables ──


def _write(rows: DataFrame, table: str, schema: int) -> tuple[int, tuple[str, ...]]:
    """Write the rows and return how many, and of which days. LedgerNewer for an unknown schema: no row is written."""
    from pyspark.sql import functions as F

    rows = rows.persist()
    try:
        counts: list[Any] = (
            rows.groupBy("day").agg(F.count("*").alias("rows"), F.max("schema").alias("newest")).collect()
        )
        newest = max((row["newest"] for row in counts), default=schema)
        if newest > schema:
            raise LedgerNewer(f"a row has schema {newest}, and this version of Pairbus knows {schema}: upgrade it")
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("day")
        writer.parquet(table)
    finally:
        rows.unpersist()
    return sum(row["rows"] for row in counts), tuple(sorted(row["day"] for row in counts))
