"""`make bench-guard`: is this tree as fast as a base, in one run of at most ten minutes?

Brokers of both trees run side by side and do short pieces of work in turns. CPU time is compared rather than elapsed
time, because other programs disturb it less. The ratio of a row is the median of the ratios of all turns.

python -m bench.guard                    the base is the last release
python -m bench.guard --base 4a10875d    another commit
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tools import rabbitmq

from bench.brokers import RESULTS, Measured, PairbusBroker, RabbitMQBroker
from bench.client_load import ClientWork, Way
from bench.latency import append_s, timed_send_s
from bench.load import KINDS, connected, payload
from bench.procstat import fine_cpu_seconds
from bench.quiet import Quiet
from bench.release import NoBase, Tree, base_tree, this_tree
from bench.spark_load import SparkWork
from bench.syphon import SHOVELS, Shovel
from bench.syphon_load import SyphonWork
from pairbus.pairing.rotation import queue_path

MINUTES = 9.5
COUNT = 20_000
LONE_COUNT = 200
PIPELINE_COUNT = 20_000
CHILD_TIMEOUT_S = 180.0
QUEUE, LONE, ORDERS, FRAMES = "bench", "lone", "orders", "frames"
BACKLOG = queue_path("bench", 0)
NOW, BASE, RABBITMQ = "now", "base", "rabbitmq"
NOT_WORSE = 1.03
"Highest ratio to the base."
NOT_WORSE_PIPELINE = 1.10  # Java compiles as it runs, so its CPU time varies more

Sample = dict[str, float]
"Measured values by their names."


@dataclass(frozen=True)
class Check:
    """A row of the table: a measured value divided by another one of the same turn."""

    row: str
    value: str
    to: str
    "Who measured the value that it is divided by: the base or RabbitMQ; now: another value of this tree."
    to_value: str = ""
    "Name of the other value; empty: the same."
    at_most: float | None = None
    at_least: float | None = None


CPU, RATE, P50 = "µs CPU", "/s", "p50 µs"
CHECKS = (
    Check("send, 500 outstanding, µs CPU ÷ base", f"send {CPU}", BASE, at_most=NOT_WORSE),
    Check("receive in ranges, µs CPU ÷ base", f"receive-ranges {CPU}", BASE, at_most=NOT_WORSE),
    Check("receive settled singly, µs CPU ÷ base", f"receive-singly {CPU}", BASE, at_most=NOT_WORSE),
    Check("send in batches, µs CPU ÷ base", f"send-batches {CPU}", BASE, at_most=NOT_WORSE),
    Check("one send at a time, p50 µs ÷ base", f"lone {P50}", BASE, at_most=NOT_WORSE),
    Check("one send at a time, µs CPU ÷ base", f"lone {CPU}", BASE, at_most=NOT_WORSE),
    Check("sync client, one caller, µs CPU ÷ base", f"sync {CPU}", BASE, at_most=NOT_WORSE),
    Check("asyncio client, 200 tasks, µs CPU ÷ base", f"async {CPU}", BASE, at_most=NOT_WORSE),
    Check("syphon, one queue, µs CPU ÷ base", f"syphon {CPU}", BASE, at_most=NOT_WORSE),
    Check("pipeline, a stream to Parquet, µs CPU ÷ base", f"pipeline {CPU}", BASE, at_most=NOT_WORSE_PIPELINE),
    Check("one send at a time, p50 ÷ append + fdatasync", f"lone {P50}", NOW, f"append {P50}", at_most=2.0),
    Check("sync client, one caller, rate ÷ plain SDK", f"sync {RATE}", NOW, f"plain sync {RATE}", at_least=1.1),
    Check("asyncio client, 200 tasks, rate ÷ plain SDK", f"async {RATE}", NOW, f"plain async {RATE}", at_least=10),
    Check("send, 500 outstanding, rate ÷ RabbitMQ", f"send {RATE}", RABBITMQ, at_least=3.0),
    Check("receive in ranges, rate ÷ RabbitMQ", f"receive-ranges {RATE}", RABBITMQ, at_least=3.0),
    Check("receive settled singly, rate ÷ RabbitMQ", f"receive-singly {RATE}", RABBITMQ, at_least=2.0),
    Check("syphon, one queue, rate ÷ shovel over TCP", f"syphon {RATE}", RABBITMQ, at_least=2.5),
    Check("syphon, one queue, rate ÷ shovel in its node", f"syphon {RATE}", RABBITMQ, f"inside {RATE}", at_least=1.2),
)


class Party:
    """A tree, with two of its brokers: home for the messages, away for the backlog."""

    def __init__(self, tree: Tree, stack: ExitStack) -> None:
        self.name, self.tree = tree.name, tree
        self.home, self.away = (
            stack.enter_context(PairbusBroker(namespaces=(name,), name=tree.name, source=tree.source))
            for name in ("home", "away")
        )
        self.home.make_queues([QUEUE, LONE, ORDERS, FRAMES])
        self.away.make_queues([BACKLOG])

    def program(self, module: str, work: str) -> Any:
        """Run a load program of this tree in a child process and return its last line, which is JSON."""
        done = subprocess.run(
            [sys.executable, "-m", module, work],
            cwd=self.tree.folder,
            env=self.tree.environment,
            capture_output=True,
            text=True,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise ProgramFailed(f"{module} of {self.tree.title}: {done.stderr.strip().splitlines()[-1]}")
        return json.loads(done.stdout.splitlines()[-1])

    def cpu_seconds(self) -> float:
        return fine_cpu_seconds(self.home.pid) + fine_cpu_seconds(self.away.pid)


class ProgramFailed(Exception):
    """A load program of an older tree does not know the work, or failed."""


# ── what is measured ──


LOADS = ("send", "receive-ranges", "send-batches", "receive-singly")
LOADS_OF_RABBITMQ = ("send", "receive-ranges", "send", "receive-singly")
"A batch of Service Bus is one message to RabbitMQ."


def loads(broker: Measured, cpu_seconds: Callable[[], float], kinds: Sequence[str] = LOADS) -> Sample:
    """Send and receive through one connection, so that the queue is empty at the end."""
    return asyncio.run(_loads(broker, cpu_seconds, kinds))


async def _loads(broker: Measured, cpu_seconds: Callable[[], float], kinds: Sequence[str]) -> Sample:
    sample: Sample = {}
    for kind in kinds:
        work = broker.work(kind, QUEUE, COUNT)
        async with await connected(work) as connection:
            cpu, began = cpu_seconds(), time.perf_counter()
            await KINDS[kind](connection, work)
            seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        sample |= {f"{kind} {CPU}": cpu / COUNT * 1e6, f"{kind} {RATE}": COUNT / seconds}
    return sample


def broker_loads(party: Party) -> Sample:
    return loads(party.home, party.cpu_seconds)


def lone_sends(party: Party) -> Sample:
    return asyncio.run(_lone_sends(party))


async def _lone_sends(party: Party) -> Sample:
    work, message = party.home.work("send", LONE, LONE_COUNT), payload()
    async with await connected(work) as connection:
        sender = await connection.sender(LONE)
        with tempfile.TemporaryFile(dir=RESULTS) as file:
            appends = [append_s(file.fileno(), message) for _ in range(LONE_COUNT)]
        cpu = party.cpu_seconds()
        sends = [await timed_send_s(sender, message) for _ in range(LONE_COUNT)]
        cpu = party.cpu_seconds() - cpu
        await KINDS["receive-ranges"](connection, work)
    p50s = {f"lone {P50}": median(sends) * 1e6, f"append {P50}": median(appends) * 1e6}
    return p50s | {f"lone {CPU}": cpu / LONE_COUNT * 1e6}


def client(party: Party) -> Sample:
    """Send with the paired client and with the plain SDK, in turns inside one process for each flavour."""
    primary, secondary = party.home.connection_string, party.away.connection_string
    sample: Sample = {}
    for flavour, workers in (("sync", 1), ("async", 200)):
        ways = Way("plain", queue=ORDERS), Way("ours", workers, queue=ORDERS)
        work = ClientWork("turns", flavour == "async", primary, secondary, ways=ways, rounds=3)
        turns = party.program("bench.client_load", work.to_json())
        for place, name in enumerate((f"plain {flavour}", flavour)):
            blocks = [turn[place] for turn in turns]
            sample[f"{name} {RATE}"] = median(block["per_second"] for block in blocks)
            sample[f"{name} {CPU}"] = median(block["cpu_us"] for block in blocks)
    return sample


def syphon(party: Party) -> Sample:
    """Drain one backlog queue; the CPU is that of the syphon and both brokers."""
    work = SyphonWork("fill", party.home.connection_string, party.away.connection_string, [BACKLOG], [ORDERS], COUNT)
    party.program("bench.syphon_load", work.to_json())
    cpu = party.cpu_seconds()
    drained = party.program("bench.syphon_load", replace(work, kind="drain").to_json())
    cpu = party.cpu_seconds() - cpu + drained["cpu_seconds"]
    return {f"syphon {CPU}": cpu / COUNT * 1e6, f"syphon {RATE}": drained["per_second"]}


def pipeline(party: Party) -> Sample:
    """Read a stream of Spark; the CPU is that of Spark, Java and Python alike, and of the broker."""
    asyncio.run(_fill(party))
    cpu = party.cpu_seconds()
    work = SparkWork("stage", party.home.connection_string, queues=[FRAMES], count=PIPELINE_COUNT)
    told = party.program("bench.spark_load", work.to_json())
    cpu = party.cpu_seconds() - cpu + told["cpu_seconds"]
    return {f"pipeline {CPU}": cpu / PIPELINE_COUNT * 1e6, f"pipeline {RATE}": told["per_second"]}


async def _fill(party: Party) -> None:
    work = party.home.work("send", FRAMES, PIPELINE_COUNT)
    async with await connected(work) as connection:
        await KINDS["send"](connection, work)


Section = Callable[[Party], Sample]
SECTIONS: dict[Section, int] = {broker_loads: 1, lone_sends: 1, client: 2, syphon: 2, pipeline: 12}
"Each piece of work, and in which of the turns it is done: in every one, every second, every twelfth."


SHOVEL_NAMES = "syphon", "inside"
"Names of the values of the two shovels."


class Node:
    """RabbitMQ, where it is installed; shovels stand for the syphon."""

    def __init__(self, stack: ExitStack) -> None:
        node = stack.enter_context(rabbitmq.RabbitMQ(plugins=["rabbitmq_shovel"]))
        self._broker = RabbitMQBroker(node)
        self._broker.make_queue(QUEUE)
        self._shovels = {
            name: Shovel(node, uri, COUNT) for name, uri in zip(SHOVEL_NAMES, SHOVELS.values(), strict=True)
        }

    def sample(self, section: Section) -> Sample:
        if section is broker_loads:
            return loads(self._broker, self._broker.cpu_seconds, LOADS_OF_RABBITMQ)
        if section is syphon:
            return {f"{name} {RATE}": shovel.move()[0] for name, shovel in self._shovels.items()}
        return {}


# ── turns ──


@dataclass
class Measurements:
    """All samples of a run."""

    title: str
    "The two commits."
    samples: dict[tuple[str, str], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    "By who was measured and the name of the value: the value of each turn."
    notes: list[str] = field(default_factory=list)


class Run:
    """Sections in turns, until the time is used up."""

    def __init__(self, parties: list[Party], node: Node | None, found: Measurements, ends: float) -> None:
        self._parties, self._node, self._found, self._ends = parties, node, found, ends
        self._failed: set[tuple[Party, Section]] = set()
        self._longest_s: dict[Section, float] = defaultdict(float)

    def all_turns(self) -> None:
        for party in self._parties:
            broker_loads(party)  # warms up
        for turn in itertools.count():
            for section, every in SECTIONS.items():
                if turn % every == 0 and not self._is_measured(section, turn, turn // every):
                    return

    def _is_measured(self, section: Section, turn: int, time_of_section: int) -> bool:
        """Measure a section on both trees, with the other one first each time; False: there is no time for it."""
        began = time.monotonic()
        if began + self._longest_s[section] > self._ends:
            return False
        for party in self._parties[:: -1 if time_of_section % 2 else 1]:
            if (party, section) not in self._failed:
                self._measure(party, section, turn)
        if self._node is not None:
            self._note(RABBITMQ, turn, self._node.sample(section))
        took_s = time.monotonic() - began
        self._longest_s[section] = max(self._longest_s[section], took_s)
        print(f"  turn {turn}: {section.__name__}, {took_s:.0f} s", file=sys.stderr, flush=True)
        return True

    def _measure(self, party: Party, section: Section, turn: int) -> None:
        try:
            self._note(party.name, turn, section(party))
        except ProgramFailed as error:
            self._failed.add((party, section))
            self._found.notes.append(f"Not measured: {error}")

    def _note(self, who: str, turn: int, sample: Sample) -> None:
        for name, value in sample.items():
            self._found.samples[who, name][turn] = value


def measure_guard(revision: str | None, minutes: float) -> Measurements:
    ends = time.monotonic() + minutes * 60
    RESULTS.mkdir(exist_ok=True)
    quiet, reason = Quiet(), rabbitmq.available()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="base-", dir=RESULTS)))
        trees = [base_tree(revision, folder), this_tree()]
        found = Measurements(f"base: {trees[0].title}\nnow:  {trees[1].title}")
        found.notes.append(f"RabbitMQ was not measured: {reason}" if reason else f"RabbitMQ {rabbitmq.version()}")
        node = None if reason else Node(stack)
        Run([Party(tree, stack) for tree in trees], node, found, ends).all_turns()
    quiet.end()
    found.notes.append(str(quiet))
    return found


# ── the table ──


@dataclass(frozen=True)
class Outcome:
    """A row of the table."""

    check: Check
    now: float
    other: float
    ratios: list[float]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def is_kept(self) -> bool:
        above = self.check.at_most is not None and self.ratio > self.check.at_most
        below = self.check.at_least is not None and self.ratio < self.check.at_least
        return not above and not below


def outcomes(found: Measurements) -> list[Outcome]:
    """Return the checks for which both values were measured."""
    rows = []
    for check in CHECKS:
        ours, other = (
            found.samples.get((NOW, check.value)),
            found.samples.get((check.to, check.to_value or check.value)),
        )
        if ours and other:
            ratios = [value / other[turn] for turn, value in ours.items() if turn in other]
            rows.append(Outcome(check, median(ours.values()), median(other.values()), ratios))
    return rows


HEAD = ("", "now", "compared with", "ratio", "middle half", "turns", "limit", "")


def table(rows: list[Outcome]) -> str:
    """Return the table as Markdown, which no terminal cuts."""
    cells = [HEAD, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _cells(row: Outcome) -> tuple[str, ...]:
    check = row.check
    low, _, high = quantiles(row.ratios) if len(row.ratios) > 1 else row.ratios * 3
    limit = f"≤ {check.at_most:g}" if check.at_most is not None else f"≥ {check.at_least:g}"
    return (
        check.row,
        f"{row.now:,.1f}",
        f"{row.other:,.1f}",
        f"{row.ratio:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{len(row.ratios)}",
        limit,
        "kept" if row.is_kept else "MISSED",
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="Compare this tree with a base.")
    parser.add_argument("--base", help="commit or tag; default: the last release")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    options = parser.parse_args()
    try:
        found = measure_guard(options.base or None, options.minutes)
    except NoBase as error:
        parser.error(f"no base: {error}")
    rows = outcomes(found)
    print("\n".join([found.title, "", table(rows), "", *found.notes]))
    sys.exit(any(row.check.to == BASE and not row.is_kept for row in rows))


if __name__ == "__main__":
    main()
