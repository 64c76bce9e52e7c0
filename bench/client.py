"""Our clients against the plain SDK, in one run: rates, CPU, distance, diverted sends, memory, connections.

A row is the ratio of two ways to send: the median over many short turns with a block of each, because the speed of the
disk varies, and other programs may use the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from bench.brokers import PairbusBroker
from bench.client_load import AWAY, STOCK, UVLOOP, ClientWork, Way
from pairbus.auth.connection_string import ConnectionString

DEADLINE_S = 240.0
LOOPS = (UVLOOP, STOCK)
FLAVOURS = {False: "sync", True: "async"}
ROUND_TRIP_MS = 5.0
ENTITIES = 1000
MEMORY_MB_MAX = 20.0
CONNECTIONS_MAX = 2
TURNS = 4  # turns of a round

PLAIN, PLAIN_LIST = Way("plain"), Way("plain", shape="list")
OURS, OURS_LIST, SPOOLED = Way("ours"), Way("ours", shape="list"), Way("spooled")


def shared(workers: int) -> Way:
    return Way("ours", workers)


def alone(workers: int = 1) -> Way:
    return Way("single", workers)


def diverted(workers: int = 1) -> Way:
    return Way("ours", workers, queue=AWAY)


@dataclass(frozen=True)
class Compared:
    """A row to measure: a way to send, the way to which it is compared, and the wanted ratios."""

    name: str
    way: Way
    to: Way
    at_least: float | None = None
    "Least wanted ratio of the rates; None: reported only."
    cpu_at_most: float | None = None
    "Highest wanted ratio of CPU for each message."


NEAR = {
    False: (
        Compared("one caller", OURS, PLAIN, 1.1, 1.0),
        Compared("8 threads", shared(8), PLAIN, 3.0),
        Compared("32 threads", shared(32), PLAIN, 4.5),
        Compared("one namespace, one caller", alone(), PLAIN, 1.1, 1.0),
        Compared("one namespace, 100 threads", alone(100), PLAIN, 4.5),
        Compared("lists of 100", OURS_LIST, PLAIN_LIST, 2.0),
        Compared("one caller, with a spool", SPOOLED, OURS),
        Compared("one caller, diverted", diverted(), OURS, 0.9),
        Compared("32 threads, diverted", diverted(32), shared(32), 0.75),
    ),
    True: (
        Compared("one caller", OURS, PLAIN, 1.25, 1.0),
        Compared("20 tasks", shared(20), PLAIN, 5.0),
        Compared("200 tasks", shared(200), PLAIN, 10.0),
        Compared("one namespace, one caller", alone(), PLAIN, 1.25, 1.0),
        Compared("one namespace, 100 tasks", alone(100), PLAIN, 10.0),
        Compared("lists of 100", OURS_LIST, PLAIN_LIST, 2.0),
        Compared("one caller, with a spool", SPOOLED, OURS),
        Compared("one caller, diverted", diverted(), OURS, 0.9),
        Compared("200 tasks, diverted", diverted(200), shared(200), 0.75),
    ),
}
FAR = (
    Compared("20 tasks, 5 ms away", shared(20), PLAIN, 14.0),
    Compared("200 tasks, 5 ms away", shared(200), PLAIN, 70.0),
)


@dataclass(frozen=True)
class Speed:
    """Measured values of one row."""

    loop: str
    flavour: str
    name: str
    to: str
    per_second: float
    to_per_second: float
    cpu_us: float
    to_cpu_us: float
    ratio: float
    least_ratio: float
    "Lowest ratio of a turn."
    most_ratio: float
    cpu_ratio: float
    at_least: float | None
    cpu_at_most: float | None

    @property
    def is_met(self) -> bool:
        slow = self.at_least is not None and self.ratio < self.at_least
        dear = self.cpu_at_most is not None and self.cpu_ratio > self.cpu_at_most
        return not slow and not dear


@dataclass(frozen=True)
class Memory:
    """Memory of open senders of as many entities, each of which has sent a message."""

    flavour: str
    senders: int
    mb: float
    primary_connections: int
    secondary_connections: int

    @property
    def is_met(self) -> bool:
        connections = max(self.primary_connections, self.secondary_connections)
        return self.mb <= MEMORY_MB_MAX and connections <= CONNECTIONS_MAX


@dataclass(frozen=True)
class ClientResults:
    speeds: list[Speed]
    memory: list[Memory]


def measure_client(rounds: int) -> ClientResults:
    with PairbusBroker(namespaces=("first", "second")) as broker:
        broker.make_queues(["orders", AWAY])
        primary, secondary = broker.connection_strings["first"], broker.connection_strings["second"]
        speeds, turns = list[Speed](), TURNS * rounds
        for loop in LOOPS:
            for aio, rows in NEAR.items():
                speeds += _speeds(ClientWork("turns", aio, primary, secondary, loop, rounds=turns), rows)
            with far_away(primary) as distant:
                speeds += _speeds(ClientWork("turns", True, distant, secondary, loop, rounds=turns), FAR)
        broker.make_queues(f"many-{number}" for number in range(ENTITIES + 1))
        memory = [_memory(ClientWork("entities", aio, primary, secondary, entities=ENTITIES)) for aio in FLAVOURS]
    return ClientResults(speeds, memory)


@contextmanager
def far_away(connection_string: str) -> Iterator[str]:
    """Yield the connection string of a proxy that adds 5 ms to each round trip."""
    port = ConnectionString.parse(connection_string).port
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.distance", str(port), str(ROUND_TRIP_MS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        yield connection_string.replace(f":{port}", f":{child.stdout.readline().strip()}", 1)
    finally:
        child.kill()
        child.wait()


def _run(work: ClientWork) -> Any:
    """Do a piece of work in a child process, which never outlives this call."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.client_load", work.to_json()],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the client failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def _speeds(work: ClientWork, rows: Sequence[Compared]) -> list[Speed]:
    ways = tuple(dict.fromkeys(way for row in rows for way in (row.to, row.way)))
    with TemporaryDirectory(prefix="pairbus-bench-") as folder:
        turns = _run(replace(work, ways=ways, spool_dir=folder))
    return [
        _speed(work, row, [(turn[ways.index(row.way)], turn[ways.index(row.to)]) for turn in turns]) for row in rows
    ]


