"""One small contract for what several hosts share: a folder, or an object store, and the same promises from both.

    opening       the form of a location chooses the storage
    folder        a folder that every host sees: drafts, fsync, hard links
    blob          Azure Blob and ADLS Gen2: If-None-Match
    locations     how a location in Azure is written
    secret        where the key of a storage account stands
    entries       JSON objects that carry the token of their writer

The staging of streams and the journal of the Spark syphon stand on it.

Laws of this package.
 1. An object appears whole or not at all, whenever its writer dies.
 2. Of all who call `put_new` with one key, exactly one is told True. An answer that was lost is asked for again, and
    the object that is found there is compared with the own one: so content that two may write must carry a token.
 3. What cannot be reached for a while is asked again until the patience is over. Then StorageError, which is an
    OSError; what is wrong in itself (no such container, no right, a wrong key) is a ConfigError at once.
 4. A storage can be pickled: only its location and the place of its key travel.
"""

from __future__ import annotations

from types import TracebackType
from typing import BinaryIO, Protocol, runtime_checkable

Names = list[str]


@runtime_checkable
class Storage(Protocol):
    """Objects under keys such as `log/0000000001.json`. Calls block; any thread may make them."""

    @property
    def location(self) -> str:
        """Return where it is, as it was given: for errors."""
        ...

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object: durable when this returns, and only if there is none. False when somebody else has."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object. In a folder it may be lost with the power: for what is only advice."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return the whole object; None when there is none. What `put_new` or `put` has returned for is seen by all."""
        ...

    def list(self, prefix: str) -> Names:
        """Return the rest of every key that begins with `prefix`, which ends in a slash, in order."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; nothing when there is none."""
        ...

    def exists(self, key: str) -> bool: ...


class Appender(Protocol):
    """A growing record. What `append` has returned for is durable; a death tears at most what came after."""

    def append(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Leave nothing behind when nothing was appended."""
        ...


class ObjectDraft(Protocol):
    """An object that is being written, invisible to others. `with` throws it away unless it was published."""

    file: BinaryIO

    def publish(self) -> None:
        """Make it the object: durable when this returns."""
        ...

    def __enter__(self) -> ObjectDraft: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LargeStorage(Storage, Protocol):
    """Storage that also has objects larger than the memory, and records that grow."""

    look_s: float
    "Pause between two looks for an object that somebody may write: short where a look costs nothing."

    def draft(self, key: str) -> ObjectDraft:
        """Begin a large object, whose key nobody else uses."""
        ...

    def open(self, key: str) -> BinaryIO | None:
        """Open an object to read any part of it; None when there is none."""
        ...

    def appender(self, key: str) -> Appender:
        """Begin a record: an object of this key, or several whose keys begin like it and end like it."""
        ...
