"""The world of a campaign: a broker, a storage, streams, and a Spark that is killed and started again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path

import pyarrow.parquet
from azure.storage.blob import ContainerClient

from pairbus.amqp.message import Message
from pairbus.spark.defaults import folder_name
from pairbus.spark.staging.log import Staging
from pairbus.spark.staging.stage_file import read_payloads
from tests.brokers import BrokerProcess
from tests.report.worlds import NOON_S, Writer
from tests.spark.campaign_child import Work
from tests.spark.processes import kill_source_runners, kill_workers
from tests.spark.queues import put, text_message
from tests.storage.azurites import Azurite, Door
from tests.storage.fixtures import PLACE, VARIABLE

LOCK_S = 5  # the shortest that a queue can have
AWAY_S = (1.0, 6.0)
SEND_AT_ONCE = 2_000
REFUSED_S = 180.0
REFUSAL = "is not the location of this query"
LEDGER_ROWS = 200


@dataclass
class Stream:
    """A stream: its entities, its folder, its staging location, and what was sent to it."""

    name: str
    folder: Path
    location: str
    reads_half: bool = False
    entities: list[str] = field(default_factory=list)
    sent: int = 0
    may_repeat: set[bytes] = field(default_factory=set)
    "Messages of batches that the sink had, and the source did not know to be committed, when a checkpoint was deleted."

    def read(self) -> Counter[bytes]:
        """Count the bodies that the output has."""
        found: Counter[bytes] = Counter()
        if self.reads_half:
            for path in (self.folder / "out").glob("batch-*.json"):
                found.update(text.encode() for text in json.loads(path.read_text()))
            return found
        for path in committed_files(self.folder / "out"):
            found.update(bodies_in_file(path))
        return found


class World:
    def __init__(self, storage: str, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.broker = stack.enter_context(BrokerProcess(folder / "broker"))
        (folder / "stream.txt").write_text(self.broker.connection_string())
        self.azurite: Azurite | None = None
        self.door: Door | None = None
        self._options = {"maxMessagesPerBatch": "4000"}
        self._container = ""
        if storage == "blob":
            self.azurite = stack.enter_context(Azurite(folder / "azurite"))
            self.door = stack.enter_context(Door(self.azurite.port))
            self._container = self.azurite.new_container(f"campaign-{uuid.uuid4().hex[:8]}")
            os.environ[VARIABLE] = self.azurite.connection_string
            self._options["storageCredential"] = PLACE
        self.main = Stream("main", folder / "main", self.new_location())
        self.half = Stream("half", folder / "half", self.new_location(), reads_half=True)
        for stream in (self.main, self.main, self.half):
            self.grow(stream)
        self.ledgers: list[Path] = []
        self.ledger_rows = 0
        self.table = folder / "table"
        self._child: subprocess.Popen[str] | None = None
        self._read_by_child: Stream | None = None
        self.java = 0
        stack.callback(self.kill_java)

    def new_location(self) -> str:
        name = f"staging-{uuid.uuid4().hex[:8]}"
        if self.door is None or self.azurite is None:
            return str(self.folder / name)
        return f"{self._container.replace(f':{self.azurite.port}/', f':{self.door.port}/')}/{name}"

    # ── the child ──

    def follow(self, stream: Stream) -> None:
        """Have the child read this stream."""
        if self._child is None or self._read_by_child is not stream:
            self.kill_java()
            self.start(stream)

    def start(self, stream: Stream, location: str | None = None) -> None:
        work = Work(
            folder=str(stream.folder),
            entities=",".join(stream.entities),
            connection=f"@{self.folder / 'stream.txt'}",
            options={**self._options, "stagingLocation": location or stream.location},
            reads_half=stream.reads_half,
            ledgers=tuple(map(str, self.ledgers)),
            table=str(self.table),
        )
        command = [sys.executable, "-m", "tests.spark.campaign_child", work.as_json()]
        with (self.folder / "child.log").open("a") as log:
            self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line.strip().isdigit(), f"Spark has not started; see {self.folder}/child.log"
        self.java, self._read_by_child = int(line), stream

    def kill_java(self) -> None:
        if self._child is not None:
            for pid in (self.java, self._child.pid):
                os.kill(pid, signal.SIGKILL)
            self._child.wait()
            self._child = None

    def kill(self, kind: str, stream: Stream, chance: random.Random) -> None:
        if kind == "java":
            self.kill_java()
            self.start(stream)
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

    # ── messages ──

    def send(self, stream: Stream, count: int) -> None:
        """Send messages, in equal parts to all entities of the stream."""
        for first in range(0, count, SEND_AT_ONCE):
            texts = [f"{stream.sent + index:08d}" for index in range(min(SEND_AT_ONCE, count - first))]
            for number, entity in enumerate(stream.entities):
                put(self.broker, entity, [text_message(text) for text in texts[number :: len(stream.entities)]])
            stream.sent += len(texts)

    # ── changes, while Spark is dead ──

    def grow(self, stream: Stream) -> None:
        """Add an entity to the list."""
        entity = f"{stream.name}-{len(stream.entities)}"
        with self.broker.admin() as admin:
            admin.create_queue(entity, lock_duration=timedelta(seconds=LOCK_S))
        stream.entities.append(entity)

    def move(self, stream: Stream) -> None:
        """Try an empty location, which has to be refused; then move the location, and go on with that."""
        if list((stream.folder / "checkpoint" / "offsets").glob("[0-9]*")):
            self.check_refusal(stream, self.new_location())
        before, stream.location = stream.location, self.new_location()
        if self.azurite is None:
            if Path(before).exists():
                Path(before).rename(stream.location)
            return
        client = ContainerClient.from_connection_string(
            self.azurite.connection_string, self._container.rpartition("/")[2]
        )
        old, new = (f"{location.rpartition('/')[2]}/" for location in (before, stream.location))
        with client:
            for name in list(client.list_blob_names(name_starts_with=old)):
                data = client.download_blob(name).readall()
                client.upload_blob(new + name.removeprefix(old), data)
                client.delete_blob(name)

    def check_refusal(self, stream: Stream, location: str) -> None:
        log = self.folder / "child.log"
        seen, before = log.stat().st_size, stream.read()
        self.start(stream, location)
        deadline = time.monotonic() + REFUSED_S
        while REFUSAL.encode() not in log.read_bytes()[seen:]:
            assert time.monotonic() < deadline, f"an empty location was not refused; see {log}"
            time.sleep(0.2)
        self.kill_java()
        assert stream.read() == before, "rows were read with a location that is refused"

    def delete_checkpoint(self, stream: Stream) -> None:
        """Delete the checkpoint and keep the output. Messages that may enter again are noted: nobody told the source
        that their batch was committed."""
        there = stream.read()
        for entity in stream.entities:
            bodies = uncommitted(f"{stream.location}/{folder_name(entity)}", self._options.get("storageCredential"))
            stream.may_repeat |= bodies & there.keys()
        shutil.rmtree(stream.folder / "checkpoint", ignore_errors=True)

    def write_ledgers(self) -> None:
        """Add rows to two ledgers, which the child compacts into one table."""
        for name in ("api", "worker"):
            folder = self.folder / f"ledger-{name}"
            folder.mkdir(exist_ok=True)
            writer = Writer(name, 1, "aaaaaaaa")
            for second in range(LEDGER_ROWS):
                writer.meter(NOON_S + self.ledger_rows + second, "send", "orders")
            with (folder / f"2026-03-01-{name}-1-aaaaaaaa-0.jsonl").open("ab") as file:
                file.writelines(line.rstrip(b"\n") + b"\n" for line in writer.lines)
            self.ledgers = sorted({*self.ledgers, folder})
        self.ledger_rows += LEDGER_ROWS


def uncommitted(location: str, credential: str | None) -> set[bytes]:
    """Return the bodies in a staging location that the source does not know to be Spark's."""
    staging = Staging(location, credential)
    entries = [entry for entry in map(staging.entry, sorted(staging.numbers("log"))) if entry is not None]
    commits = [entry for entry in entries if entry.kind == "commit"]
    committed, carried = (commits[-1].batch, commits[-1].carried) if commits else (0, ())
    return {
        bytes(Message.decode(payload).body)
        for entry in entries
        if entry.kind == "seal" and entry.rows and (entry.batch > committed or entry.number in carried)
        for payloads in read_payloads(staging.storage, entry.stage, frozenset(entry.without))
        for payload in payloads
    }


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


@cache
def bodies_in_file(path: Path) -> tuple[bytes, ...]:
    """Return the bodies of a file that never changes."""
    return tuple(bytes(body) for body in pyarrow.parquet.read_table(path, columns=["body"]).column("body").to_pylist())
