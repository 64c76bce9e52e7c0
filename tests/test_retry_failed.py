"""A test that fails only under load does not stop a landing, is never hidden, and nothing else is forgiven."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tools.retry_failed import RETRIES_MAX, main

ROOT = Path(__file__).parent.parent

TESTS = """
import os, pytest
def test_sound(): pass
def test_unlucky(): assert "PYTEST_XDIST_WORKER" not in os.environ
def test_broken(): assert False
@pytest.fixture
def resource():
    yield
    assert False
def test_teardown(resource): pass
"""

CRASH = """
import os
def test_crash():
    if "PYTEST_XDIST_WORKER" in os.environ: os._exit(3)
def test_sound(): pass
"""
RUN_S = 240


def ending(**changes: Any) -> str:
    return json.dumps({"exit_code": 1, "failed": ["tests/a.py::test_x"], "uncollected": [], "died": 0, **changes})


def run_tests(folder: Path, text: str) -> dict[str, Any]:
    """Run made-up tests as `make test` does; what the plugin wrote about the end."""
    (folder / "test_made_up.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.failures", "--rootdir", str(folder), "-n", "2"]
    command += ["--dist", "loadfile", "--max-worker-restart", "0", "-o", "asyncio_default_fixture_loop_scope=function"]
    command += ["-c", "/dev/null", "--failures-to", str(folder / "failures.json"), str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=RUN_S, check=False)
    written: dict[str, Any] = json.loads((folder / "failures.json").read_text(encoding="utf-8"))
    return written


def test_run_lists_every_kind_of_failure(tmp_path: Path) -> None:
    """An assertion and a tear-down are failures, each listed once, by a name that pytest takes."""
    written = run_tests(tmp_path, TESTS)
    assert (written["exit_code"], written["died"]) == (1, 0)
    names = sorted(test.rpartition("::")[2] for test in written["failed"])
    assert names == ["test_broken", "test_teardown", "test_unlucky"]


def test_process_that_dies_is_no_bad_luck(tmp_path: Path) -> None:
    """Nobody ran the rest of its tests, so the failed test that passes alone proves nothing."""
    written = run_tests(tmp_path, CRASH)
    assert (written["exit_code"], written["died"]) == (1, 1)


def test_tests_that_pass_alone_are_listed_and_green(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures, under_load = tmp_path / "failures.json", tmp_path / "under-load.txt"
    failures.write_text(ending(), encoding="utf-8")
    assert main(failures, under_load, lambda test: True) == 0
    assert under_load.read_text(encoding="utf-8") == "tests/a.py::test_x\n"
    assert "FAILED UNDER LOAD" in capsys.readouterr().out


def test_test_that_fails_alone_is_red(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A lucky neighbour does not make the run green, and stays listed."""
    failures, under_load = tmp_path / "failures.json", tmp_path / "under-load.txt"
    failures.write_text(ending(failed=["a::lucky", "a::broken"]), encoding="utf-8")
    assert main(failures, under_load, lambda test: test == "a::lucky") == 1
    assert under_load.read_text(encoding="utf-8") == "a::lucky\n"
    assert "failed alone too:\n    a::broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        ending(exit_code=2),
        ending(exit_code=3),
        ending(uncollected=["tests/broken.py"]),
        ending(died=1),
        ending(failed=[]),
        ending(failed=[f"a::{number}" for number in range(RETRIES_MAX + 1)]),
        None,
    ],
    ids=["interrupted", "internal error", "not collected", "a process died", "nothing listed", "too many", "killed"],
)
def test_ending_that_is_no_bad_luck_is_red_at_once(tmp_path: Path, text: str | None) -> None:
    """No test is run again, and a list of an earlier run does not stay."""
    failures, under_load = tmp_path / "failures.json", tmp_path / "under-load.txt"
    under_load.write_text("of an earlier run\n", encoding="utf-8")
    if text is not None:
        failures.write_text(text, encoding="utf-8")

    def never(test: str) -> bool:
        raise AssertionError(f"{test} was run again")

    assert main(failures, under_load, never) == 1
    assert not under_load.exists()


def test_script_of_the_ci_forgives_tests_only() -> None:
    """The retry follows `make test`, so a failed check or demo stays red."""
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-3:] == ["make check", "make demo", "make test || .venv/bin/python -m tools.retry_failed"]
