"""A spool in memory, in the shape of `pairbus.spool.Spool`, whose disk outlives the process that wrote to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pairbus.errors import SpoolError
from pairbus.spool import SpoolEntry


@dataclass(slots=True)
class Disk:
    """Contents of a spool's disk, as they are after a crash."""

    waiting: dict[int, SpoolEntry] = field(default_factory=dict)
    refused: dict[int, tuple[SpoolEntry, str]] = field(default_factory=dict)
    last: int = 0


class SpoolModel:
    """One process's spool. Every method is atomic: its change is on the disk, or it has not happened."""

    folder = "spool"

    def __init__(self, disk: Disk, stored: Callable[[], None]) -> None:
        self.disk = disk
        self._stored = stored
        self.on_append: Callable[[], None] | None = None
        self.is_dead = False

    @property
    def waiting(self) -> int:
        return len(self.disk.waiting)

    def has(self, path: str) -> bool:
        return any(entry.path.lower() == path.lower() for entry in self.disk.waiting.values())

    def append(self, entries: Sequence[SpoolEntry]) -> int:
        self._check()
        self._write(entries)
        self._stored()
        if self.on_append is not None:
            self.on_append()
        return self.waiting

    def _write(self, entries: Sequence[SpoolEntry]) -> None:
        for entry in entries:
            self.disk.last += 1
            self.disk.waiting[self.disk.last] = entry

    def paths(self) -> list[str]:
        self._check()
        return list({entry.path.lower(): entry.path for entry in self.disk.waiting.values()}.values())

    def next_batch(self, path: str, max_count: int, max_bytes: int) -> list[tuple[int, SpoolEntry]]:
        self._check()
        mine = [row for row in sorted(self.disk.waiting.items()) if row[1].path.lower() == path.lower()]
        return mine[:max_count]

    def forwarded(self, numbers: Sequence[int]) -> None:
        self._check()
        for number in numbers:
            self.disk.waiting.pop(number, None)

    def refuse(self, reasons: Sequence[tuple[int, str]], *, refused_ms: int | None) -> None:
        self._check()
        for number, reason in reasons:
            self.disk.refused[number] = (self.disk.waiting.pop(number), reason)

    def attempted(self, batch: Sequence[tuple[int, SpoolEntry]], at_ms: int) -> None:
        self._check()
        for number, entry in batch:
            if entry.first_attempt_ms is None and number in self.disk.waiting:
                self.disk.waiting[number] = replace(entry, first_attempt_ms=at_ms)

    def die(self) -> None:
        """End the process: its later writes are dropped."""
        self.is_dead = True
        self.on_append = None

    def _check(self) -> None:
        if self.is_dead:
            raise SpoolError("the process is dead")
