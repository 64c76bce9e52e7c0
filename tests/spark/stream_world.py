"""A stream as Spark drives it, without Spark: offsets, partitions, tasks on pickled copies, and restarts."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pairbus.spark.source.formats import stream_reader
from pairbus.spark.staging.stage_book import StageBook
from tests.brokers import BrokerProcess
from tests.spark.queues import options, put, text_message

FAST = {"timeoutSeconds": "10", "patienceSeconds": "10", "idlePollSeconds": "0.1"}


class Stream:
    """One query with a checkpoint. `restart` acts like Spark after a crash: the open batch comes first, unchanged.

    Spark stores the ends of batches alone: it asks for the first offset anew for the tasks of the first batch.
    """

    def __init__(self, broker: BrokerProcess, entity: str, location: Path | str, **given: str) -> None:
        self._broker = broker
        self._other = given
        self.location = location
        self.entity = entity
        self._given = FAST | {"entity": entity, "stagingLocation": str(location)} | given
        if "entityPattern" in given:
            del self._given["entity"]
        if given.get("mode") == "peek":
            del self._given["stagingLocation"]
        self.committed: dict[str, Any] | None = None
        self.is_new = True
        "True until a batch is committed: the checkpoint has no start of a batch then."
        self.open: dict[str, Any] | None = None
        self.bodies: list[bytes] = []
        "Bodies of all committed batches."
        self.restart()

    def restart(self) -> None:
        if self.is_new:
            self.committed = None
        self.reader: Any = stream_reader(options(self._broker, "stream", **self._given))

    def elsewhere(self, location: Path | str, entity: str | None = None) -> Stream:
        """The same query with the same checkpoint, and another staging location or other entities."""
        other = Stream(self._broker, entity or self.entity, location, **self._other)
        other.is_new, other.committed, other.open = self.is_new, None if self.is_new else self.committed, self.open
        return other

    @property
    def book(self) -> StageBook:
        book: StageBook = self.reader.on_driver().book
        return book

    def send(self, *texts: str) -> None:
        put(self._broker, self.entity, [text_message(text) for text in texts])

    def begin(self) -> list[InputPartition]:
        """Construct a batch, or the open one again; no partitions when there is none."""
        if self.committed is None:
            self.committed = self.reader.initialOffset()
            assert self.reader.initialOffset() == self.committed, "Spark asks twice for the first offset"
        if self.open is None:
            end = self.reader.next_offset(self.committed, self.reader.max_rows())
            if end == self.committed:
                return []
            self.open = end
        start = self.reader.initialOffset() if self.is_new else self.committed
        partitions: list[InputPartition] = self.reader.partitions(start, self.open)
        return partitions

    def task(self, partition: InputPartition) -> list[pa.RecordBatch]:
        """Run in a worker: with a copy of everything."""
        worker: Any
        worker, share = pickle.loads(pickle.dumps((self.reader, partition)))
        return list(worker.read(share))

    def end(self, results: Sequence[list[pa.RecordBatch]]) -> list[bytes]:
        """Commit the batch, after all its tasks have succeeded; return its bodies."""
        bodies = [body for batches in results for batch in batches for body in batch.column("body").to_pylist()]
        self.bodies += bodies
        self.committed, self.open, self.is_new = self.open, None, False
        return bodies

    def batch(self) -> list[bytes]:
        """A whole micro-batch; the bodies that it brought."""
        partitions = self.begin()
        return self.end([self.task(partition) for partition in partitions]) if partitions else []

    def skip(self, *, is_planned: bool = True) -> None:
        """A batch that Spark commits without running a task: its sink has that number already. With some sinks it does
        not even ask for the tasks."""
        if is_planned:
            assert self.begin()
        else:
            assert self.committed is not None or self.begin()
            self.open = self.reader.next_offset(self.committed, self.reader.max_rows())
            assert self.open != self.committed
        self.end([])

    def drain(self, batches_max: int = 20) -> list[bytes]:
        """Batches until there is nothing more to see."""
        for _ in range(batches_max):
            if not self.begin():
                return self.bodies
            self.batch()
        raise AssertionError(f"there is still more after {batches_max} batches")


def new_stream(broker: BrokerProcess, entity: str, folder: Path, **given: str) -> Stream:
    return Stream(broker, entity, folder / f"staging-{uuid.uuid4().hex[:8]}", **given)
