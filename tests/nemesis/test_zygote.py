"""The process that forks the children of a world."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.nemesis.zygote import look, note


def test_child_runs_although_an_earlier_one_had_its_number() -> None:
    """A sender that was taken for ended would go on sending while the world waits for the drain."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        running: set[int] = set()
        ended = {child.pid: 0}
        note(child.pid, running, ended)
        assert look(child.pid, running, ended) is None
        child.kill()
        while (code := look(child.pid, running, ended)) is None:
            pass
        assert code == -signal.SIGKILL
