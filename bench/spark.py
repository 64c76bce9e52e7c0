"""Spark: its syphon against the one in a process and the shovel; its source and sink against the plain SDK."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from rich.table import Table
from tools import rabbitmq

from bench.brokers import PairbusBroker
from bench.spark_load import SparkWork
from bench.syphon import SHOVELS, Shovel, run_child, run_syphon
from bench.syphon_load import SyphonWork
from pairbus.pairing.rotation import queue_path

COUNT = 200_000
SIZES = (20_000, 200_000, 2_000_000)
FRAMES = 100_000
LOOPED = 10_000  # messages for the plain SDK, which is slower
BACKLOG_QUEUES, ENTITIES = 10, 20
DEADLINE_S = 900.0
RATIO_WANTED = 0.7
BUDGET, BUDGET_COUNT = 500.0, 20_000
BUDGETED = ((1, 1), (10, 1), (4, 2), (10, 2), (10, 8))  # queues and tasks, of which two run at once
BUDGET_WANTED = 0.1
SHOVEL = "shovels over TCP"


@dataclass(frozen=True)
class Drained:
    way: str
    count: int
    per_second: float
    cpu_us: float
    "CPU for each message, of all processes that took part."
    peak_mb: float
    "Peak of resident memory of Spark's Java and Python; 0: not Spark."


@dataclass(frozen=True)
class Budgeted:
    """A drain with a budget."""

    queues: int
    tasks: int
    per_second: float


@dataclass(frozen=True)
class Framed:
    way: str
    count: int
    per_second: float


Told = TypeVar("Told", Drained, Framed, Budgeted)


@dataclass(frozen=True)
class SparkResults:
    drained: list[Drained]
    grown: list[Drained]
    framed: list[Framed]
    budgeted: list[Budgeted]
    note: str


def measure_spark(rounds: int) -> SparkResults:
    reason = rabbitmq.available()
    with ExitStack() as stack:
        world = _World(stack)
        samples: dict[str, list[Drained]] = {}
        shovels: dict[str, Shovel] = {}
        if reason is None:
            node = stack.enter_context(rabbitmq.RabbitMQ(plugins=["rabbitmq_shovel"]))
            uri = SHOVELS["shovel over TCP"]
            shovels[SHOVEL] = Shovel(node, uri, COUNT, BACKLOG_QUEUES, ENTITIES)
            shovels["shovel of one queue to one other"] = Shovel(node, uri, COUNT)
        for _ in range(rounds):
            taken = [world.in_process(COUNT), world.on_spark(COUNT)]
            taken += [Drained(way, COUNT, *shovel.move(), 0.0) for way, shovel in shovels.items()]
            for each in taken:
                samples.setdefault(each.way, []).append(each)
                _tell(each)
        drained = [_median(taken) for taken in samples.values()]
        grown = [_tell(world.on_spark(count)) for count in SIZES]
        framed = world.frames()
        budgeted = [_tell(world.with_budget(queues, tasks)) for queues, tasks in BUDGETED]
    note = f"RabbitMQ {rabbitmq.version()}" if reason is None else f"RabbitMQ was not measured: {reason}"
    return SparkResults(drained, grown, framed, budgeted, note)


class _World:
    """Two brokers with ten backlog queues and twenty entities."""

    def __init__(self, stack: ExitStack) -> None:
        self._home, self._away = (stack.enter_context(PairbusBroker(namespaces=(name,))) for name in ("home", "away"))
        self._queues = [queue_path("bench", index) for index in range(BACKLOG_QUEUES)]
        self._entities = [f"orders-{number}" for number in range(ENTITIES)]
        self._home.make_queues([*self._entities, "frames", "loop"])
        self._away.make_queues(self._queues)

    def in_process(self, count: int) -> Drained:
        work = self._fill(count)
        before = self._cpu_seconds()
        told = run_syphon(work)
        cpu = self._cpu_seconds() - before + told["cpu_seconds"]
        return Drained("syphon in a process", count, told["per_second"], cpu / count * 1e6, 0.0)

    def on_spark(self, count: int) -> Drained:
        work = self._fill(count)
        before = self._cpu_seconds()
        told = self._spark(SparkWork("drain", work.primary, work.secondary, self._queues, count))
        cpu = self._cpu_seconds() - before + told["cpu_seconds"]
        return Drained("syphon on Spark", count, told["per_second"], cpu / count * 1e6, told["peak_mb"])

    def with_budget(self, queues: int, tasks: int) -> Budgeted:
        work = self._fill(BUDGET_COUNT, self._queues[:queues])
        told = self._spark(
            SparkWork("drain", work.primary, work.secondary, work.queues, BUDGET_COUNT, budget=BUDGET, tasks=tasks)
        )
        return Budgeted(queues, tasks, told["per_second"])

    def frames(self) -> list[Framed]:
        """Measure source and sink: the source peeks, then stages the sink's messages; the SDK receives its own."""
        primary = self._home.connection_string
        many = SparkWork("sink", primary, queues=["frames"], count=FRAMES)
        few = SparkWork("plain-send", primary, queues=["loop"], count=LOOPED)
        pieces = {
            "DataFrame to sink": many,
            "plain SDK sends in batches": few,
            "batch read to Parquet": replace(many, kind="peek"),
            "stream read to Parquet": replace(many, kind="stage"),
            "plain SDK receives to Parquet": replace(few, kind="plain-receive"),
        }
        return [_tell(Framed(way, work.count, self._spark(work)["per_second"])) for way, work in pieces.items()]

    def _fill(self, count: int, queues: list[str] | None = None) -> SyphonWork:
        primary, secondary = self._home.connection_string, self._away.connection_string
        work = SyphonWork("drain", primary, secondary, queues or self._queues, self._entities, count)
        run_syphon(replace(work, kind="fill"))
        return work

    def _spark(self, work: SparkWork) -> dict[str, float]:
        return run_child("bench.spark_load", work.to_json(), DEADLINE_S)

    def _cpu_seconds(self) -> float:
        return self._home.cpu_seconds() + self._away.cpu_seconds()


