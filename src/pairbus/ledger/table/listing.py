"""Lists the files of ledgers, where the driver of Spark is.

In a session of this process, names without a scheme are files on this machine's disk. Spark itself finds names such as
`abfss://…`, and all names in a session of Spark Connect, whose driver may be on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from pairbus.errors import ConfigError
from pairbus.ledger.room import SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE_SUFFIX = ".parquet"
LEDGER = "ledger"
"Folder of the ledger's table within a location that the syphon on Spark compacts."
SPLIT_CONF, NUMBER_CONF = "spark.sql.files.maxPartitionBytes", "spark.sql.files.minPartitionNum"
SPLIT_BYTES = 128 * 1024 * 1024
T = TypeVar("T")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A file, with its path or address as Spark takes it."""

    path: str
    size: int


def is_remote(spark: SparkSession) -> bool:
    """Return True for a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_local(spark: SparkSession | None, name: str) -> bool:
    """Return True for a name on this machine's disk; without a session it is there, unless it has a scheme."""
    return _SCHEME.match(name) is None and (spark is None or not is_remote(spark))


def find_local(name: str) -> list[Path]:
    """Find the files of a folder, name or pattern on this machine. ConfigError when there is none."""
    path = Path(name)
    if path.is_dir():
        paths = [*path.glob(f"*{SUFFIX}"), *_tables(path), *_tables(path / LEDGER)]
    elif path.exists() or path.is_symlink():
        paths = [path]
    elif has_magic(name):
        paths = [Path(match) for match in glob(name)]
    else:
        raise ConfigError(f"There is no ledger {name}")
    return sorted(_not_empty(paths, name))


def find_with_spark(spark: SparkSession, name: str) -> list[LedgerFile]:
    """Find the files of a folder, name or pattern that only Spark can read. ConfigError when there is none."""
    from pyspark.errors import AnalysisException

    files = spark.read.format("binaryFile")
    if not has_magic(name):
        files = files.option("recursiveFileLookup", "true")
    try:
        rows = files.load(name).select("path", "length").collect()
    except AnalysisException as error:
        raise ConfigError(f"There is no ledger {name}: {str(error).splitlines()[0]}") from None
    all_files = [LedgerFile(address(row["path"]), row["length"]) for row in rows]
    of_ledger = [file for file in all_files if has_magic(name) or _is_of_ledger(file.path, name)]
    return sorted(_not_empty(of_ledger, name), key=lambda file: file.path)


def address(uri: str) -> str:
    """Return the path of a local file, or the address of any other one, from the form that Spark gives."""
    parts = urlsplit(uri)
    return unquote(parts.path if parts.scheme in ("", "file") else uri)


def literally(path: str) -> str:
    """Escape a path, because Spark takes every path for a pattern."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)


@contextmanager
def whole_files(spark: SparkSession, files: Iterable[LedgerFile]) -> Iterator[None]:
    """Let Spark read each file in one piece, because positions in it matter."""
    largest = max((file.size for file in files), default=0)
    before = spark.conf.get(SPLIT_CONF) or str(SPLIT_BYTES)
    spark.conf.set(SPLIT_CONF, str(max(largest + 1, SPLIT_BYTES)))
    spark.conf.set(NUMBER_CONF, "1")
    try:
        yield
    finally:
        spark.conf.set(SPLIT_CONF, before)
        spark.conf.unset(NUMBER_CONF)


def _is_of_ledger(path: str, name: str) -> bool:
    """Return True when a file below `name` is of a ledger: a file of the folder itself, or of a table in it."""
    file, root = PurePosixPath(path), PurePosixPath(address(name))
    if file == root:
        return True
    if file.suffix == SUFFIX:
        return file.parent == root
    is_table = file.suffix == TABLE_SUFFIX and file.parent.name.startswith("day=")
    return is_table and file.parent.parent in (root, root / LEDGER)


def _not_empty(files: list[T], name: str) -> list[T]:
    if not files:
        raise ConfigError(f"There is no file of a ledger in {name}: they end in {SUFFIX}")
    return files


def _tables(folder: Path) -> Iterable[Path]:
    return folder.glob(f"day=*/*{TABLE_SUFFIX}")
