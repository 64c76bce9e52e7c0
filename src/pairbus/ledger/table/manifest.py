"""The manifest of a ledger's table: the files whose rows it has, and up to which byte.

    LOCATION/_pairbus/manifest-0/     rounds 0, 2, 4 …
    LOCATION/_pairbus/manifest-1/     rounds 1, 3, 5 …

Laws of this file.
 1. Each round is written whole, as one line in one file, over the round before the last. A kill during the write
    leaves the last round as it was. The highest round that can be read is the state.
 2. An open round names the files that a compaction is about to add. Any of their rows from the known position on may be
    in the table already; each such row has its file and position, so that it is added once.
 3. A file of an interrupted compaction stays known as one until a later run has read it. A run that reads other files
    only counts its rows in the table (`ahead`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.errors import LedgerNewer
from pairbus.ledger.rows import RemovedFile
from pairbus.ledger.table.listing import address, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "_pairbus"
SLOTS = 2
VERSION = 2
"1 until release 0.3, which knows neither `ahead` nor `adopted`, and would add rows twice."


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """Facts about one file."""

    path: str
    size: int
    "Size of the file when it was read last."
    position: int
    "Bytes of the file that are in the table: the end of its last whole line."
    damaged: int = 0
    "Lines among them that cannot be used, and are not in the table."
    sums: RemovedFile | None = None
    "Sums of its rows that are in the table; None: a manifest of an earlier version does not have them."


@dataclass(frozen=True, slots=True)
class Manifest:
    round: int = -1
    format: str = ""
    files: Mapping[str, ManifestEntry] = field(default_factory=dict)
    "Key of a file → its facts."
    pending: tuple[str, ...] = ()
    "Files of a compaction that was begun and not finished."
    ahead: Mapping[str, RemovedFile] = field(default_factory=dict)
    "Files of an interrupted compaction that no later run has read → sums of all their rows in the table."
    adopted: bool = False
    "True when the table has rows without `source`, from a release that wrote whole days."
    origin: str = ""
    "Journal whose moves the table has; empty in a table of ledgers."

    def position(self, key: str) -> int:
        entry = self.files.get(key)
        return 0 if entry is None else entry.position

    def limits(self, lines: Collection[str]) -> dict[str, int]:
        """Return the positions by file from which on rows of the table do not count; `lines`: files that are read."""
        return {key: self.position(key) for key in (*self.pending, *self.ahead) if key in self.pending or key in lines}


def read_manifest(spark: SparkSession | None, location: str) -> Manifest | None:
    """Read the state of a table; None when there is no manifest. LedgerNewer when a later version wrote it."""
    rounds = [round_ for slot in range(SLOTS) for round_ in _read(spark, f"{location}/{FOLDER}/manifest-{slot}")]
    return max(rounds, key=lambda each: each.round, default=None)


def write_manifest(spark: SparkSession, location: str, manifest: Manifest) -> None:
    """Write a round. It must follow the one that `read_manifest` returned."""
    frame = spark.createDataFrame([(line_of(manifest),)], "value string").coalesce(1)
    frame.write.mode("overwrite").text(f"{location}/{FOLDER}/manifest-{manifest.round % SLOTS}")


def line_of(manifest: Manifest) -> str:
    """Return a round as it is written, with version 1 where that is enough: earlier releases read it."""
    version = VERSION if manifest.ahead or manifest.adopted else 1
    return json.dumps({"version": version, **asdict(manifest)})


def _read(spark: SparkSession | None, folder: str) -> list[Manifest]:
    manifests = []
    for line in _local_lines(folder) if spark is None or is_local(spark, folder) else _lines(spark, folder):
        try:
            manifests.append(_manifest(json.loads(line)))
        except json.JSONDecodeError:
            continue  # cut by a kill: the other slot has the state
    return manifests


def _manifest(values: dict[str, Any]) -> Manifest:
    if values["version"] > VERSION:
        raise LedgerNewer(
            f"a table has version {values['version']}, and this version of Pairbus knows {VERSION}: upgrade it"
        )
    files = {key: _entry(**entry) for key, entry in values["files"].items()}
    ahead = {key: RemovedFile(*sums) for key, sums in values.get("ahead", {}).items()}
    others = {name: values[name] for name in ("adopted", "origin") if name in values}
    return Manifest(values["round"], values["format"], files, tuple(values["pending"]), ahead, **others)


def _entry(*, sums: list[int] | None = None, **facts: Any) -> ManifestEntry:
    return ManifestEntry(**facts, sums=None if sums is None else RemovedFile(*sums))


def _local_lines(folder: str) -> list[str]:
    parts = sorted(Path(address(folder)).glob("part-*"))
    return [line for part in parts for line in part.read_text(encoding="utf-8").splitlines() if line]


def _lines(spark: SparkSession, folder: str) -> list[str]:
    from pyspark.errors import AnalysisException

    try:
        return [row["value"] for row in spark.read.text(folder).collect()]
    except AnalysisException:
        return []  # there is no such folder
