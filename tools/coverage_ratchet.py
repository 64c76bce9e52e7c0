"""`make coverage`: number of branches that tests reach, and a floor for each part that may only rise.

Runs tests that need neither Spark nor node under coverage.py; workers, brokers and clients in processes of their own
are measured too. Prints branches by part, and fails when a part is below its floor in tests/coverage.toml.

    python -m tools.coverage_ratchet              measure and compare
    python -m tools.coverage_ratchet --raise      write floors that are higher now; none is ever lowered
    python -m tools.coverage_ratchet --report     compare the last measurement
    python -m tools.coverage_ratchet amqp         only this part, and only by its own tests: minutes instead of an hour
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.test_tidy import CORES_OF_THE_BROKER

ROOT = Path(__file__).parent.parent
DATA = ROOT / ".coverage-data"
FLOORS = ROOT / "tests" / "coverage.toml"
WITHOUT = "not spark and not node and (not deep or beneath) and not timed"
WORKERS = ("-n", "6", "--dist", "loadfile")  # most tests wait
OF_ROWS = ("tests/spark", "tests/report", "tests/ledger")
TESTS = (
    *("tests/amqp", "tests/pairing", "tests/broker", "tests/client", "tests/transport", "tests/spool", "tests/syphon"),
    *("tests/explorer/test_message.py", "tests/explorer/test_files.py", "tests/sim", "tests/test_counters.py"),
    *OF_ROWS,
)
PARTS = {
    "amqp": ("amqp/",),
    "pairing": ("pairing/", "backlog/", "syphon/decide/", "spool/lanes.py"),
    "client": ("client/",),
    "broker cores": tuple(f"broker/{name}" for name in CORES_OF_THE_BROKER),
    "spark": ("spark/",),
    "report": ("report/",),
    "ledger": ("ledger/",),
}
"Part → files of src/pairbus that begin like this. Of spark, report and ledger the tests reach what needs no Java."
OWN_TESTS = {
    "amqp": ("tests/amqp",),
    "pairing": ("tests/pairing", "tests/spool/test_lanes.py"),
    "client": ("tests/client",),
    "broker cores": ("tests/broker",),
    "spark": OF_ROWS,
    "report": OF_ROWS,
    "ledger": OF_ROWS,
}
"Part → tests of a run for this part alone, all of them in TESTS: they reach no more than a whole run."


@dataclass(frozen=True, slots=True)
class Reached:
    """Branches of one part."""

    branches: int
    reached: int

    @property
    def percent(self) -> float:
        return 100.0 * self.reached / self.branches if self.branches else 100.0


def sums(report: Mapping[str, Any]) -> dict[str, Reached]:
    """Sum the JSON report of coverage.py by part."""
    found = {}
    for part, beginnings in PARTS.items():
        files = [
            values["summary"]
            for name, values in report["files"].items()
            if name.replace("\\", "/").partition("pairbus/")[2].startswith(beginnings)
        ]
        found[part] = Reached(
            sum(each["num_branches"] for each in files), sum(each["covered_branches"] for each in files)
        )
    return found


def below(reached: Mapping[str, Reached], floors: Mapping[str, float]) -> list[str]:
    """Return a sentence for each part that is below its floor, or has none."""
    said = []
    for part, each in reached.items():
        floor = floors.get(part)
        if floor is None:
            said.append(f"{part} has no floor in {FLOORS.name}")
        elif not each.branches:
            said.append(f"{part}: nothing was measured")
        elif each.percent < floor:
            said.append(f"{part}: {each.percent:.2f} % of its branches are reached, and {floor:.1f} % were before")
    return said


def raised(reached: Mapping[str, Reached], floors: Mapping[str, float]) -> dict[str, float]:
    """Return the floors for the branches reached now: a tenth of a percent at a time, and never lower than before."""
    return {
        part: max(floors.get(part, 0.0), math.floor(each.percent * 10) / 10 if each.branches else 0.0)
        for part, each in reached.items()
    }


def main(arguments: list[str]) -> int:
    chosen = [argument for argument in arguments if not argument.startswith("--")]
    if unknown := set(chosen) - PARTS.keys():
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if "--report" not in arguments:
        measure([path for part in chosen for path in OWN_TESTS[part]] or TESTS)
    report = DATA / "report.json"
    _coverage("json", "-q", "-o", str(report))
    reached = sums(json.loads(report.read_text()))
    reached = {part: reached[part] for part in chosen or PARTS}
    floors = tomllib.loads(FLOORS.read_text())["branches"] if FLOORS.exists() else {}
    for part, each in reached.items():
        print(f"{part:13} {each.percent:6.2f} %  {each.reached} of {each.branches} branches, floor {floors.get(part)}")
    if "--raise" in arguments:
        floors |= raised(reached, floors)
        write(floors)
    said = below(reached, floors)
    print("\n".join(said))
    return 1 if said else 0


def measure(tests: Sequence[str]) -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "coverage", "run", "-m", "pytest", *WORKERS, "-m", WITHOUT, *tests],
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        sys.exit("tests failed: what they reach says nothing")
    _coverage("combine", "-q", str(DATA))


def write(floors: Mapping[str, float]) -> None:
    head = "# Percent of branches that `make coverage` must reach. Floors only rise: make coverage, then --raise.\n"
    FLOORS.write_text(head + "[branches]\n" + "".join(f'"{part}" = {floor}\n' for part, floor in floors.items()))


def _coverage(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
