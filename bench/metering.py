"""Cost of metering: healthy sends of the client with and without a ledger, the broker with and without its meter.

Run as `python -m bench.metering JSON`, it is the application: two paired clients in one process, in turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from statistics import median

from rich.table import Table

from bench.brokers import RESULTS, PairbusBroker
from bench.client_load import ClientWork, Way, block, entered, paired_client
from bench.throughput import Rate, measure
from pairbus.transport.loops import run

DEADLINE_S = 240.0
ADDED_US_WANTED = 3.0
FLAVOURS = {False: "sync", True: "async"}
WAYS = {Way("ours"): 200, Way("ours", shape="list"): 20}
"Ways to send, and the calls of a block of each."


@dataclass(frozen=True)
class Counted:
    """Measured CPU of single calls, one after the other, on a healthy primary."""

    flavour: str
    shape: str
    without_us: float
    "CPU of a call without a ledger."
    added_us: float
    "CPU that the ledger adds to a call, its writer's thread included; median of the rounds."


@dataclass(frozen=True)
class MeteringResults:
    client: list[Counted]
    broker: list[Rate]


def measure_metering(count: int, rounds: int) -> MeteringResults:
    with PairbusBroker(namespaces=("first", "second")) as broker:
        broker.make_queue("orders")
        sides = broker.connection_strings
        work = ClientWork("turns", False, sides["first"], sides["second"], rounds=8 * rounds)
        client = [_counted(replace(work, aio=aio, ways=(way,))) for aio in FLAVOURS for way in WAYS]
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
        work.ways[0].shape,
        median(without for without, _ in turns),
        median(counted - without for without, counted in turns),
    )
    print(f"  {json.dumps(asdict(row))}", file=sys.stderr, flush=True)
    return row


async def in_turns(work: ClientWork) -> list[list[float]]:
    """Return, for each round, the CPU in µs of a call without a ledger and with one."""
    (way,) = work.ways
    rounds = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=RESULTS))
        senders = []
        for ledger in (None, folder):
            client = paired_client(work.primary, work.secondary, aio=work.aio, ledger=ledger)
            senders.append((await entered(stack, client)).get_queue_sender(way.queue))
        for turn in range(work.rounds + 1):
            order = senders if turn % 2 else senders[::-1]
            blocks = [await block(sender, way, WAYS[way], aio=work.aio) for sender in order]
            taken = [one.cpu_us * way.messages for one in blocks]
            if turn:  # the first turn opens connections and warms up
                rounds.append(taken if turn % 2 else taken[::-1])
    return rounds


def metering_tables(results: MeteringResults) -> list[Table]:
    client = Table("healthy send", "without ledger, µs CPU", "by the ledger µs", "wanted")
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
    print(json.dumps(run(in_turns(ClientWork.from_json(sys.argv[1])))), flush=True)


if __name__ == "__main__":
    main()
