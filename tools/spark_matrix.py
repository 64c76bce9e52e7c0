"""`make spark-matrix`: the tests of Spark on each minor version of PySpark that is claimed.

Makes an environment for each version below FOLDER and runs tests/spark there, without those of `make deep`. A version
that cannot be installed has failed. Exits with 0 when all of them passed; takes about ten minutes for each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
FOLDER = ROOT / ".venv" / "spark-matrix"
TESTS = ["tests/spark", "-m", "not deep", "-p", "no:cacheprovider"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make spark-matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help=f"minor versions; all of {', '.join(VERSIONS)}")
    versions = parser.parse_args().versions
    failed = {version: why for version in versions if (why := failure(version)) is not None}
    for version in versions:
        print(f"PySpark {version}: {failed.get(version, 'passed')}")
    return 1 if failed else 0


def failure(version: str) -> str | None:
    """Run the tests on one version, and return why it failed; None when it passed."""
    environment = FOLDER / version
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    print(f"PySpark {version}: installing", flush=True)
    wanted = ["--editable", f"{ROOT}[dev]", f"pyspark=={version}.*"]
    if subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=False).returncode != 0:
        return "could not be installed"
    if subprocess.run([python, "-m", "pytest", *TESTS], cwd=ROOT, check=False).returncode != 0:
        return "has failed tests"
    return None


if __name__ == "__main__":
    sys.exit(main())
