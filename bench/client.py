"""The paired client against the plain SDK, in one run: CPU of a healthy send, sharing, memory, diverted sends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from bench.brokers import PairbusBroker
from bench.client_load import PRIMARY_NAME, ClientWork
from bench.shared_sender import Outcome, plain_shared
from pairbus.pairing.backlog import queue_path

Row = TypeVar("Row", bound="Healthy | Shared | Memory | Divert")

DEADLINE_S = 240.0
ADDED_US_WANTED = 20.0
RATIO_WANTED = 0.9
MEMORY_MB_WANTED = 3.0
ENTITIES = {False: 1000, True: 300}  # a sender of the async SDK has 0.7 MB of its own
WORKERS = {False: 8, True: 20}  # threads, tasks
FLAVOURS = {False: "sync", True: "async"}
FINER = 4  # rates of two clients are compared in short blocks, because a disk has good and bad seconds


@dataclass(frozen=True)
class Sends:
    """What is sent in one row, and by whom."""

    shape: str
    calls: int
    "In a block."
    ids: bool = True
    "Messages have ids of their own."
    spool: bool = False
    "The paired client has a spool, in which nothing waits."

    def __str__(self) -> str:
        return self.shape + (", spool" if self.spool else "") + ("" if self.ids else ", no message id")


ROWS = (
    Sends("single", 150),
    Sends("single", 150, ids=False),
    Sends("list", 8),
    Sends("batch", 20),
    Sends("single", 150, spool=True),
    Sends("batch", 20, spool=True),
)


@dataclass(frozen=True)
class Healthy:
    """One call after the other, on a primary that works."""

    flavour: str
    shape: str
    plain_us: float
    ours_us: float
    added_us: float
    plain_per_second: float
    ours_per_second: float


@dataclass(frozen=True)
class Shared:
    """Several workers on one sender."""

    flavour: str
    workers: int
    plain_alone_per_second: float
    ours_alone_per_second: float
    ours_shared_per_second: float
    ratio: float
    "Of the rates, ours shared to ours alone or to the plain SDK alone, whichever is less; medians."
    cpu_ratio: float
    "The same of CPU for each call, which tells more on a machine that others use."
    plain_shared: Outcome


@dataclass(frozen=True)
class Memory:
    """Of senders, for 1 000 entities, each of which has sent a message."""

    flavour: str
    plain_mb: float
    ours_mb: float
    added_mb: float


@dataclass(frozen=True)
class Divert:
    """The primary is stopped; the plain SDK sends to the same backlog queue."""

    flavour: str
    shape: str
    plain_per_second: float
    ours_per_second: float
    ratio: float
    "Of the rates."
    cpu_ratio: float


@dataclass(frozen=True)
class ClientResults:
    healthy: list[Healthy]
    shared: list[Shared]
    memory: list[Memory]
    diverted: list[Divert]


def run_client(work: ClientWork, when_paired: Callable[[], None] | None = None) -> Any:
    """One piece of work in a child process. It never outlives this call."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.client_load", work.to_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if when_paired is not None:
            assert child.stdout is not None
            if child.stdout.readline().strip() == "paired":
                when_paired()
        out, errors = child.communicate("go\n", timeout=DEADLINE_S)
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        raise RuntimeError(f"the client failed: {errors[-2000:]}")
    return json.loads(out)


