"""Ctrl-C in the middle of long work, with real processes and a real signal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.explorer.interruptions import play


@pytest.mark.slow
def test_interrupted_commands_lose_nothing_and_go_on(tmp_path: Path) -> None:
    """`python -m tests.explorer.interruptions` plays fifty rounds of each verb."""
    (found,) = play(1, 800, seed=7, folder=tmp_path)
    for verb, counts in found.items():
        assert (counts.lost, counts.locked) == (0, 0), verb
        assert set(counts.codes) <= {0, 1, 130}, verb
    assert any(counts.interrupted for counts in found.values())
