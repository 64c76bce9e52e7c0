"""Sums by Spark. Other files compute money and percentages from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pairbus.ledger.rows import FAILED_SEND
from pairbus.report.availability import TRANSITIONS, Span, Transition
from pairbus.report.bill import Cell, Diversion, Trouble
from pairbus.report.entities import MessageCounts
from pairbus.report.messages import detail, with_outage
from pairbus.report.model import DeadLetters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CELLS_MAX = 20_000  # × 200 bytes = 4 MB of lines in a report; when there are more, they are added up by day or month
GRAINS = (
    "time_ms div 3600000",
    "time_ms div 86400000 * 24",
    "cast(unix_date(trunc(date_from_unix_date(cast(time_ms div 86400000 as int)), 'MONTH')) * 24 as bigint)",
)
"Hours since 1970 at which the hour, day or month of a row begins."


def cells(rows: DataFrame) -> list[Cell]:
    """Operations by namespace, side, entity, kind, cause, outcome and hour, day or month."""
    metered = rows.where("operations is not null")
    found: list[Cell] = []
    for grain in GRAINS:
        key = [F.coalesce(name, F.lit("")).alias(name) for name in ("namespace", "side", "entity", "kind", "cause")]
        is_ok = F.coalesce(F.col("outcome") == "ok", F.lit(False)).alias("is_ok")
        sums = [F.sum(F.coalesce(name, F.lit(0))) for name in ("count", "operations", "bytes")]
        summed = metered.groupBy(*key, is_ok, F.expr(grain).alias("hour")).agg(*sums)
        found = [Cell(*row) for row in (summed if grain is GRAINS[-1] else summed.limit(CELLS_MAX + 1)).collect()]
        if len(found) <= CELLS_MAX:
            break
    return found


def transitions(rows: DataFrame) -> tuple[list[Transition], dict[str, int]]:
    """Transitions in order, and run → time of the last row, for processes that have transitions."""
    steps = rows.where(F.col("event").isin(*TRANSITIONS)).select(
        "run",
        F.coalesce("entity", F.lit("")).alias("entity"),
        "event",
        "time_ms",
        F.coalesce(detail("reason"), F.lit("")).alias("reason"),
        F.coalesce(detail("forced") == "true", F.lit(False)).alias("forced"),
        *("path", "block", "id"),
    )
    found = [Transition(*row[:6]) for row in steps.orderBy("time_ms", "path", "block", "id").collect()]
    if not found:
        return [], {}
    last = (
        rows.join(F.broadcast(steps.select("run").distinct()), "run", "left_semi").groupBy("run").agg(F.max("time_ms"))
    )
    return found, {row[0]: row[1] for row in last.collect()}


def diversions(messages: DataFrame) -> list[Diversion]:
    """Diverted messages by outage and by the queues on their way."""
    grouped = messages.groupBy(
        F.coalesce("outage", F.lit(-1)).alias("outage"), "entity", "queue", "moved_queue", F.col("moved_ms").isNotNull()
    )
    return [
        Diversion(*row)
        for row in grouped.agg(F.count("*"), F.count_if(F.col("ended_ms").isNull()), F.max("ended_ms")).collect()
    ]


def troubles(rows: DataFrame, outages: Sequence[Span]) -> list[Trouble]:
    """Pings and failed sends within outages."""
    if not outages:
        return []
    spark = rows.sparkSession
    ends = spark.createDataFrame(
        [(number, span.ends_ms) for number, span in enumerate(outages) if span.is_over], "outage bigint, ends_ms bigint"
    )
    kinds = rows.where(F.col("kind").isin("ping", FAILED_SEND)).select(
        "entity",
        "time_ms",
        "kind",
        *(F.coalesce(name, F.lit(0)).alias(name) for name in ("count", "operations", "bytes")),
    )
    inside = with_outage(kinds, "time_ms", outages).join(F.broadcast(ends), "outage", "left")
    inside = inside.where("outage is not null and (ends_ms is null or time_ms <= ends_ms)")
    sums = inside.groupBy("outage", "kind").agg(F.sum("count"), F.sum("operations"), F.sum("bytes"))
    return [Trouble(*row) for row in sums.collect()]


def message_counts(rows: DataFrame, messages: DataFrame) -> dict[str, MessageCounts]:
    """Counts of messages by entity. A row without an id is a message of its own."""
    has_none = F.coalesce("message_id", F.lit("")) == ""
    is_maybe = F.col("event") == "MaybeDuplicated"
    single = (
        rows.where(is_maybe | (F.col("kind").isin("diverted", "moved") & has_none))
        .groupBy("entity")
        .agg(
            F.count_if((F.col("kind") == "diverted") & has_none),
            F.count_if((F.col("kind") == "moved") & has_none),
            F.lit(0),
            F.count_distinct(F.when(is_maybe & ~has_none, F.col("message_id"))) + F.count_if(is_maybe & has_none),
        )
    )
    known = messages.groupBy("entity").agg(
        F.count("diverted_ms"), F.count("home_ms"), F.count_if(F.col("moves") > 1), F.lit(0)
    )
    found: dict[str, MessageCounts] = {}
    for row in [*known.collect(), *single.collect()]:
        name = row[0] or ""
        found[name] = found.get(name, MessageCounts()).plus(*row[1:])
    return found


def dead_letter_counts(dead: DataFrame) -> list[DeadLetters]:
    counted = dead.groupBy("entity", "reason").agg(F.count("*")).collect()
    return sorted(
        (DeadLetters(row[0] or "", row[1] or "", row[2]) for row in counted),
        key=lambda each: (each.entity, each.reason),
    )
