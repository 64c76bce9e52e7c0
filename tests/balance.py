"""Pytest plugin that gives test files to the processes of xdist: the longest first, and files with a Spark to a few.

`tests/durations.json` holds the seconds of each file, which `make durations` measures. Without it, a process that
begins a long file last keeps the whole run waiting. A Java takes ten seconds of a core to start and does its first work
slowly, so the files with a Spark are dealt to `SPARKS` processes, and each of them starts one Java. A file that is not
in the list counts `UNKNOWN_S`, and belongs to a share where tests may get a Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

ROOT = Path(__file__).parent.parent
DURATIONS = Path(__file__).with_name("durations.json")
OPTION = "--durations-to"

SPARKS = 2
UNKNOWN_S = 10.0
WITH_SPARK = ("tests/spark/", "tests/report/")
FIRST_ON_SPARK = "tests/spark/"
"Tests of this folder come first on a Spark: a Java that was started for reports lacks the variables that they need."


@dataclass(frozen=True)
class Durations:
    """Seconds of each file; files with a Spark by themselves."""

    plain: Mapping[str, float] = field(default_factory=dict)
    spark: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def scopes(self) -> dict[str, str]:
        """Name of the share of each file with a Spark; the next longest file goes to the share that has least."""
        sums = {f"spark {number}": 0.0 for number in range(SPARKS)}
        scopes = {}
        for file, seconds in sorted(self.spark.items(), key=lambda item: (-item[1], item[0])):
            scopes[file] = min(sums, key=sums.__getitem__)
            sums[scopes[file]] += seconds
        return scopes

    def scope(self, file: str) -> str:
        """Name of the tests that one process runs together: a share of the files with a Spark, or one file."""
        return self.share(file) or file

    def share(self, file: str) -> str | None:
        """Name of the share of a file with a Spark. A new file counts as one in a folder that has the fixture."""
        if file not in self.scopes and file not in self.plain and file.startswith(WITH_SPARK):
            return f"spark {crc32(file.encode()) % SPARKS}"
        return self.scopes.get(file)

    def rank(self, file: str) -> tuple[bool, float, str, bool, str]:
        """Sort key of a file: shares with a Spark before all else, and the longest file first."""
        if (share := self.share(file)) is not None:
            return False, 0.0, share, not file.startswith(FIRST_ON_SPARK), file
        return True, -self.plain.get(file, UNKNOWN_S), file, False, file


def read_durations(path: Path | None = None) -> Durations:
    path = path or DURATIONS
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Durations(kept.get("plain", {}), kept.get("spark", {}))


def write_durations(path: Path, measured: Mapping[str, float], sparks: Iterable[str]) -> None:
    """Put measured seconds of files into the list; files that no longer exist leave it."""
    kept, sparks = read_durations(path), set(sparks)
    seconds = {
        file: value for file, value in {**kept.plain, **kept.spark, **measured}.items() if (ROOT / file).exists()
    }
    with_spark = sparks | (kept.spark.keys() - measured.keys())
    parts = {
        "plain": {file: round(seconds[file], 1) for file in sorted(seconds.keys() - with_spark)},
        "spark": {file: round(seconds[file], 1) for file in sorted(seconds.keys() & with_spark)},
    }
    path.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=Path, metavar="FILE", help="put the seconds of each test file into FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption(OPTION)
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the files into the order in which they shall begin; every process of xdist has the same order."""
    durations = read_durations()
    items.sort(key=lambda item: durations.rank(file_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that runs a share of the files with a Spark, or one other file, in one process."""
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "loadfile":
        return None
    durations = read_durations()

    class Shares(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return durations.scope(file_of(nodeid))

    return Shares(config, log)


class Recorder:
    """Sums the seconds of each file in one run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}
        self._sparks: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self._seconds[file] = self._seconds.get(file, 0.0) + report.duration
        if "spark" in report.keywords:
            self._sparks.add(file)

    def pytest_sessionfinish(self) -> None:
        write_durations(self._path, self._seconds, self._sparks)
