"""Standard input, output and error of a command. The reader of its lines may be gone or have no room: work goes on.

And the signals that end a command: they must not change the exit code of finished work."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any, TextIO

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def open_closed() -> None:
    """Open /dev/null for each standard stream that is closed: otherwise uvloop aborts the process, and the next socket
    would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


STOPPING = (signal.SIGINT, signal.SIGTERM)


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM from here on, to the very end of the process.

    A command that is killed while the interpreter shuts down would look interrupted, and would be repeated.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def signal_handlers() -> dict[signal.Signals, Any]:
    """Return the current handlers of Ctrl-C and SIGTERM, for `restore_signals`."""
    return {number: signal.getsignal(number) for number in STOPPING}


def restore_signals(before: dict[signal.Signals, Any]) -> None:
    """Undo what the command did with signals, for a program that goes on after it."""
    for number, handler in before.items():
        now = signal.getsignal(number)
        if now != handler and handler not in (None, signal.SIG_IGN) and now in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(number, handler)


def flush(file: TextIO) -> bool:
    """Return whether all text is written. The rest is dropped: otherwise Python would exit with a code of its own."""
    try:
        file.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)
        return False
    return True


def say(line: str) -> None:
    """Write a line to standard error, if that is possible."""
    _write(f"{line}\n")


def one_line(text: str) -> str:
    """Replace characters that begin a line or control a terminal: senders choose message ids, clients choose paths."""
    return _STEERING.sub("\ufffd", text)


class ProgressLine:
    """The last line of a terminal, which is written over. Elsewhere it is silent."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, line: str) -> None:
        """Show as much of the line as fits: a longer line could not be written over."""
        if not sys.stderr.isatty():
            return
        line = line[: _columns() - 1]
        _write(f"\r{line:<{self._shown}}")
        self._shown = len(line)

    def clear(self) -> None:
        if self._shown:
            _write(f"\r{'':<{self._shown}}\r")
            self._shown = 0


def _columns() -> int:
    """Return the width of the terminal; a large one when it is not known."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 1000
    except OSError:
        return 1000


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        pass
