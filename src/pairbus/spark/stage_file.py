"""A stage: messages as they were received, in an Arrow file, with what tells each from all others.

A redelivery is recognised by its identity: sequence number, time of arrival in the queue, message id. The queue sets
the first two, once. A queue that was deleted and created again counts from 1 again, but what arrives there arrives
later: the time of arrival tells the two apart, also where the key may not ask (Manage) when the queue was created.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import MESSAGE_ANNOTATIONS, PROPERTIES, sections
from pairbus.amqp.types import decode
from pairbus.disk.folders import FILE_MODE, sync_folder
from pairbus.spark.rows import ENQUEUED_TIME, SEQUENCE_NUMBER

ROWS_PER_BATCH = 2_000
BYTES_PER_BATCH = 16 << 20  # one batch is in memory at a time
LOCKED_UNTIL = "x-opt-locked-until"
_SCHEMA = pa.schema(
    [
        pa.field("sequence_number", pa.int64()),
        pa.field("enqueued_ms", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)

Identity = tuple[int, int | None, str | None]
"Sequence number, time of arrival in milliseconds, message id."


def annotations_of(payload: bytes) -> tuple[dict[Any, Any], Any]:
    """(message annotations, message id); nothing of what cannot be read."""
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
    """Of a list; the others, which nobody needs here, are not decoded."""
    form = payload[value_at]
    if form == 0xC0:  # sizes and counts of one byte
        return decode(payload, value_at + 3)[0] if payload[value_at + 2] else None
    return next(iter(decode(payload, value_at)[0]), None)


def identity_of(payload: bytes) -> Identity | None:
    """None when the message has no sequence number: then nothing can be said about redeliveries."""
    annotations, message_id = annotations_of(payload)
    number, enqueued_ms = annotations.get(SEQUENCE_NUMBER), annotations.get(ENQUEUED_TIME)
    if not isinstance(number, int):
        return None
    text = None if message_id is None else str(message_id).encode("utf-8", "replace").decode()
    return int(number), int(enqueued_ms) if isinstance(enqueued_ms, int) else None, text


class StageWriter:
    """Writes one stage. Nobody reads it before a seal names it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.identities: dict[Identity, int] = {}
        "Where each message stands in the file."
        self.rows = 0
        self._pending: list[tuple[int | None, int | None, str | None, bytes]] = []
        self._pending_bytes = 0
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))  # Arrow would leave it to the umask
        self._file = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._file, _SCHEMA)

    def add(self, payload: bytes, identity: Identity | None) -> None:
        if identity is not None:
            self.identities[identity] = self.rows
        self._pending.append((*(identity or (None, None, None)), payload))
        self._pending_bytes += len(payload)
        self.rows += 1
        if len(self._pending) >= ROWS_PER_BATCH or self._pending_bytes >= BYTES_PER_BATCH:
            self._flush()

    def finish(self) -> None:
        """On the disk when this returns; under its name too."""
        self._flush()
        self._writer.close()
        self._file.close()
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(self.path.parent)

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._pending:
            columns = zip(*self._pending, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))
            self._pending, self._pending_bytes = [], 0


def read_identities(path: Path) -> set[Identity]:
    """Of all messages of a stage; their payloads are not read from the disk."""
    found: set[Identity] = set()
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            columns = reader.get_batch(index).select([0, 1, 2]).to_pydict()
            found.update(
                (number, enqueued_ms, message_id)
                for number, enqueued_ms, message_id in zip(*columns.values(), strict=True)
                if number is not None
            )
    return found


def read_payloads(path: Path, without: Container[int] = ()) -> Iterator[list[bytes]]:
    """In the order of their arrival, a batch at a time, but for the rows in `without`."""
    row = 0
    with pa.OSFile(str(path), "rb") as file:
        reader = pa.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            payloads = reader.get_batch(index).column(3).to_pylist()
            kept = [payload for offset, payload in enumerate(payloads) if row + offset not in without]
            row += len(payloads)
            if kept:
                yield kept
