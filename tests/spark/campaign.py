"""Rounds of random kills under a stream, on a folder or on Azure Blob: every message enters Spark exactly once.

python -m tests.spark.campaign --storage blob --rounds 20 --messages 20000 --seed 1

In each round that many messages are sent, and while a query reads them something is killed at a random time, and then
something else. In most rounds something is changed besides, in the middle of the work. Prints a line for each round,
and at the end what was lost and what came twice.

| killed    | how                                                                                  |
| --------- | ------------------------------------------------------------------------------------ |
| `java`    | SIGKILL to Java and to the driver; another Spark goes on                             |
| `worker`  | SIGKILL to the processes in which tasks run                                          |
| `source`  | SIGKILL to the process that says what the next batch is; the query is started again  |
| `storage` | Azurite is stopped, so that every connection breaks, and started again after a while |
| `answers` | answers of Azurite are lost on their way, for some seconds                           |

| changed   | how, after Java was killed                                                                          |
| --------- | --------------------------------------------------------------------------------------------------- |
| `none`    | nothing                                                                                             |
| `moved`   | an empty staging location has to be refused; then the location is moved, with its content           |
| `grown`   | the list of entities gets one more                                                                  |
| `deleted` | the checkpoint is deleted, the output is kept: Spark skips batches. Messages of a batch that the    |
|           | sink had, and that the source did not know to be committed, may come again; they are counted apart  |
| `half`    | another stream: its `foreachBatch` runs the tasks of every other partition alone                    |
| `ledgers` | two ledgers grow, and are compacted into one table all the time; every row is in the table once     |
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.campaign_world import Stream, World
from tests.spark.queues import bodies_in

KILL_AFTER_S = (1.0, 5.0)
KILLS = 2  # kills in a round: the kinds take turns in the first; Spark survives the second
ROUND_S = 600.0
KINDS = {"folder": ("java", "worker", "source"), "blob": ("java", "worker", "source", "storage", "answers")}
CHANGES = ("none", "moved", "grown", "deleted", "half", "ledgers")


@dataclass
class Result:
    """Sums over all rounds."""

    sent: int = 0
    lost: int = 0
    twice: int = 0
    "Messages that came more often than once, and may not."
    again: int = 0
    "Messages that came again after a checkpoint was deleted, of a batch that the source did not know to be committed."
    ledger_rows: int = 0
    ledger_twice: int = 0
    "Rows that the table has too often, or not."
    kills: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    rounds: int = 0

    @property
    def is_exact(self) -> bool:
        return not (self.lost or self.twice or self.ledger_twice)

    def count(self, streams: Sequence[Stream]) -> None:
        self.lost = self.twice = self.again = 0
        for stream in streams:
            counts = stream.read()
            more = Counter({body: count - 1 for body, count in counts.items() if count > 1})
            self.lost += stream.sent - len(counts)
            self.again += sum(count for body, count in more.items() if body in stream.may_repeat)
            self.twice += sum(count for body, count in more.items() if body not in stream.may_repeat)
        self.sent = sum(stream.sent for stream in streams)


def campaign(
    storage: str, rounds: int, messages: int, seed: int, folder: Path, changes: Sequence[str] = CHANGES
) -> Result:
    """Run all rounds; nothing lost and nothing twice is for the caller to say."""
    chance = random.Random(seed)
    result = Result()
    with ExitStack() as stack:
        world = World(storage, folder, stack)
        for number in range(rounds):
            began = time.monotonic()
            change = changes[number % len(changes)]
            stream = world.half if change == "half" else world.main
            kills = _round(world, stream, change, KINDS[storage][number % len(KINDS[storage])], messages, chance)
            result.kills.update(kills)
            result.changes[change] += 1
            result.rounds += 1
            result.count((world.main, world.half))
            if change == "ledgers":
                result.ledger_rows, result.ledger_twice = _count_ledgers(world)
            print(
                f"{storage}: round {number + 1}, {change}: {result.sent} sent, {result.lost} lost,"
                f" {result.twice} twice, {result.again} again,"
                f" {result.ledger_rows} rows of ledgers, {result.ledger_twice} wrong,"
                f" killed {', '.join(kills)}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if not result.is_exact:
                break
        for entity in (*world.main.entities, *world.half.entities):
            assert bodies_in(world.broker, entity) == []
    return result


def _round(world: World, stream: Stream, change: str, first: str, messages: int, chance: random.Random) -> list[str]:
    """Send messages, kill and change, and wait until all of them were read; return what was killed."""
    if change == "ledgers":
        world.write_ledgers()
        world.kill_java()  # the next child compacts them
    world.follow(stream)
    world.send(stream, messages)
    kinds = KINDS["folder" if world.azurite is None else "blob"]
    kills: list[str] = []
    while len(kills) < KILLS:
        _done(stream, chance.uniform(*KILL_AFTER_S))
        if kills:
            kills.append(chance.choice(kinds[1:]))
        else:
            kills.append(first if change in ("none", "half") else "java")
        if kills == ["java"]:
            world.kill_java()
            {"moved": world.move, "grown": world.grow, "deleted": world.delete_checkpoint}.get(change, _nothing)(stream)
            world.start(stream)
            if change == "grown":
                world.send(stream, messages)
        else:
            world.kill(kills[-1], stream, chance)
    assert _done(stream, ROUND_S), f"not read in {ROUND_S:.0f} s; see {world.folder}/child.log"
    return kills


def _nothing(stream: Stream) -> None:
    pass


def _done(stream: Stream, wait_s: float) -> bool:
    """Wait until the output has everything, for so long at most."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if len(stream.read()) >= stream.sent:
            return True
        time.sleep(0.5)
    return False


def _count_ledgers(world: World) -> tuple[int, int]:
    """Compact once more, to the end; return the rows that were written, and how many the table has wrongly."""
    from pairbus.ledger.table import compact_ledgers
    from pairbus.spark import local_session

    world.kill_java()
    spark = local_session("campaign", "local[2]")
    try:
        compact_ledgers(spark, world.ledgers, world.table)
        rows = spark.read.parquet(str(world.table))
        count, distinct = rows.count(), rows.select("source", "position").distinct().count()
    finally:
        spark.stop()
    expected = len(world.ledgers) * world.ledger_rows
    return expected, (count - distinct) + abs(expected - distinct)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--storage", choices=sorted(KINDS), default="folder")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=CHANGES, help="the changes, by turns")
    parser.add_argument("--folder", type=Path, help="a folder that stays, for a look afterwards")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing is left running
    with tempfile.TemporaryDirectory() as temporary:
        began = time.monotonic()
        folder = given.folder or Path(temporary)
        result = campaign(given.storage, given.rounds, given.messages, given.seed, folder, given.changes)
    print(f"{given.storage}, seed {given.seed}: {result}, {time.monotonic() - began:.0f} s")
    sys.exit(0 if result.is_exact else 1)


if __name__ == "__main__":
    main()
