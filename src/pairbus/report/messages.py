"""Table of diverted messages: when each was diverted, when and how its wait ended, and its outage.

A message may have several rows of one kind: it was spooled and then sent to a backlog queue, moved twice, or
dead-lettered twice. The first row of each kind counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from pairbus.report.availability import Span, floor_second

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPOOL = "spool"
SET_ASIDE = "set aside in the spool"
"Reason of a message that the spool could not forward; it counts as dead-lettered."

MESSAGES_DDL = (
    "entity string, message_id string, diverted_ms bigint, queue string, moved_ms bigint, moved_queue string,"
    " moves bigint, home_ms bigint, ended_ms bigint, outage bigint"
)


def message_table(rows: DataFrame, dead: DataFrame, outages: Sequence[Span], folder: Path) -> DataFrame:
    """Table with a row for each message with an id that was diverted, moved or forwarded home; stored in `folder`.

    `diverted_ms` is null when these ledgers do not tell where the message came from, `ended_ms` while it waits,
    `home_ms` when it did not come home. When clocks differ, so that a message came home before it left, the two times
    are made equal.
    """
    spark = rows.sparkSession
    is_forward = (F.col("event") == "SpoolForwarded") & (detail("to") == "primary")
    steps = rows.where((F.col("message_id") != "") & (F.col("kind").isin("diverted", "moved") | is_forward)).select(
        "entity",
        "message_id",
        *(F.when(F.col("kind") == kind, F.struct("time_ms", "queue")).alias(kind) for kind in ("diverted", "moved")),
        F.when(is_forward, F.col("time_ms")).alias("forwarded_ms"),
    )
    known = steps.groupBy("entity", "message_id").agg(
        *(F.min(name).alias(name) for name in ("diverted", "moved", "forwarded_ms")), F.count("moved").alias("moves")
    )
    letters = dead.where("message_id <> ''").groupBy("entity", "message_id").agg(F.min("time_ms").alias("dead_ms"))
    messages = known.join(letters, ["entity", "message_id"], "left").select(
        "entity",
        "message_id",
        F.col("diverted.time_ms").alias("diverted_ms"),
        F.col("diverted.queue").alias("queue"),
        F.col("moved.time_ms").alias("moved_ms"),
        F.col("moved.queue").alias("moved_queue"),
        "moves",
        "forwarded_ms",
        "dead_ms",
    )
    home = F.greatest("diverted_ms", F.least("moved_ms", "forwarded_ms"))
    home = F.when(F.coalesce("moved_ms", "forwarded_ms").isNotNull(), home)
    ended = F.when(
        F.coalesce("home_ms", "dead_ms").isNotNull(), F.greatest("diverted_ms", F.least("home_ms", "dead_ms"))
    )
    messages = messages.withColumn("home_ms", home).withColumn("ended_ms", ended)
    place = str(folder / "messages")
    with_outage(messages, "diverted_ms", outages).select(*_names()).write.parquet(place)
    return spark.read.schema(MESSAGES_DDL).parquet(place)


def _names() -> list[str]:
    return [column.split()[0] for column in MESSAGES_DDL.split(", ")]


def dead_letters(rows: DataFrame) -> DataFrame:
    """Messages that a syphon dead-lettered or a spool set aside: entity, message_id, reason, time_ms.

    The row of a dead letter names the backlog queue. Its entity is that of the message with this id that was diverted
    to the queue, or spooled; when there is none, the queue takes the entity's place.
    """
    letters = rows.where("event = 'DeadLettered'").select(
        "queue", "message_id", detail("reason").alias("reason"), "time_ms", _one_for_each("message_id", "id", "file")
    )
    letters = letters.groupBy("queue", "message_id", "reason", "single").agg(F.min("time_ms").alias("time_ms"))
    sent = rows.where("kind = 'diverted' and message_id <> ''").select(
        F.col("message_id").alias("sent_id"), F.col("queue").alias("sent_to"), F.col("entity").alias("sent_entity")
    )
    is_here = F.col("queue").eqNullSafe(F.col("sent_to"))
    is_it = (F.col("message_id") == F.col("sent_id")) & (is_here | (F.col("sent_to") == SPOOL))
    found = letters.join(sent.distinct(), is_it, "left").groupBy(*letters.columns)
    best = found.agg(F.min(F.struct((~is_here).alias("elsewhere"), F.col("sent_entity").alias("entity"))).alias("sent"))
    entity = F.coalesce("sent.entity", "queue").alias("entity")
    aside = rows.where("event = 'SpoolRefused'").groupBy("entity", "message_id").agg(F.min("time_ms").alias("time_ms"))
    return best.select(entity, "message_id", "reason", "time_ms").unionByName(
        aside.withColumn("reason", F.lit(SET_ASIDE))
    )


def _one_for_each(message_id: str, *place: str) -> Column:
    """Column that keeps rows without an id apart, as messages of their own; null for rows with an id."""
    has_none = F.coalesce(message_id, F.lit("")) == ""
    return F.when(has_none, F.concat_ws("-", *place)).alias("single")


def with_outage(frame: DataFrame, time: str, outages: Sequence[Span]) -> DataFrame:
    """Add the column `outage`: the number of the entity's last outage that began before the row or in its second.

    It is null when there is none. Metered rows have only their second. Rows and beginnings are sorted together,
    because there may be many of both.
    """
    if not outages:
        return frame.withColumn("outage", F.lit(None).cast("bigint"))
    spark = frame.sparkSession
    starts = spark.createDataFrame(
        [(span.entity, floor_second(span.begins_ms), number) for number, span in enumerate(outages)],
        "entity string, starts_ms bigint, number bigint",
    )
    marked = frame.unionByName(starts.withColumnRenamed("starts_ms", time), allowMissingColumns=True)
    in_time = Window.partitionBy("entity").orderBy(F.col(time), F.col("number").isNull(), F.col("number"))
    outage = F.last("number", ignorenulls=True).over(in_time.rowsBetween(Window.unboundedPreceding, 0))
    return marked.withColumn("outage", outage).where("number is null").drop("number")


def detail(name: str) -> Column:
    """Column with a field of the event, as text."""
    return F.get_json_object("details", f"$.{name}")
