"""Streams that peek and remove no message: an offset has the next sequence number to peek, for each entity.

    {"orders": {"next": 31, "first": 21, "arrivedMs": 1795031826026, "queue": 0}}     earlier releases: {"orders": 31}

`first` is where the batch that ended there begins: Spark does not store the first offset of a checkpoint, and asks for
it anew when it repeats the very first batch.

A queue that was deleted and created again counts from 1 again. It is recognised by a message with a lower number than
`next` that has arrived later than all ends of batches so far, the latest of which arrived at `arrivedMs`; then the
queue is read from its beginning, and `queue` grows by one. A clock that was set back looks alike: so the queue is the
same while the last message that was read is in it, and a queue that is read again by mistake is not read a third time.

Messages are not locked, staged or completed, so they are not protected from other receivers: a message that they take
before it was peeked never enters Spark, and a repeated batch lacks those that they took meanwhile. Messages that stay
enter once, with a sink that is exactly once.

Callers of the methods: as in `stream_reader.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pairbus.errors import ConfigError, EntityNotFound
from pairbus.spark.connections import run
from pairbus.spark.features import BatchReader, Offset
from pairbus.spark.options import LONG_MAX, Options
from pairbus.spark.source.batch_reader import PEEK_COUNT, Peeker, SequenceRange, extent, rows_of, split
from pairbus.spark.source.entities import EntityListing
from pairbus.spark.source.rows import ENQUEUED_TIME, SEQUENCE_NUMBER, sequence_number_of
from pairbus.spark.source.stream_look import MESSAGE_STATE, PARTITIONED, QueueView
from pairbus.spark.staging.stage_file import annotations_of

NEXT = "next"
FIRST = "first"
LOOK_BACK_S = 60.0  # between two looks for another queue under the same name, while nothing is new
SLICE_S = 1.0  # the query can be stopped between two calls, hence no call sleeps for longer
REPORT_EVERY_S = 60.0

logger = logging.getLogger("pairbus.spark")


class PeekStreamReader(BatchReader):
    """Reader made in several processes for each query; only the one in the source runner looks at the entities."""

    def __init__(self, options: Options, column_names: Sequence[str] | None = None) -> None:
        self._options = options
        self._column_names = None if column_names is None else list(column_names)
        self._entities = EntityListing(options)
        self._initial: Offset | None = None
        self._last: Offset | None = None
        "Last sequence number of each entity at the start, with Trigger.AvailableNow; -1 when it was empty."
        self._look_at = float("-inf")
        self._looked_back: dict[str, float] = {}
        self._reported: tuple[float, dict[str, Any]] = (float("-inf"), {})

    # ── the driver ──

    def initialOffset(self) -> Offset:
        """Return where a new checkpoint begins. Spark asks twice, and must get the same answer."""
        if self._initial is None:
            self._initial = {entity: self._start_of(entity) for entity in sorted(self._entities.now())}
        return self._initial

    def _start_of(self, entity: str) -> Offset:
        first = self._options.start_of(entity)
        # Without patience: does the entity exist, may we read it?
        ends = self._extent(entity, first or 0, first if first is not None else LONG_MAX, patience_s=0.0)
        if first is not None:
            return _offset(first)
        return _offset(0) if ends is None else _offset(ends[1] + 1, run(self._arrival(entity, ends[1])))

    def max_rows(self) -> int:
        return self._options.max_messages_per_batch

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = {}
        for entity in self._entities.now():
            ends = self._extent(entity, 0, LONG_MAX)
            self._last[entity] = -1 if ends is None else ends[1]

    def next_offset(self, start: Offset, max_rows: int | None) -> Offset:
        most = self.max_rows() if max_rows is None else min(max_rows, self.max_rows())
        self._entities.check_offset(start, "mode=peek", NEXT)
        entities = self._entities.now() if self._last is not None else self._entities.listed_anew()
        if not self._may_look():
            return start
        before = {entity: self._before(start, entity) for entity in entities}
        looks = {entity: self._look(entity, before) for entity in entities}
        waiting = {entity: lowest for entity, lowest in looks.items() if lowest is not None}
        if not waiting:
            self._look_at = time.monotonic() + self._options.idle_poll_s
            return start
        self._look_at = float("-inf")
        return dict(sorted({**start, **self._ends(waiting, before, most)}.items()))

    def _before(self, start: Offset, entity: str) -> Offset:
        """Return where an entity begins; one that the offset lacks was created since, and all its messages are new."""
        value = start.get(entity, self._options.start_of(entity) or 0)
        return _offset(value) if isinstance(value, int) else value

    def _look(self, entity: str, before: dict[str, Offset]) -> int | None:
        """Return the lowest number that this query is to read; begins anew in `before` for a queue that is another."""
        try:
            lowest = self._waiting(entity, before[entity][NEXT])
            began_ms = self._another(entity, before[entity], is_due=lowest is not None)
            if began_ms is not None:
                logger.warning("entity %r was deleted and created again: reading it from its first message", entity)
                before[entity] = {**_offset(0, began_ms), "queue": before[entity]["queue"] + 1}
                lowest = self._waiting(entity, 0)
        except EntityNotFound:
            if not self._entities.drop(entity):
                raise
            return None
        return lowest

    def _another(self, entity: str, before: Offset, *, is_due: bool) -> int | None:
        """Return when the first message of another queue under the same name arrived; None: it is the same queue."""
        now = time.monotonic()
        if before["arrivedMs"] is None or not (is_due or now >= self._looked_back.get(entity, 0.0) + LOOK_BACK_S):
            return None
        self._looked_back[entity] = now
        first = QueueView(self._options.for_entity(entity)).first(self._options.patience_s)
        if first is None or first.enqueued_ms is None:
            return None
        if first.sequence_number >= before[NEXT] or first.enqueued_ms <= int(before["arrivedMs"]):
            return None
        # A clock may have been set back: is the last message that was read still there?
        last_ms = run(self._arrival(entity, before[NEXT] - 1))
        return None if last_ms is not None and last_ms <= before["arrivedMs"] else first.enqueued_ms

    def _may_look(self) -> bool:
        """Wait for the next look. A look is a billed operation, and Spark asks many times in a second."""
        wait_s = self._look_at - time.monotonic()
        if wait_s > 0 and self._last is None:
            time.sleep(min(wait_s, SLICE_S))
            return wait_s <= SLICE_S
        return True

    def _waiting(self, entity: str, from_number: int) -> int | None:
        """Return the lowest sequence number from this one on that this query is to read."""
        lowest = run(self._first(entity, from_number))
        if lowest is None or lowest > self._limit(entity):
            return None
        if lowest >= PARTITIONED:
            raise ConfigError(
                f"option mode=peek: entity {entity!r} is partitioned, and its sequence numbers are in no one order, so"
                " that what comes next cannot be told; use a stream that receives, or batch reads"
            )
        return lowest

    def _limit(self, entity: str) -> int:
        return LONG_MAX if self._last is None else self._last.get(entity, -1)

    def _ends(self, waiting: dict[str, int], before: dict[str, Offset], most: int) -> Offset:
        """Return the end of the next batch in each of these entities, which share its limits."""
        entities = self._entities.in_turn(waiting, most)
        share, max_bytes = most // len(entities), self._options.max_bytes_per_batch
        ends = {}
        for entity in entities:
            lowest = waiting[entity]
            extent = self._extent(entity, lowest, min(lowest + share - 1, self._limit(entity)))
            if extent is None:
                continue  # other receivers took the messages since the look
            last = extent[1]
            if max_bytes is not None:
                last = run(self._last_within(entity, lowest, last, max_bytes // len(entities)))
            times = (before[entity]["arrivedMs"], run(self._arrival(entity, last)))
            arrived_ms = max((one for one in times if one is not None), default=None)
            ends[entity] = {**before[entity], NEXT: last + 1, FIRST: lowest, "arrivedMs": arrived_ms}
        return ends

    def tasks(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the tasks; also called, alone, for a batch that a crash has interrupted."""
        self._entities.check_offset(start, "mode=peek", NEXT)
        ranges = {entity: (self._begin(start, end, entity), self._before(end, entity)[NEXT]) for entity in end}
        moved = {entity: ends for entity, ends in ranges.items() if ends[0] < ends[1]}
        partitions: list[InputPartition] = []
        for entity, (first, after) in moved.items():
            # A gap in the numbers may be longer than the batch: tasks share the range that has messages.
            lowest = run(self._first(entity, first))
            if lowest is not None and lowest < after:
                partitions += split(entity, lowest, after - 1, max(self._options.partitions // len(moved), 1))
        return partitions

    def _begin(self, start: Offset, end: Offset, entity: str) -> int:
        """Return where the batch begins in an entity: at its end when it has nothing of the entity."""
        before, after = self._before(start, entity), self._before(end, entity)
        if before == after:
            return int(after[NEXT])
        if FIRST in after:
            return int(after[FIRST])
        return 0 if after["queue"] != before["queue"] else int(before[NEXT])

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the offset after the last message of each entity, for the progress; it is read once a minute."""
        if time.monotonic() - self._reported[0] >= REPORT_EVERY_S:
            ends = {entity: self._extent(entity, 0, LONG_MAX) for entity in self._entities.now()}
            report = {entity: 0 if extent is None else extent[1] + 1 for entity, extent in ends.items()}
            self._reported = (time.monotonic(), report)
        return self._reported[1]

    def commit(self, end: Offset) -> None:
        """Do nothing: the checkpoint has the offset, and the queue keeps its messages."""

    def stop(self) -> None:
        """Do nothing: connections end with the process."""

    # ── peeks ──

    def _peeker(self, entity: str, patience_s: float | None = None) -> Peeker:
        options = self._options
        return Peeker(options.for_entity(entity), patience_s=options.patience_s if patience_s is None else patience_s)

    def _extent(self, entity: str, first: int, last: int, *, patience_s: float | None = None) -> tuple[int, int] | None:
        async def look() -> tuple[int, int] | None:
            return await extent(self._peeker(entity, patience_s), first, last)

        return run(look())

    async def _first(self, entity: str, from_number: int) -> int | None:
        return await self._peeker(entity).first_from(from_number)

    async def _arrival(self, entity: str, number: int) -> int | None:
        """Return when a message has arrived; None when it is gone, or is not among the active ones: a time that is too
        early would make the messages before it look like those of another queue."""
        for payload in await self._peeker(entity).peek(number, 1):
            annotations, _ = annotations_of(payload)
            arrived_ms = annotations.get(ENQUEUED_TIME)
            if annotations.get(SEQUENCE_NUMBER) == number and annotations.get(MESSAGE_STATE, 0) == 0:
                return None if arrived_ms is None else int(arrived_ms)
        return None

    async def _last_within(self, entity: str, lowest: int, last: int, max_bytes: int) -> int:
        """Return the last number up to which the messages have at most so many bytes; one message at least."""
        peeker, size, reached, from_number = self._peeker(entity), 0, lowest, lowest
        while from_number <= last and (page := await peeker.peek(from_number, PEEK_COUNT)):
            for payload in page:
                number = sequence_number_of(payload)
                size += len(payload)
                if number is None or number > last or (size > max_bytes and number > lowest):
                    return reached
                reached = number
            from_number = reached + 1
        return last

    # ── tasks ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SequenceRange):
            return  # Spark asks for one empty partition when there are none
        next_number = partition.first
        while next_number <= partition.last:
            payloads, next_number = run(self._collect(partition, next_number))
            if payloads:
                yield rows_of(payloads, self._options, partition.entity, self._column_names)

    async def _collect(self, partition: SequenceRange, from_number: int) -> tuple[list[bytes], int]:
        return await self._peeker(partition.entity).collect(from_number, partition.last)


def _offset(number: int, arrived_ms: int | None = None) -> Offset:
    return {NEXT: number, "arrivedMs": arrived_ms, "queue": 0}
