"""Azure Blob and ADLS Gen2, by azure-storage-blob: an object is a block blob, and If-None-Match makes it only once.

The SDK's own retries are off: when an object exists already, it matters whether an earlier attempt of the same call may
have made it, and only code that repeats the call itself knows that.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.storage.blob import BlobClient, ContainerClient

from pairbus.errors import ConfigError, StorageError
from pairbus.spark.storage import Names
from pairbus.spark.storage.locations import BlobLocation
from pairbus.spark.storage.secret import StorageSecret

CONNECT_S, READ_S = 5.0, 30.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 5.0
KEPT_MAX = 4  # published drafts that are kept open, because their writer usually reads them next
SMALL_BYTES = 4 << 20  # read into the memory
PARALLEL = 2  # of a large object: requests at a time

_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_FORBIDDEN = frozenset({401, 403})
_NOT_THERE = frozenset({"BlobNotFound", "PathNotFound", "ResourceNotFound"})
_THERE = frozenset({"BlobAlreadyExists", "PathAlreadyExists"})

T = TypeVar("T")


class BlobStorage:
    """A path in a container. `open_storage` keeps one for each process, with its connections."""

    look_s = 2.0

    def __init__(self, location: BlobLocation, secret: StorageSecret, patience_s: float) -> None:
        self._location = location
        self._secret = secret
        self._patience_s = patience_s
        self._container: ContainerClient | None = None
        self._kept: dict[str, BinaryIO] = {}
        "Published drafts by their keys."

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (self._location.text, self._secret, self._patience_s)

    def __repr__(self) -> str:
        return f"BlobStorage({self.location!r})"

    @property
    def location(self) -> str:
        return self._location.text

    # ── the contract ──

    def put_new(self, key: str, data: bytes) -> bool:
        unsure = False

        def upload(blob: BlobClient) -> bool:
            nonlocal unsure
            try:
                blob.upload_blob(data, length=len(data), overwrite=False)
            except ResourceExistsError as error:
                if _code(error) not in _THERE:
                    raise
                # An earlier attempt had no answer: it may have made the object.
                return unsure and self.get(key) == data
            except AzureError:
                unsure = True
                raise
            return True

        return self._ask(key, upload)

    def put(self, key: str, data: bytes) -> None:
        self._ask(key, lambda blob: blob.upload_blob(data, length=len(data), overwrite=True))

    def get(self, key: str) -> bytes | None:
        return self._ask(key, lambda blob: blob.download_blob().readall(), missing=None)

    def list(self, prefix: str) -> Names:
        start = self._location.path + prefix

        def names(blob: BlobClient) -> Names:
            return [name[len(start) :] for name in self._client().list_blob_names(name_starts_with=start)]

        return sorted(self._ask(prefix, names))

    def delete(self, key: str) -> None:
        file = self._kept.pop(key, None)
        if file is not None:
            file.close()
        self._ask(key, lambda blob: blob.delete_blob(), missing=None)

    def exists(self, key: str) -> bool:
        return self._ask(key, lambda blob: bool(blob.get_blob_properties()), missing=False)

    def draft(self, key: str) -> BlobDraft:
        return BlobDraft(self, key)

    def open(self, key: str) -> BinaryIO | None:
        cached = self._kept.pop(key, None)
        if cached is not None:
            cached.seek(0)
            return cached

        def download(blob: BlobClient) -> BinaryIO:
            download = blob.download_blob(max_concurrency=PARALLEL)
            file: BinaryIO = io.BytesIO() if download.size <= SMALL_BYTES else _temporary()
            try:
                download.readinto(file)
            except BaseException:
                file.close()
                raise
            file.seek(0)
            return file

        return self._ask(key, download, missing=None)

    def appender(self, key: str) -> ObjectAppender:
        return ObjectAppender(self, key)

    # ── helpers ──

    def publish(self, key: str, file: BinaryIO) -> None:
        """Upload a file as an object, and keep the file: then the object can be opened here without a download."""
        size = file.seek(0, os.SEEK_END)

        def upload(blob: BlobClient) -> None:
            file.seek(0)
            blob.upload_blob(file, length=size, overwrite=True, max_concurrency=PARALLEL)

        self._ask(key, upload)
        while len(self._kept) >= KEPT_MAX:
            self._kept.pop(next(iter(self._kept))).close()
        self._kept[key] = file

    def _client(self) -> ContainerClient:
        if self._container is None:
            location = self._location
            try:
                self._container = ContainerClient(
                    location.account_url,
                    location.container,
                    credential=self._secret.opens(location.account),
                    retry_total=0,
                    connection_timeout=CONNECT_S,
                    read_timeout=READ_S,
                )
            except ValueError as error:
                raise ConfigError(f"{self._secret.option}: {error}") from None
        return self._container

    def _ask(self, key: str, call: Callable[[BlobClient], T], **missing: T) -> T:
        """Call until there is an answer, or the patience is over. `missing`: the answer when there is no such blob."""
        began, pause_s = time.monotonic(), PAUSE_MIN_S
        while True:
            try:
                return call(self._client().get_blob_client(self._location.path + key))
            except ResourceNotFoundError as error:
                if missing and _code(error) in _NOT_THERE:
                    return missing["missing"]
                raise self._explained(key, error) from None
            except AzureError as error:
                if not _is_passing(error) or time.monotonic() + pause_s > began + self._patience_s:
                    raise self._explained(key, error) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _explained(self, key: str, error: AzureError) -> Exception:
        """Return the error in terms of the location and credential that the user gave."""
        location, secret = self._location, f"{self._secret.option} ({self._secret.source})"
        status = error.status_code if isinstance(error, HttpResponseError) else None
        code = _code(error) or str(status)
        text = str(error.message).partition("\n")[0]
        if code in ("ContainerNotFound", "FilesystemNotFound"):
            return ConfigError(
                f"{location.text}: account {location.account} has no container {location.container!r}: create it"
            )
        if status in _FORBIDDEN or (isinstance(error, ClientAuthenticationError) and status is None):
            return ConfigError(
                f"{location.text}: {secret} is refused, or lacks a right (it must read, write, delete and list):"
                f" {code}: {text}"
            )
        return StorageError(f"{location.text}: {key}: {code}: {text}")


class BlobDraft:
    """A local file that other processes do not see, removed with its process."""

    def __init__(self, storage: BlobStorage, key: str) -> None:
        self._storage = storage
        self._key = key
        self._published = False
        self.file: BinaryIO = _temporary()

    def publish(self) -> None:
        self.file.flush()
        self._storage.publish(self._key, self.file)
        self._published = True

    def __enter__(self) -> BlobDraft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._published:
            self.file.close()


class ObjectAppender:
    """A record of one object for each append: `a.jsonl` becomes `a-000001.jsonl`, `a-000002.jsonl`, …"""

    def __init__(self, storage: BlobStorage, key: str) -> None:
        self._storage = storage
        self._stem, _, self._ending = key.rpartition(".")
        self._count = 0

    def append(self, data: bytes) -> None:
        self._count += 1
        key = f"{self._stem}-{self._count:06d}.{self._ending}"
        if not self._storage.put_new(key, data):
            raise StorageError(f"{self._storage.location}: {key} is there already: a record must have one writer")

    def close(self) -> None:
        """Do nothing: no object is open."""


def _temporary() -> BinaryIO:
    """Make a file without a name, which disappears with this process, however it ends."""
    return tempfile.TemporaryFile()


def _code(error: AzureError) -> str:
    """Return the error code of the service; empty when there is none."""
    return str(getattr(error, "error_code", None) or "")


def _opened_again(location: str, secret: StorageSecret, patience_s: float) -> object:
    from pairbus.spark.storage.opening import open_storage

    return open_storage(location, secret.source, option=secret.option, patience_s=patience_s)


def _is_passing(error: AzureError) -> bool:
    """Return True for trouble that may pass. azure-identity wraps network errors, so their causes are checked too."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HttpResponseError) and cause.status_code is not None:
            return cause.status_code in _PASSING
        if isinstance(cause, ServiceRequestError | ServiceResponseError | OSError):
            return True
        cause = cause.__cause__
    return False
