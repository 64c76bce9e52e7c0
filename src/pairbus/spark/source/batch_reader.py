"""Reads a batch by peek: no message is locked, counted as delivered or removed.

Planning asks for the first and the last sequence number and splits the range between them; a task peeks its share page
by page. Messages that arrive after planning have higher numbers and are not read; messages that others receive
meanwhile are missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pairbus.amqp.types import Int, Long
from pairbus.errors import PairbusError
from pairbus.spark.connections import run
from pairbus.spark.options import Options
from pairbus.spark.perseverance import persevere
from pairbus.spark.source.entities import entities_of
from pairbus.spark.source.rows import enqueued_ms_of, sequence_number_of, to_columns

PEEK_COUNT = 250  # the largest page of the service
ROWS_PER_BATCH = 2_000  # 2 000 × 256 KiB = 512 MiB at the very worst; BYTES_PER_BATCH ends a batch before
BYTES_PER_BATCH = 16 << 20
GALLOP = 256  # the first step in the search for the last number
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A read keeps messages within these bounds, both included. Times are microseconds since 1970, as in Spark."""

    first: int
    last: int
    enqueued_from_us: int = LOWEST
    enqueued_to_us: int = HIGHEST

    @property
    def has_times(self) -> bool:
        return self.enqueued_from_us > LOWEST or self.enqueued_to_us < HIGHEST

    def keeps(self, payload: bytes) -> bool:
        """Return whether a message is in the range of times; a message without a time is not, as with null in SQL."""
        enqueued_ms = enqueued_ms_of(payload)
        return enqueued_ms is not None and self.enqueued_from_us <= enqueued_ms * 1000 <= self.enqueued_to_us


class SequenceRange(InputPartition):
    """One task reads the sequence numbers of an entity from `first` to `last`, both included."""

    def __init__(self, entity: str, first: int, last: int) -> None:
        super().__init__((entity, first, last))
        self.entity = entity
        self.first = first
        self.last = last


class PeekReader(DataSourceReader):
    """Reader made on the driver; `read` runs in the tasks, on a pickled copy."""

    def __init__(self, options: Options, column_names: Sequence[str] | None = None) -> None:
        self._options = options
        self._column_names = None if column_names is None else list(column_names)
        self._bounds = Bounds(options.from_sequence_number, options.to_sequence_number)

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks; called once, where the query is planned: a missing entity or a wrong key raises here."""
        bounds = self._bounds
        if bounds.first > bounds.last or bounds.enqueued_from_us > bounds.enqueued_to_us:
            return []
        entities = entities_of(self._options)
        parts = max(self._options.partitions // len(entities), 1)
        extents = run(self._extents(entities))
        return [part for entity, ends in extents.items() for part in split(entity, *ends, parts)]

    async def _extents(self, entities: Sequence[str]) -> dict[str, tuple[int, int]]:
        extents = {}
        for entity in entities:
            peeker = Peeker(self._options.for_entity(entity), patience_s=0.0)
            ends = await extent(peeker, self._bounds.first, self._bounds.last)
            if ends is not None:
                extents[entity] = ends
        return extents

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SequenceRange):
            return  # Spark asks for one empty partition when there are none
        for payloads in read_range(self._options, partition):
            rows = payloads
            if self._bounds.has_times:
                rows = [payload for payload in payloads if self._bounds.keeps(payload)]
            if rows:
                yield rows_of(rows, self._options, partition.entity, self._column_names)


def read_range(options: Options, numbers: SequenceRange) -> Iterator[list[bytes]]:
    """Peek the messages of a range, as many at a time as make one batch of rows."""
    peeker = Peeker(options.for_entity(numbers.entity), patience_s=options.patience_s)
    next_number = numbers.first
    while next_number <= numbers.last:
        payloads, next_number = run(peeker.collect(next_number, numbers.last))
        yield payloads


def rows_of(payloads: list[bytes], options: Options, entity: str, column_names: Sequence[str] | None) -> pa.RecordBatch:
    """Return the rows of messages in the form that the options ask for."""
    batch = to_columns(payloads, entity, include_raw=options.include_raw, plain=options.plain_properties)
    return batch if column_names is None else batch.select(column_names)


def spark_pushes_filters() -> bool:
    """Return whether Spark hands filters over in this process, which it starts only if push-down is on.

    There is no way to ask for the setting itself. A wrong False costs speed only: Spark then filters all rows itself.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == _PUSHDOWN_WORKER)


