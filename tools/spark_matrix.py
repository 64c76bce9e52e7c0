"""`make spark-matrix`: the tests of Spark on each minor version of PySpark that is claimed, and over Spark Connect.

Makes an environment for each below FOLDER and runs tests/spark there, without those of `make deep`. Over Connect the
tests have `pyspark-client` and no Java; the server that they start has the newest version. What cannot be installed has
failed. Writes the table of docs/spark-clusters.md, in which rows that were not run stay as they are. Exits with 0 when
all that ran have passed; takes about ten minutes for each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv" / "spark-matrix"
PAGE = ROOT / "docs" / "spark-clusters.md"
BEGIN, END = "<!-- written by make spark-matrix -->\n", "<!-- end of what make spark-matrix writes -->\n"
HEAD = "| Spark | tests | differs |\n| --- | --- | --- |\n"
TESTS = ["tests/spark", "-m", "not deep", "-p", "no:cacheprovider"]
NEWEST = "4.3"
CONNECT = "connect"
ONE_BATCH = "a run with Trigger.AvailableNow is one batch: use `drain`"


@dataclass(frozen=True, slots=True)
class Row:
    """One environment, and its row of the table."""

    title: str
    wanted: tuple[tuple[str, ...], ...]
    "Packages to install beside the tests: the first of these sets that can be."
    differs: str = ""


def _classic(version: str, differs: str = "") -> Row:
    return Row(version, ((f"{ROOT}[dev]", f"pyspark[connect]=={version}.*"),), differs)


ROWS = {
    "4.3": _classic("4.3"),
    "4.2": _classic("4.2"),
    "4.1": _classic("4.1", ONE_BATCH),
    "4.0": _classic("4.0", f"{ONE_BATCH}; filters are not pushed down, so rows are filtered by Spark"),
    CONNECT: Row(
        f"{NEWEST} over Connect",
        (
            (f"{ROOT}[all,test,spark-connect]", f"pyspark-client=={NEWEST}.*"),
            (f"{ROOT}[all,test,spark-connect]",),
            (f"{ROOT}[all,test,spark]", f"pyspark[connect]=={NEWEST}.*"),
        ),
        "files and secrets are those of the server",
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the tests on one environment."""

    text: str
    "Text for the table, as in `120 passed`."
    good: bool


def main() -> int:
    """Run the chosen environments, one after the other, and write the table."""
    parser = argparse.ArgumentParser(prog="make spark-matrix", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(ROWS)}; all of them by default")
    names = parser.parse_args().names or list(ROWS)
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(ROWS)}")
    outcomes: dict[str, Outcome] = {}
    for name in names:
        outcomes[name] = run(name)
        print(f"{ROWS[name].title}: {outcomes[name].text}", flush=True)
        PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), outcomes), encoding="utf-8")
    return 0 if all(outcome.good for outcome in outcomes.values()) else 1


def run(name: str) -> Outcome:
    """Run the tests on one environment, which is made when it does not exist."""
    environment = dict(os.environ)
    environment.pop("SPARK_REMOTE", None)
    python = _install(name)
    if python is None:
        return Outcome("could not be installed", good=False)
    if name == CONNECT:
        server = _install(NEWEST)
        if server is None:
            return Outcome("its server could not be installed", good=False)
        environment["PAIRBUS_TESTS_CONNECT"] = str(server)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [str(python), "-m", "pytest", *TESTS, f"--junit-xml={results}"]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if not results.exists():
            return Outcome("did not run", good=False)
        return outcome_of(results.read_text(encoding="utf-8"), code)


def _install(name: str) -> Path | None:
    """Return the interpreter of an environment; None when its packages cannot be installed."""
    python = FOLDER / name / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER / name, with_pip=True)
    print(f"{ROWS[name].title}: installing", flush=True)
    for wanted in ROWS[name].wanted:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", *wanted]
        if subprocess.run(command, check=False).returncode == 0:
            return python
    return None


def outcome_of(results: str, code: int) -> Outcome:
    """Read pytest's XML. A run that ended with another code than 0 is not good, whatever it counts."""
    sums: dict[str, int] = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.fromstring(results).iter("testsuite"):
        for key in sums:
            sums[key] += int(suite.get(key, "0"))
    failed = sums["failures"] + sums["errors"]
    passed = sums["tests"] - failed - sums["skipped"]
    parts = [f"{passed} passed"]
    parts += [f"**{failed} failed**"] if failed else []
    parts += [f"{sums['skipped']} left out"] if sums["skipped"] else []
    return Outcome(", ".join(parts), good=code == 0 and failed == 0 and passed > 0)


def rewritten(page: str, outcomes: dict[str, Outcome]) -> str:
    """Return the page with these rows of its table renewed; the other rows stay."""
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    assert begin and end, f"{PAGE.name} has not both of the lines between which its table stands"
    known = {cells[1].strip(): cells[2].strip() for line in table.splitlines() if len(cells := line.split("|")) > 3}
    lines = []
    for name, row in ROWS.items():
        text = outcomes[name].text if name in outcomes else known.get(row.title, "not run")
        lines.append(f"| {row.title} | {text} | {row.differs} |\n")
    return before + begin + HEAD + "".join(lines) + end + after


if __name__ == "__main__":
    sys.exit(main())
