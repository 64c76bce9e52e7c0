"""Makes a report from ledgers: this file calls the steps, each of which has a file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING

import pairbus
from pairbus.ledger.rows import time_text
from pairbus.ledger.table.listing import whole_files
from pairbus.report.model import SCHEMA, Availability, Bill, Prices, Report, ReportSource
from pairbus.report.passes.places import find_places
from pairbus.report.passes.sources import Sources, find_sources
from pairbus.report.passes.stages import LargeLedger, SmallLedger, choose, pass_over
from pairbus.report.passes.sums import MessageSums, RowSums
from pairbus.report.rules.availability import merged, spans, states
from pairbus.report.rules.backlog import backlog_and_delays
from pairbus.report.rules.bill import Tariffs, make_bill
from pairbus.report.rules.entities import availability_of, outages_of
from pairbus.report.rules.messages import Outages
from pairbus.report.rules.times import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.ledger.prices import PriceSheet


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
    first month; by default the operations that the price sheet includes are used up in every month, so that every
    operation has a price. Files are found and read where the driver of Spark is, which may be another host; no file is
    written here. ConfigError when there is no ledger.
    """
    tariffs = Tariffs(prices, geo, counting, operations_before)
    sources = find_sources(ledgers, spark)
    with whole_files(spark, sources.lines) if sources.taken else nullcontext():
        ledger = _ledger(spark, sources)
        rows = ledger.rows()
    try:
        begins_ms, ends_ms = rows.period() or (round(now_s * 1000),) * 2
        bill, used_prices, availability = _figures(ledger, rows, begins_ms, ends_ms, tariffs)
    finally:
        ledger.close()
    return Report(
        schema=SCHEMA,
        made_at=time_text(now_s),
        version=pairbus.__version__,
        begins=text_of(begins_ms),
        ends=text_of(ends_ms),
        seconds=(ends_ms - begins_ms) / 1000,
        source=_source(sources, rows),
        prices=used_prices,
        bill=bill,
        availability=availability,
    )


def _ledger(spark: SparkSession, sources: Sources) -> SmallLedger | LargeLedger:
    if not (sources.lines or sources.tables or sources.others):
        return SmallLedger(None)
    records = pass_over(spark, sources, choose(spark, sources))
    return SmallLedger(records) if sources.fits_driver else LargeLedger(records, sources.weight_bytes)


def _source(sources: Sources, rows: RowSums) -> ReportSource:
    places = find_places(rows.pieces, rows.places)
    return ReportSource(
        files=sources.files,
        rows=sum(piece.rows for piece in rows.pieces),
        damaged=places.damaged + sources.lines_left_out,
        damage=(*sources.damage, *sources.left_out, *places.shown),
        lost_rows=sum(piece.lost for piece in rows.pieces),
        clock_jumps=places.clock_jumps,
    )


def _figures(
    ledger: SmallLedger | LargeLedger, rows: RowSums, begins_ms: int, ends_ms: int, tariffs: Tariffs
) -> tuple[Bill, Prices, Availability]:
    views = spans(*rows.transitions())
    outages = merged(views)
    messages = ledger.messages(Outages(outages), MessageSums(rows.counts, rows.letters))
    points, delays, histogram = backlog_and_delays(ledger, begins_ms, ends_ms)
    cells, dead_letters = rows.cells(), messages.dead_letters()
    diversions, troubles = messages.diversions(), messages.troubles()
    entities, total = availability_of(cells, messages.counts, dead_letters, delays)
    availability = Availability(
        entities=tuple(entities),
        total=total,
        outages=outages_of(outages, diversions, troubles),
        states=tuple(states(views)),
        backlog=tuple(points),
        dead_letters=tuple(dead_letters),
        delays=histogram,
        rates=rows.rates.points(begins_ms, ends_ms),
    )
    bill, prices = make_bill(cells, outages, diversions, troubles, tariffs, ends_ms - begins_ms)
    return replace(bill, step=rows.step()), prices, availability