def _median(taken: list[Drained]) -> Drained:
    return replace(
        taken[0],
        per_second=median(one.per_second for one in taken),
        cpu_us=median(one.cpu_us for one in taken),
        peak_mb=max(one.peak_mb for one in taken),
    )


def _tell(one: Told) -> Told:
    print(f"  {one}", file=sys.stderr, flush=True)
    return one


def spark_tables(results: SparkResults) -> list[Table]:
    rates = {each.way: each.per_second for each in results.drained}
    drained = Table(f"{COUNT:,} home again", "messages /s", "µs CPU each", "of the process", "of the shovel", "wanted")
    for each in results.drained:
        of_process = each.per_second / rates["syphon in a process"]
        of_shovel = f"{each.per_second / rates[SHOVEL]:.2f}" if SHOVEL in rates else "-"
        wanted = f"≥ {RATIO_WANTED} of the process, faster than the shovel" if "Spark" in each.way else ""
        drained.add_row(
            each.way, f"{each.per_second:,.0f}", f"{each.cpu_us:.0f}", f"{of_process:.2f}", of_shovel, wanted
        )
    grown = Table("syphon on Spark", "messages /s", "µs CPU each", "peak MB")
    for each in results.grown:
        grown.add_row(f"{each.count:,}", f"{each.per_second:,.0f}", f"{each.cpu_us:.0f}", f"{each.peak_mb:,.0f}")
    framed = Table("1 KB messages", "messages", "messages /s")
    for one in results.framed:
        framed.add_row(one.way, f"{one.count:,}", f"{one.per_second:,.0f}")
    return [drained, grown, framed, _budget_table(results.budgeted)]


def _budget_table(budgeted: list[Budgeted]) -> Table:
    table = Table(f"{BUDGET_COUNT:,} home, {BUDGET:.0f}/s allowed", "messages /s", "of the budget", "wanted")
    for each in budgeted:
        way = f"{each.queues} queues, {each.tasks} tasks, 2 at once"
        wanted = f"{1 - BUDGET_WANTED:.1f} to {1 + BUDGET_WANTED:.1f}"
        table.add_row(way, f"{each.per_second:,.0f}", f"{each.per_second / BUDGET:.3f}", wanted)
    return table
