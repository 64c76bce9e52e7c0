"""The line of a terminal that is written over."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

import pytest

from pairbus.cli.standard import ProgressLine, one_line


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


def test_one_line_steers_no_terminal() -> None:
    """A message id is any text that its sender likes, and stands in lines that operators read."""
    assert one_line("id\r\n\x1b[2J\x9b1A\u2028: moved é 中") == "id\ufffd\ufffd\ufffd[2J\ufffd1A\ufffd: moved é 中"
