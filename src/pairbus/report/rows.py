"""Rows of ledgers as a staged table with typed columns: every later query reads only the columns that it needs.

Laws of this file.
 1. A line is usable when `pairbus.ledger.rows.decode` accepts it, its time is valid, and its numbers are possible.
    Spark parses every line; only a line that looks odd goes through `decode` itself, which decides.
 2. The place of a line is (file, start of Spark's piece of the file, number within the task): Spark reads a piece from
    its start to its end, so this order is that of the file, however Spark cuts it and whichever task reads a piece.
 3. Entities, queues and namespaces are case-insensitive, and are in lower case from here on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import datetime
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pairbus.errors import LedgerNewer
from pairbus.ledger.rows import SCHEMA, Row, decode, encode

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame, SparkSession

NUMBERS = ("schema", "pid", "count", "billable_operations", "bytes", "rows")
AMOUNTS = ("count", "billable_operations", "bytes", "rows")
REQUIRED = ("schema", "time", "client", "pid", "run", "kind")
AMOUNT_MAX = 10**15  # a petabyte in one row; sums of thousands of such rows still fit 64 bits
REASON_MAX = 200  # characters
ROW_DDL = ", ".join(f"`{field.name}` {'bigint' if field.name in NUMBERS else 'string'}" for field in fields(Row))

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_TEXTS = [field.name for field in fields(Row) if field.name not in (*NUMBERS, "details")]
_JSON = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt", "allowSingleQuotes": "false"}

PLACE = ("is_table", "path", "file", "block", "id")
POSITION_DDL = "is_table boolean, path string, file bigint, block bigint, id bigint"
STAGED_DDL = (
    f"{POSITION_DDL}, is_odd boolean, text binary, reason string, time_ms bigint, client string, run string,"
    " kind string, event string, side string, namespace string, entity string, queue string, message_id string,"
    " cause string, outcome string, count bigint, operations bigint, bytes bigint, lost bigint, details string"
)


def usable(line: bytes) -> Row:
    """Decode and check a line; ValueError says in words what is wrong."""
    try:
        row = decode(line)
    except LedgerNewer as newer:
        raise ValueError(f"unknown version: {newer}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"cut, or not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if TIME.fullmatch(row.time) is None:
        raise ValueError(f"time is {row.time!r}")
    datetime.fromisoformat(row.time)
    for name in AMOUNTS:
        if not 0 <= (getattr(row, name) or 0) <= AMOUNT_MAX:
            raise ValueError(f"{name} is {getattr(row, name)}")
    if not -(2**63) <= row.pid < 2**63:
        raise ValueError(f"pid is {row.pid}")
    return row


def stage(spark: SparkSession, lines: Sequence[Path], tables: Sequence[Path], folder: Path) -> DataFrame:
    """Stage all lines of the files in `folder`, with a `reason` for unusable ones. `folder` must outlive the table."""
    if not lines and not tables:
        return spark.createDataFrame([], STAGED_DDL)
    raw = str(folder / "raw")
    if lines:
        _read_lines(spark, lines).write.mode("append").parquet(raw)
    if tables:
        _read_tables(spark, tables).write.mode("append").parquet(raw)
    staged = spark.read.schema(STAGED_DDL).parquet(raw)
    odd = staged.where("is_odd")
    if odd.isEmpty():
        return staged
    judged = odd.select(*PLACE, "text").mapInArrow(_judge, f"{POSITION_DDL}, reason string, line string")
    judged = judged.withColumn("row", F.from_json("line", ROW_DDL)).withColumn("time_ms", _time_ms())
    verdicts = str(folder / "verdicts")
    judged.select(*_staged(F.lit(False), F.col("reason"))).write.parquet(verdicts)
    return staged.where("not is_odd").unionByName(spark.read.schema(STAGED_DDL).parquet(verdicts))


def once(staged: DataFrame) -> DataFrame:
    """Remove rows that are there in both forms, as lines and compacted.

    A file belongs to one run and one day, and a day is compacted as a whole; but since then a file may have grown or
    been deleted. For each run and day the form with more rows is kept, or the lines when both have as many.
    """
    key = staged.withColumn("day", F.expr("time_ms div 86400000"))
    counted = (
        key.where("reason is null")
        .groupBy("run", "day")
        .agg(F.count_if("is_table").alias("in_tables"), F.count_if(~F.col("is_table")).alias("in_lines"))
    )
    both = counted.where("in_tables > 0 and in_lines > 0")
    worse = both.select("run", "day", F.expr("in_tables <= in_lines").alias("is_table"))
    return key.join(F.broadcast(worse), ["run", "day", "is_table"], "left_anti").drop("day")


def json_lines(spark: SparkSession, lines: Sequence[Path]) -> DataFrame:
    """Table of the lines as texts: column `value`, and the hidden column `_metadata`."""
    return spark.read.option("lineSep", "\n").text([_literally(path) for path in lines])


def ledger_tables(spark: SparkSession, tables: Sequence[Path]) -> DataFrame:
    return spark.read.schema(ROW_DDL).parquet(*[_literally(path) for path in tables])


def _literally(path: Path) -> str:
    """Escape a path, because Spark takes every path for a pattern."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", str(path))


# ── reading ──


