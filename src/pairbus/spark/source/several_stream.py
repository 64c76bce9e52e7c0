"""Streams that receive from several entities: a staging location for each, below the common one, and one offset.

The offset has an offset for each entity, as a stream of that entity alone would have it; earlier releases wrote the
number of its last batch alone. An entity gets a next batch when it has messages; a micro-batch consists of these
batches. Redeliveries are recognised within an entity: two subscriptions of a topic have messages with the same number,
time and id, hence the separate locations.

Callers of the methods: as in `stream_reader.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pairbus.errors import EntityNotFound
from pairbus.spark.features import BatchReader, Offset
from pairbus.spark.options import Options
from pairbus.spark.source.entities import ONE_ENTITY, EntityListing
from pairbus.spark.source.stream_driver import SLICE_S, Next, StreamDriver
from pairbus.spark.source.stream_reader import StagedStreamReader

T = TypeVar("T")


class EntityPartition(InputPartition):
    """A task of one of the entities."""

    def __init__(self, entity: str, inner: InputPartition) -> None:
        super().__init__((entity, inner.value))
        self.entity = entity
        self.inner = inner


class SeveralStreamReader(BatchReader):
    """Reader made in several processes for each query; only the source runner's takes the staging locations."""

    def __init__(self, options: Options, column_names: Sequence[str] | None = None) -> None:
        self._options = options
        self._column_names = None if column_names is None else list(column_names)
        self._entities = EntityListing(options)
        self._readers: dict[str, StagedStreamReader] = {}
        self._once = False
        self._is_running = False
        "True when the query has started: trouble of the service then has the patience of the options."

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def _reader(self, entity: str) -> StagedStreamReader:
        reader = self._readers.get(entity)
        if reader is None:
            reader = StagedStreamReader(self._options.for_entity(entity), self._column_names)
            if self._once:
                reader.prepareForTriggerAvailableNow()
            self._readers[entity] = reader
        return reader

    def _driver(self, entity: str, offset: Offset | None = None) -> StreamDriver:
        """Return the driver's part for an entity. `offset`: its part of the checkpoint; None: it has none."""
        reader = self._reader(entity)
        is_new = not reader.is_on_driver
        driver = reader.on_driver(self._options.patience_s if self._is_running else 0.0, offset)
        if is_new:
            driver.allot(*self._share(self.max_rows(), max(len(self._entities.now()), 1)))
        return driver

    def _share(self, most: int, count: int) -> tuple[int, int, int | None]:
        """Return the part of a batch that each of `count` entities may have: messages, tasks, bytes."""
        max_bytes = self._options.max_bytes_per_batch
        return (
            max(most // count, 1),
            max(self._options.partitions // count, 1),
            None if max_bytes is None else max(max_bytes // count, 1),
        )

    # ── the driver ──

    def initialOffset(self) -> Offset:
        """Return the offset of a new checkpoint. Spark asks twice, and must get the same answer."""
        return {entity: self._initial(entity) for entity in sorted(self._entities.now())}

    def _initial(self, entity: str) -> Offset:
        self._driver(entity)
        return self._reader(entity).initialOffset()

    def max_rows(self) -> int:
        return self._options.max_messages_per_batch

    def prepareForTriggerAvailableNow(self) -> None:
        self._once = True
        for entity in self._entities.now():
            self._reader(entity).prepareForTriggerAvailableNow()

    def next_offset(self, start: Offset, max_rows: int | None) -> Offset:
        most = self.max_rows() if max_rows is None else min(max_rows, self.max_rows())
        self._entities.check_offset(start, "a stream of several entities", ONE_ENTITY)
        entities = self._entities.now() if self._once else self._entities.listed_anew()
        offsets = {entity: self._before(start, entity) for entity in entities}
        before = {entity: offset for entity, offset in offsets.items() if offset is not None}
        ready = self._ready(before)
        self._is_running = True
        if not ready:
            return start
        served = self._entities.in_turn(ready, most)
        for entity in ready:
            driver = self._driver(entity)
            if entity in served:
                driver.allot(*self._share(most, len(served)))
                driver.announce(before[entity]["batch"] + 1)
            else:
                driver.postpone()
        after = {entity: self._reader(entity).offset_of(before[entity]["batch"] + 1) for entity in served}
        return dict(sorted({**start, **after}.items()))

    def _ready(self, before: dict[str, Offset]) -> list[str]:
        """Return the entities that have a next batch; wait for the next look when there are none."""
        undecided = list(before)
        while True:
            states = {entity: self._look(entity, before[entity]) for entity in undecided}
            ready = [entity for entity, state in states.items() if state is Next.THERE]
            undecided = [entity for entity, state in states.items() if state is Next.NOT_YET]
            if ready or not undecided:
                return ready
            wait_s = min(self._driver(entity).wait_s for entity in undecided)
            time.sleep(max(wait_s if self._once else min(wait_s, SLICE_S), 0.0))
            if wait_s > SLICE_S and not self._once:
                return []

    def _before(self, start: Offset, entity: str) -> Offset | None:
        """Return the last offset of an entity; None when the entity was deleted.

        An entity that is not in the offset yet enters it with its first batch.
        """
        if entity in start:
            return _of_entity(start[entity])
        return self._if_there(entity, lambda: self._initial(entity))

    def _look(self, entity: str, before: Offset) -> Next:
        return self._if_there(entity, lambda: self._driver(entity, before).look(before["batch"])) or Next.NONE

    def _if_there(self, entity: str, ask: Callable[[], T]) -> T | None:
        """Return the answer about an entity; None when the entity was deleted, and the others go on without it."""
        try:
            return ask()
        except EntityNotFound:
            if not self._entities.drop(entity):
                raise
            return None

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the backlog of each entity, and of all together."""
        reports = {entity: reader.reportLatestOffset() for entity, reader in sorted(self._readers.items())}
        counts = [one["waitingAtMost"] for one in reports.values()]
        oldest = [one["oldestEnqueuedMs"] for one in reports.values() if one["oldestEnqueuedMs"] is not None]
        return {
            "entities": reports,
            "oldestEnqueuedMs": min(oldest, default=None),
            "waitingAtMost": None if None in counts else sum(counts),
        }

    def tasks(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the tasks; for a batch that a crash has interrupted they are those of that time."""
        self._entities.check_offset(start, "a stream of several entities", ONE_ENTITY)
        partitions: list[InputPartition] = []
        for entity, value in sorted(end.items()):
            after = _of_entity(value)
            before = _of_entity(start[entity]) if entity in start else {**after, "batch": after["batch"] - 1}
            if before["batch"] != after["batch"]:
                self._driver(entity, before)
                partitions += [EntityPartition(entity, one) for one in self._reader(entity).tasks(before, after)]
        return partitions

    def commit(self, end: Offset) -> None:
        for entity, reader in self._readers.items():
            if entity in end:
                reader.commit(_of_entity(end[entity]))

    def stop(self) -> None:
        for reader in self._readers.values():
            reader.stop()

    # ── tasks ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, EntityPartition):
            reader = StagedStreamReader(self._options.for_entity(partition.entity), self._column_names)
            yield from reader.read(partition.inner)


def _of_entity(value: Any) -> Offset:
    """Return the offset of one entity; earlier releases wrote a number."""
    if isinstance(value, int):
        return {ONE_ENTITY: value}
    offset: Offset = value
    return offset
