"""Latency of sends, one at a time and eight at once, compared with a small append to the disk.

`SteadySender` is for the other benchmarks: it sends one message after the other while the benchmark works on its
broker. It is a process of its own so that the work of the benchmark does not count as latency.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from types import TracebackType
from typing import NamedTuple, Self

from rich.table import Table

from bench.brokers import RESULTS, PairbusBroker
from bench.load import payload
from pairbus.transport import Sender, connect

QUEUE = "latency"
TOGETHER = 8
BLOCK = 100


@dataclass(frozen=True)
class Latency:
    """Latencies in µs."""

    what: str
    p50: float
    p99: float


class Timed(NamedTuple):
    """A timed send, in seconds of a clock that all processes share."""

    began: float
    took: float


def measure_latency(count: int) -> list[Latency]:
    """Measure `count` appends, single sends and concurrent sends, in turns."""
    with PairbusBroker() as broker:
        broker.make_queue(QUEUE)
        times = asyncio.run(_in_turns(broker.connection_string, count))
    return [_summary(what, taken) for what, taken in times.items()]


async def _in_turns(connection_string: str, count: int) -> dict[str, list[float]]:
    alone: list[float] = []
    together: list[float] = []
    appended: list[float] = []
    message = payload()
    async with await connect(connection_string) as connection:
        senders = [await connection.sender(QUEUE) for _ in range(TOGETHER)]
        with tempfile.TemporaryFile(dir=RESULTS) as file:
            for _ in range(count // BLOCK):
                appended += [append_s(file.fileno(), message) for _ in range(BLOCK)]
                alone += [await timed_send_s(senders[0], message) for _ in range(BLOCK)]
                for _ in range(BLOCK // TOGETHER + 1):
                    together += await asyncio.gather(*(timed_send_s(sender, message) for sender in senders))
    return {"append + fdatasync": appended, "send, one at a time": alone, f"send, {TOGETHER} at once": together}


def append_s(fd: int, data: bytes) -> float:
    began = time.perf_counter()
    os.write(fd, data)
    os.fdatasync(fd)
    return time.perf_counter() - began


async def timed_send_s(sender: Sender, message: bytes) -> float:
    began = time.perf_counter()
    await sender.send(message)
    return time.perf_counter() - began


def _summary(what: str, taken: list[float]) -> Latency:
    cuts = quantiles(taken, n=100)
    return Latency(what, cuts[49] * 1e6, cuts[98] * 1e6)


def latency_table(rows: list[Latency]) -> Table:
    table = Table("latency", "p50 µs", "p99 µs", "wanted")
    for row in rows:
        table.add_row(row.what, f"{row.p50:.0f}", f"{row.p99:.0f}", "reported")
    return table


# ── sends during other work ──


class SteadySender:
    """A process that sends one message after the other to a queue, from `with` to `times`."""

    def __init__(self, connection_string: str, queue: str) -> None:
        self._work = json.dumps([connection_string, queue])

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.latency", self._work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError("the sender ended before its first send")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def times(self) -> list[Timed]:
        """Stop sending and return all sends since the start."""
        out, _ = self._process.communicate("enough\n")
        return [Timed(*one) for one in json.loads(out)]


def slowest_ms(times: list[Timed], began: float, ended: float) -> float:
    """Return the time in ms of the slowest send that was under way between two times."""
    return max((one.took for one in times if one.began < ended and one.began + one.took > began), default=0.0) * 1000


async def _send_steadily(connection_string: str, queue: str, is_enough: Callable[[], bool]) -> list[Timed]:
    times: list[Timed] = []
    message = payload()
    async with await connect(connection_string) as connection:
        sender = await connection.sender(queue)
        await sender.send(message)
        print("ready", flush=True)
        while not is_enough():
            began = time.perf_counter()
            times.append(Timed(began, await timed_send_s(sender, message)))
            await asyncio.sleep(0.001)
    return times


async def _serve(connection_string: str, queue: str) -> list[Timed]:
    waiting = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return await _send_steadily(connection_string, queue, waiting.done)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_serve(*json.loads(sys.argv[1])))), flush=True)
