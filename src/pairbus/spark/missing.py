"""Destinations that do not exist, and since when: remembered beside the journal, because a worker forgets.

Whether a message is dead-lettered depends on how long its destination has been missing. That takes longer than a task,
and the next task may run elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from pairbus.pairing.policy import Failure
from pairbus.pairing.relay import Destinations, Ruling, key_of

FORGOTTEN_S = 600.0  # without a failure in between: pauses between two attempts are two minutes at most


class SharedDestinations(Destinations):
    """What is known of the primary's entities, by this process and, of missing ones, by all of them."""

    def __init__(self, missing_grace_s: float, folder: Path, wall_s: Callable[[], float]) -> None:
        super().__init__(missing_grace_s)
        self._folder = folder
        self._wall_s = wall_s
        self._filed: set[str] = set()
        "Names of files, as of the last look."

    def look(self) -> None:
        """Once for each task: what others have found missing."""
        self._filed = {path.name for path in self._folder.glob("*.json")}

    def delivered(self, path: str) -> None:
        if self._filed and (file := self._file(path)).name in self._filed:
            self._filed.discard(file.name)
            file.unlink(missing_ok=True)
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
            self._file(path).unlink(missing_ok=True)  # whatever else it answers, it is there
        return ruling

    def _file(self, path: str) -> Path:
        return self._folder / f"{hashlib.sha256(key_of(path).encode()).hexdigest()[:32]}.json"

    def _read(self, path: str) -> tuple[float, float | None]:
        try:
            read = json.loads(self._file(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return 0.0, None
        return float(read["since_s"]), float(read["seen_s"])

    def _write(self, path: str, since_s: float, seen_s: float) -> None:
        file = self._file(path)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.write_text(json.dumps({"path": path, "since_s": since_s, "seen_s": seen_s}), encoding="utf-8")
        draft.replace(file)
        self._filed.add(file.name)
