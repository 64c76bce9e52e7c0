"""A stage: messages as they were received, in an Arrow file, each with its identity.

A redelivery is recognised by its identity: sequence number, time of arrival in the queue, message id. The queue sets
the first two, once. A queue that was deleted and created again counts from 1 again, but its messages arrive later: the
time of arrival tells the two apart, also where the key lacks the right (Manage) to ask when the queue was created.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import MESSAGE_ANNOTATIONS, PROPERTIES, sections
from pairbus.amqp.types import decode
from pairbus.spark.source.rows import ENQUEUED_TIME, SEQUENCE_NUMBER
from pairbus.spark.storage import LargeStorage
from pairbus.spark.storage.entries import delete_all

ROWS_PER_BATCH = 2_000
BYTES_PER_BATCH = 16 << 20  # one batch is in memory at a time
SPANS_MAX = 2_000  # in a seal; a stage with more runs of sequence numbers has to be read
LOCKED_UNTIL = "x-opt-locked-until"
_SCHEMA = pa.schema(
    [
        pa.field("sequence_number", pa.int64()),
        pa.field("enqueued_ms", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)

StagedIdentity = tuple[int, int | None, str | None]
"Sequence number, time of arrival in milliseconds, message id."


def annotations_of(payload: bytes) -> tuple[dict[Any, Any], Any]:
    """Return (message annotations, message id); empty for a message that cannot be read."""
    annotations: dict[Any, Any] = {}
    message_id: Any = None
    try:
        for code, _, value_at, _ in sections(payload):
            if code == MESSAGE_ANNOTATIONS:
                annotations = dict(decode(payload, value_at)[0])
            elif code == PROPERTIES:
                message_id = _first_item(payload, value_at)
            elif code > PROPERTIES:
                break
    except (ProtocolError, ValueError, TypeError, IndexError):
        return {}, None
    return annotations, message_id


def _first_item(payload: bytes, value_at: int) -> Any:
    """Return the first item of a list; the others are not needed here and not decoded."""
    form = payload[value_at]
    if form == 0xC0:  # sizes and counts of one byte
        return decode(payload, value_at + 3)[0] if payload[value_at + 2] else None
    return next(iter(decode(payload, value_at)[0]), None)


def identity_of(payload: bytes) -> StagedIdentity | None:
    """Return the identity of a message; None when it has no sequence number: then redeliveries are not recognised."""
    annotations, message_id = annotations_of(payload)
    number, enqueued_ms = annotations.get(SEQUENCE_NUMBER), annotations.get(ENQUEUED_TIME)
    if not isinstance(number, int):
        return None
    text = None if message_id is None else str(message_id).encode("utf-8", "replace").decode()
    return int(number), int(enqueued_ms) if isinstance(enqueued_ms, int) else None, text


class StageWriter:
    """Writer of one stage. It is invisible before it is finished, and not read before a seal names it."""

    def __init__(self, storage: LargeStorage, name: str) -> None:
        self.name = name
        self.identities: dict[StagedIdentity, int] = {}
        "Position of each message in the stage."
        self.rows = 0
        self._storage = storage
        self._pending: list[tuple[int | None, int | None, str | None, bytes]] = []
        self._pending_bytes = 0
        self._finished = False
        self._draft = storage.draft(_key(name))
        self._writer = pa.ipc.new_file(self._draft.file, _SCHEMA)

    def add(self, payload: bytes, identity: StagedIdentity | None) -> None:
        if identity is not None:
            self.identities[identity] = self.rows
        self._pending.append((*(identity or (None, None, None)), payload))
        self._pending_bytes += len(payload)
        self.rows += 1
        if len(self._pending) >= ROWS_PER_BATCH or self._pending_bytes >= BYTES_PER_BATCH:
            self._flush()

    def finish(self) -> None:
        """Finish the file; it is durable when this returns."""
        self._flush()
        self._writer.close()
        with self._draft as draft:
            draft.publish()
        self._finished = True

    def discard(self) -> None:
        if self._finished:
            self._storage.delete(_key(self.name))
            self._finished = False
        else:
            self._draft.__exit__(None, None, None)

    def spans(self) -> tuple[tuple[int, int], ...] | None:
        """Return the runs of sequence numbers, first and last of each; None when there are too many."""
        spans: list[list[int]] = []
        for number in sorted({number for number, _, _ in self.identities}):
            if spans and number == spans[-1][1] + 1:
                spans[-1][1] = number
            else:
                spans.append([number, number])
        return tuple((first, last) for first, last in spans) if len(spans) <= SPANS_MAX else None

    def _flush(self) -> None:
        if self._pending:
            columns = zip(*self._pending, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
            self._pending, self._pending_bytes = [], 0


class Sealed:
    """Knows the messages of seals. A stage is read only when a message comes whose sequence number is in it."""

    def __init__(self, storage: LargeStorage) -> None:
        self._storage = storage
        self._identities: set[StagedIdentity] = set()
        self._unread: list[tuple[str, tuple[tuple[int, int], ...]]] = []

    def add(self, stage: str, spans: tuple[tuple[int, int], ...] | None) -> None:
        """Note a seal. FileNotFoundError when its stage has to be read and is not there."""
        if spans is None:
            self._identities |= read_identities(self._storage, stage)
        else:
            self._unread.append((stage, spans))

    def __contains__(self, identity: object) -> bool:
        if self._unread and isinstance(identity, tuple):
            due = [seal for seal in self._unread if _covers(seal[1], identity[0])]
            for seal in due:
                self._unread.remove(seal)
                # A stage is removed only after the queue has deleted all its messages: this is another message.
                with suppress(FileNotFoundError):
                    self._identities |= read_identities(self._storage, seal[0])
        return identity in self._identities


def _covers(spans: tuple[tuple[int, int], ...], number: int) -> bool:
    at = bisect_right(spans, (number, 1 << 63)) - 1
    return at >= 0 and spans[at][0] <= number <= spans[at][1]


def _key(name: str) -> str:
    return f"stages/{name}"


def remove_stages(storage: LargeStorage, is_over: Callable[[str], bool]) -> None:
    delete_all(storage, [_key(name) for name in storage.list("stages/") if is_over(name)])


@contextmanager
def _opened(storage: LargeStorage, name: str) -> Iterator[pa.NativeFile]:
    file = storage.open(_key(name))
    if file is None:
        raise FileNotFoundError(f"{storage.location} has no stage {name}")
    with file:
        yield pa.PythonFile(file, "r")


def read_identities(storage: LargeStorage, name: str) -> set[StagedIdentity]:
    """Return the identities of a stage's messages; payloads are not read. FileNotFoundError when there is none."""
    identities: set[StagedIdentity] = set()
    with _opened(storage, name) as file:
        reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=[0, 1, 2]))
        for index in range(reader.num_record_batches):
            columns = reader.get_batch(index).to_pydict()
            identities.update(
                (number, enqueued_ms, message_id)
                for number, enqueued_ms, message_id in zip(*columns.values(), strict=True)
                if number is not None
            )
    return identities


def read_payloads(storage: LargeStorage, name: str, without: Container[int] = ()) -> Iterator[list[bytes]]:
    """Yield payloads in the order of their arrival, a batch at a time, but for the rows in `without`.
    FileNotFoundError: there is no such stage."""
    row = 0
    with _opened(storage, name) as file:
        reader = pa.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            payloads = reader.get_batch(index).column(3).to_pylist()
            rest = [payload for offset, payload in enumerate(payloads) if row + offset not in without]
            row += len(payloads)
            if rest:
                yield rest
