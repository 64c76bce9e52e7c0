"""Keeps the folder of a ledger within its bound: the oldest files are deleted, never those of a process that may write.

Every writer holds a shared lock on the file that it appends to. A run, which is one process's ledger, is over when an
exclusive lock on its last file can be taken. Where there are no such locks (Windows, some network disks) a run deletes
only its own files.

Sums of deleted files keep the names of their files, also when the row with these sums is deleted in turn: a table that
has the rows of a file must not count its sums too.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pairbus.host.locks import is_in_use
from pairbus.ledger.rows import SETTLED, SETTLEMENTS, RemovedFile, removed_files

SUFFIX = ".jsonl"
_NAME = re.compile(r"\d{4}-\d\d-\d\d-(?P<run>.+)-(?P<number>\d+)\.jsonl")
_SUMS = re.compile(rb'"count":(\d+),"billable_operations":(\d+),"bytes":(\d+)(?:,"rows":(\d+),"since":"([^"]{24})")?')
_TIME = re.compile(rb'"time":"([^"]{24})"')
_SETTLED = f'"kind":"{SETTLED}"'.encode()
_SETTLEMENTS = re.compile(rf'"{SETTLEMENTS}":(\d+)'.encode())
_NAMED = b'"removed":{'
NAME_SHARE_BYTES = 4096  # of the folder, for each name that is kept: some 80 bytes, so names have 2 % of it at most


@dataclass(slots=True)
class Removed:
    """Sums of the rows in deleted files."""

    files: dict[str, RemovedFile] = field(default_factory=dict)
    "Sums by name: of the files that were deleted now, and of earlier ones that had their sums in these files."
    since: str = ""
    "Time of the first row; empty: there was no row."

    def add(self, other: Removed) -> None:
        self.files |= other.files
        self.note_time(other.since)

    def note_time(self, time: str) -> None:
        self.since = min(filter(None, (self.since, time)), default="")


def sums_of(path: Path, names_max: int) -> Removed:
    """Read a file, and return its sums as if it had been deleted.

    At most `names_max` earlier files keep their names; the sums of further ones belong to this file.
    """
    removed = Removed()
    size = rows = count = billable = size_bytes = settlements = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break  # torn: readers skip it, and after a failed write the whole row is in the next file
            sums = _SUMS.search(line)
            size += len(line)
            rows += 1
            if sums is not None:
                count += int(sums[1])
                billable += int(sums[2])
                size_bytes += int(sums[3])
                settlements += int(sums[2]) if _SETTLED in line else 0
                if sums[4] is not None:  # rows that were lost before
                    rows += int(sums[4]) - 1
                    removed.note_time(sums[5].decode())
                    removed.files |= _named_in(line)
                    settled = _SETTLEMENTS.search(line)
                    settlements += 0 if settled is None else int(settled[1])
            if not removed.since and (time := _TIME.search(line)) is not None:
                removed.note_time(time[1].decode())
    removed.files = dict(list(removed.files.items())[-names_max:])
    own = RemovedFile(size, rows, count, billable, size_bytes, settlements)
    for earlier in removed.files.values():
        own = own.minus(earlier)
    if own.rows:
        removed.files[path.name] = own
    return removed


def _named_in(line: bytes) -> dict[str, RemovedFile]:
    if _NAMED not in line:
        return {}
    try:
        return removed_files(json.loads(line)["details"])
    except (ValueError, LookupError, TypeError):
        return {}  # torn: its sums belong to the file


def make_room(folder: Path, max_bytes: int, run: str, keep: Path) -> Removed:
    """Delete the oldest files until the others have at most `max_bytes` together; `keep` is never deleted."""
    removed = Removed()
    files = _files(folder)
    total = sum(file.size_bytes for file in files)
    if total <= max_bytes:
        return removed
    last_of = {file.run: file.path for file in sorted(files, key=lambda file: file.number)}
    writing = {other for other, last in last_of.items() if other != run and is_in_use(last)}
    for file in sorted(files, key=lambda file: (file.path.name[:10], file.changed_ns)):
        if total <= max_bytes:
            break
        if file.path == keep or file.run in writing:
            continue
        try:
            sums = sums_of(file.path, max(1, max_bytes // NAME_SHARE_BYTES))
            file.path.unlink()
        except FileNotFoundError:  # another process was faster, and has its sums
            total -= file.size_bytes
            continue
        except OSError:  # another user's file
            continue
        removed.add(sums)
        total -= file.size_bytes
    return removed


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    run: str
    number: int
    size_bytes: int
    changed_ns: int


def _files(folder: Path) -> list[_File]:
    files = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            with suppress(FileNotFoundError):  # another process compacts the ledger, or makes room too
                status = path.stat()
                files.append(_File(path, match["run"], int(match["number"]), status.st_size, status.st_mtime_ns))
    return files
