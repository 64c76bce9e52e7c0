"""Start-up, memory, and a queue of a million waiting messages."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.brokers import PairbusBroker
from bench.procstat import rss_bytes
from bench.throughput import run_load

MB = 1_000_000


@dataclass(frozen=True)
class Start:
    ready_s: float
    idle_mb: float


@dataclass(frozen=True)
class Deep:
    """Measured values of a deep queue, compared with an empty one in turns."""

    waiting: int
    resident_mb: float
    "Resident memory after all messages were sent."
    restart_ready_s: float
    restarted_mb: float
    send_ratio: float
    "Rate of sending to the deep queue over the rate of sending to an empty one."
    receive_ratio: float


def measure_start() -> Start:
    ready = []
    idle = 0.0
    for _ in range(3):
        with PairbusBroker() as broker:
            ready.append(broker.ready_s)
            idle = rss_bytes(broker.pid) / MB
    return Start(statistics.median(ready), idle)


def measure_deep(waiting: int, count: int, rounds: int) -> Deep:
    with PairbusBroker() as broker:
        broker.make_queue("deep")
        broker.make_queue("empty")
        run_load(broker.work("send", "deep", waiting))
        resident = rss_bytes(broker.pid) / MB
        broker.stop()
        broker.start()
        restarted = rss_bytes(broker.pid) / MB
        restart_s = broker.ready_s
        rates: dict[tuple[str, str], list[float]] = {}
        for turn in range(rounds + 1):
            for kind in ("send", "receive-ranges"):
                for queue in ("deep", "empty"):
                    result = run_load(broker.work(kind, queue, count))
                    if turn:
                        rates.setdefault((kind, queue), []).append(count / result["seconds"])
    ratio = {
        kind: statistics.median(rates[kind, "deep"]) / statistics.median(rates[kind, "empty"])
        for kind in ("send", "receive-ranges")
    }
    return Deep(waiting, resident, restart_s, restarted, ratio["send"], ratio["receive-ranges"])
