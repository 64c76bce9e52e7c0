"""Systems without `fcntl` and forks: nothing of ours asks for them there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.disk.without_posix import FUNCTIONS

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "src" / "pairbus"
RUN_S = 120


def test_everything_imports_sends_spools_and_meters_without_posix(tmp_path: Path) -> None:
    """A missing module or function would show on another system at its first import; Windows is not claimed yet."""
    command = [sys.executable, "-m", "tests.disk.without_posix", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    *imported, received, spooled, metered = done.stdout.splitlines()
    assert (received, spooled) == ("received: to the primary", "spooled: 1")
    assert {"send", "receive", "complete"} <= set(metered.split())
    assert {"pairbus.host.locks", "pairbus.broker.wire.server", "pairbus.cli.pipeline.syphon"} <= set(imported)


@pytest.mark.parametrize(
    ("name", "home"), [("register_at_fork", "host/forks.py"), ("posix_fallocate", "host/folders.py")]
)
def test_each_posix_function_has_one_guarded_home(name: str, home: str) -> None:
    """A second place would need a second guard, and a second test."""
    assert name in FUNCTIONS
    users = [path for path in SOURCES.rglob("*.py") if name in path.read_text(encoding="utf-8")]
    assert users == [SOURCES / home]
