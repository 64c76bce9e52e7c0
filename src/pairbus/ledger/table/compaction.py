"""Compacts ledgers into a table: rows by day, each once. Files that have not grown are not read again.

    LOCATION/day=2026-03-01/*.parquet      rows as they are in the ledgers, with `source` and `position` of each line
    LOCATION/_pairbus/                     the manifest

Laws of this file.
 1. A line is taken when it was complete as the files were listed. Later lines of a file that is being written are taken
    by the next run.
 2. Order of a run: read and check; open a round in the manifest; add the rows; close the round. After a kill the round
    is open, and the next run that reads one of its files leaves out the rows that the table has already, by source and
    position. So no row is lost, and none is in the table twice, whichever ledgers the runs between read.
 3. One run at a time: two that overlap would both add the same rows. A lock sees to this on a disk of this machine.
 4. A file whose sums are in a row of lost rows is in the manifest from then on, with all its bytes. A later row that
    has the same sums, because the first one was removed too, is added without them.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.errors import ConfigError, LedgerNewer
from pairbus.host.locks import FolderInUse, FolderLock
from pairbus.ledger.room import SUFFIX
from pairbus.ledger.rows import RemovedFile
from pairbus.ledger.table.lines import NAMES, fields_of
from pairbus.ledger.table.listing import (
    LedgerFile,
    address,
    find_local,
    find_with_spark,
    is_local,
    literally,
    whole_files,
)
from pairbus.ledger.table.lost import NO_SUMS, sums_of_row
from pairbus.ledger.table.manifest import FOLDER, Manifest, ManifestEntry, read_manifest, write_manifest
from pairbus.ledger.table.names import source_key
from pairbus.ledger.table.table import FORMATS, NAMES_FILES, TABLE_DDL, add_rows, removed_by_name, rows_ahead

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

NEWER = "unknown version"
READ_DDL = f"{TABLE_DDL}, end bigint, damaged bigint, newer bigint, sums string"
"Columns of a table, and of the mark behind the rows of a file: its `end`, lines that were left out, sums of its rows."

Batches = Iterator["pyarrow.RecordBatch"]


@dataclass(frozen=True, slots=True)
class CompactedLedgers:
    rows: int
    "Rows that were added to the table."
    files: int
    "Files that were read."
    unchanged: int
    "Files that were not read, because no bytes were added to them."
    damaged: int
    "Lines that cannot be used; they are not in the table."
    shrunk: tuple[str, ...]
    "Files that are shorter now than when the table took rows from them; they were not read."


def compact_ledgers(
    spark: SparkSession,
    ledgers: Sequence[str | PathLike[str]],
    location: str | PathLike[str],
    *,
    format: str = "parquet",
) -> CompactedLedgers:
    """Add the rows to a table that its ledgers got since the last run.

    `format` is parquet, or one that the session has: delta, iceberg. ConfigError, and nothing is written, when there
    is no ledger, when the session lacks the format, or when the location holds other data. LedgerNewer, and nothing
    is written, when a later version of Pairbus wrote a line.
    """
    place = _absolute(spark, fspath(location))
    files = _find(spark, [fspath(each) for each in ledgers])
    _check_format(spark, place, format)
    before = read_manifest(spark, place) or _new_manifest(spark, place, format)
    if before.format != format:
        raise ConfigError(f"{place} is a table of format {before.format}, not {format}")
    shrunk = {key for key, file in files.items() if file.size < before.position(key)}
    grown = {
        key: file
        for key, file in files.items()
        if key not in shrunk and (key not in before.files or file.size != before.files[key].size)
    }
    unchanged = len(files) - len(grown) - len(shrunk)
    shrunk_paths = tuple(sorted(files[key].path for key in shrunk))
    if not grown:
        if before.pending:
            with _only_run(spark, place, before):
                _close(spark, place, before, {})
        return CompactedLedgers(0, 0, unchanged, 0, shrunk_paths)
    with whole_files(spark, grown.values()):
        lines = _read(spark, grown, before)
        marks, lost = _marks(lines)
    try:
        entries = {key: _entry(grown[key], before.files.get(key), mark) for key, mark in marks.items()}
        with _only_run(spark, place, before):
            pending = tuple(sorted({*grown, *before.pending}))
            opened = replace(before, round=before.round + 1, pending=pending)
            write_manifest(spark, place, opened)
            rows = add_rows(spark, lines.where("end is null"), place, before, entries, lost)
            removed = {name: ManifestEntry(name, sums.size, sums.size) for name, sums in removed_by_name(lost).items()}
            _close(spark, place, opened, {**entries, **removed})
    finally:
        lines.unpersist()
    damaged = sum(mark["damaged"] for mark in marks.values())
    return CompactedLedgers(rows, len(grown), unchanged, damaged, shrunk_paths)


@contextmanager
def _only_run(spark: SparkSession, place: str, before: Manifest) -> Iterator[None]:
    """Keep other runs away while this one writes. ConfigError when one is under way, or has been since `before`."""
    with ExitStack() as stack:
        if is_local(spark, place):
            folder = Path(place) / FOLDER
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = FolderLock(folder)
                stack.callback(lock.release)
                lock.sign()
            except FolderInUse as other:
                raise ConfigError(f"{place} is being compacted by another run{other.by}: wait for its end") from None
            except OSError as error:
                if error.errno != errno.ENOLCK:  # otherwise the disk has no locks
                    raise ConfigError(f"{place} cannot be used: {error.strerror or error}") from error
        now = read_manifest(spark, place)
        if now is not None and now.round != before.round:
            raise ConfigError(f"{place} was compacted by another run at the same time: run this one again")
        yield


def _close(spark: SparkSession, place: str, state: Manifest, entries: Mapping[str, ManifestEntry]) -> None:
    """Close a round. Files of an interrupted run that this one did not read stay known, with the sums of their rows."""
    behind = {*state.pending, *state.ahead} - entries.keys()
    ahead = rows_ahead(spark, place, state, behind)
    files = {**state.files, **entries}
    write_manifest(spark, place, replace(state, round=state.round + 1, files=files, pending=(), ahead=ahead))


# ── before the first write ──


def _absolute(spark: SparkSession, location: str) -> str:
    return str(Path(location).absolute()) if is_local(spark, location) else location.rstrip("/")


def _find(spark: SparkSession, ledgers: Sequence[str]) -> dict[str, LedgerFile]:
    """Return the files of the ledgers, by their keys."""
    files: dict[str, LedgerFile] = {}
    for name in ledgers:
        if is_local(spark, name):
            paths = [path for path in find_local(name) if path.is_file()]
            ledger_files = [LedgerFile(str(path.absolute()), path.stat().st_size) for path in paths]
        else:
            ledger_files = find_with_spark(spark, name)
        files |= {source_key(file.path): file for file in ledger_files if file.path.endswith(SUFFIX)}
    if not files:
        raise ConfigError(f"There is no file of a ledger in {', '.join(ledgers)}: they end in {SUFFIX}")
    return files


def _check_format(spark: SparkSession, place: str, format: str) -> None:
    from pyspark.errors import AnalysisException

    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}")
    try:
        _ = spark.read.format(format).load(place).schema
    except Exception as error:  # its type depends on Spark's version, and on Connect
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise ConfigError(
                f"This session of Spark does not know the format {format}: add its package to the session"
                " (spark.jars.packages), or use parquet"
            ) from None
        if not isinstance(error, AnalysisException):  # the table does not exist yet
            raise


def _new_manifest(spark: SparkSession, place: str, format: str) -> Manifest:
    """Return a manifest for a location that has no table yet, or the table of a release that wrote whole days."""
    from pyspark.errors import AnalysisException

    try:
        columns = set(spark.read.format(format).load(place).columns)
    except AnalysisException:
        return Manifest(format=format)  # the location does not exist
    if columns != {*NAMES, "day"}:
        raise ConfigError(f"{place} has a table that `pairbus ledger compact` did not make: name another location")
    return Manifest(format=format, adopted=True)


# ── reading ──


def _read(spark: SparkSession, files: Mapping[str, LedgerFile], before: Manifest) -> DataFrame:
    from pyspark import StorageLevel

    extents = {key: (before.position(key), file.size) for key, file in files.items()}
    texts = spark.read.option("lineSep", "\n").text([literally(file.path) for file in files.values()])
    lines = texts.selectExpr("_metadata.file_path as path", "cast(value as binary) as value")
    return lines.mapInArrow(_rows_of(extents), READ_DDL).persist(StorageLevel.DISK_ONLY)


def _rows_of(extents: Mapping[str, tuple[int, int]]) -> Callable[[Batches], Batches]:
    """Return a function for mapInArrow: from lines to rows, and a mark behind the last line of each file."""

    def run(batches: Batches) -> Batches:
        file: _File | None = None
        path = None
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for line_path, line in zip(*(batch.column(name).to_pylist() for name in ("path", "value")), strict=True):
                if file is None or line_path != path:
                    rows += [] if file is None else [file.mark()]
                    key = source_key(address(line_path))
                    path, file = line_path, _File(key, *extents[key])
                rows += file.rows(line)
            yield _batch(rows)
        yield _batch([] if file is None else [file.mark()])

    return run


class _File:
    """A file while its lines are read from the first to the last."""

    def __init__(self, key: str, position: int, size: int) -> None:
        self._key, self._position, self._size = key, position, size
        self._offset = self._damaged = self._newer = 0
        self._end = position
        self._sums = NO_SUMS

    def rows(self, line: bytes) -> list[dict[str, Any]]:
        """Return the row of a line; none when the table has it, or when the line was not complete or is damaged."""
        begin, self._offset = self._offset, self._offset + len(line) + 1
        if begin < self._position or self._offset > self._size:
            return []
        self._end = self._offset
        try:
            fields = fields_of(line)
        except ValueError as error:
            self._damaged += 1
            self._newer += str(error).startswith(NEWER)
            return []
        self._sums = self._sums.plus(sums_of_row(fields))
        details = fields.get("details")
        text = None if details is None else json.dumps(details, separators=(",", ":"))
        return [fields | {"details": text, "source": self._key, "position": begin, "day": fields["time"][:10]}]

    def mark(self) -> dict[str, Any]:
        sums = json.dumps(self._sums)
        return {"source": self._key, "end": self._end, "damaged": self._damaged, "newer": self._newer, "sums": sums}


def _batch(rows: Sequence[Mapping[str, Any]]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    names = [column.split()[0].strip("`") for column in READ_DDL.split(", ")]
    types = [pa.int64() if column.endswith("bigint") else pa.string() for column in READ_DDL.split(", ")]
    arrays = [pa.array([row.get(name) for row in rows], type_) for name, type_ in zip(names, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _marks(lines: DataFrame) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return end and damage of each file, and the rows that name removed files.

    LedgerNewer when a line has a later version: it must not be left out.
    """
    rows = [row.asDict() for row in lines.where(f"end is not null or ({NAMES_FILES})").collect()]
    marks = {row["source"]: row for row in rows if row["end"] is not None}
    for row in marks.values():
        if row["newer"]:
            raise LedgerNewer(f"{row['source']}: {row['newer']} rows are of a later version of Pairbus: upgrade it")
    return marks, [row for row in rows if row["end"] is None]


def _entry(file: LedgerFile, before: ManifestEntry | None, mark: Any) -> ManifestEntry:
    sums: RemovedFile | None = RemovedFile(*json.loads(mark["sums"]))
    if before is None:
        return ManifestEntry(file.path, file.size, mark["end"], mark["damaged"], sums)
    sums = None if before.sums is None or sums is None else before.sums.plus(sums)
    return ManifestEntry(file.path, file.size, mark["end"], mark["damaged"] + before.damaged, sums)
