"""Rate of the syphon, against RabbitMQ's shovel: 1 KB messages, each confirmed before it is completed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich.table import Table
from tools import rabbitmq

from bench.brokers import PairbusBroker, RabbitMQBroker
from bench.load import BODY_SIZE
from bench.procstat import cpu_seconds
from bench.syphon_load import SyphonWork
from bench.throughput import run_load
from pairbus.pairing.rotation import queue_path

DEADLINE_S = 120.0
SLOWEST_PER_S = 2_000  # messages, on a machine that is busy with other things
PREFETCH = 1000  # the shovel's own default
SHOVELS = {
    # URI of both ends of the shovel: over TCP as to another node, or without a socket
    "shovel over TCP": "amqp://{user}:{password}@{host}:{port}",
    "shovel inside its node": "amqp://",
}


@dataclass(frozen=True)
class Homecoming:
    """Measured values of a way to move messages; medians of its rounds."""

    way: str
    per_second: float
    cpu_us: float
    "CPU for each message, of all processes that took part."
    rounds: list[float]


Sample = tuple[float, float]
"Messages a second, microseconds of CPU for each."


def measure_syphon(count: int, rounds: int) -> tuple[list[Homecoming], str]:
    """Measure all ways in turns; the first round warms up and does not count."""
    reason = rabbitmq.available()
    samples: dict[str, list[Sample]] = {}
    with ExitStack() as stack:
        ways = _our_ways(stack, count)
        if reason is None:
            node = stack.enter_context(rabbitmq.RabbitMQ(plugins=["rabbitmq_shovel"]))
            ways |= {name: Shovel(node, uri, count).move for name, uri in SHOVELS.items()}
        for turn in range(rounds + 1):
            for name, move in ways.items():
                sample = move()
                if turn:
                    samples.setdefault(name, []).append(sample)
                    print(f"  {name:32} {sample[0]:9.0f} /s {sample[1]:7.1f} µs", file=sys.stderr, flush=True)
    told = [
        Homecoming(name, median(s[0] for s in taken), median(s[1] for s in taken), [s[0] for s in taken])
        for name, taken in samples.items()
    ]
    return told, f"RabbitMQ {rabbitmq.version()}" if reason is None else f"RabbitMQ was not measured: {reason}"


# ── ours ──


def _our_ways(stack: ExitStack, count: int) -> dict[str, Callable[[], Sample]]:
    both = stack.enter_context(PairbusBroker(namespaces=("first", "second")))
    apart = [stack.enter_context(PairbusBroker(namespaces=(name,))) for name in ("first", "second")]
    return {
        "syphon, two brokers": _Drain(apart[0], apart[1], "first", "second", count, 1).move,
        "syphon, two brokers, 10 queues": _Drain(apart[0], apart[1], "first", "second", count, 10).move,
        "syphon, both in one broker": _Drain(both, both, "first", "second", count, 1).move,
    }


class _Drain:
    def __init__(
        self, primary: PairbusBroker, secondary: PairbusBroker, first: str, second: str, count: int, queues: int
    ) -> None:
        name = f"bench{queues}"
        self._brokers = {broker.pid: broker for broker in (primary, secondary)}
        self._work = SyphonWork(
            "drain",
            primary.connection_strings[first],
            secondary.connection_strings[second],
            [queue_path(name, index) for index in range(queues)],
            [f"orders{queues}"],
            count,
        )
        primary.make_queues([f"orders{queues}"], first)
        secondary.make_queues(self._work.queues, second)

    def move(self) -> Sample:
        run_syphon(replace(self._work, kind="fill"))
        before = self._cpu_seconds()
        told = run_syphon(self._work)
        cpu = self._cpu_seconds() - before + told["cpu_seconds"]
        return told["per_second"], cpu / self._work.count * 1e6

    def _cpu_seconds(self) -> float:
        return sum(broker.cpu_seconds() for broker in self._brokers.values())


def run_syphon(work: SyphonWork) -> dict[str, float]:
    return run_child("bench.syphon_load", work.to_json(), DEADLINE_S + work.count / SLOWEST_PER_S)


def run_child(module: str, work: str, deadline_s: float = DEADLINE_S) -> dict[str, float]:
    """Do a piece of work in a child process and return its last line, which is JSON."""
    done = subprocess.run(
        [sys.executable, "-m", module, work], capture_output=True, text=True, timeout=deadline_s, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed: {done.stderr[-2000:]}")
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


# ── RabbitMQ's ──

SHOVELLING = """
Length = fun (Name) ->
    {{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, Name)),
    {{ok, Count, _}} = rabbit_amqqueue:stat(Q),
    Count
