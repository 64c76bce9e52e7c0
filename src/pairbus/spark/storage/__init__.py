"""One small contract for objects that several hosts share: a folder, or an object store, with the same promises.

    opening       the form of a location chooses the storage
    folder        a folder that every host sees: drafts, fsync, hard links
    blob          Azure Blob and ADLS Gen2: If-None-Match
    locations     how a location in Azure is written
    secret        the place of the key of a storage account
    entries       JSON objects that carry the token of their writer

The staging of streams and the journal of the Spark syphon use it.

Laws of this package.
 1. An object appears whole or not at all, whenever its writer dies.
 2. Of all callers of `put_new` with one key, exactly one gets True. A call whose answer was lost is repeated, and the
    object that exists is compared with the caller's: so content that two callers may write must carry a token.
 3. A storage that cannot be reached is tried again until the patience is over: then StorageError, which is an OSError.
    A mistake (no such container, no right, a wrong key) is a ConfigError at once.
 4. A storage can be pickled: the pickle has only its location and the place of its key.
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
        """Return the location as it was given, for errors."""
        ...

    def put_new(self, key: str, data: bytes) -> bool:
        """Create an object, durable when this returns, only if there is none. False when another caller created it."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object. In a folder a power failure may lose it: only for objects that may be lost."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return the whole object; None when there is none. All hosts see an object when `put_new` or `put` returns."""
        ...

    def list(self, prefix: str) -> Names:
        """Return the rest of every key that begins with `prefix`, which ends in a slash, in order."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...

    def exists(self, key: str) -> bool: ...


class Appender(Protocol):
    """A growing record. An entry is durable when `append` has returned; a kill can tear only a later one."""

    def append(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close the record; without entries no object is left."""
        ...


class ObjectDraft(Protocol):
    """An object that is being written, invisible to others. At the end of `with` it is deleted unless published."""

    file: BinaryIO

    def publish(self) -> None:
        """Make the draft the object: durable when this returns."""
        ...

    def __enter__(self) -> ObjectDraft: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LargeStorage(Storage, Protocol):
    """Storage that also has objects larger than the memory, and records that grow."""

    look_s: float
    "Pause between two looks for an object that another host may write: short where a look is free."

    def draft(self, key: str) -> ObjectDraft:
        """Begin a large object, whose key no other writer uses."""
        ...

    def open(self, key: str) -> BinaryIO | None:
        """Open an object to read any part of it; None when there is none."""
        ...

    def appender(self, key: str) -> Appender:
        """Begin a record: an object of this key, or several whose keys begin like it and end like it."""
        ...
