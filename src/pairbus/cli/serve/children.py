"""Processes of Pairbus that a command starts: brokers that can be killed, and commands as an operator runs them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pairbus.auth.connection_string import ConnectionString
from pairbus.errors import PairbusError

START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 10.0
SAID_MAX = 1000  # characters of an error of a command


class ChildBroker:
    """A broker in a process of its own. Its ports are chosen at the first start and kept; the `async with` ends it."""

    def __init__(self, namespaces: list[str], data: Path, errors: Path, options: Sequence[str] = ()) -> None:
        """Prepare the process. `options`: further options of `pairbus broker`."""
        self.connection_strings: dict[str, str] = {}
        self._ports = dict.fromkeys(namespaces, 0)
        self._data = data
        self._errors = errors
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> ChildBroker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    async def start(self) -> None:
        """Start the broker; returns when it has said `ready`."""
        words = ["broker", "--data", str(self._data), *self._options]
        for name, port in self._ports.items():
            words += ["--namespace", f"{name}={port}"]
        self._process = await _start(words, self._errors, os.environ)
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await self._read_until_ready(self._process)
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise PairbusError(f"the broker is not ready after {START_DEADLINE_S:.0f} s") from error
            raise

    async def _read_until_ready(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := (await process.stdout.readline()).decode().strip():
            if line == "ready":
                return
            name, _, connection_string = line.partition(" ")
            self.connection_strings[name] = connection_string
            self._ports[name] = ConnectionString.parse(connection_string).port or 0
        code = await process.wait()
        errors = self._errors.read_text(errors="replace").strip()
        raise PairbusError(f"the broker ended with exit code {code} before it was ready: {errors[-500:]}")

    async def kill(self) -> None:
        """Kill the broker by SIGKILL: no close, no last commit. Returns when the process is gone."""
        assert self._process is not None, "the broker is not running"
        self._process.kill()
        await self._process.wait()
        self._process = None

    async def stop(self) -> None:
        """Stop the broker by SIGTERM, then by SIGKILL if that does not help. Harmless when there is no process."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                await process.wait()
        finally:
            if process.returncode is None:  # it did not stop in time, or we were cancelled while waiting
                process.kill()


async def run_command(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a command of Pairbus to its end; returns its standard output. All of its files are in the folder.

    PairbusError, with its last words, when it fails. A cancellation kills it, and the Java that it has started.
    """
    java = f"-XX:-UsePerfData -Djava.io.tmpdir={folder}"
    places = {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), "JAVA_TOOL_OPTIONS": java}
    errors = folder / f"{words[0]}.stderr"
    process = await _start(words, errors, {**environment, **places})
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        last = errors.read_text(errors="replace").strip()[-SAID_MAX:]
        raise PairbusError(f"pairbus {words[0]} ended with exit code {process.returncode}: {output.decode()}{last}")
    return output.decode()


async def _start(words: Sequence[str], errors: Path, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start a command of Pairbus in a process group of its own: Ctrl-C is for us, and we end what we have started."""
    with errors.open("ab") as stderr:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pairbus",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
