"""The files of a report. Files that cannot be read are reported as damage, and the others are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from os import PathLike
from pathlib import Path

from pairbus.errors import ConfigError
from pairbus.report.model import Damage

SUFFIX = ".jsonl"
TABLE_SUFFIX = ".parquet"
EMPTY = "the file is empty"
SMALL_BYTES = 50_000_000  # 200 000 rows
SMALL_CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
LARGE_CONF = {"spark.sql.shuffle.partitions": "8", "spark.driver.memory": "3g"}
"Configuration of Spark for ten million rows on a laptop."


@dataclass(frozen=True, slots=True)
class Sources:
    lines: tuple[Path, ...]
    "Files as a ledger writes them."
    tables: tuple[Path, ...]
    "Files as `pairbus.spark.compaction` writes them."
    damage: tuple[Damage, ...]

    @property
    def files(self) -> int:
        return len(self.lines) + len(self.tables) + len(self.damage)

    def session_conf(self) -> dict[str, str]:
        """Configuration for `local_session` that fits the size of these files.

        For a small report, generating and optimising code would take Spark and Java longer than the work itself.
        """
        size_bytes = sum(path.stat().st_size for path in (*self.lines, *self.tables))
        if size_bytes < SMALL_BYTES:
            return SMALL_CONF
        return LARGE_CONF


def find_sources(ledgers: Sequence[str | PathLike[str]]) -> Sources:
    """Find the files of folders, names, patterns and compacted locations. A file that is named twice counts once.

    ConfigError when a name leads to no file: a report without it would look complete.
    """
    found = {path.resolve(): path.absolute() for each in ledgers for path in _files(each)}
    lines: list[Path] = []
    tables: list[Path] = []
    damage: list[Damage] = []
    for path in found.values():
        is_table = path.suffix == TABLE_SUFFIX
        try:
            problem = _problem_of_table(path) if is_table else _problem_of_lines(path)
        except OSError as error:
            problem = f"the file cannot be read: {error.strerror or error}"
        if problem:
            damage.append(Damage(str(path), 0, problem))
        else:
            (tables if is_table else lines).append(path)
    return Sources(tuple(lines), tuple(tables), tuple(damage))


def _files(name: str | PathLike[str]) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        found = [*path.glob(f"*{SUFFIX}"), *_tables(path), *_tables(path / "ledger")]
    elif path.exists() or path.is_symlink():
        found = [path]
    elif has_magic(str(name)):
        found = [Path(match) for match in glob(str(name))]
    else:
        raise ConfigError(f"There is no ledger {name}")
    if not found:
        raise ConfigError(f"There is no file of a ledger in {name}: they end in {SUFFIX}")
    return sorted(found)


def _tables(folder: Path) -> Iterable[Path]:
    return folder.glob(f"day=*/*{TABLE_SUFFIX}")


def _problem_of_lines(path: Path) -> str:
    with path.open("rb") as file:
        return "" if file.read(1) else EMPTY


def _problem_of_table(path: Path) -> str:
    from pyarrow import ArrowInvalid, parquet

    from pairbus.ledger.rows import Row

    if not path.stat().st_size:
        return EMPTY
    try:
        names = set(parquet.read_schema(path).names)
    except ArrowInvalid as error:
        return f"the file cannot be read: {error}"
    missing = set(Row.__dataclass_fields__) - names
    return f"the table is not a ledger: it has no {', '.join(sorted(missing))}" if missing else ""
