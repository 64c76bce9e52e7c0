"""Making a report from ledgers: this file calls the steps, each of which has a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

import pairbus
from pairbus.ledger.rows import time_text
from pairbus.report import sums
from pairbus.report.availability import merged, spans, states
from pairbus.report.backlog import backlog_points, delays
from pairbus.report.bill import Tariffs, make_bill
from pairbus.report.entities import availability_of, outages_of
from pairbus.report.messages import dead_letters, message_table
from pairbus.report.model import SCHEMA, Availability, Bill, Prices, Report, Source
from pairbus.report.places import Places, find_places
from pairbus.report.rows import once, stage
from pairbus.report.sources import Sources, find_sources
from pairbus.report.times import text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pairbus.cost.pricing import PriceSheet


def make_report(
    spark: SparkSession,
    ledgers: Sequence[str | PathLike[str]],
    *,
    prices: PriceSheet,
    geo: PriceSheet,
    counting: str = "documented",
    operations_before: int | None = None,
    now_s: float,
) -> Report:
    """Make the report of ledgers: folders, files, patterns of files, or compacted locations.

    Damaged lines are named in the report, and the others are used. `operations_before` counts earlier operations of the
    month; the default is the number that the price sheet includes, so that every operation has a price. Rows are staged
    in a temporary folder, much smaller than the ledgers. ConfigError when there is no ledger.
    """
    tariffs = Tariffs(prices, geo, counting, operations_before)
    sources = find_sources(ledgers)
    with TemporaryDirectory(prefix="pairbus-report-") as name:
        folder = Path(name)
        staged = stage(spark, sources.lines, sources.tables, folder)
        places = find_places(staged, folder)
        if sources.lines and sources.tables:
            staged = once(staged)
        rows = staged.where("reason is null")
        count, lost, first_ms, last_ms = rows.agg(
            F.count("*"), F.coalesce(F.sum("lost"), F.lit(0)), F.min("time_ms"), F.max("time_ms")
        ).collect()[0]
        begins_ms, ends_ms = (round(now_s * 1000),) * 2 if first_ms is None else (first_ms, last_ms)
        bill, used_prices, availability = _figures(rows, folder, begins_ms, ends_ms, tariffs)
    return Report(
        schema=SCHEMA,
        made_at=time_text(now_s),
        version=pairbus.__version__,
        begins=text_of(begins_ms),
        ends=text_of(ends_ms),
        seconds=(ends_ms - begins_ms) / 1000,
        source=_source(sources, places, count, lost),
        prices=used_prices,
        bill=bill,
        availability=availability,
    )


def _source(sources: Sources, places: Places, rows: int, lost_rows: int) -> Source:
    return Source(
        files=sources.files,
        rows=rows,
        damaged=places.damaged,
        damage=(*sources.damage, *places.shown),
        lost_rows=lost_rows,
        clock_jumps=places.clock_jumps,
    )


def _figures(
    rows: DataFrame, folder: Path, begins_ms: int, ends_ms: int, tariffs: Tariffs
) -> tuple[Bill, Prices, Availability]:
    views = spans(*sums.transitions(rows))
    outages = merged(views)
    dead = dead_letters(rows).persist()
    try:
        dead_counts = sums.dead_letter_counts(dead)
        messages = message_table(rows, dead, outages, folder)
    finally:
        dead.unpersist()
    cells = sums.cells(rows)
    away = messages.where("diverted_ms is not null")
    diversions, troubles = sums.diversions(away), sums.troubles(rows, outages)
    by_entity, histogram = delays(away)
    entities, total = availability_of(cells, sums.message_counts(rows, messages), dead_counts, by_entity)
    availability = Availability(
        entities=tuple(entities),
        total=total,
        outages=outages_of(outages, diversions, troubles),
        states=tuple(states(views)),
        backlog=tuple(backlog_points(away, begins_ms, ends_ms)),
        dead_letters=tuple(dead_counts),
        delays=histogram,
    )
    bill, prices = make_bill(cells, outages, diversions, troubles, tariffs, ends_ms - begins_ms)
    return bill, prices, availability
