"""The bound of a folder: the oldest files are deleted, but never files of a process that may still write.

Every writer holds a shared lock on the file that it appends to. A run, which is one process's ledger, is over when an
exclusive lock on its last file can be taken. Where there are no such locks (Windows, some network disks) a run deletes
only its own files.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pairbus.disk.locks import is_in_use

SUFFIX = ".jsonl"
_NAME = re.compile(r"\d{4}-\d\d-\d\d-(?P<run>.+)-(?P<number>\d+)\.jsonl")
_SUMS = re.compile(rb'"count":(\d+),"billable_operations":(\d+),"bytes":(\d+)(?:,"rows":(\d+),"since":"([^"]{24})")?')
_TIME = re.compile(rb'"time":"([^"]{24})"')


@dataclass(slots=True)
class Removed:
    """Sums of the rows in deleted files."""

    files: int = 0
    rows: int = 0
    count: int = 0
    billable: int = 0
    size_bytes: int = 0
    since: str = ""
    "Time of the first row; empty: there was no row."

    def add(self, other: Removed) -> None:
        self.files += other.files
        self.rows += other.rows
        self.count += other.count
        self.billable += other.billable
        self.size_bytes += other.size_bytes
        self.began(other.since)

    def began(self, time: str) -> None:
        self.since = min(filter(None, (self.since, time)), default="")


def sums_of(path: Path) -> Removed:
    """Read a file, and return its sums as if it had been deleted."""
    found = Removed(files=1)
    with path.open("rb") as file:
        for line in file:
            sums = _SUMS.search(line)
            found.rows += 1
            if sums is not None:
                found.count += int(sums[1])
                found.billable += int(sums[2])
                found.size_bytes += int(sums[3])
                if sums[4] is not None:  # rows that were lost before
                    found.rows += int(sums[4]) - 1
                    found.began(sums[5].decode())
            if not found.since and (time := _TIME.search(line)) is not None:
                found.began(time[1].decode())
    return found


def make_room(folder: Path, max_bytes: int, run: str, keep: Path) -> Removed:
    """Delete the oldest files until the others have at most `max_bytes` together; `keep` is never deleted."""
    removed = Removed()
    found = _files(folder)
    total = sum(file.size_bytes for file in found)
    if total <= max_bytes:
        return removed
    last_of = {file.run: file.path for file in sorted(found, key=lambda file: file.number)}
    writing = {other for other, last in last_of.items() if other != run and is_in_use(last)}
    for file in sorted(found, key=lambda file: (file.path.name[:10], file.changed_ns)):
        if total <= max_bytes:
            break
        if file.path == keep or file.run in writing:
            continue
        try:
            one = sums_of(file.path)
            file.path.unlink()
        except OSError:  # another user's file, or another process was faster, and then has its sums
            continue
        removed.add(one)
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
    found = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is not None:
            with suppress(FileNotFoundError):  # another process compacts the ledger, or makes room too
                status = path.stat()
                found.append(_File(path, match["run"], int(match["number"]), status.st_size, status.st_mtime_ns))
    return found
