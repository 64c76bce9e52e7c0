"""Rounds of random kills under a stream, on a folder or on Azure Blob: every message enters Spark exactly once.

python -m tests.spark.campaign --storage blob --rounds 20 --messages 20000 --seed 1

In each round that many messages are sent, and while a query reads them into Parquet something is killed at a random
time, and then something else. Prints a line for each round, and at the end what was lost and what came twice.

| killed    | how                                                                                  |
| --------- | ------------------------------------------------------------------------------------ |
| `java`    | SIGKILL to Java and to the driver; another Spark goes on                             |
| `worker`  | SIGKILL to the processes in which tasks run                                          |
| `source`  | SIGKILL to the process that says what the next batch is; the query is started again  |
| `storage` | Azurite is stopped, so that every connection breaks, and started again after a while |
| `answers` | answers of Azurite are lost on their way, for some seconds                           |
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet

from pairbus.spark import local_session
from pairbus.spark.session import write_plain_checkpoints
from tests.brokers import BrokerProcess
from tests.spark.conftest import TEST_CONF
from tests.spark.processes import java_of, kill_source_runners, kill_workers
from tests.spark.queues import bodies_in, put, text_message
from tests.spark.stream_query import start
from tests.storage.azurites import Azurite, Door
from tests.storage.fixtures import PLACE, VARIABLE

QUEUE = "stream"
LOCK_S = 5  # the shortest that a queue can have
KILL_AFTER_S = (1.0, 5.0)
KILLS = 2  # kills in a round: the kinds take turns in the first; Spark survives the second
AWAY_S = (1.0, 6.0)
ROUND_S = 600.0
KINDS = {"folder": ("java", "worker", "source"), "blob": ("java", "worker", "source", "storage", "answers")}
SEND_AT_ONCE = 2_000


@dataclass
class Result:
    """Sums over all rounds."""

    sent: int = 0
    lost: int = 0
    twice: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    rounds: int = 0


class World:
    """A broker, a storage, and a Spark in a process of its own that is started again when it has been killed."""

    def __init__(self, storage: str, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.broker = stack.enter_context(BrokerProcess(folder / "broker"))
        (folder / "stream.txt").write_text(self.broker.connection_string())
        with self.broker.admin() as admin:
            admin.create_queue(QUEUE, lock_duration=timedelta(seconds=LOCK_S))
        self.azurite: Azurite | None = None
        self.door: Door | None = None
        self.options = {"stagingLocation": str(folder / "staging"), "maxMessagesPerBatch": "4000"}
        self._environment = dict(os.environ)
        if storage == "blob":
            self.azurite = stack.enter_context(Azurite(folder / "azurite"))
            self.door = stack.enter_context(Door(self.azurite.port))
            container = self.azurite.new_container(f"campaign-{uuid.uuid4().hex[:8]}")
            self._environment[VARIABLE] = self.azurite.connection_string
            location = container.replace(f":{self.azurite.port}/", f":{self.door.port}/")
            self.options |= {"stagingLocation": f"{location}/staging", "storageCredential": PLACE}
        self._child: subprocess.Popen[str] | None = None
        self.java = 0
        stack.callback(self.kill_java)

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.spark.campaign", "--child", str(self.folder)]
        log = (self.folder / "child.log").open("a")
        self._child = subprocess.Popen(
            [*command, json.dumps(self.options)],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line.strip().isdigit(), f"Spark has not started; see {self.folder}/child.log"
        self.java = int(line)

    def kill_java(self) -> None:
        if self._child is not None:
            for pid in (self.java, self._child.pid):
                os.kill(pid, signal.SIGKILL)
            self._child.wait()
            self._child = None

    def kill(self, kind: str, chance: random.Random) -> None:
        if kind == "java":
            self.kill_java()
            self.start()
        elif kind == "worker":
            kill_workers(self.java)
        elif kind == "source":
            kill_source_runners(self.java)
        elif kind == "storage":
            assert self.azurite is not None
            self.azurite.stop()
            time.sleep(chance.uniform(*AWAY_S))
            self.azurite.start()
        else:
            assert self.door is not None
            self.door.lose_every = 5
            time.sleep(chance.uniform(*AWAY_S))
            self.door.lose_every = 0

    def read(self) -> list[bytes]:
        """The bodies in the table, as its log of committed files has them."""
        return [
            bytes(body)
            for path in committed_files(self.folder / "out")
            for body in pyarrow.parquet.read_table(path, columns=["body"]).column("body").to_pylist()
        ]


def committed_files(table: Path) -> list[Path]:
    """List the files that Spark's file sink has committed: others are left over by batches that were killed."""
    logs = sorted((table / "_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.name.partition(".")[0]))
    logs = [path for path in logs if not path.name.endswith(".tmp")]
    compacted = [index for index, path in enumerate(logs) if path.name.endswith(".compact")]
    found: dict[str, None] = {}
    for log in logs[compacted[-1] if compacted else 0 :]:
        for line in log.read_text().splitlines()[1:]:
            found[json.loads(line)["path"].removeprefix("file://")] = None
    return [Path(path) for path in found]


def campaign(storage: str, rounds: int, messages: int, seed: int, folder: Path) -> Result:
    """Run all rounds; nothing lost and nothing twice is for the caller to say."""
    chance = random.Random(seed)
    result = Result()
    with ExitStack() as stack:
        world = World(storage, folder, stack)
        world.start()
        for number in range(rounds):
            began = time.monotonic()
            kills: list[str] = []
            for first in range(0, messages, SEND_AT_ONCE):
                count = min(SEND_AT_ONCE, messages - first)
                texts = [f"{result.sent + index:08d}" for index in range(count)]
                put(world.broker, QUEUE, [text_message(text) for text in texts])
                result.sent += count
            kinds = KINDS[storage]
            while len(kills) < KILLS:
                _done(world, result.sent, chance.uniform(*KILL_AFTER_S))
                kills.append(kinds[number % len(kinds)] if not kills else chance.choice(kinds[1:]))
                world.kill(kills[-1], chance)
            assert _done(world, result.sent, ROUND_S), f"round {number + 1}: not read in {ROUND_S:.0f} s"
            result.kills.update(kills)
            result.rounds += 1
            counts = Counter(world.read())
            result.lost = result.sent - len(counts)
            result.twice = sum(count - 1 for count in counts.values())
            print(
                f"{storage}: round {number + 1}: {len(counts)} of {result.sent} read, {result.lost} lost,"
                f" {result.twice} twice, killed {', '.join(kills)}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if result.twice:
                break
        assert bodies_in(world.broker, QUEUE) == []
    return result


def _done(world: World, sent: int, wait_s: float) -> bool:
    """Wait until the table has everything, for so long at most."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if len(world.read()) >= sent:
            return True
        time.sleep(0.5)
    return False


def child(folder: Path, options: dict[str, Any]) -> None:
    """Read until killed. A query that fails is started again."""
    spark = local_session("campaign", "local[2,4]", **TEST_CONF)
    spark.sparkContext.setLogLevel("ERROR")
    write_plain_checkpoints(spark)
    print(java_of(spark), flush=True)
    while True:
        query = start(spark, QUEUE, folder, once=False, connection=f"@{folder / 'stream.txt'}", **options)
        try:
            query.awaitTermination()
        except Exception as error:  # Spark raises many classes; every failure is part of the experiment
            print(f"the query failed: {str(error)[:2000]}", file=sys.stderr, flush=True)
            time.sleep(0.5)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--storage", choices=sorted(KINDS), default="folder")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing is left running
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        result = campaign(given.storage, given.rounds, given.messages, given.seed, Path(folder))
    print(f"{given.storage}: {result}, {time.monotonic() - began:.0f} s")
    sys.exit(1 if result.lost or result.twice else 0)


if __name__ == "__main__":
    main()
