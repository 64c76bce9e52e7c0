"""`python -m tests.nemesis --minutes M --seed S`: round after round; exit code 1 at the first violation."""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.nemesis.judge import FINDINGS, Judgement, judge
from tests.nemesis.plan import Plan, draw_plan
from tests.nemesis.record import read_round, story_of
from tests.nemesis.round import Round, Story
from tests.nemesis.world import World

STORM_S = 30.0
SHOWN_MAX = 3
"Violations of one kind that are told in full."


def main() -> int:
    """Run rounds until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long; the last round is finished")
    parser.add_argument("--seed", type=int, default=None, help="of the first round; drawn when it is not given")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    signal.signal(signal.SIGTERM, _interrupt)
    total, began, rounds = Total(), time.monotonic(), 0
    before: Path | None = None
    with World(str(seed)) as world:
        print(f"seed {seed}, {given.minutes:g} minutes, {world.folder}", flush=True)
        while time.monotonic() < began + given.minutes * 60:
            plan = draw_plan(random.Random(seed + rounds), STORM_S)
            this = Round(world, seed + rounds, plan)
            try:
                asyncio.run(this.run())
            except Exception:
                world.keep = True
                print(f"round {seed + rounds} was not finished; its logs are in {this.folder}", flush=True)
                raise
            found = judge(read_round(this.folder), in_order=plan.is_ordered, delayed=plan.delays)
            rounds += 1
            total.add(this.story, found)
            print(line_of(seed + rounds - 1, plan, this.story, found), flush=True)
            if this.story.wrong or not found.is_good:
                world.keep = True
                print(*violations(this, found), sep="\n")
                break
            if before is not None:
                shutil.rmtree(before)
            before = this.folder  # messages of this round may still move in the next one, whose violation they explain
    print(*total.table(rounds, time.monotonic() - began), sep="\n", flush=True)
    return int(world.keep)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def line_of(number: int, plan: Plan, story: Story, found: Judgement) -> str:
    """Tell a round in one line."""
    return (
        f"round {number}: {'good' if found.is_good and not story.wrong else 'VIOLATION'};"
        f" faults {_listed(story.faults)}; killed {_listed(story.kills)}; stopped {_listed(story.stops)};"
        f" gave up {_listed(story.gave_up)};"
        f" {len(plan.syphons)} syphons{', ordered' if plan.is_ordered else ''}; {found.messages} messages:"
        f" {found.ok} ok, {found.failed} failed, {found.unknown} unknown, {found.diverted} diverted,"
        f" {found.duplicates} duplicates, {found.dead} dead letters; {story.backlog} in the backlog, drained in"
        f" {story.drained_s:.1f} s"
    )


def _listed(counts: Counter[str]) -> str:
    return " ".join(f"{name}={count}" for name, count in sorted(counts.items())) or "none"


def violations(this: Round, found: Judgement) -> Iterator[str]:
    """Tell what is wrong, with the history of the messages."""
    yield from this.story.wrong
    for name, cases in found.findings.items():
        if cases:
            yield f"{name.replace('_', ' ')}: {len(cases)}"
        for message_id, sink in cases[:SHOWN_MAX]:
            yield f"  {message_id} at {sink}"
            yield from (f"    {line}" for line in story_of(this.folder, message_id))
    yield f"logs: {this.folder}, and of the round before beside it"


class Total:
    """Sums of all rounds."""

    def __init__(self) -> None:
        self.faults: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.drained_s: list[float] = []

    def add(self, story: Story, found: Judgement) -> None:
        self.faults += story.faults
        self.drained_s.append(story.drained_s)
        self.counts.update(
            {
                "kills": story.kills.total(),
                "stops": story.stops.total(),
                "messages": found.messages,
                "acknowledged": found.ok,
                "surely failed": found.failed,
                "outcome unknown": found.unknown,
                "diverted": found.diverted,
                "copies received": found.copies,
                "dead letters": found.dead,
                "duplicates after unknown outcomes": found.duplicates,
                **{name.replace("_", " "): 0 for name in (*FINDINGS, "duplicated", "disordered")},
            }
        )
        self.counts.update({name.replace("_", " "): len(cases) for name, cases in found.findings.items()})

    def table(self, rounds: int, took_s: float) -> Iterator[str]:
        """Yield the summary as a table of Markdown."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + children.ru_utime + children.ru_stime
        yield "| | |\n| --- | --- |"
        yield f"| rounds, minutes, cores used | {rounds}, {took_s / 60:.1f}, {cpu_s / took_s:.2f} |"
        yield f"| faults | {self.faults.total()} of {len(self.faults)} kinds |"
        for name, count in self.counts.items():
            yield f"| {name} | {count} |"
        yield f"| slowest drain | {max(self.drained_s, default=0.0):.1f} s |"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; every process has ended")
