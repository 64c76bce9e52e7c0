"""Finds the files of a report. Files that cannot be read are reported as damage, and the others are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pairbus.ledger.rows import RemovedFile
from pairbus.ledger.table.lines import NAMES
from pairbus.ledger.table.listing import LEDGER, TABLE_SUFFIX, LedgerFile, find_local, find_with_spark, is_local
from pairbus.ledger.table.manifest import Manifest, read_manifest
from pairbus.ledger.table.names import source_key
from pairbus.report.model import EMPTY, LEFT_OUT, Damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES = 50_000_000  # 200 000 rows
DRIVER_BYTES = 320_000_000  # 1 200 000 rows, whose messages take 300 MB of the driver's memory
TABLE_WEIGHT = 10  # a byte of a table holds as much as so many bytes of lines
ONE_JOB_CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
}
"Configuration of Spark for one job: optimising Java's code would take longer than it saves."
SMALL_CONF = ONE_JOB_CONF | {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"Configuration for few rows, where generating code would take longer than the work itself."
LARGE_CONF = {"spark.sql.shuffle.partitions": "8", "spark.driver.memory": "2g"}
"Configuration of Spark for ten million rows on a laptop."


@dataclass(frozen=True, slots=True)
class Sources:
    lines: tuple[LedgerFile, ...]
    "Files as a ledger writes them."
    tables: tuple[LedgerFile, ...]
    "Parquet files of tables."
    damage: tuple[Damage, ...]
    manifests: tuple[Manifest, ...] = ()
    "Manifests of those tables that have one."
    others: tuple[tuple[str, str], ...] = ()
    "Location and format of tables that are not of Parquet."
    compacted: int = 0
    "Files that are not read, because a table has all their lines."
    taken: dict[str, int] = field(default_factory=dict)
    sums: dict[str, RemovedFile] = field(default_factory=dict)
    "Key of a file → sums of its rows that are in a table."
    limits: dict[str, int] = field(default_factory=dict)
    left_out: tuple[Damage, ...] = ()
    "Files of which compaction left damaged lines out."
    lines_left_out: int = 0
    is_known: bool = True
    "False when a table has no manifest, so that only its rows tell which lines it has."

    @property
    def files(self) -> int:
        return len(self.lines) + len(self.tables) + len(self.damage) + self.compacted

    @property
    def weight_bytes(self) -> int:
        """The size that the files would have if all were lines."""
        in_tables = sum(file.size for file in self.tables)
        return sum(file.size for file in self.lines) + TABLE_WEIGHT * in_tables

    @property
    def fits_driver(self) -> bool:
        """True when all sums and steps of the rows fit into the memory of the driver."""
        return self.weight_bytes < DRIVER_BYTES and not self.others

    def session_conf(self) -> dict[str, str]:
        """Return the configuration for `local_session` that fits the size of these files."""
        if not self.fits_driver:
            return LARGE_CONF
        return SMALL_CONF if self.weight_bytes < SMALL_BYTES else ONE_JOB_CONF


def find_sources(ledgers: Sequence[str | PathLike[str]], spark: SparkSession | None = None) -> Sources:
    """Find the files of folders, names, patterns and compacted locations. A file that is named twice counts once.

    They are found where the driver of `spark` is; without a session, on this machine. ConfigError when a name leads to
    no file: a report without it would look complete.
    """
    names = [fspath(each) for each in ledgers]
    manifests, others, plain = _manifests(spark, names)
    files: dict[str, LedgerFile] = {}
    damage: dict[str, Damage] = {}
    for name in plain:
        if spark is not None and not is_local(spark, name):
            for file in find_with_spark(spark, name):
                _sort_in(file.path, file, "" if file.size else EMPTY, files, damage)
        else:
            for path in find_local(name):
                _sort_in(str(path.resolve()), *_looked_at(path.absolute()), files, damage)
    taken = {key: entry.position for manifest in manifests for key, entry in manifest.files.items()}
    sums_by_file = ((key, entry.sums) for manifest in manifests for key, entry in manifest.files.items())
    sums = {key: each for key, each in sums_by_file if each is not None}
    sums |= {key: each for manifest in manifests for key, each in manifest.ahead.items()}
    tables = [file for file in files.values() if file.path.endswith(TABLE_SUFFIX)]
    lines = [file for file in files.values() if not file.path.endswith(TABLE_SUFFIX)]
    line_files = {source_key(file.path) for file in lines}
    limits = {key: limit for manifest in manifests for key, limit in manifest.limits(line_files).items()}
    unread = [file for file in lines if taken.get(source_key(file.path), 0) < file.size]
    is_known = not tables or len({PurePosixPath(file.path).parent.parent for file in tables}) <= len(manifests)
    return Sources(
        tuple(unread),
        tuple(tables),
        tuple(damage.values()),
        tuple(manifests),
        tuple(others),
        len(lines) - len(unread),
        taken,
        sums,
        limits,
        *_left_out(manifests),
        is_known,
    )


def _manifests(
    spark: SparkSession | None, names: Sequence[str]
) -> tuple[list[Manifest], list[tuple[str, str]], list[str]]:
    """Return manifests of compacted locations, locations whose format is not Parquet, and names to look for files."""
    manifests: list[Manifest] = []
    others: list[tuple[str, str]] = []
    plain: list[str] = []
    for name in dict.fromkeys(names):
        candidates = [(place, read_manifest(spark, place)) for place in (name, f"{name}/{LEDGER}")]
        present = [(place, manifest) for place, manifest in candidates if manifest is not None]
        manifests += [manifest for _, manifest in present]
        tables = [(place, manifest.format) for place, manifest in present if manifest.format != "parquet"]
        others += tables
        if not tables:
            plain.append(name)
    return manifests, others, plain


def _left_out(manifests: Sequence[Manifest]) -> tuple[tuple[Damage, ...], int]:
    """Return files with damaged lines that are in no table, and the number of these lines."""
    files = [entry for manifest in manifests for entry in manifest.files.values() if entry.damaged]
    damages = (Damage(entry.path, 0, f"{entry.damaged} damaged lines were {LEFT_OUT}") for entry in files)
    return tuple(damages), sum(entry.damaged for entry in files)


def _sort_in(key: str, file: LedgerFile, problem: str, files: dict[str, LedgerFile], damage: dict[str, Damage]) -> None:
    if problem:
        damage[key] = Damage(file.path, 0, problem)
    else:
        files[key] = file


def _looked_at(path: Path) -> tuple[LedgerFile, str]:
    """Return the size of a file of this machine, and a reason when it cannot be used."""
    try:
        size = path.stat().st_size
        problem = _problem_of_table(path) if path.suffix == TABLE_SUFFIX else _problem_of_lines(path)
    except OSError as error:
        return LedgerFile(str(path), 0), f"the file cannot be read: {error.strerror or error}"
    return LedgerFile(str(path), size), problem


def _problem_of_lines(path: Path) -> str:
    with path.open("rb") as file:
        return "" if file.read(1) else EMPTY


def _problem_of_table(path: Path) -> str:
    from pyarrow import ArrowInvalid, parquet

    if not path.stat().st_size:
        return EMPTY
    try:
        names = set(parquet.read_schema(path).names)
    except ArrowInvalid as error:
        return f"the file cannot be read: {error}"
    missing = set(NAMES) - names
    return f"the table is not a ledger: it has no {', '.join(sorted(missing))}" if missing else ""