def measure_client(rounds: int) -> ClientResults:
    with PairbusBroker(namespaces=("first", "second")) as broker:
        broker.make_queues(["orders", "shared"])
        sides = broker.connection_strings
        work = ClientWork("alone", False, sides["first"], sides["second"], "orders", 0, rounds=4 * rounds)
        healthy = [_healthy(replace(work, aio=aio), row) for aio in FLAVOURS for row in ROWS]
        work = replace(work, kind="together", rounds=2 * FINER * rounds, calls=800 // FINER)
        shared = [_shared(replace(work, aio=aio)) for aio in FLAVOURS]
    memory = [_memory(aio) for aio in FLAVOURS]
    rows = [replace(row, calls=row.calls // FINER) for row in ROWS if row.ids]
    diverted = [_diverted(aio, row, rounds=2 * FINER * rounds) for aio in FLAVOURS for row in rows]
    return ClientResults(healthy, shared, memory, diverted)


def _told(row: Row) -> Row:
    print(f"  {json.dumps(asdict(row))}", file=sys.stderr, flush=True)
    return row


def _spool_dir(row: Sends) -> AbstractContextManager[str]:
    return TemporaryDirectory(prefix="pairbus-bench-") if row.spool else nullcontext("")


def _healthy(work: ClientWork, row: Sends) -> Healthy:
    with _spool_dir(row) as spool_dir:
        taken = run_client(replace(work, shape=row.shape, calls=row.calls, message_ids=row.ids, spool_dir=spool_dir))
    plain, ours = [turn[0] for turn in taken], [turn[1] for turn in taken]
    # Lists are handed to the SDK in another form, so that only a look from outside is fair there.
    look = "cpu_us" if row.shape == "list" else "added_us"
    added = [mine[look] - other[look] for other, mine in taken]
    return _told(
        Healthy(
            FLAVOURS[work.aio],
            str(row),
            median(one["cpu_us"] for one in plain),
            median(one["cpu_us"] for one in ours),
            median(added),
            median(one["per_second"] for one in plain),
            median(one["per_second"] for one in ours),
        )
    )


def _shared(work: ClientWork) -> Shared:
    work = replace(work, workers=WORKERS[work.aio])
    told = run_client(work)
    taken = [[one["per_second"] for one in turn] for turn in told]
    alone, ours, shared = (median(turn[place] for turn in taken) for place in range(3))
    cpu_ratio = median(min(turn[0]["cpu_us"], turn[1]["cpu_us"]) / turn[2]["cpu_us"] for turn in told)
    outcome = plain_shared(work.primary, aio=work.aio, workers=work.workers, each=100)
    ratio = min(median(turn[2] / turn[1] for turn in taken), median(turn[2] / turn[0] for turn in taken))
    return _told(Shared(FLAVOURS[work.aio], work.workers, alone, ours, shared, ratio, cpu_ratio, outcome))


def _memory(aio: bool) -> Memory:
    """Two processes, because one that has given memory back keeps it for itself."""
    grown = {}
    with PairbusBroker(namespaces=("first", "second")) as broker:
        sides = broker.connection_strings
        broker.make_queues([f"many-{number}" for number in range(ENTITIES[aio] + 1)])
        work = ClientWork("entities", aio, sides["first"], sides["second"], "many", ENTITIES[aio])
        for paired in (False, True):
            grown[paired] = run_client(replace(work, paired=paired))["sent_bytes"] / ENTITIES[aio] / 1e3
    return _told(Memory(FLAVOURS[aio], grown[False], grown[True], grown[True] - grown[False]))


def _diverted(aio: bool, row: Sends, *, rounds: int) -> Divert:
    with (
        PairbusBroker(namespaces=("first",)) as primary,
        PairbusBroker(namespaces=("second",)) as secondary,
        _spool_dir(row) as spool_dir,
    ):
        primary.make_queue("orders")
        work = ClientWork(
            "divert",
            aio,
            primary.connection_string,
            secondary.connection_string,
            "orders",
            row.calls,
            rounds=rounds,
            shape=row.shape,
            backlog_queue=queue_path(PRIMARY_NAME, 0),
            spool_dir=spool_dir,
        )
        taken = run_client(work, when_paired=primary.stop)
    plain, ours = (median(turn[place]["per_second"] for turn in taken) for place in range(2))
    ratio = median(turn[1]["per_second"] / turn[0]["per_second"] for turn in taken)
    cpu_ratio = median(turn[0]["cpu_us"] / turn[1]["cpu_us"] for turn in taken)
    return _told(Divert(FLAVOURS[aio], str(row), plain, ours, ratio, cpu_ratio))


def client_tables(results: ClientResults) -> list[Table]:
    healthy = Table("healthy send", "plain µs CPU", "ours µs CPU", "added µs", "wanted", "plain /s", "ours /s")
    for one in results.healthy:
        numbers = (one.plain_us, one.ours_us, one.added_us)
        rates = (one.plain_per_second, one.ours_per_second)
        wanted = f"≤ {ADDED_US_WANTED:.0f}"
        healthy.add_row(f"{one.flavour}, {one.shape}", *(f"{n:,.1f}" for n in numbers), wanted, *map(_rate, rates))
    shared = Table(
        "one sender", "plain alone /s", "ours alone /s", "ours shared /s", "ratio", "of CPU", "wanted", "plain shared"
    )
    for each in results.shared:
        plain = each.plain_shared
        speeds = (each.plain_alone_per_second, each.ours_alone_per_second, each.ours_shared_per_second)
        fate = f"{plain.stored} of {plain.expected} stored in {plain.seconds:.0f} s, {plain.hung} hung"
        name = f"{each.workers} {plain.flavour}"
        shared.add_row(
            name, *map(_rate, speeds), f"{each.ratio:.2f}", f"{each.cpu_ratio:.2f}", f"≥ {RATIO_WANTED}", fate
        )
    memory = Table("1,000 open senders", "plain MB", "ours MB", "added MB", "wanted")
    for kept in results.memory:
        sizes = (kept.plain_mb, kept.ours_mb, kept.added_mb)
        memory.add_row(kept.flavour, *(f"{size:.1f}" for size in sizes), f"≤ {MEMORY_MB_WANTED:.0f}")
    diverted = Table("diverted send", "plain /s", "ours /s", "ratio", "of CPU", "wanted")
    for away in results.diverted:
        rates = (away.plain_per_second, away.ours_per_second)
        name = f"{away.flavour}, {away.shape}"
        diverted.add_row(name, *map(_rate, rates), f"{away.ratio:.2f}", f"{away.cpu_ratio:.2f}", f"≥ {RATIO_WANTED}")
    return [healthy, shared, memory, diverted]


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}"


def main() -> None:
    console = Console()
    for table in client_tables(measure_client(int(sys.argv[1]) if len(sys.argv) > 1 else 5)):
        console.print(table)


if __name__ == "__main__":
    main()
