"""Standard input, output and error of a command. Who reads its lines may be gone or have no room: that ends no work.

And the signals that end one, which must not change the exit code of work that is done."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any, TextIO

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def open_closed() -> None:
    """A command that is started without one of them gets /dev/null: uvloop aborts the process otherwise, and the next
    socket would take the place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is this one
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


STOPPING = (signal.SIGINT, signal.SIGTERM)


def ignore_signals() -> None:
    """Let Ctrl-C and SIGTERM change nothing from here on, to the very end of the process.

    Killed while the interpreter is taken down, a command would be taken for interrupted, and done again.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)


def signal_handlers() -> dict[signal.Signals, Any]:
    """Return what Ctrl-C and SIGTERM do now, for `restore_signals`."""
    return {number: signal.getsignal(number) for number in STOPPING}


def restore_signals(before: dict[signal.Signals, Any]) -> None:
    """Undo `ignore_signals`, for a program that goes on after the command."""
    for number, handler in before.items():
        if handler not in (None, signal.SIG_IGN) and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def flush(file: TextIO) -> bool:
    """Whether everything is written. The rest is dropped, which Python would answer with an exit code of its own."""
    try:
        file.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)
        return False
    return True


def say(line: str) -> None:
    """On standard error, if that can be written."""
    _write(f"{line}\n")


def one_line(text: str) -> str:
    """Replace characters that begin a line or steer a terminal: senders choose message ids, clients choose paths."""
    return _STEERING.sub("\ufffd", text)


class ProgressLine:
    """The last line of a terminal, which is written over. Elsewhere it does nothing."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, line: str) -> None:
        """As much of it as fits: a line that runs over cannot be written over."""
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
    """A terminal that does not know is taken for a wide one."""
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