# ── pages ──


class Peeker:
    """Peeker of one entity over a carrier; passing errors are retried."""

    def __init__(self, options: Options, *, patience_s: float) -> None:
        self._options = options
        self._path = options.read_path
        self._patience_s = patience_s

    async def peek(self, from_number: int, count: int) -> list[bytes]:
        async def once() -> list[bytes]:
            async with self._options.borrowed() as carrier:
                connection = await carrier.connection()
                management = await connection.management(self._path, timeout_s=self._options.timeout_s)
                if self._options.session is None:
                    return await management.peek(from_number, count)
                fields = {"from-sequence-number": Long(from_number), "message-count": Int(count)}
                answer = await management.request("peek-message", fields | {"session-id": self._options.session})
                return [entry["message"] for entry in answer.get("messages", [])]

        return await persevere(once, self._options, self._path, self._patience_s)

    async def first_from(self, from_number: int) -> int | None:
        """Return the lowest sequence number from this one on; None when there is none."""
        payloads = await self.peek(from_number, 1)
        return self._checked(payloads[0], from_number) if payloads else None

    async def collect(self, from_number: int, last: int) -> tuple[list[bytes], int]:
        """Return (messages for one batch of rows, where to go on); the second is above `last` at the end."""
        payloads: list[bytes] = []
        size = 0
        while len(payloads) < ROWS_PER_BATCH and size < BYTES_PER_BATCH:
            page = await self.peek(from_number, PEEK_COUNT)
            if not page:
                return payloads, last + 1
            highest = self._checked(page[-1], from_number)
            if highest > last:
                return payloads + [one for one in page if self._checked(one, from_number) <= last], last + 1
            payloads += page
            size += sum(map(len, page))
            from_number = highest + 1
            if from_number > last:
                break
        return payloads, from_number

    def _checked(self, payload: bytes, from_number: int) -> int:
        number = sequence_number_of(payload)
        if number is None or number < from_number:
            raise PairbusError(
                f"entity {self._path!r}: asked for numbers from {from_number}, the service gave {number}"
            )
        return number


async def extent(peeker: Peeker, first: int, last: int) -> tuple[int, int] | None:
    """Return the lowest and the highest sequence number within the range; None when there is none.

    The service has no call for the highest number. Steps that double from the lowest on find a number that is too high,
    then a binary search in the last step finds the highest: about 2 × log₂ of the numbers in use, each a peek of one
    message.
    """
    lowest = await peeker.first_from(first)
    if lowest is None or lowest > last:
        return None
    low, high, step = lowest, last, GALLOP
    while low < high:
        probe = min(low + step, high)
        number = await peeker.first_from(probe)
        if number is None or number > high:
            high = probe - 1
            break
        low, step = number, 2 * step
    while low < high:
        middle = (low + high + 1) // 2
        number = await peeker.first_from(middle)
        if number is None or number > high:
            high = middle - 1
        else:
            low = number
    return lowest, low


def split(entity: str, first: int, last: int, parts: int) -> list[InputPartition]:
    """Return ranges of about equal length that together are `first` … `last`; not more than there are numbers."""
    total = last - first + 1
    parts = min(parts, total)
    ends = [first + total * part // parts for part in range(parts + 1)]
    return [SequenceRange(entity, start, end - 1) for start, end in pairwise(ends)]
