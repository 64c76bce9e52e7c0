"""Encodes, checks and batches all messages of one task before the first one is sent.

A task that ends with a bad row has sent no message. So all rows are checked first, and the messages are kept: a small
amount in memory, more in a temporary file of the executor.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from pairbus.amqp.message import BATCH_FORMAT, encode_batch
from pairbus.spark.sink.messages import BadRow, RoutedMessage, to_messages

BATCH_BYTES_MAX = 1 << 20  # the service's limit for a batch, also where single messages may be larger
BATCH_COUNT_MAX = 1_000
SIZE_DEFAULT = 256 * 1024  # when the service does not say its limit
OPEN_BYTES_MAX = 16 << 20  # bytes of batches that are still being filled, one for each entity and session
MEMORY_BYTES_MAX = 32 << 20  # with more, a file is used
_FRAMING = 8  # bytes around a message of a batch: three of section, five of binary
_HEAD_MAX = 600  # bytes before the messages of a batch: session id or partition key of 128 characters, four bytes each

Limits = Callable[[list[str]], dict[str, int]]
"""Function that returns each entity's largest message in bytes (0: not said). Raises when one cannot be used."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """One transfer: a message, or a batch of messages of one entity and session."""

    entity: str
    session_id: str | None
    payload: bytes
    message_format: int
    count: int


class _Filling:
    def __init__(self) -> None:
        self.messages: list[RoutedMessage] = []
        self.size = _HEAD_MAX


class Outbox:
    """An outbox is filled with `add`, closed with `seal`, then read with `parcels` as often as needed."""

    def __init__(self, entity: str | None, limits: Limits, *, place: str, id_prefix: str) -> None:
        """Make an outbox. `entity` takes all messages; without one, each row names its own."""
        self.count = 0
        self._entity = entity
        self._limits = limits
        self._place = place
        self._id_prefix = id_prefix
        self._sizes: dict[str, int] = {}
        self._filling: dict[tuple[str, str | None, bool], _Filling] = {}
        self._filling_size = 0
        self._parcels = 0
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX, prefix="pairbus-outbox-")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode and add the rows; BadRow for a row that cannot be sent."""
        messages = list(to_messages(batch, first_row=self.count, place=self._place, id_prefix=self._id_prefix))
        entities = [self._entity_of(message) for message in messages]
        unknown = sorted(set(entities) - self._sizes.keys())
        if unknown:
            self._sizes |= {entity: size or SIZE_DEFAULT for entity, size in self._limits(unknown).items()}
        for message, entity in zip(messages, entities, strict=True):
            self._put(message, entity)
        self.count += len(messages)

    def _entity_of(self, message: RoutedMessage) -> str:
        entity = self._entity or (message.entity or "").strip("/")
        if not entity:
            raise BadRow(f"{self._place}row {message.row}, column entity: null, and option entity is not given")
        return entity

    def _put(self, message: RoutedMessage, entity: str) -> None:
        size, limit = len(message.payload), self._sizes[entity]
        if size > limit:
            text = f"the message has {size} bytes; entity {entity!r} takes {limit}"
            raise BadRow(f"{self._place}row {message.row}, column body: {text}")
        key = (entity, message.group, message.in_session)
        filling = self._filling.get(key)
        if filling is not None and (
            filling.size + size + _FRAMING > min(limit, BATCH_BYTES_MAX) or len(filling.messages) == BATCH_COUNT_MAX
        ):
            self._close(key)
            filling = None
        if filling is None:
            filling = self._filling[key] = _Filling()
        filling.messages.append(message)
        filling.size += size + _FRAMING
        self._filling_size += size
        if self._filling_size > OPEN_BYTES_MAX:
            self._close_all()

    def _close_all(self) -> None:
        for key in list(self._filling):
            self._close(key)

    def _close(self, key: tuple[str, str | None, bool]) -> None:
        entity, group, in_session = key
        messages = [message.payload for message in self._filling.pop(key).messages]
        self._filling_size -= sum(map(len, messages))
        payload, message_format = messages[0], 0
        if len(messages) > 1:
            payload, message_format = encode_batch(messages), BATCH_FORMAT
        parcel = Parcel(entity, group if in_session else None, payload, message_format, len(messages))
        pickle.dump(parcel, self._file, pickle.HIGHEST_PROTOCOL)
        self._parcels += 1

    def seal(self) -> None:
        """End the filling: no more rows are added."""
        self._close_all()

    def parcels(self) -> Iterator[Parcel]:
        """Yield the parcels in an order that keeps that of the rows within each session."""
        self._file.seek(0)
        for _ in range(self._parcels):
            parcel = pickle.load(self._file)
            assert isinstance(parcel, Parcel)
            yield parcel
