"""What counting costs: a healthy send of the client with a ledger and without, the broker with its meter and without.

Run as `python -m bench.metering JSON`, it is the application: two paired clients in one process, in turns.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from rich.table import Table

import pairbus
import pairbus.aio
from bench.brokers import RESULTS, PairbusBroker
from bench.client_load import PRIMARY_NAME, ClientWork, Inside, block, entered, plain_client
from bench.throughput import Rate, measure
from pairbus import SendAvailabilityPairedNamespaceOptions

DEADLINE_S = 240.0
ADDED_US_WANTED = 3.0
CALLS = 200
FLAVOURS = {False: "sync", True: "async"}
SHAPES = {"single": 1, "batch": 10}
"What one call sends, and by how much fewer calls a block of it has."


@dataclass(frozen=True)
class Counted:
    """One call after the other, on a primary that works."""

    flavour: str
    shape: str
    without_us: float
    "CPU of a call that is not spent inside the SDK."
    added_us: float
    "By the ledger, its writer's thread included; median of the rounds."


@dataclass(frozen=True)
class MeteringResults:
    client: list[Counted]
    broker: list[Rate]


def measure_metering(count: int, rounds: int) -> MeteringResults:
    with PairbusBroker(namespaces=("first", "second")) as broker:
        broker.make_queue("orders")
        sides = broker.connection_strings
        work = ClientWork("alone", False, sides["first"], sides["second"], "orders", CALLS, rounds=8 * rounds)
        works = [
            replace(work, aio=aio, shape=shape, calls=CALLS // fewer)
            for aio in FLAVOURS
            for shape, fewer in SHAPES.items()
        ]
        client = [_counted(each) for each in works]
    RESULTS.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=RESULTS) as folder,
        PairbusBroker() as plain,
        PairbusBroker(name="metered", options=("--meter", folder)) as metered,
    ):
        rates = measure([plain, metered], count, rounds)
    return MeteringResults(client, rates)


def _counted(work: ClientWork) -> Counted:
    done = subprocess.run(
        [sys.executable, "-m", "bench.metering", work.to_json()],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the client failed: {done.stderr[-2000:]}")
    turns: list[list[float]] = json.loads(done.stdout)
    row = Counted(
        FLAVOURS[work.aio],
        work.shape,
        median(without for without, _ in turns),
        median(counted - without for without, counted in turns),
    )
    print(f"  {json.dumps(asdict(row))}", file=sys.stderr, flush=True)
    return row


async def in_turns(work: ClientWork) -> list[list[float]]:
    """For each round: added µs of a call without a ledger and with one."""
    inside = Inside()
    kind: Any = pairbus.aio.PairedServiceBusClient if work.aio else pairbus.PairedServiceBusClient
    rounds = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=RESULTS))
        senders = []
        for ledger in (None, folder):
            sides = [plain_client(side, aio=work.aio) for side in (work.primary, work.secondary)]
            options = SendAvailabilityPairedNamespaceOptions(
                None, sides[1], backlog_queue_count=1, primary_name=PRIMARY_NAME, ledger=ledger
            )
            client = await entered(stack, kind(inside.watch(sides[0], aio=work.aio), options))
            senders.append(client.get_queue_sender(work.queue))
        for turn in range(work.rounds + 1):
            order = senders if turn % 2 else senders[::-1]
            taken = [(await block(sender, work, inside=inside)).added_us for sender in order]
            if turn:  # the first one opens connections and warms up
                rounds.append(taken if turn % 2 else taken[::-1])
    return rounds


def metering_tables(results: MeteringResults) -> list[Table]:
    client = Table("healthy send", "without ledger, added µs", "by the ledger µs", "wanted")
    for one in results.client:
        wanted = f"≤ {ADDED_US_WANTED:.0f}"
        client.add_row(f"{one.flavour}, {one.shape}", f"{one.without_us:.1f}", f"{one.added_us:.1f}", wanted)
    broker = Table("broker", "without meter /s", "with meter /s", "ratio", "µs CPU without", "µs CPU with")
    by_key = {(rate.broker, rate.kind): rate for rate in results.broker}
    for kind in dict.fromkeys(rate.kind for rate in results.broker):
        plain, metered = by_key["pairbus", kind], by_key["metered", kind]
        broker.add_row(
            kind,
            f"{plain.per_second:,.0f}",
            f"{metered.per_second:,.0f}",
            f"{metered.per_second / plain.per_second:.2f}",
            f"{plain.broker_cpu_us:.1f}",
            f"{metered.broker_cpu_us:.1f}",
        )
    return [client, broker]


def main() -> None:
    print(json.dumps(asyncio.run(in_turns(ClientWork(**json.loads(sys.argv[1]))))), flush=True)


if __name__ == "__main__":
    main()
