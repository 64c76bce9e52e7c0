"""The paired client on the lowest version of azure-servicebus that pyproject.toml allows."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".venv" / "sdk-versions" / "lowest"
INSTALL_S = 600
RUN_S = 900
TESTS = ["tests/sdk_edge", "tests/client/test_same_bytes.py"]

pytestmark = [pytest.mark.deep, pytest.mark.slow]


def lowest() -> str:
    """Return the lower bound of the dependency, as a whole version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needed,) = [each for each in project["dependencies"] if each.startswith("azure-servicebus")]
    bound: str = needed.removeprefix("azure-servicebus>=").partition(",")[0]
    return bound + ".0" * (2 - bound.count("."))


def test_paired_client_works_on_the_lowest_version() -> None:
    """The rest of the suite has the newest version; here are the tests of what the client uses of the SDK."""
    python = sys.executable
    if version("azure-servicebus") != lowest():
        venv.create(FOLDER, clear=True)
        python = str(FOLDER / "bin" / "python")
        wanted = ["--editable", f"{ROOT}[all,test]", f"azure-servicebus=={lowest()}"]
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *wanted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        assert done.returncode == 0, f"{wanted} cannot be installed:\n{done.stdout}\n{done.stderr}"
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
