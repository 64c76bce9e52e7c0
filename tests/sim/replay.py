"""A seed replays its history: everything that happens in it, as a digest, in this process and in another one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def digest(play: Callable[..., Any], seed: int) -> str:
    """Hash everything that happens in a history."""
    told: list[str] = []
    report = play(seed, tell=told.append)
    told.append(f"{report.steps} {report.found}")
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def check_replay(play: Callable[..., Any], seeds: list[int]) -> None:
    """Play the seeds here, and then backwards in a process with other hashes; the digests must be the same."""
    here = [digest(play, seed) for seed in seeds]
    script = (
        f"from {play.__module__} import play; from tests.sim.replay import digest;"
        f" print(*(digest(play, seed) for seed in {seeds[::-1]!r}))"
    )
    there = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert there.split()[::-1] == here
