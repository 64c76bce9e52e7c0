"""The queue compared with the last release, in one run and in turns: ratio of the CPU for a message.

The broker of the last release is the package of that release's commit, from the history of this checkout; both use
today's load client. Other work on the machine may add half to the CPU for a message for some seconds: so the turns are
short, and the result is the median of their ratios.
"""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.table import Table

from bench.brokers import RESULTS, PairbusBroker
from bench.load import KINDS, connected
from bench.procstat import fine_cpu_seconds

CHECKOUT = Path(__file__).parent.parent
SUBJECT = r"^[0-9]+\.[0-9]+\.[0-9]+: "
"Pattern of a release's commit subject, which begins with its number."
RATIO_WANTED = 1.1
QUEUE = "bench"
WORKS = (
    ("send", True),
    ("receive-ranges", True),
    ("send-batches", True),
    ("receive-ranges", False),
    ("send+receive", True),
)
"Pieces of work (kind, is it measured) in this order, so that each turn leaves the queue empty."


@dataclass(frozen=True)
class Sample:
    cpu_us: float
    "CPU of the broker for a message."
    per_second: float


@dataclass(frozen=True)
class Compared:
    """Comparison of one kind of work."""

    kind: str
    then_us: float
    now_us: float
    ratio: float
    "Ratio of the CPU for a message, median of the turns."
    rate_ratio: float
    "Ratio of messages a second, median of the turns."


@dataclass(frozen=True)
class Release:
    note: str
    "Title of the release, or the reason why there is none to compare with."
    rows: list[Compared] = field(default_factory=list)


def measure_release(count: int, turns: int) -> Release:
    """Compare with the last release: `count` messages in each of `turns` turns."""
    found = last_release()
    if found is None:
        return Release("The last release was not measured: this checkout has no git history that reaches it.")
    commit, title = found
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-", dir=RESULTS) as folder:
        unpack(commit, Path(folder))
        with PairbusBroker(name="then", source=Path(folder) / "src") as then, PairbusBroker(name="now") as now:
            for broker in (then, now):
                broker.make_queue(QUEUE)
            samples = asyncio.run(_in_turns([then, now], count, turns))
    kinds = [kind for kind, is_measured in WORKS if is_measured]
    return Release(title, [_compared(kind, samples["then", kind], samples["now", kind]) for kind in kinds])


async def _in_turns(brokers: list[PairbusBroker], count: int, turns: int) -> dict[tuple[str, str], list[Sample]]:
    samples: dict[tuple[str, str], list[Sample]] = {}
    for turn in range(turns + 1):
        for kind, is_measured in WORKS:
            for broker in brokers if turn % 2 else brokers[::-1]:
                sample = await _sample(broker, kind, count)
                if turn and is_measured:  # the first turn warms up
                    samples.setdefault((broker.name, kind), []).append(sample)
        print(f"  turn {turn} of {turns}", file=sys.stderr, flush=True)
    return samples


async def _sample(broker: PairbusBroker, kind: str, count: int) -> Sample:
    work = broker.work(kind, QUEUE, count)
    async with await connected(work) as connection:
        cpu, began = fine_cpu_seconds(broker.pid), time.perf_counter()
        await KINDS[kind](connection, work)
        seconds, cpu = time.perf_counter() - began, fine_cpu_seconds(broker.pid) - cpu
    return Sample(cpu / count * 1e6, count / seconds)


def _compared(kind: str, then: list[Sample], now: list[Sample]) -> Compared:
    pairs = list(zip(then, now, strict=True))
    return Compared(
        kind,
        median(one.cpu_us for one in then),
        median(one.cpu_us for one in now),
        median(after.cpu_us / before.cpu_us for before, after in pairs),
        median(after.per_second / before.per_second for before, after in pairs),
    )


def last_release() -> tuple[str, str] | None:
    """Find the newest release before this commit: its commit and title; None when git cannot find it."""
    command = ["git", "log", "--extended-regexp", f"--grep={SUBJECT}", "--max-count=1", "--format=%H %s", "HEAD^"]
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    commit, _, title = done.stdout.strip().partition(" ")
    return (commit, title) if done.returncode == 0 and commit else None


def unpack(commit: str, folder: Path) -> None:
    """Unpack the package of a commit into a folder."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=CHECKOUT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def release_table(release: Release) -> Table:
    table = Table("queue", "then µs CPU", "now µs CPU", "ratio", "wanted", "ratio of rates")
    for row in release.rows:
        table.add_row(
            row.kind,
            f"{row.then_us:.1f}",
            f"{row.now_us:.1f}",
            f"{row.ratio:.2f}",
            f"≤ {RATIO_WANTED}",
            f"{row.rate_ratio:.2f}",
        )
    return table
