"""Writes messages as JSON lines (export), and sends them again (import).

Laws of this file.
 1. A line of an export has the raw bytes of its message; import sends these, without the annotations of the service.
 2. Import is at least once. The notes beside the file name the line up to which all messages were accepted: an import
    that is repeated goes on there.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from pairbus.errors import ConfigError
from pairbus.explorer.address import Address
from pairbus.explorer.choice import Choice
from pairbus.explorer.encoding import BadMessage, importable
from pairbus.explorer.message import described
from pairbus.explorer.pages import search
from pairbus.explorer.progress import Progress
from pairbus.explorer.sending import sending
from pairbus.transport import Carrier

LINE_MAX = 400 << 20  # bytes: a message of 100 MB, twice in base64 and with room
NOTES_SUFFIX = ".pairbus-import"
NOTES_EVERY_S = 1.0
DIGEST_BYTES = 16


async def export(
    carrier: Carrier,
    address: Address,
    write: Callable[[str], object],
    *,
    choice: Choice | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Progress:
    """Write chosen messages as JSON lines, with their raw bytes; the messages stay in the entity."""
    progress = progress or Progress()
    async for page in search(carrier, address, choice or Choice(), limit=limit, progress=progress):
        for payload in page:
            write(json_line(described(payload, raw=True)))
    return progress


def json_line(fields: dict[str, Any]) -> str:
    """Write one object as a line."""
    return json.dumps(fields, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Notes:
    """The position up to which a file was imported into an entity."""

    destination: str
    lines: int
    offset: int
    "Bytes of the file whose messages are accepted."
    digest: str
    "Digest of these bytes: another file of the same name is noticed."

    @classmethod
    def read(cls, fields: Any) -> Notes:
        """Read notes that were written as JSON; ValueError or TypeError when a field is missing or wrong."""
        notes = cls(**fields)
        if not isinstance(notes.destination, str) or not isinstance(notes.digest, str):
            raise ValueError("destination and digest must be texts")
        if not all(type(number) is int and number >= 0 for number in (notes.lines, notes.offset)):
            raise ValueError("lines and offset must be whole numbers")
        return notes


class NoteTaker(Protocol):
    """An object that keeps the notes of an import."""

    def write(self, notes: Notes) -> None:
        """Keep notes, which replace the earlier ones."""
        ...


class ImportFile:
    """A file of JSON lines that is imported into one entity, with notes beside it."""

    def __init__(self, file: Path, destination: str, notes_file: Path | None = None) -> None:
        self.file = file
        self.notes_file = notes_file or file.with_name(file.name + NOTES_SUFFIX)
        self._destination = destination
        self._noted_offset = 0

    def found_notes(self) -> Notes | None:
        """Return the notes of an earlier import; ConfigError when they belong to another file or entity."""
        try:
            notes = Notes.read(json.loads(self.notes_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"the notes {self.notes_file} cannot be read: {error}; delete them to begin anew"
            ) from None
        if notes.destination != self._destination:
            raise ConfigError(
                f"{self.notes_file} is of an unfinished import into {notes.destination}, not into {self._destination};"
                " finish that, or delete the notes to begin anew"
            )
        return notes

    def write(self, notes: Notes) -> None:
        """Write the notes so that a crash leaves the old ones or the new ones."""
        beside = self.notes_file.with_name(self.notes_file.name + ".new")
        try:
            with open(beside, "w", encoding="utf-8") as file:
                json.dump(asdict(notes), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.notes_file)
            self._noted_offset = notes.offset
        except OSError as error:
            raise ConfigError(f"the notes {self.notes_file} cannot be written: {error}") from None

    def begin(self, notes: Notes | None) -> None:
        """Write the notes before the first send. ConfigError when they cannot be written: nothing was sent."""
        self.write(notes or Notes(self._destination, 0, 0, hashlib.blake2b(digest_size=DIGEST_BYTES).hexdigest()))

    def forget_empty(self) -> None:
        """Remove notes of an import that accepted nothing for certain: they would keep the file from other entities."""
        if not self._noted_offset:
            self.forget()

    def forget(self) -> None:
        """Remove the notes: the import is complete."""
        self.notes_file.unlink(missing_ok=True)


class Lines:
    """Lines of a file with their ends, from the beginning or from the position of notes; or lines as they come."""

    def __init__(self, source: IO[bytes] | AsyncIterator[bytes], name: str, *, skip: int = 0) -> None:
        """Take a file, or an iterator over lines. The first `skip` lines are left out."""
        self._source = source
        self._name = name
        self._skip = skip
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.offset = 0
        self.number = 0

    def digest(self) -> str:
        """Return the digest of all bytes that were read."""
        return self._digest.hexdigest()

    def skip_to(self, notes: Notes) -> None:
        """Skip the lines of a file that were imported before; ConfigError when they are not the same bytes."""
        assert not isinstance(self._source, AsyncIterator), "only a file has notes"
        left = notes.offset
        while left > 0:
            chunk = self._source.read(min(left, 1 << 20))
            if not chunk:
                break
            self._digest.update(chunk)
            left -= len(chunk)
        if left or self.digest() != notes.digest:
            raise ConfigError(
                f"{self._name} was changed since its import was interrupted; delete the notes to begin anew"
            )
        self.offset, self.number = notes.offset, notes.lines

    async def __aiter__(self) -> AsyncIterator[bytes | None]:
        """Yield each line as an encoded message; None for an empty line. BadMessage names the line."""
        async for line in self._lines():
            self._digest.update(line)
            self.offset += len(line)
            self.number += 1
            if self.number > self._skip:
                yield self._message(line) if line.strip() else None

    async def _lines(self) -> AsyncIterator[bytes]:
        if isinstance(self._source, AsyncIterator):
            async for line in self._source:
                yield line
        else:
            while line := self._source.readline(LINE_MAX):
                yield line

    def _message(self, line: bytes) -> bytes:
        fields = json_object(line, f"{self._name}, line {self.number}")
        try:
            return importable(fields)
        except BadMessage as error:
            raise BadMessage(f"{self._name}, line {self.number}: {error}") from None


def json_object(line: bytes, place: str) -> dict[str, Any]:
    """Read a line; BadMessage, which says where the line is, when it has no JSON object."""
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        raise BadMessage(f"{place}: no JSON: it is not text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"{place}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadMessage(f"{place}: a JSON object is needed, not {type(value).__name__}")
    return value


async def import_file(carrier: Carrier, path: str, source: ImportFile, progress: Progress | None = None) -> Progress:
    """Send the messages of a file, from where an earlier import was interrupted; `done` counts those of this run.

    On return, all messages are accepted and the notes are removed. After an error the notes have the position. Nothing
    is sent when the notes cannot be written.
    """
    progress = progress or Progress()
    notes = source.found_notes()
    try:
        file = source.file.open("rb")
    except OSError as error:
        raise ConfigError(f"{source.file} cannot be read: {error.strerror}") from None
    with file:
        lines = Lines(file, str(source.file))
        if notes is not None:
            lines.skip_to(notes)
            if notes.lines:
                progress.note(f"goes on behind line {notes.lines}, where an earlier import was interrupted")
        source.begin(notes)
        try:
            await import_lines(carrier, path, lines, progress, source)
        finally:
            source.forget_empty()
    source.forget()
    return progress


async def import_lines(
    carrier: Carrier, path: str, lines: Lines, progress: Progress, source: NoteTaker | None = None
) -> None:
    """Send the messages of the lines in order. Without a `source` there are no notes."""
    destination = f"{carrier.endpoint.authority}/{path}"
    marks: deque[tuple[int, Notes]] = deque()
    "Notes to write, each with the number of messages that must be accepted before."
    count, noted_at = 0, time.monotonic()

    def note() -> None:
        reached: Notes | None = None
        while marks and marks[0][0] <= progress.done:
            reached = marks.popleft()[1]
        if source is not None and reached is not None:
            source.write(reached)

    try:
        async with sending(carrier, path, progress) as put:
            async for payload in lines:
                if payload is not None:
                    await put(payload)
                    count += 1
                marks.append((count, Notes(destination, lines.number, lines.offset, lines.digest())))
                if time.monotonic() - noted_at >= NOTES_EVERY_S:
                    noted_at = time.monotonic()
                    note()
    finally:
        note()
