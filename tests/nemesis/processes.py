"""Processes that are stopped, killed and started again, and never outlive the world."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ENDS_WITHIN_S = 45.0  # after SIGTERM: the longest call, the close of a client, and a busy machine
LOOK_S = 0.02


class Zygote:
    """The process that forks the others."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nemesis.zygote"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = threading.Lock()

    def ask(self, *request: Any) -> Any:
        """Send a request and return its answer."""
        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it, and with it every process that still runs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(ENDS_WITHIN_S)
        self._process.stdout.close()


class Child:
    """A program under one name. Each start is another life, with a log of its own."""

    def __init__(
        self, name: str, folder: Path, zygote: Zygote, module: str, arguments: Callable[[str, Path], Sequence[str]]
    ) -> None:
        self.name = name
        self.folder = folder
        self._zygote = zygote
        self._module = module
        self._arguments = arguments
        "(name of this life, its log) → the arguments of the module's main."
        self.lives = 0
        self.ended_early: list[int] = []
        "Exit codes of lives that ended though nobody asked."
        self._pid: int | None = None

    @property
    def stderr_file(self) -> Path:
        return self.folder / f"{self.name}.stderr"

    def has_written(self, kind: str) -> bool:
        """Whether the present life has written a record of this kind."""
        return f'["{kind}"' in (self.folder / f"{self.name}{self.lives}.jsonl").read_text()

    def start(self, environment: dict[str, str]) -> None:
        """Start another life."""
        self.lives += 1
        life = f"{self.name}{self.lives}"
        log = self.folder / f"{life}.jsonl"
        log.touch()
        arguments = list(self._arguments(life, log))
        environment = {**environment, "NEMESIS_LOG": str(log)}
        self._pid = self._zygote.ask("start", self._module, arguments, environment, str(self.stderr_file))

    def look(self) -> bool:
        """Return whether the process runs; a process that ended by itself is noted once."""
        if self._pid is not None and (code := self._zygote.ask("look", self._pid)) is not None:
            self.ended_early.append(code)
            self._pid = None
        return self._pid is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._pid is not None:
            os.kill(self._pid, number)  # safe: an ended process keeps its id until its parent has waited for it

    def kill(self) -> None:
        """End it at once."""
        self.send(signal.SIGKILL)
        self.finish()

    def finish(self) -> bool:
        """Wait for the end after a signal; False when it had to be killed."""
        pid, self._pid = self._pid, None
        deadline = time.monotonic() + ENDS_WITHIN_S
        while pid is not None and self._zygote.ask("look", pid) is None:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                return False
            time.sleep(LOOK_S)
        return True
