"""Processes that are stopped, killed and started again, and never outlive the world."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ENDS_WITHIN_S = 45.0  # after SIGTERM: the longest call, the close of a client, and a busy machine


class Child:
    """A program under one name. Each start is another life, with a log of its own."""

    def __init__(self, name: str, folder: Path, command: Callable[[str, Path], Sequence[str]]) -> None:
        self.name = name
        self.folder = folder
        self._command = command
        "(name of this life, its log) → the arguments of Python."
        self.lives = 0
        self.ended_early: list[int] = []
        "Exit codes of lives that ended though nobody asked."
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def stderr_file(self) -> Path:
        return self.folder / f"{self.name}.stderr"

    @property
    def has_begun(self) -> bool:
        """Whether the present life has written something."""
        return (self.folder / f"{self.name}{self.lives}.jsonl").stat().st_size > 0

    def start(self, environment: dict[str, str]) -> None:
        """Start another life."""
        self.lives += 1
        life = f"{self.name}{self.lives}"
        log = self.folder / f"{life}.jsonl"
        log.touch()
        with self.stderr_file.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *self._command(life, log)],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env={**os.environ, **environment, "NEMESIS_LOG": str(log)},
            )

    def look(self) -> bool:
        """Whether it runs; one that ended by itself is noted once."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self.ended_early.append(code)
            self._process = None
        return self._process is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def finish(self) -> bool:
        """Wait for the end after SIGTERM; False when it had to be killed."""
        process, self._process = self._process, None
        if process is None:
            return True
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False
        return True


def start_again(start: Callable[[], None], within_s: float = 30.0) -> None:
    """Start a broker; another process may have its port for a moment."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            start()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return
