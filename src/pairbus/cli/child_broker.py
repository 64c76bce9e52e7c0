"""A `pairbus broker` process of our own: started, killed, started again on the same ports and data."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from pairbus.access.connection_string import ConnectionString
from pairbus.errors import PairbusError

START_DEADLINE_S = 20.0
STOP_DEADLINE_S = 10.0


class ChildBroker:
    """Broker process whose ports are chosen at the first start and kept; leaving the `async with` always ends it."""

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
        words = ["-m", "pairbus", "broker", "--data", str(self._data), *self._options]
        for name, port in self._ports.items():
            words += ["--namespace", f"{name}={port}"]
        with self._errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for us: we end the broker when we need it no more
            )
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
        said = self._errors.read_text(errors="replace").strip()
        raise PairbusError(f"the broker ended with exit code {code} before it was ready: {said[-500:]}")

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
