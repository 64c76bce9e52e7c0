"""Stores which destinations do not exist, and since when, beside the journal, because workers do not live long.

A message is dead-lettered when its destination has been missing for long enough. That time is longer than a task, and
the next task may run on another host.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from pairbus.pairing.policy import Failure
from pairbus.spark.storage import Storage
from pairbus.spark.syphon_job.journal import MISSING
from pairbus.syphon.decide.dead_letter import Ruling
from pairbus.syphon.decide.destinations import Destinations, key_of

FORGOTTEN_S = 600.0  # without a failure in between: pauses between two attempts are two minutes at most


class SharedDestinations(Destinations):
    """Keeps the state of the primary's entities; all processes share that of missing ones."""

    def __init__(self, missing_grace_s: float, storage: Storage, wall_s: Callable[[], float]) -> None:
        super().__init__(missing_grace_s)
        self._storage = storage
        self._wall_s = wall_s
        self._filed: set[str] = set()
        "Names of objects at the last look."

    def look(self) -> None:
        """Read which destinations others have found missing; called once for each task."""
        self._filed = set(self._storage.list(MISSING))

    def delivered(self, path: str) -> None:
        if self._filed and (name := _name(path)) in self._filed:
            self._filed.discard(name)
            self._storage.delete(MISSING + name)
        super().delivered(path)

    def failed(self, path: str, failure: Failure, now: float, *, at_attach: bool = False) -> Ruling:
        wall_s = self._wall_s()
        since_s, seen_s = self._read(path)
        if seen_s is not None and wall_s - seen_s <= FORGOTTEN_S:
            self._missing[key_of(path)] = now - max(wall_s - since_s, 0.0), now
        else:
            since_s = wall_s
        ruling = super().failed(path, failure, now, at_attach=at_attach)
        if key_of(path) in self._missing:
            self._write(path, since_s, wall_s)
        elif seen_s is not None:
            self._storage.delete(MISSING + _name(path))  # any other answer means that it exists
        return ruling

    def _read(self, path: str) -> tuple[float, float | None]:
        data = self._storage.get(MISSING + _name(path))
        if data is None:
            return 0.0, None
        try:
            entry = json.loads(data)
        except ValueError:  # in a folder a power failure may leave a file without its content
            return 0.0, None
        return float(entry["since_s"]), float(entry["seen_s"])

    def _write(self, path: str, since_s: float, seen_s: float) -> None:
        values = {"path": path, "since_s": since_s, "seen_s": seen_s}
        self._storage.put(MISSING + _name(path), json.dumps(values).encode())
        self._filed.add(_name(path))


def _name(path: str) -> str:
    return f"{hashlib.sha256(key_of(path).encode()).hexdigest()[:32]}.json"
