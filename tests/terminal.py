"""A terminal for the lines of a page: they are typed into bash as they stand, in a folder of the reader's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

RUN_S = 300.0  # a block of ten commands takes five seconds; the rest is for a machine busy with other things
START_S = 120.0


class Running:
    """A command that goes on until it is stopped. Its output, standard error included, is read line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def until(self, pattern: str) -> str:
        """Wait for a line in which the pattern is found, and return the line."""

        def found() -> list[str]:
            return [line for line in self.lines if re.search(pattern, line)]

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, START_S)
            assert found(), f"{self.process.args!r} printed no {pattern!r}, but {self.lines}"
            return found()[0]

    def kill(self) -> None:
        """SIGKILL, as `kill -9` of the page."""
        self.process.kill()
        self.process.wait(START_S)

    def stop(self) -> None:
        """SIGTERM; returns when the process is gone."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(START_S)


class Terminal:
    """Types text of a page into bash. Commands that were started are killed at the end.

    `folder`: the reader's folder; without it, a temporary one with a short path, because the path of a Unix socket
    can have about 100 bytes.
    `replaced`: placeholder of the page → what stands for it here.
    """

    def __init__(self, folder: Path | None = None, **environment: str) -> None:
        self._is_temporary = folder is None
        self.folder = folder = folder or Path(tempfile.mkdtemp(prefix="pb-"))
        self.replaced: dict[str, str] = {}
        self._environment = environment
        self._exported = ""
        self._running: list[Running] = []
        folder.mkdir(exist_ok=True)
        (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for running in self._running:
            running.kill()
        if self._is_temporary:
            shutil.rmtree(self.folder)

    def typed(self, text: str, *, code: int = 0) -> str:
        """Run lines of a page; return the standard output. Variables that they export are there for later lines."""
        text = self.with_replacements(text)
        done = subprocess.run(
            ["bash", "-ec", self._exported + text],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
            env=self._variables(),
        )
        assert done.returncode == code, f"{text}\n{done.stdout}\n{done.stderr}"
        self._exported += "".join(line for line in text.splitlines(keepends=True) if line.startswith("export "))
        return done.stdout

    def started(self, line: str, until: str) -> Running:
        """Start a command that goes on, and wait until it prints a line with this pattern."""
        process = subprocess.Popen(
            ["bash", "-ec", f"{self._exported}{assigned(self.with_replacements(line))}"],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._variables() | {"PYTHONUNBUFFERED": "1"},
        )
        running = Running(process)
        self._running.append(running)
        running.until(until)
        return running

    def broker(self, line: str) -> Running:
        """Start a broker on free ports; from here on these stand for the ports of the line."""
        ports = dict(re.findall(r"--namespace (\w+)=(\d+)", line))
        fresh = [port for port in ports.values() if port not in self.replaced]
        for port in fresh:
            line = line.replace(f"={port}", "=0")
        running = self.started(line, "^ready$")
        for name, port in ports.items():
            printed = next(one for one in running.lines if one.startswith(f"{name} Endpoint="))
            self.replaced[port] = printed.partition(";")[0].rpartition(":")[2]
            (self.folder / f"{name}.txt").write_text(printed.partition(" ")[2])
        return running

    def with_replacements(self, text: str) -> str:
        """Return a text of the page as it is here."""
        for placeholder in sorted(self.replaced, key=len, reverse=True):
            text = text.replace(placeholder, self.replaced[placeholder])
        return text

    def _variables(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, **self._environment}


def assigned(line: str) -> str:
    """Put `exec` before a command and behind its variables, so that a signal reaches the command itself."""
    found = re.match(r"((?:[A-Z_]+=(?:'[^']*'|\S+) )*)(.*)", line, re.DOTALL)
    assert found is not None
    return f"{found[1]}exec {found[2]}"