end,
Wait = fun Again(Enough) ->
    Count = lists:sum([Length(Name) || Name <- [{targets}]]),
    case Count >= Enough of
        true -> {{Count, erlang:monotonic_time(microsecond)}};
        false -> timer:sleep(10), Again(Enough)
    end
end,
[ok = rabbit_runtime_parameters:parse_set(<<"/">>, <<"shovel">>, Name, Shovel, <<"rmq-cli">>)
    || {{Name, Shovel}} <- [{shovels}]],
{{Few, Began}} = Wait({already} + 1),
{{All, Ended}} = Wait({already} + {count}),
io_lib:format("~b ~b", [All - Few, Ended - Began]).
"""
"Erlang that starts the shovels and counts inside the node: a rabbitmqctl for each count would cost too much."


class Shovel:
    """Dynamic shovels between durable quorum queues of one node, one for each source.

    A message has its target in its routing key, as a backlog message has its destination in a property.
    """

    def __init__(self, node: rabbitmq.RabbitMQ, uri: str, count: int, sources: int = 1, targets: int = 1) -> None:
        self._node = node
        self._uri = uri.format(user=rabbitmq.USER, password=rabbitmq.PASSWORD, host=node.host, port=node.port)
        self._count = count
        self._already = 0
        name = f"{len(uri)}-{sources}-{targets}"
        self._home = f"home-{name}"
        self._sources = [f"from-{name}-{number}" for number in range(sources)]
        self._targets = [f"to-{name}-{number}" for number in range(targets)]
        node.declare(
            [*self._sources, *self._targets],
            {self._home: "direct"} | {f"fill-{source}": "fanout" for source in self._sources},
            [(self._home, target, target) for target in self._targets]
            + [(f"fill-{source}", source, "") for source in self._sources],
        )

    def move(self) -> Sample:
        self._fill()
        # An Erlang string and a JSON string look the same as long as the text is ASCII.
        shovels = {source: json.dumps(json.dumps(self._shovel(source))) for source in self._sources}
        expression = SHOVELLING.format(
            targets=", ".join(f'<<"{target}">>' for target in self._targets),
            shovels=", ".join(f'{{<<"{name}">>, <<{shovel}>>}}' for name, shovel in shovels.items()),
            already=self._already,
            count=self._count,
        )
        before = cpu_seconds(self._node.pid)
        out = self._node.control("eval", expression)
        moved, took_us = (int(number) for number in out.strip().strip('"').split())
        self._already += self._count
        for name in shovels:
            self._node.control("clear_parameter", "shovel", name)
        return moved / took_us * 1e6, (cpu_seconds(self._node.pid) - before) / self._count * 1e6

    def _fill(self) -> None:
        work = RabbitMQBroker(self._node).work("send", "", self._count // len(self._sources))
        for source in self._sources:
            run_load(replace(work, address=f"/exchange/fill-{source}", subjects=tuple(self._targets)))

    def _shovel(self, source: str) -> dict[str, Any]:
        return {
            "src-protocol": "amqp091",
            "src-uri": self._uri,
            "src-queue": source,
            "src-prefetch-count": PREFETCH,
            "dest-protocol": "amqp091",
            "dest-uri": self._uri,
            "dest-exchange": self._home,
            "ack-mode": "on-confirm",
        }


def syphon_table(ways: list[Homecoming]) -> Table:
    table = Table(f"{BODY_SIZE} byte messages, home again", "messages /s", "µs CPU each", "against the shovel over TCP")
    rates = {way.way: way.per_second for way in ways}
    shovel = rates.get("shovel over TCP")
    for way in ways:
        ratio = f"{way.per_second / shovel:.2f}" if shovel else "-"
        table.add_row(way.way, f"{way.per_second:,.0f}", f"{way.cpu_us:.1f}", ratio)
    return table
