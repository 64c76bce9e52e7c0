"""Spark's part of a report: the pass over the rows, and for large ledgers the second stage over messages.

A ledger that fits the driver takes one job: all its records come there, and the functions that workers would call are
called there. A large one takes four: the pass over the rows; messages, cut by the hash of their ids; and two looks at
their waits. Spark keeps the data between jobs on its own disks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from pairbus.ledger.table.lines import NAMES
from pairbus.ledger.table.listing import LedgerFile, literally
from pairbus.ledger.table.table import ROW_DDL
from pairbus.report.passes.records import DDL, DayCount, MessageStep, Sum, Wait, records_of, to_batch
from pairbus.report.passes.sources import Sources
from pairbus.report.passes.sums import MessageSums, RowSums, gathered
from pairbus.report.passes.tally import BATCH_RECORDS, PING, RowsElsewhere, count_days, tally_lines, tally_rows
from pairbus.report.rules import backlog
from pairbus.report.rules.availability import TRANSITIONS
from pairbus.report.rules.backlog import Block, FirstLook, Question
from pairbus.report.rules.messages import Outages, sums_of

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

TABLE_DDL = f"{ROW_DDL}, source string, position bigint"
PART_BYTES = 64_000_000
"Size of the lines whose messages one task puts together: 50 000 of them, in some tens of megabytes."

ArrowBatches = Iterator["pyarrow.RecordBatch"]


def json_lines(spark: SparkSession, lines: Sequence[LedgerFile]) -> DataFrame:
    """Return a table of the lines as texts: column `value`, and the hidden column `_metadata`."""
    return spark.read.option("lineSep", "\n").text([literally(file.path) for file in lines])


def ledger_tables(spark: SparkSession, tables: Sequence[LedgerFile]) -> DataFrame:
    return spark.read.schema(TABLE_DDL).parquet(*[literally(file.path) for file in tables])


def choose(spark: SparkSession, sources: Sources) -> RowsElsewhere:
    """Decide which rows to leave out, so that each row counts once although it is there as a line and in a table.

    Manifests say which. A table without one was made by an earlier release, from whole days of files that may have
    grown since, or been deleted: for each run and day the form with more rows is kept, or the lines when both have as
    many.
    """
    worse: set[tuple[str, int, bool]] = set()
    if sources.lines and sources.tables and not sources.is_known:
        counts: dict[tuple[str, int], list[int]] = {}
        texts = json_lines(spark, sources.lines).selectExpr("cast(value as binary) as value")
        rows = ledger_tables(spark, sources.tables).select("run", "time")
        days = texts.mapInArrow(lambda batches: count_days(False, batches), DDL).unionAll(
            rows.mapInArrow(lambda batches: count_days(True, batches), DDL)
        )
        for record in _collected(days):
            assert isinstance(record, DayCount)
            counts.setdefault((record.run, record.day), [0, 0])[record.is_table] += record.rows
        for (run, day), (in_lines, in_tables) in counts.items():
            if in_lines and in_tables:
                worse.add((run, day, in_tables <= in_lines))
    return RowsElsewhere(sources.taken, sources.limits, frozenset(worse), sources.sums)


def pass_over(spark: SparkSession, sources: Sources, choice: RowsElsewhere) -> DataFrame:
    """Return records of all rows, in the columns of `pairbus.report.passes.records`."""
    from pyspark.sql import functions as F

    parts = []
    if sources.lines:
        lines = json_lines(spark, sources.lines).selectExpr(
            "_metadata.file_path as path", "_metadata.file_block_start as block", "cast(value as binary) as value"
        )
        parts.append(lines.mapInArrow(lambda batches: tally_lines(choice, batches), DDL))
    tables = []
    if sources.tables:
        names = "_metadata.file_path as path", "_metadata.row_index as id"
        tables.append(ledger_tables(spark, sources.tables).selectExpr(*names, *_columns(choice)))
    for location, name in sources.others:
        rows = spark.read.format(name).load(location)
        place = F.lit(location).alias("path"), F.lit(0).cast("bigint").alias("id")
        tables.append(rows.select(*place, *map(F.expr, _columns(choice))))
    parts += [table.mapInArrow(lambda batches: tally_rows(choice, batches), DDL) for table in tables]
    records = parts[0]
    for part in parts[1:]:
        records = records.unionAll(part)
    return records


def _columns(choice: RowsElsewhere) -> list[str]:
    """Return the columns of a row; with its origin only where that decides: for transitions, or for all rows."""
    origin = ["source", "position"]
    if not choice.limits:
        events = ", ".join(f"'{event}'" for event in TRANSITIONS)
        origin = [f"if(event in ({events}), {name}, null) as {name}" for name in origin]
    return [*(f"`{name}`" for name in NAMES), *origin]


# ── small and large ──


class SmallLedger:
    """A ledger whose records all come to the driver, in one job."""

    def __init__(self, records: DataFrame | None) -> None:
        self._records = records
        self._steps: list[MessageStep] = []
        self._waits: Sequence[Wait] = ()

    def rows(self) -> RowSums:
        with _no_search_for_cycles():
            sums: RowSums = gathered(() if self._records is None else _collected(self._records), RowSums())
        self._steps = sums.steps
        return sums

    def messages(self, outages: Outages, into: MessageSums) -> MessageSums:
        with _no_search_for_cycles():
            gathered(sums_of(self._steps, outages), into)
        self._waits = into.waits
        return into

    def first_look(self, begins_ms: int) -> FirstLook:
        import numpy as np

        block = _block_of(self._waits)
        seconds, steps = backlog.changes(block)
        return FirstLook(np.asarray(seconds), np.asarray(steps), backlog.added(backlog.look_first(block, begins_ms)))

    def second_look(self, question: Question) -> Iterable[Sum]:
        return backlog.added(backlog.look_again(_block_of(self._waits), question))

    def close(self) -> None:
        """Do nothing: Spark keeps no data of it."""


class LargeLedger:
    """A ledger of any size, of which only sums come to the driver."""

    def __init__(self, records: DataFrame, weight_bytes: int) -> None:
        self._records = _kept(records)
        self._parts = max(weight_bytes // PART_BYTES, 1)
        self._messages: DataFrame | None = None

    def rows(self) -> RowSums:
        sums: RowSums = gathered(_collected(self._records.where(f"what <> '{MessageStep.__name__}'")), RowSums())
        return sums

    def messages(self, outages: Outages, into: MessageSums) -> MessageSums:
        # Pings and failed sends have no id. All other steps without an id are kept together.
        trouble = f"t1 in ('{PING}', 'failed send')"
        key = f"case when {trouble} then cast(n1 as string) else coalesce(t4, '') end as key"
        steps = self._records.where(f"what = '{MessageStep.__name__}'").selectExpr("*", key)
        apart = steps.repartition(int(self._parts), "key").drop("key")
        self._messages = _kept(apart.mapInArrow(_stage(lambda records: sums_of(records, outages)), DDL))
        gathered(_collected(self._messages.where(f"what <> '{Wait.__name__}'")), into)
        return into

    def first_look(self, begins_ms: int) -> FirstLook:
        import pyarrow.compute as pc

        waits = self._waits()
        sums = waits.mapInArrow(_look(lambda block: backlog.look_first(block, begins_ms)), DDL)
        name = f"'{Sum.__name__}' as what", f"'{backlog.CHANGE}' as t1", "'' as t2"
        went = waits.selectExpr(*name, "n1 div 1000 as n1", "1 as n2", "cast(null as bigint) as n3")
        ended = waits.where("n3 is not null").selectExpr(*name, "n3 div 1000 as n1", "-1 as n2", "null as n3")
        table = _added(sums.select(*_SUM_COLUMNS).unionAll(went).unionAll(ended))
        is_change = pc.equal(table.column("t1"), backlog.CHANGE)
        changes, rest = table.filter(is_change), table.filter(pc.invert(is_change))
        seconds, steps = (changes.column(each).to_numpy() for each in ("n1", "n2"))
        return FirstLook(seconds, steps, list(_sums(rest)))

    def second_look(self, question: Question) -> Iterable[Sum]:
        looked = self._waits().mapInArrow(_look(lambda block: backlog.look_again(block, question)), DDL)
        return _sums(_added(looked.select(*_SUM_COLUMNS)))

    def close(self) -> None:
        """Release the data that Spark kept."""
        for frame in (self._messages, self._records):
            if frame is not None:
                frame.unpersist()

    def _waits(self) -> DataFrame:
        assert self._messages is not None, "messages come first"
        return self._messages.where(f"what = '{Wait.__name__}'")


_SUM_COLUMNS = ("what", "t1", "t2", "n1", "n2", "n3")


def _kept(frame: DataFrame) -> DataFrame:
    from pyspark import StorageLevel

    return frame.persist(StorageLevel.DISK_ONLY)


def _collected(frame: DataFrame) -> Iterator[Any]:
    return records_of(frame.toArrow().to_batches())


def _added(sums: DataFrame) -> pyarrow.Table:
    from pyspark.sql import functions as F

    grouped = sums.groupBy("what", "t1", "t2", "n1")
    return grouped.agg(F.sum("n2").alias("n2"), F.min("n3").alias("n3")).toArrow()


def _sums(table: pyarrow.Table) -> Iterator[Sum]:
    columns = (table.column(name).to_pylist() for name in _SUM_COLUMNS[1:])
    return (Sum(*values) for values in zip(*columns, strict=True))


# ── in workers ──


def _stage(work: Callable[[Iterable[Any]], Iterable[Any]]) -> Callable[[ArrowBatches], ArrowBatches]:
    """Return a function for mapInArrow that does some work with all records of a task."""

    def run(batches: ArrowBatches) -> ArrowBatches:
        with _no_search_for_cycles():
            records = iter(work(records_of(batches)))
            while some := list(islice(records, BATCH_RECORDS)):
                yield to_batch(some)

    return run


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Pause Python's collector: records make no cycles, and each search would look at all of them again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _look(work: Callable[[Block], Iterable[Sum]]) -> Callable[[ArrowBatches], ArrowBatches]:
    """Return a function for mapInArrow that looks at the waits of a task in one block."""

    def run(batches: ArrowBatches) -> ArrowBatches:
        block = _block_of_batches(list(batches))
        if block is not None:
            sums = iter(work(block))
            while some := list(islice(sums, BATCH_RECORDS)):
                yield to_batch(some)

    return run


def _block_of(waits: Sequence[Wait]) -> Block:
    import numpy as np

    names = sorted({wait.entity for wait in waits})
    number = {name: index for index, name in enumerate(names)}

    def times(field: int) -> Any:
        return np.array([backlog.NEVER if wait[field] is None else wait[field] for wait in waits], np.int64)

    entity = np.array([number[wait.entity] for wait in waits], np.int64)
    return Block(names, entity, times(1), times(2), times(3))


def _block_of_batches(batches: list[pyarrow.RecordBatch]) -> Block | None:
    import pyarrow as pa

    table = pa.Table.from_batches(batches) if batches else None
    if table is None or not table.num_rows:
        return None
    entities = table.column("t1").combine_chunks().dictionary_encode()
    times = [table.column(name).fill_null(backlog.NEVER).to_numpy() for name in ("n1", "n2", "n3")]
    return Block(entities.dictionary.to_pylist(), entities.indices.to_numpy(zero_copy_only=False), *times)
