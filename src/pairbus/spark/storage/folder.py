"""A folder that every host sees. Objects are files with mode 0600, keys are paths.

| call       | how                                             | after a power failure  |
| ---------- | ----------------------------------------------- | ---------------------- |
| `put_new`  | draft, fsync, hard link, fsync of the folder    | there, if it was True  |
| `put`      | draft, rename                                   | perhaps                |
| `draft`    | draft, fsync, rename, fsync of the folder       | there, if published    |
| `appender` | one file, O_APPEND, fsync for each append       | there, perhaps a torn  |
|            |                                                 | last line besides      |

A draft has a name that begins with a dot. `list` removes drafts of dead writers from the folder.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from pairbus.host.folders import FILE_MODE, sync_folder
from pairbus.spark.storage import Names

DRAFT_AGE_S = 3_600.0  # of a draft whose writer is dead


class FolderStorage:
    """The storage of a folder. Its errors are OSErrors."""

    look_s = 0.5

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def location(self) -> str:
        return str(self.root)

    def __repr__(self) -> str:
        return f"FolderStorage({str(self.root)!r})"

    def put_new(self, key: str, data: bytes) -> bool:
        path = self.root / key
        draft = _draft_of(path)
        fd = _create(draft)
        try:
            _write_all(fd, data)
            os.fsync(fd)
            created = _link(draft, path)
        finally:
            os.close(fd)
            draft.unlink(missing_ok=True)
        if created:
            sync_folder(path.parent)
        return created

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        draft = _draft_of(path)
        fd = _create(draft)
        try:
            _write_all(fd, data)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        draft.replace(path)

    def get(self, key: str) -> bytes | None:
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> Names:
        return sorted(_names(self.root / prefix, ""))

    def delete(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def exists(self, key: str) -> bool:
        return (self.root / key).is_file()

    def draft(self, key: str) -> FileDraft:
        return FileDraft(self.root / key)

    def open(self, key: str) -> BinaryIO | None:
        try:
            return (self.root / key).open("rb")
        except FileNotFoundError:
            return None

    def appender(self, key: str) -> FileAppender:
        return FileAppender(self.root / key)


class FileDraft:
    """A file that does not have its final name yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft: Path | None = _draft_of(path)
        self.file: BinaryIO = os.fdopen(_create(self._draft), "wb")

    def publish(self) -> None:
        assert self._draft is not None
        self.file.flush()
        os.fsync(self.file.fileno())
        self._draft.replace(self._path)
        self._draft = None
        sync_folder(self._path.parent)

    def __enter__(self) -> FileDraft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # `publish` has raised for a full disk, or the draft is deleted
            self.file.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)


class FileAppender:
    """One file. After a failed write the file is not used again, so only its last line can be torn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _create(path, os.O_APPEND)
        sync_folder(path.parent)

    def append(self, data: bytes) -> None:
        _write_all(self._fd, data)
        os.fsync(self._fd)

    def close(self) -> None:
        if os.fstat(self._fd).st_size == 0:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}")


def _create(path: Path, flags: int = 0) -> int:
    flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, FILE_MODE)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, FILE_MODE)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _link(draft: Path, path: Path) -> bool:
    try:
        os.link(draft, path)
    except FileExistsError:
        # Over NFS an answer may be lost and the call repeated: then the link that exists is our own.
        return os.path.samefile(draft, path)
    return True


def _names(folder: Path, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            _remove_old(entry)
        elif entry.is_dir():
            yield from _names(folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name


def _remove_old(entry: os.DirEntry[str]) -> None:
    with suppress(FileNotFoundError):
        if entry.is_file() and time.time() - entry.stat().st_mtime > DRAFT_AGE_S:
            os.unlink(entry.path)