def _speed(work: ClientWork, row: Compared, turns: list[tuple[dict[str, float], dict[str, float]]]) -> Speed:
    ratios = [one["per_second"] / other["per_second"] for one, other in turns]
    speed = Speed(
        work.loop,
        FLAVOURS[work.aio],
        row.name,
        "plain" if row.to.client == "plain" else "healthy",
        median(one["per_second"] for one, _ in turns),
        median(other["per_second"] for _, other in turns),
        median(one["cpu_us"] for one, _ in turns),
        median(other["cpu_us"] for _, other in turns),
        median(ratios),
        min(ratios),
        max(ratios),
        median(one["cpu_us"] / other["cpu_us"] for one, other in turns),
        row.at_least,
        row.cpu_at_most,
    )
    print(f"  {json.dumps(asdict(speed))}", file=sys.stderr, flush=True)
    return speed


def _memory(work: ClientWork) -> Memory:
    told = _run(work)
    return Memory(FLAVOURS[work.aio], work.entities, told["bytes"] / 1e6, told["primary"], told["secondary"])


def client_tables(results: ClientResults) -> list[Table]:
    return [*(_speed_table(results, loop) for loop in LOOPS), _memory_table(results)]


def _speed_table(results: ClientResults, loop: str) -> Table:
    speeds = Table(f"on {loop}", "/s", "against", "ratio", "wanted", "CPU µs", "against", "")
    for one in results.speeds:
        if one.loop == loop:
            speeds.add_row(
                f"{one.flavour}, {one.name}",
                f"{one.per_second:,.0f}",
                f"{one.to} {one.to_per_second:,.0f}",
                f"{one.ratio:.2f}",
                "" if one.at_least is None else f"≥ {one.at_least:g}",
                f"{one.cpu_us:.0f}",
                f"{one.cpu_ratio:.2f}×" + ("" if one.cpu_at_most is None else f" ≤ {one.cpu_at_most:g}"),
                "" if one.at_least is None else _verdict(one),
            )
    return speeds


def _memory_table(results: ClientResults) -> Table:
    memory = Table("open senders of as many entities", "MB", "wanted", "connections", "wanted", "")
    for kept in results.memory:
        memory.add_row(
            f"{kept.flavour}, {kept.senders:,}",
            f"{kept.mb:.1f}",
            f"≤ {MEMORY_MB_MAX:g}",
            f"{kept.primary_connections} + {kept.secondary_connections}",
            f"≤ {CONNECTIONS_MAX} a side",
            _verdict(kept),
        )
    return memory


def _verdict(row: Speed | Memory) -> str:
    return "✓" if row.is_met else "✗"
