"""Our receivers against the plain SDK's, in one run: 100 messages received, and completed one by one or at once.

A row is the median ratio over several turns, each with a block of either side. One caller receives 100 messages and
completes them: each completion awaited before the next, or all of them at once, by tasks or by threads.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table

from bench.brokers import PairbusBroker
from bench.client import ROUND_TRIP_MS, far_away
from bench.client_load import BODY, answer_of, entered, plain_client, single_client
from pairbus.amqp.message import Message
from pairbus.transport import connect
from pairbus.transport.loops import run

QUEUE = "received"
BATCH = 100
THREADS = 32
DEADLINE_S = 240.0
SHAPES = ("one by one", "gathered")
WANTED = {("one by one", False): 1.3, ("gathered", False): 15.0, ("gathered", True): 50.0}
"Least wanted ratio by shape, and whether the broker is 5 ms away; no row: reported only."


@dataclass(frozen=True)
class Received:
    """Measured values of one row."""

    flavour: str
    shape: str
    far: bool
    per_second: float
    plain_per_second: float
    ratio: float
    cpu_ratio: float
    at_least: float | None

    @property
    def is_met(self) -> bool:
        return self.at_least is None or self.ratio >= self.at_least


def measure_receiving(turns: int) -> list[Received]:
    rows: list[Received] = []
    with PairbusBroker(namespaces=("first",)) as broker:
        broker.make_queues([QUEUE])
        near = broker.connection_strings["first"]
        for aio in (False, True):
            rows += _rows(near, near, aio=aio, turns=turns)
            with far_away(near) as far:
                rows += _rows(near, far, aio=aio, turns=turns)
    return rows


def _rows(near: str, where: str, *, aio: bool, turns: int) -> list[Received]:
    work = json.dumps({"near": near, "where": where, "aio": aio, "turns": turns})
    done = subprocess.run(
        [sys.executable, "-m", "bench.receiving", work], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the receivers failed: {done.stderr[-2000:]}")
    rows, far = [], where != near
    for shape, blocks in json.loads(done.stdout).items():
        ours, plain = blocks["ours"], blocks["plain"]
        rows.append(
            Received(
                "async" if aio else "sync",
                shape,
                far,
                median(rate for rate, _ in ours),
                median(rate for rate, _ in plain),
                median(one[0] / other[0] for one, other in zip(ours, plain, strict=True)),
                median(one[1] / other[1] for one, other in zip(ours, plain, strict=True)),
                WANTED.get((shape, far)),
            )
        )
        print(f"  {json.dumps(asdict(rows[-1]))}", file=sys.stderr, flush=True)
    return rows


def receiving_table(rows: list[Received]) -> Table:
    table = Table("receive 100 and complete", "/s", "plain /s", "ratio", "wanted", "CPU", "")
    for row in rows:
        distance = f", {ROUND_TRIP_MS:g} ms away" if row.far else ""
        table.add_row(
            f"{row.flavour}, {row.shape}{distance}",
            f"{row.per_second:,.0f}",
            f"{row.plain_per_second:,.0f}",
            f"{row.ratio:.2f}",
            "" if row.at_least is None else f"≥ {row.at_least:g}",
            f"{row.cpu_ratio:.2f}×",
            "" if row.at_least is None else "✓" if row.is_met else "✗",
        )
    return table


# ── in a process of its own ──


async def _fill(connection_string: str, count: int) -> None:
    """Put messages into the queue, past the proxy."""
    payload = Message(data=[BODY]).encode()
    async with await connect(connection_string) as connection:
        sender = await connection.sender(QUEUE)
        await asyncio.gather(*(sender.send(payload) for _ in range(count)))


async def _block(receiver: Any, shape: str, *, aio: bool, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """Receive and complete; return messages a second, and CPU seconds for each."""
    left, cpu, began = BATCH, time.process_time(), time.perf_counter()
    while left:
        found = await answer_of(receiver.receive_messages(left, 10))
        left -= len(found)
        if shape == "one by one":
            for each in found:
                await answer_of(receiver.complete_message(each))
        elif aio:
            await asyncio.gather(*(receiver.complete_message(each) for each in found))
        else:
            list(pool.map(receiver.complete_message, found))
    return BATCH / (time.perf_counter() - began), (time.process_time() - cpu) / BATCH


async def _measured(work: dict[str, Any]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The plain SDK has one settlement at a time: gathered, its completions are made one by one as well."""
    aio, turns = work["aio"], work["turns"]
    results: dict[str, dict[str, list[tuple[float, float]]]] = {}
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        clients = {"plain": plain_client(work["where"], aio=aio), "ours": single_client(work["where"], aio=aio)}
        receivers = {
            name: await entered(stack, (await entered(stack, client)).get_queue_receiver(QUEUE))
            for name, client in clients.items()
        }
        for shape in SHAPES:
            results[shape] = {name: [] for name in receivers}
            for turn in range(turns + 1):
                for name in list(receivers)[:: -1 if turn % 2 else 1]:
                    await _fill(work["near"], BATCH)
                    how = "one by one" if name == "plain" else shape
                    block = await _block(receivers[name], how, aio=aio, pool=pool)
                    if turn:
                        results[shape][name].append(block)
    return results


if __name__ == "__main__":
    print(json.dumps(run(_measured(json.loads(sys.argv[1])))), flush=True)
