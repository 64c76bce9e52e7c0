"""Depth and age of the backlog over time, and the delay of messages that came home.

Ledgers may be of any size, but the driver gets only sums: counts of equal delays, and at most 500 points.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from pairbus.report.model import BacklogPoint, Delay
from pairbus.report.times import text_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

POINTS_MAX = 500
BUCKETS = (POINTS_MAX - 2) // 2  # two points of each, the highest and the last second; and the ends of the period
PERCENTILES = (50, 95, 99)
ALL = "*"
DELAY_LIMITS_S = (
    *(round(step * 10.0**power, 2) for power in range(-1, 5) for step in (1, 1.5, 2, 3, 5, 7)),
    *(100_000.0, 250_000.0, 1_000_000.0, 10_000_000.0),
)
"Upper limits of the histogram: 40 of them, from a tenth of a second to four months."


def backlog_points(messages: DataFrame, begins_ms: int, ends_ms: int) -> list[BacklogPoint]:
    """Depth of the backlog and age of its oldest message, at the ends of the period and after seconds with a change.

    With up to 249 such seconds there is also a point at the end of each quiet time: messages grow older while nothing
    changes. When more than 498 seconds have a change, they are cut into 249 groups of the same size, and each group
    keeps its highest and its last second: a short outage in a long period is not missed.

    The oldest message at a point is the minimum over all messages that wait then. To find it without comparing each
    message with each point, a message is reduced to the first and the last point at which it waits. There are at most
    125 000 such pairs, and only the oldest message of each matters. `_walk` then goes from point to point.
    """
    changes = _changes(messages).persist()
    try:
        kept = changes.where("is_kept").orderBy("second").collect()
        oldest = _oldest(messages, changes, len(kept))
    finally:
        changes.unpersist()
    at_first, at_last = F.col("diverted_ms") <= begins_ms, F.col("ended_ms").isNull()
    is_waiting = F.col("ended_ms").isNull() | (F.col("ended_ms") > begins_ms)
    row = messages.agg(
        F.count_if(at_first & is_waiting), F.count_if(at_last), F.min(F.when(at_last, F.col("diverted_ms")))
    ).collect()[0]
    points = [BacklogPoint(text_of(begins_ms), row[0], 0.0)]
    is_all = len(kept) <= BUCKETS  # otherwise there is no room for further points
    for index, point in enumerate(kept):
        quiet_ms, time_ms = point["second"] * 1000 - 1, min(point["second"] * 1000 + 999, ends_ms)
        before = kept[index - 1] if index and is_all else None
        if before is not None and before["second"] < point["second"] - 1 and begins_ms < quiet_ms < ends_ms:
            points.append(BacklogPoint(text_of(quiet_ms), before["depth"], _age_s(quiet_ms, oldest.get(index - 1))))
        if begins_ms < time_ms < ends_ms:
            points.append(BacklogPoint(text_of(time_ms), point["depth"], _age_s(time_ms, oldest.get(index))))
    if ends_ms > begins_ms:
        points.append(BacklogPoint(text_of(ends_ms), row[1], _age_s(ends_ms, row[2])))
    return points


def _age_s(time_ms: int, since_ms: int | None) -> float:
    return 0.0 if since_ms is None else max(0, time_ms - since_ms) / 1000


def _changes(messages: DataFrame) -> DataFrame:
    """Seconds in which the depth changed: depth after the second, whether it is a point, and the points around it.

    `from_point` is the first point at or after the second, `before_point` the last one before it. A message waits from
    `from_point` of the second in which it was diverted to `before_point` of the second in which its wait ended.
    """
    went = messages.select(F.expr("diverted_ms div 1000").alias("second"), F.lit(1).alias("step"))
    ended = messages.where("ended_ms is not null")
    ended = ended.select(F.expr("ended_ms div 1000").alias("second"), F.lit(-1).alias("step"))
    changes = went.unionAll(ended).groupBy("second").agg(F.sum("step").alias("step"))
    # One partition for these windows: there are as many rows as seconds, and not as messages.
    everywhere = Window.partitionBy(F.lit(0))
    in_order = everywhere.orderBy("second")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    changes = changes.select(
        "second",
        F.sum("step").over(so_far).alias("depth"),
        F.row_number().over(in_order).alias("number"),
        F.count("*").over(everywhere).alias("seconds"),
    )
    group = F.expr(f"if(seconds <= {2 * BUCKETS}, number, (number - 1) * {BUCKETS} div seconds)")
    changes = changes.withColumn("bucket", group)
    bucket = Window.partitionBy("bucket")
    is_highest = F.row_number().over(bucket.orderBy(F.desc("depth"), "second")) == 1
    is_last = F.row_number().over(bucket.orderBy(F.desc("second"))) == 1
    changes = changes.withColumn("is_kept", is_highest | is_last)
    points_so_far = F.count_if("is_kept").over(so_far)
    return changes.select(
        "second",
        "depth",
        "is_kept",
        (points_so_far - F.expr("if(is_kept, 1, 0)")).alias("from_point"),
        (points_so_far - F.expr("if(is_kept, 1, 0)") - 1).alias("before_point"),
    )


def _oldest(messages: DataFrame, changes: DataFrame, points: int) -> dict[int, int]:
    """Number of a point → time at which the oldest message that waits there was diverted."""
    pairs = messages.groupBy(
        F.expr("diverted_ms div 1000").alias("went"), F.expr("ended_ms div 1000").alias("ended")
    ).agg(F.min("diverted_ms").alias("since_ms"))
    starts = changes.select(F.col("second").alias("went"), "from_point")
    ends = changes.select(F.col("second").alias("ended"), "before_point")
    spans = pairs.join(starts, "went").join(ends, "ended", "left")
    spans = spans.select("from_point", F.coalesce("before_point", F.lit(points - 1)).alias("to_point"), "since_ms")
    spans = spans.where("from_point <= to_point").groupBy("from_point", "to_point").agg(F.min("since_ms").alias("ms"))
    return _walk([(row["from_point"], row["to_point"], row["ms"]) for row in spans.collect()], points)


def _walk(spans: Sequence[tuple[int, int, int]], points: int) -> dict[int, int]:
    """Point → the least value of the spans that cover it."""
    starting: dict[int, list[tuple[int, int]]] = {}
    for first, last, value in spans:
        starting.setdefault(first, []).append((value, last))
    open_spans: list[tuple[int, int]] = []
    least = {}
    for point in range(points):
        for span in starting.get(point, ()):
            heappush(open_spans, span)
        while open_spans and open_spans[0][1] < point:
            heappop(open_spans)
        if open_spans:
            least[point] = open_spans[0][0]
    return least


# ── delays ──


def delays(messages: DataFrame) -> tuple[dict[str, Delay], tuple[tuple[float, int], ...]]:
    """Delays by entity, with all together under `*`; and the histogram of all.

    Percentiles are exact nearest ranks: delays are whole milliseconds, so equal ones are counted before the sort.
    """
    home = messages.where("home_ms is not null").select("entity", F.expr("home_ms - diverted_ms").alias("delay_ms"))
    counted = home.groupBy("entity", "delay_ms").agg(F.count("*").alias("messages")).persist()
    try:
        everything = (
            counted.groupBy("delay_ms").agg(F.sum("messages").alias("messages")).withColumn("entity", F.lit(ALL))
        )
        ranked = _ranked(counted.unionByName(everything)).collect()
        histogram = counted.groupBy(_limit()).agg(F.sum("messages").alias("messages")).collect()
    finally:
        counted.unpersist()
    by_entity = {
        row["entity"]: Delay(
            row["messages"], row["p50"] / 1000, row["p95"] / 1000, row["p99"] / 1000, row["max"] / 1000
        )
        for row in ranked
    }
    return by_entity, _bars({row["number"]: row["messages"] for row in histogram})


def _ranked(counted: DataFrame) -> DataFrame:
    entity = Window.partitionBy("entity")
    so_far = entity.orderBy("delay_ms").rowsBetween(Window.unboundedPreceding, 0)
    ranks = counted.withColumn("rank", F.sum("messages").over(so_far)).withColumn("all", F.sum("messages").over(entity))
    # The rank of p is the least whole number that is not below p/100 of all.
    reached = [F.min(F.expr(f"if(rank * 100 >= {p} * all, delay_ms, null)")).alias(f"p{p}") for p in PERCENTILES]
    return ranks.groupBy("entity").agg(F.sum("messages").alias("messages"), *reached, F.max("delay_ms").alias("max"))


def _limit() -> Column:
    """Number of the bar of a delay: the first limit that the delay does not exceed."""
    cases = " ".join(f"when delay_ms <= {round(limit * 1000)} then {i}" for i, limit in enumerate(DELAY_LIMITS_S))
    return F.expr(f"case {cases} else {len(DELAY_LIMITS_S) - 1} end").alias("number")


def _bars(messages: dict[int, int]) -> tuple[tuple[float, int], ...]:
    """Bars from the first to the last one with messages, empty ones between them included."""
    if not messages:
        return ()
    return tuple((DELAY_LIMITS_S[i], messages.get(i, 0)) for i in range(min(messages), max(messages) + 1))
