"""Pytest plugin that writes the tests which failed to a file, for `tools/retry_failed.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

OPTION = "--failures-to"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, type=Path, metavar="FILE", help="write the ids of failed tests to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption(OPTION)
    if file is None or hasattr(config, "workerinput"):  # a process of xdist reports to the one that started it
        return
    file.unlink(missing_ok=True)  # a run that is killed must not leave the list of the run before it
    config.pluginmanager.register(FailureList(file))


class FailureList:
    """Collects the failed tests of one run: in set-up, test or tear-down, or by the death of a process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: dict[str, None] = {}  # ordered, each test once
        self._uncollected: dict[str, None] = {}
        self._died = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._uncollected[report.nodeid] = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object | None) -> None:
        """Count processes of xdist that died: tests that they should have run are not run by anybody."""
        self._died += error is not None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write how the run ended; only a run that ended with exit code 1 failed because of its tests alone."""
        ending = {
            "exit_code": int(exitstatus),
            "failed": [*self._failed],
            "uncollected": [*self._uncollected],
            "died": self._died,
        }
        self._file.write_text(json.dumps(ending, indent=2) + "\n", encoding="utf-8")
