"""What the driver knows of a staging location: plans, commits, seals that nobody has confirmed, and what may go.

One of it in the source runner of a query. Everything it knows stands in the folder: it reads that at the start, and
afterwards only the entries of the log that are new.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairbus.errors import ConfigError
from pairbus.spark.staging import Entry, Owner, Staging

DRAFT_AGE_S = 3_600.0  # of a draft whose writer is dead
# The log and the plans are small, and stay for longer than any task can sleep between two steps: an attempt so late
# that the place of its entry is free again would seal in the past. (It looks for its plan afterwards, too.)
LOG_AGE_MIN_S = 3_600.0
CLEAN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a micro-batch consists of."""

    batch: int
    head: int
    "The last entry of the log when it was made: all seals of this batch come after it."
    shares: tuple[int, ...]
    "How many messages each task receives at most."
    adopted: tuple[int, ...]
    "Seals of batches that Spark has given up: their messages enter with this one."


class StageBook:
    def __init__(self, staging: Staging, entity: str, retention_s: float) -> None:
        self.staging = staging
        self.owner: Owner = staging.take(entity)
        self.committed = 0
        "The last batch of which Spark has said that it is done with it."
        self.unconfirmed: set[int] = set()
        "Seals whose messages may still be in the queue, by their number in the log."
        self.head = 0
        self._seals: list[Entry] = []
        "Of batches after `committed`."
        self._retention_s = retention_s
        self._clean_at = float("-inf")
        self._load()

    def _load(self) -> None:
        commits = [_commit_of(name) for name in os.listdir(self.staging.commits) if name[:1].isdigit()]
        self.head, self.committed = max(commits, default=(0, 0))
        there = set(self.staging.numbers(self.staging.log))
        settled = set(self.staging.numbers(self.staging.confirmed)) | {number for number, _ in commits}
        self.unconfirmed = {number for number in there - settled if number <= self.head}
        self._last_batch = max([*self.staging.numbers(self.staging.plans), self.committed])
        self.refresh()

    def refresh(self) -> None:
        """Read what was added to the log since."""
        for entry in self.staging.entries_after(self.head):
            self.head = entry.number
            if entry.kind == "seal":
                self._seals.append(entry)
                self.unconfirmed.add(entry.number)
            elif entry.kind == "commit":
                self._note_commit(entry)
            else:
                self.staging.confirm(entry.number)
        confirmed = self.staging.confirmed
        self.unconfirmed = {number for number in self.unconfirmed if not (confirmed / f"{number:010d}").exists()}

    def _note_commit(self, entry: Entry) -> None:
        self.committed = max(self.committed, entry.batch)
        self._seals = [seal for seal in self._seals if seal.batch > self.committed]
        (self.staging.commits / f"{entry.number:010d}-{entry.batch:010d}").touch()

    # ── batches ──

    def first_offset(self) -> int:
        """For a query without a checkpoint. One number is left out, so that `committed` says nothing about those that
        an earlier query with another checkpoint may have left behind."""
        return self._last_batch + 1 if self._last_batch else 0

    def received(self, batch: int) -> int:
        """How many messages a batch that is not committed yet has brought so far."""
        return sum(seal.rows for seal in self._seals if seal.batch == batch)

    def commit(self, batch: int) -> None:
        """Spark has it: no task seals in it any more, late as it may come. Nothing when it was no batch of ours."""
        self.refresh()
        if batch > self.committed and self.staging.has_plan(batch):
            self._end("commit", batch)
            self.clean(time.time())

    def has_abandoned(self, batch: int) -> bool:
        """Whether there are sealed messages of batches before this one that Spark never committed."""
        return any(seal.rows for seal in self._seals if seal.batch < batch)

    def plan(self, batch: int, shares: list[int]) -> Plan:
        """The plan of a batch; made now if there is none, and the same ever after."""
        found = self.staging.plan(batch)
        if found is None and batch <= self.committed:
            raise ConfigError(
                f"option stagingLocation: {self.staging.root} has no stage of batch {batch} any more, which was"
                " committed: the checkpoint is older than what stageRetentionSeconds has kept"
            )
        if found is None:
            found = self._new_plan(batch, shares)
        self._last_batch = max(self._last_batch, batch)
        return Plan(batch, found["head"], tuple(found["shares"]), tuple(found["adopted"]))

    def _new_plan(self, batch: int, shares: list[int]) -> dict[str, Any]:
        if self.committed < self._last_batch < batch:
            self._end("fence", batch - 1)  # from here on no late task adds to what was given up
        adopted = [seal.number for seal in self._seals if seal.batch < batch and seal.rows]
        self.staging.set_plan(batch, {"head": self.head, "shares": shares, "adopted": adopted})
        found = self.staging.plan(batch)  # perhaps another driver's, which came first
        assert found is not None
        return found

    def _end(self, kind: Any, batch: int) -> None:
        while not self.staging.append(Entry(self.head + 1, kind, batch)):
            self.refresh()
        self.refresh()

    # ── cleaning ──

    def clean(self, now: float) -> None:
        """Remove what belongs to batches that were committed longer ago than the retention."""
        if now < self._clean_at:
            return
        self._clean_at = now + min(CLEAN_EVERY_S, self._retention_s)
        staging = self.staging
        commits = {name: _age_s(staging.commits / name, now) for name in os.listdir(staging.commits)}
        _, batch = _last_of(commits, self._retention_s)
        kept = {entry.stage for entry in map(staging.entry, self.unconfirmed) if entry is not None}
        for name in os.listdir(staging.stages):
            if int(name[:10]) <= batch and name not in kept:
                (staging.stages / name).unlink(missing_ok=True)
        edge, batch = _last_of(commits, max(self._retention_s, LOG_AGE_MIN_S))
        # Plans first: whoever finds its plan knows that the log is whole from there on.
        self._remove(staging.plans, {number for number in staging.numbers(staging.plans) if number <= batch}, now)
        old = {number for number in staging.numbers(staging.log) if number < edge} - self.unconfirmed
        self._remove(staging.log, old, now)
        self._remove(staging.confirmed, old, now)
        self._remove(staging.commits, old, now)

    @staticmethod
    def _remove(folder: Path, numbers: set[int], now: float) -> None:
        for name in os.listdir(folder):
            if int(name[:10]) in numbers if name[:1].isdigit() else _age_s(folder / name, now) > DRAFT_AGE_S:
                (folder / name).unlink(missing_ok=True)


def _last_of(commits: dict[str, float], age_s: float) -> tuple[int, int]:
    """(number, batch) of the last commit that is at least so old."""
    return max((_commit_of(name) for name, commit_age_s in commits.items() if commit_age_s >= age_s), default=(0, 0))


def _commit_of(name: str) -> tuple[int, int]:
    number, _, batch = name.partition("-")
    return int(number), int(batch)


def _age_s(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
