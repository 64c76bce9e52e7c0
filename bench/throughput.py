"""Rates through one connection: 1 KB durable messages, accepted after the commit; brokers take turns in one run."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

from bench.brokers import Measured
from bench.load import Work

ROUND_DEADLINE_S = 180


@dataclass(frozen=True)
class Rate:
    """Measured values of a kind of work on one broker; medians of its rounds."""

    broker: str
    kind: str
    per_second: float
    broker_cpu_us: float
    client_cpu_us: float
    rounds: list[float]


PAIRS = (
    # share of the count, then the work that fills and the work that empties: (kind, is it measured)
    (1.0, (("send", True), ("receive-ranges", True))),
    (0.4, (("send", False), ("receive-singly", True))),
    (0.02, (("send-sequential", True), ("receive-ranges", False))),
)


def run_load(work: Work) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", work.to_json()],
        capture_output=True,
        text=True,
        timeout=ROUND_DEADLINE_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the load client failed: {done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(brokers: list[Measured], count: int, rounds: int) -> list[Rate]:
    """Measure each kind of work on each broker, in turns, `rounds` times; the first round warms up."""
    samples: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for broker in brokers:
        broker.make_queue("bench")
    for turn in range(rounds + 1):
        for share, works in PAIRS:
            for broker in brokers:
                for kind, is_measured in works:
                    sample = _sample(broker, kind, int(count * share))
                    if turn and is_measured:
                        samples.setdefault((broker.name, kind), []).append(sample)
                        print(f"  {broker.name:9} {kind:16} {sample[0]:9.0f} /s", file=sys.stderr, flush=True)
    return [
        Rate(
            broker=name,
            kind=kind,
            per_second=statistics.median(sample[0] for sample in taken),
            broker_cpu_us=statistics.median(sample[1] for sample in taken),
            client_cpu_us=statistics.median(sample[2] for sample in taken),
            rounds=[sample[0] for sample in taken],
        )
        for (name, kind), taken in samples.items()
    ]


def _sample(broker: Measured, kind: str, count: int) -> tuple[float, float, float]:
    cpu = broker.cpu_seconds()
    result = run_load(broker.work(kind, "bench", count))
    broker_cpu = broker.cpu_seconds() - cpu
    return count / result["seconds"], broker_cpu / count * 1e6, result["client_cpu_seconds"] / count * 1e6
