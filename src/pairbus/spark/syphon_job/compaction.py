"""Writes journal and ledger as tables: Parquet by day, each moved message once.

    TABLES/moves/day=2026-11-15/*.parquet       a row for each message that a syphon moved or dead-lettered
    TABLES/ledger/day=2026-11-15/*.parquet      the rows of ledgers: `ledger/table` adds them, each once
    TABLES/moves/_pairbus/                      manifest: the days that are in the table, and the size of each

TABLES is the journal's location when that is a folder. A journal in an object store has its tables where the caller
says: Spark must have a file system for them.

Laws of this file.
 1. A day of `moves` is always written whole, from the journal and from the table of ledgers, so that compacting twice
    changes nothing. A run reads days whose journal or ledger has grown, and a few days around them.
 2. A message's day is that of its first attempt. Attempts are counted, they do not make rows.
 3. A day whose journal was removed is closed: it is never written again, and its messages appear on no later day.
 4. Days that a run is about to write are in the manifest first: after a kill the next run writes them again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from os import fspath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pairbus.errors import ConfigError, LedgerNewer
from pairbus.ledger.room import SUFFIX
from pairbus.ledger.table import compact_ledgers
from pairbus.ledger.table.listing import LEDGER
from pairbus.ledger.table.manifest import Manifest, ManifestEntry, read_manifest, write_manifest
from pairbus.ledger.table.table import PARQUET, read_table
from pairbus.spark.storage.locations import is_url
from pairbus.spark.syphon_job.arguments import absolute, locate
from pairbus.spark.syphon_job.journal import JOURNAL, MOVED, SCHEMA, Location
from pairbus.spark.syphon_job.journal_rows import close_days, find, read_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pairbus.spark.driver_side import DriverSide

Folder = str | os.PathLike[str]

KEY = ("queue", "queue_created_ms", "sequence_number", "message_id")
"Columns that identify a message. Sequence numbers begin again when a queue is deleted and created again."
DAYS_COMPARED = 3  # days with a journal; a lock lasts minutes: a message that is moved again was moved shortly before
MOVES = "moves"


@dataclass(frozen=True, slots=True)
class Compacted:
    moves: int
    "Rows written to the table of moves: those of the days that were written."
    ledger_rows: int
    "Rows added to the table of ledgers."
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
    """Add to the tables what a journal, and ledgers if there are any, got since the last run.

    May run while a syphon runs: rows that are written meanwhile come with the next run. With `journal_kept_days` the
    journal of older days is removed, once it is in the table. `tables`: where the tables go, any path that Spark can
    write; the location itself unless it is in an object store, which `storage_credential` opens. Each run may name
    other ledgers. ConfigError when `tables` has the moves of another journal.
    """
    from pairbus.spark.driver_side import DriverSide

    driver = DriverSide(spark)
    place = locate(driver, location, storage_credential)
    to = _tables_of(driver, place, tables)
    names = [fspath(folder) for folder in ledgers]
    ledger_names = driver.call(_with_rows, [name for name in names if not is_url(name)])
    ledger_names += [name for name in names if is_url(name)]
    ledger_rows = compact_ledgers(spark, ledger_names, f"{to}/{LEDGER}").rows if ledger_names else 0
    moves, days = _Moves(spark, driver, place, to, "" if tables is None else str(place.root)).write()
    if journal_kept_days is not None:
        before = datetime.now(UTC) - timedelta(days=max(journal_kept_days, 1))
        driver.call(close_days, place, before.strftime("%Y-%m-%d"))
    return Compacted(moves, ledger_rows, days)


def _tables_of(driver: DriverSide, place: Location, tables: Folder | None) -> str:
    if tables is not None:
        text = fspath(tables)
        return text.rstrip("/") if is_url(text) else str(absolute(driver, "tables", text))
    if place.folder is None:
        raise ConfigError(
            f"tables: the journal is in {place.root}, where Spark may not write: say where the tables of moves go"
        )
    return str(place.folder)


def _with_rows(folders: Sequence[str]) -> list[str]:
    """Return the folders of ledgers that have a file already; called where the driver is."""
    absolutes = [Path(folder).absolute() for folder in folders]
    return [str(folder) for folder in absolutes if any(folder.glob(f"*{SUFFIX}"))]


class _Moves:
    """The table of moves of one journal."""

    def __init__(self, spark: SparkSession, driver: DriverSide, place: Location, to: str, origin: str) -> None:
        self._spark = spark
        self._driver = driver
        self._place = place
        self._table = f"{to}/{MOVES}"
        self._parts = driver.call(find, place)
        self._before = read_manifest(spark, self._table) or Manifest(format=PARQUET, origin=origin)
        if self._before.origin != origin:
            raise ConfigError(
                f"tables: {to} has the moves of the journal {self._before.origin or to};"
                f" name another location for those of {place.root}"
            )
        self._ledger = read_table(spark, f"{to}/{LEDGER}", PARQUET)

    def write(self) -> tuple[int, tuple[str, ...]]:
        """Write the days that have changed; return the number of their rows, and the days."""
        sizes = self._sizes()
        sizes_before = {name: entry.size for name, entry in self._before.files.items()}
        grown = {name.partition("/")[2] for name in sizes if sizes[name] != sizes_before.get(name)}
        days = sorted({name.partition("/")[2] for name in sizes})
        changed = [day for day in days if day in grown or day in self._before.pending]
        if not changed:
            return 0, ()
        moves, written = self._moves_around(days, changed)
        moves = moves.persist()
        try:
            counted = _count(moves)
            self._note(pending=written)
            writer = moves.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy("day")
            writer.parquet(self._table)
            self._note(files={name: ManifestEntry(name, size, size) for name, size in sizes.items()}, pending=())
        finally:
            moves.unpersist()
        return counted

    def _sizes(self) -> dict[str, int]:
        """Return a number for each day of the journal and of the ledgers' table, which grows when rows are added."""
        sizes = {f"{JOURNAL}{day}": size for day, size in self._parts.sizes.items()}
        files = [] if self._ledger is None else self._ledger.inputFiles()
        parts = Counter(unquote(PurePosixPath(file).parent.name).removeprefix("day=") for file in files)
        return sizes | {f"{LEDGER}/{day}": size for day, size in parts.items() if day not in self._parts.closed}

    def _note(self, **changes: Any) -> None:
        self._before = replace(self._before, round=self._before.round + 1, **changes)
        write_manifest(self._spark, self._table, self._before)

    def _moves_around(self, days: list[str], changed: list[str]) -> tuple[DataFrame, tuple[str, ...]]:
        """Return the messages of some days around those that have changed, and the days to write.

        A message that was moved on a changed day may have been moved shortly before: then its row is on an earlier day,
        which is written too.
        """
        from pyspark.sql import functions as F

        near = around(days, changed, DAYS_COMPARED, 0)
        compared = around(days, near, DAYS_COMPARED, DAYS_COMPARED)
        rows = read_rows(self._spark, self._place, self._parts, compared)
        moves = None if rows is None else _once(rows, changed)
        touched = None if moves is None else moves.where("touched").select("day")
        if self._ledger is not None:
            local = _of_ledger(self._ledger.where(F.col("day").isin(compared)))
            if moves is not None and touched is not None:
                same = ["queue", "message_id"]
                again = local.join(moves.where("touched").select(*same).distinct(), same, "left_semi")
                touched = touched.unionAll(again.select("day"))
                local = local.join(moves.select(*same).distinct(), same, "left_anti")
            moves = local if moves is None else moves.unionByName(local)
        assert moves is not None, "a day has changed"
        touched_days = [] if touched is None else [row["day"] for row in touched.distinct().collect()]
        written = tuple(day for day in near if day in changed or day in touched_days)
        moves = moves.drop("touched").where(F.col("day").isin(list(written)))
        closed = self._parts.closed[-DAYS_COMPARED:]
        table = self._spark.read.format(PARQUET).load(self._table) if closed and self._has_table() else None
        if table is not None:
            before = table.where(F.col("day").isin(closed))
            moves = moves.join(before, [moves[name].eqNullSafe(before[name]) for name in KEY], "left_anti")
        return moves, written

    def _has_table(self) -> bool:
        return is_url(self._table) or bool(self._driver.call(_is_folder, self._table))