def _read_lines(spark: SparkSession, lines: Sequence[Path]) -> DataFrame:
    frame = json_lines(spark, lines).select(
        F.lit(False).alias("is_table"),
        F.col("_metadata.file_path").alias("path"),
        F.xxhash64("_metadata.file_path").alias("file"),
        F.col("_metadata.file_block_start").alias("block"),
        F.monotonically_increasing_id().alias("id"),
        F.col("value"),
        F.from_json("value", f"{ROW_DDL}, _corrupt string", _JSON).alias("row"),
    )
    frame = frame.withColumn("time_ms", _time_ms())
    is_odd = ~F.coalesce(_is_fine() & F.col("row._corrupt").isNull() & _is_as_written(), F.lit(False))
    frame = frame.withColumn("is_odd", is_odd)
    text = F.when(F.col("is_odd"), F.col("value").cast("binary"))
    return frame.select(*_staged(F.col("is_odd"), F.lit(None).cast("string"), text))


def _read_tables(spark: SparkSession, tables: Sequence[Path]) -> DataFrame:
    names = [field.name for field in fields(Row)]
    frame = ledger_tables(spark, tables).select(
        F.lit(True).alias("is_table"),
        F.col("_metadata.file_path").alias("path"),
        F.xxhash64("_metadata.file_path").alias("file"),
        F.lit(0).cast("bigint").alias("block"),
        F.col("_metadata.row_index").alias("id"),
        F.struct(*names).alias("row"),
    )
    frame = frame.withColumn("time_ms", _time_ms())
    reason = F.when(~F.coalesce(_is_fine(), F.lit(False)), F.lit("a field is missing, or not possible"))
    return frame.select(*_staged(F.lit(False), reason))


def _is_as_written() -> Column:
    """True when `value` has the form that a ledger writes, so that `decode` would accept it too.

    Spark's parser takes a number for a text, accepts any bytes in a text, and ignores anything after the object. So a
    text must have its quote, all must be ASCII, and the first closing brace must be the last, or that of the details.
    Plain searches, because a regular expression for this would take longer than all the rest.
    """
    value, details = F.col("value"), F.col("row.details")
    first_brace, length = F.instr(value, "}"), F.length(value)
    is_ascii = F.is_valid_utf8(value) & (length == F.octet_length(value))
    flat = F.when(details.isNull(), first_brace == length).otherwise(
        (first_brace == length - 1) & value.endswith("}}") & value.contains('"details":{') & ~_has_name_of_ours(details)
    )
    checks = value.startswith("{") & is_ascii & flat
    for name in _TEXTS:
        checks = checks & (F.col(f"row.{name}").isNull() | value.contains(f'"{name}":"'))
    return checks


def _has_name_of_ours(details: Column) -> Column:
    """True when the details have a text with the name of a field of the row, which could hide that the row lacks it."""
    found = reduce(or_, (details.contains(f'"{name}":"') for name in _TEXTS))
    return details.contains('":"') & found


def _is_fine() -> Column:
    """True when the values of `row` and `time_ms` are possible, as far as they tell without the text. Null means no."""
    present = F.col("row.schema") <= SCHEMA
    for name in REQUIRED:
        present = present & F.col(f"row.{name}").isNotNull()
    wrong = reduce(or_, (~F.coalesce(F.col(f"row.{name}"), F.lit(0)).between(0, AMOUNT_MAX) for name in AMOUNTS))
    return present & F.col("time_ms").isNotNull() & ~wrong


def _time_ms() -> Column:
    is_time = F.col("row.time").rlike(f"^{TIME.pattern}$")
    return F.when(is_time, F.unix_millis(F.col("row.time").try_cast("timestamp")))


def _staged(is_odd: Column, reason: Column, text: Column | None = None) -> list[Column]:
    """Columns of STAGED_DDL, from `row` and the place."""
    same = ("client", "run", "kind", "event", "side", "message_id", "cause", "outcome", "count", "bytes")
    lower = ("namespace", "entity", "queue")
    # No query uses the details of other kinds, and there is a row of those for each message.
    details = F.when(F.col("row.kind") == "event", F.col("row.details"))
    return [
        *(F.col(name) for name in PLACE),
        is_odd.alias("is_odd"),
        (F.lit(None).cast("binary") if text is None else text).alias("text"),
        reason.alias("reason"),
        F.col("time_ms"),
        *(F.col(f"row.{name}").alias(name) for name in same),
        *(F.lower(f"row.{name}").alias(name) for name in lower),
        F.col("row.billable_operations").alias("operations"),
        F.col("row.rows").alias("lost"),
        details.alias("details"),
    ]


def _judge(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Decode odd lines in a Spark worker: each gets its canonical text, or a reason why it is unusable."""
    import pyarrow as pa

    for batch in batches:
        lines: list[str | None] = []
        reasons: list[str | None] = []
        for text in batch.column("text").to_pylist():
            try:
                lines.append(encode(usable(text)).decode("ascii"))
                reasons.append(None)
            except ValueError as error:
                lines.append(None)
                reasons.append(str(error)[:REASON_MAX])
        place: list[Any] = [batch.column(name) for name in PLACE]
        columns = [*place, pa.array(reasons, pa.string()), pa.array(lines, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=[*PLACE, "reason", "line"])
