"""python -m tests.sim: many seeds on all cores, or one of them told step by step.

python -m tests.sim --seeds 1000 [--first 0] [--workers 2] [--only client|processor|broker]
python -m tests.sim --only broker --seed 123 --trace
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Callable
from multiprocessing.pool import Pool
from typing import NamedTuple

from tests.sim.brokers.world import play as play_broker
from tests.sim.processors.world import play as play_processor
from tests.sim.world import Report
from tests.sim.world import play as play_client

TOLD_MAX = 20  # failing seeds of a part that are shown in full
HISTORY_MAX = 60  # lines of the history of a failing seed that are shown
MESSAGE = r"\bm\d+\b|\bsim-\d+\b|the broker"  # how the two parts name messages, and a line about a life


class Part(NamedTuple):
    """One part of the simulation."""

    name: str
    play: Callable[[int], Report]
    history: Callable[[int], list[str]]
    "Play a seed again, and tell it step by step."


def _client_history(seed: int) -> list[str]:
    told: list[str] = []
    play_client(seed, tell=told.append)
    return told


def _broker_history(seed: int) -> list[str]:
    told: list[str] = []
    play_broker(seed, tell=told.append)
    return told


def _processor_history(seed: int) -> list[str]:
    told: list[str] = []
    play_processor(seed, tell=told.append)
    return told


PARTS = {
    "client": Part("client", play_client, _client_history),
    "processor": Part("processor", play_processor, _processor_history),
    "broker": Part("broker", play_broker, _broker_history),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description="Deterministic simulation of a pair, of processors and of a broker."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories of each part")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--only", choices=sorted(PARTS), help="play this part only")
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell everything that happens")
    given = parser.parse_args()
    parts = [part for name, part in PARTS.items() if given.only in (None, name)]
    if given.seed is not None:
        return max(_one(part, given.seed, is_traced=given.trace) for part in parts)
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        return max(_many(pool, part, range(given.first, given.first + given.seeds)) for part in parts)


def _one(part: Part, seed: int, *, is_traced: bool) -> int:
    if is_traced:
        print(*part.history(seed), sep="\n")
    report = part.play(seed)
    _tell(part, report)
    return 1 if report.found else 0


def _many(pool: Pool, part: Part, seeds: range) -> int:
    began = time.monotonic()
    played = failed = messages = 0
    for report in pool.imap_unordered(part.play, seeds, chunksize=25):
        played += 1
        messages += report.messages
        if report.found:
            failed += 1
            if failed <= TOLD_MAX:
                _tell(part, report)
                _tell_history(part, report)
        if played % 500 == 0 or played == len(seeds):
            _progress(part, played, len(seeds), failed, time.monotonic() - began)
    took_s = time.monotonic() - began
    print(f"\n{part.name}: {played} seeds, {messages} messages, {failed} with violations, {took_s:.0f} s", flush=True)
    return 1 if failed else 0


def _tell(part: Part, report: Report) -> None:
    for line in report.found:
        print(f"{part.name} seed {report.seed}: {line}")
    verdict = f"{len(report.found)} violations" if report.found else "no violation"
    print(f"{part.name} seed {report.seed}: {report.messages} messages, {report.steps} steps, {verdict}")


def _tell_history(part: Part, report: Report) -> None:
    """Tell the steps of the messages that the violations name, and the lives of the processes."""
    named = {"the broker", *re.findall(MESSAGE, " ".join(report.found))}
    told = [line for line in part.history(report.seed) if named.intersection(re.findall(MESSAGE, line))]
    print(*(f"  {line}" for line in told[:HISTORY_MAX]), sep="\n")
    print(
        f"  the whole of it: python -m tests.sim --only {part.name} --seed {report.seed} --trace",
        flush=True,
    )


def _progress(part: Part, played: int, count: int, failed: int, took_s: float) -> None:
    left_s = took_s / played * (count - played)
    print(
        f"\r{part.name}: {played}/{count} seeds, {failed} with violations, {left_s:.0f} s left  ",
        end="",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