def _is_folder(name: str) -> bool:
    """Tell whether there is a folder; called where the driver is."""
    return Path(name).is_dir()


def around(days: list[str], centres: Collection[str], before: int, after: int) -> list[str]:
    """Return the chosen ones of sorted days, with as many days of the list before and after each."""
    places = {
        place
        for index, day in enumerate(days)
        if day in centres
        for place in range(max(index - before, 0), min(index + after + 1, len(days)))
    }
    return [days[place] for place in sorted(places)]


# ── rows ──


def _once(rows: DataFrame, changed: Collection[str]) -> DataFrame:
    """Return one row for each message; `touched`: it was moved on a changed day."""
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
        F.max(F.col("day").isin(list(changed))).alias("touched"),
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
        F.col("day").cast("string").alias("day"),
        F.lit(False).alias("touched"),
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
        "touched",
    )


def _count(moves: DataFrame) -> tuple[int, tuple[str, ...]]:
    """Count the rows; return how many, and their days. LedgerNewer for an unknown schema."""
    from pyspark.sql import functions as F

    counts = moves.groupBy("day").agg(F.count("*").alias("rows"), F.max("schema").alias("newest")).collect()
    newest = max((row["newest"] for row in counts), default=SCHEMA)
    if newest > SCHEMA:
        raise LedgerNewer(f"a row has schema {newest}, and this version of Pairbus knows {SCHEMA}: upgrade it")
    return sum(row["rows"] for row in counts), tuple(sorted(row["day"] for row in counts))
