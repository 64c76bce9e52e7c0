"""The line of a terminal that is written over."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

import pytest

from pairbus.cli.standard import ProgressLine


def test_a_progress_line_is_as_long_as_the_terminal_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer one would run over, and each of them would begin a new line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        line = ProgressLine()
        line.show("10 queues, ? waiting, 0 moved")
        line.show("done")
        line.clear()
        shown = ""
        while shown.count("\r") < 4:
            shown += os.read(ours, 1000).decode()
    os.close(ours)
    assert shown.split("\r") == ["", "10 queues, ? waitin", f"{'done':<19}", "    ", ""]
