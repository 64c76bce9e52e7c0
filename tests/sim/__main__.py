"""python -m tests.sim: many seeds on all cores, or one of them told step by step.

python -m tests.sim --seeds 1000 [--first 0] [--workers 2]
python -m tests.sim --seed 123 --trace
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time

from tests.sim.world import Report, play

TOLD_MAX = 20  # failing seeds that are shown in full


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Deterministic simulation of a pair.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="play this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: tell everything that happens")
    given = parser.parse_args()
    if given.seed is not None:
        report = play(given.seed, tell=print if given.trace else None)
        _tell(report)
        return 1 if report.found else 0
    return _many(range(given.first, given.first + given.seeds), given.workers)


def _many(seeds: range, workers: int) -> int:
    began = time.monotonic()
    played = failed = messages = 0
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for report in pool.imap_unordered(play, seeds, chunksize=25):
            played += 1
            messages += report.messages
            if report.found:
                failed += 1
                if failed <= TOLD_MAX:
                    _tell(report)
            if played % 500 == 0 or played == len(seeds):
                _progress(played, len(seeds), failed, time.monotonic() - began)
    took_s = time.monotonic() - began
    print(f"\n{played} seeds, {messages} messages, {failed} with violations, {took_s:.0f} s")
    return 1 if failed else 0


def _tell(report: Report) -> None:
    for line in report.found:
        print(f"seed {report.seed}: {line}")
    verdict = f"{len(report.found)} violations" if report.found else "no violation"
    print(f"seed {report.seed}: {report.messages} messages, {report.steps} steps, {verdict}")
    if report.found:
        print(f"  again, step by step: python -m tests.sim --seed {report.seed} --trace", flush=True)


def _progress(played: int, count: int, failed: int, took_s: float) -> None:
    left_s = took_s / played * (count - played)
    print(
        f"\r{played}/{count} seeds, {failed} with violations, {left_s:.0f} s left  ",
        end="",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
