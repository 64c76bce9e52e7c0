"""Many entities: time of a broker's start, and latency of sends while an entity is made or a large topic deleted."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from bench.brokers import RESULTS, PairbusBroker
from bench.latency import SteadySender, slowest_ms
from bench.throughput import run_load
from pairbus.cli.admin.admin_client import administration

QUEUES, TOPICS = 10_000, 1_000
START_S_WANTED = 3.0
STALL_MS_WANTED = 20.0
DELETION_MS_WANTED = 100.0
STARTS = 3
MORE = 40
"Entities that are made while a sender sends."
QUIET_S = 1.0
POLL_S = 0.2
ERASED_WITHIN_S = 300.0
PART = 50_000
"Messages for the large topic in one run of the load client, which has a deadline."


@dataclass(frozen=True)
class Many:
    """Measured values of a namespace with many entities."""

    ready_s: float
    "Time until the broker is ready, median of the starts."
    start_cpu_s: float
    "CPU of the broker until it is ready, of the last start."
    stall_ms: float
    "Slowest send while an entity was made, median over the new entities."
    stall_max_ms: float
    quiet_max_ms: float
    "Slowest send in a time of the same length without new entities."


@dataclass(frozen=True)
class Deletion:
    """Measured values of the deletion of a topic with many messages."""

    messages: int
    slowest_ms: float
    "Slowest send to a queue, from the deletion until the last row of the topic is deleted."
    quiet_ms: float
    "Slowest send to the queue in the second before."
    took_s: float


def measure_many() -> Many:
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(_config()))
        data = Path(folder) / "data"
        PairbusBroker(data, options=("--config", str(config))).run_once()
        starts, cpu_s = [], 0.0
        for _ in range(STARTS):
            with PairbusBroker(data) as broker:
                starts.append(broker.ready_s)
                cpu_s = broker.cpu_seconds()
                if len(starts) == STARTS:
                    stalls, quiet_ms = _stalls(broker)
    return Many(median(starts), cpu_s, median(stalls), max(stalls), quiet_ms)


def _config() -> object:
    queues = [{"Name": f"queue-{number:05}"} for number in range(QUEUES)]
    topics = [{"Name": f"topic-{number:05}"} for number in range(TOPICS)]
    return {"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": queues, "Topics": topics}]}}


def _stalls(broker: PairbusBroker) -> tuple[list[float], float]:
    """Return the slowest send during each creation, and the slowest in a quiet time of the same length, in ms."""
    made: list[tuple[float, float]] = []
    with (
        administration(broker.connection_string) as client,
        SteadySender(broker.connection_string, "queue-00000") as sender,
    ):
        makers: list[Callable[[str], object]] = [client.create_queue, client.create_topic]
        for number in range(MORE):
            began = time.perf_counter()
            makers[number % 2](f"more-{number}")
            made.append((began, time.perf_counter()))
        quiet_from = time.perf_counter()
        quiet_s = sum(ended - began for began, ended in made)
        time.sleep(quiet_s)
        times = sender.times()
    stalls = [slowest_ms(times, began, ended) for began, ended in made]
    return stalls, slowest_ms(times, quiet_from, quiet_from + quiet_s)


def measure_deletion(messages: int) -> Deletion:
    with PairbusBroker() as broker, administration(broker.connection_string) as client:
        broker.make_queue("beside")
        client.create_topic("large", max_size_in_megabytes=5120)
        for name in ("one", "two"):  # two copies share a payload: both tables are swept
            client.create_subscription("large", name)
        for at in range(0, messages // 2, PART):
            run_load(broker.work("send", "large", min(PART, messages // 2 - at)))
        with SteadySender(broker.connection_string, "beside") as sender:
            quiet_from = time.perf_counter()
            time.sleep(QUIET_S)
            began = time.perf_counter()
            client.delete_topic("large")
            ended = _erased(broker, began)
            times = sender.times()
    return Deletion(
        messages, slowest_ms(times, began, ended), slowest_ms(times, quiet_from, began), round(ended - began, 1)
    )


def _erased(broker: PairbusBroker, began: float) -> float:
    """Wait until the store has no mark of a dropped entity: then its last row is gone. Returns the time."""
    database = (broker.folder / "bench" / "messages.db").resolve()
    while time.perf_counter() < began + ERASED_WITHIN_S:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            [dropped] = connection.execute("SELECT count(*) FROM entities WHERE description = ''").fetchone()
        if not dropped:
            return time.perf_counter()
        time.sleep(POLL_S)
    raise TimeoutError(f"the topic was not swept within {ERASED_WITHIN_S:.0f} s")


def many_table(many: Many) -> Table:
    table = Table(f"{QUEUES:,} queues and {TOPICS:,} topics", "measured", "wanted")
    table.add_row("start to ready", f"{many.ready_s:.2f} s", f"< {START_S_WANTED:.0f} s")
    table.add_row("CPU of the start", f"{many.start_cpu_s:.2f} s", "reported")
    table.add_row("slowest send while one more is made, median", f"{many.stall_ms:.1f} ms", "reported")
    table.add_row("the same, the worst", f"{many.stall_max_ms:.1f} ms", f"≤ {STALL_MS_WANTED:.0f} ms")
    table.add_row("the worst while nothing is made", f"{many.quiet_max_ms:.1f} ms", "reported")
    return table


def deletion_table(deletion: Deletion) -> Table:
    table = Table(f"deletion of a topic of {deletion.messages:,} messages", "measured", "wanted")
    table.add_row("slowest send meanwhile", f"{deletion.slowest_ms:.0f} ms", f"≤ {DELETION_MS_WANTED:.0f} ms")
    table.add_row("slowest send in the second before", f"{deletion.quiet_ms:.0f} ms", "reported")
    table.add_row("until nothing is left", f"{deletion.took_s:.0f} s", "reported")
    return table
