"""Run each test that failed in `make test` once more, alone and in a process of its own.

`.ci/run` calls this when `make test` has failed. A test that fails alone is red. When all of them pass alone the run is
green, and the tests are listed, in the output and in `.ci/failed-under-load.txt`: repairing them is the first work of
the next change.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAILURES = ROOT / ".ci" / "failures.json"
UNDER_LOAD = ROOT / ".ci" / "failed-under-load.txt"

RETRIES_MAX = 12  # more failed tests than this are a defect of the change, not bad luck
TEST_SECONDS_MAX = 300  # alone, the longest test of `make test` takes about a minute

TESTS_FAILED = 1  # pytest's exit code when all tests ran and some failed


def run_alone(test: str) -> bool:
    """True when the test passes, in a process that runs no other test."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-header", test]
    print(f"\n=== once more, alone: {test}", flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, timeout=TEST_SECONDS_MAX, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"the test did not end within {TEST_SECONDS_MAX} s", flush=True)
        return False


def reason_to_stop(ending: dict[str, object]) -> str | None:
    """Why running tests again cannot help, or None."""
    failed, uncollected = ending["failed"], ending["uncollected"]
    assert isinstance(failed, list) and isinstance(uncollected, list)
    if ending["exit_code"] != TESTS_FAILED:
        return f"pytest ended with exit code {ending['exit_code']}: that is not a failed test"
    if uncollected:
        return f"files that pytest cannot collect: {', '.join(uncollected)}"
    if ending["died"]:
        return "a process of the tests died; nobody ran the rest of its tests"
    if not failed:
        return "no test failed, and still the run did"
    if len(failed) > RETRIES_MAX:
        return f"{len(failed)} tests failed; up to {RETRIES_MAX} are run again"
    return None


def main(
    failures: Path = FAILURES, under_load: Path = UNDER_LOAD, passes_alone: Callable[[str], bool] = run_alone
) -> int:
    """Exit code: 0 when each failed test passes alone."""
    under_load.unlink(missing_ok=True)
    try:
        ending = json.loads(failures.read_text(encoding="utf-8"))
    except FileNotFoundError:
        print("red: the test run ended before it could list its failed tests", flush=True)
        return 1
    reason = reason_to_stop(ending)
    if reason is not None:
        print(f"red: {reason}", flush=True)
        return 1
    red = [test for test in ending["failed"] if not passes_alone(test)]
    unlucky = [test for test in ending["failed"] if test not in red]
    rule = "!" * 100
    if unlucky:
        under_load.write_text("".join(f"{test}\n" for test in unlucky), encoding="utf-8")
        lines = "\n".join(f"    {test}" for test in unlucky)
        print(
            f"\n{rule}\nFAILED UNDER LOAD, passed alone. Repair before any other change:\n{lines}\n{rule}", flush=True
        )
    if red:
        lines = "\n".join(f"    {test}" for test in red)
        print(f"\nred: failed alone too:\n{lines}", flush=True)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
