"""Tells the driver the state of a staging location: plans, commits, unconfirmed seals, and objects to remove.

The source runner of a query has one book. All its knowledge is stored in the location: it reads that at the start, and
afterwards only the new entries of the log.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from pairbus.errors import ConfigError
from pairbus.spark.staging.log import LogEntry, Owner, Staging
from pairbus.spark.staging.stage_file import remove_stages
from pairbus.spark.storage.entries import delete_all

# The log and the plans are small, and stay for longer than any task can sleep between two steps: a very late attempt
# that finds the place of its entry free again would seal in the past. (It also looks for its plan afterwards.)
LOG_AGE_MIN_S = 3_600.0
CLEAN_EVERY_S = 60.0
CLEAN_SHARE = 0.01  # part of the retention, between two cleanings: each of them lists all objects


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Contents of a micro-batch, decided once."""

    batch: int
    head: int
    "Last entry of the log when the plan was made: all seals of this batch come after it."
    shares: tuple[int, ...]
    "Largest number of messages that each task receives."
    adopted: tuple[int, ...]
    "Seals of batches that Spark has given up: their messages enter with this one."
    is_new: bool = field(compare=False)
    "True when this call has made the plan: no task of the batch has been started yet."


class StageBook:
    def __init__(self, staging: Staging, entity: str, retention_s: float) -> None:
        self.staging = staging
        self.owner: Owner = staging.take(entity)
        self.identity = staging.identity()
        self.committed = 0
        "Last batch that Spark has committed."
        self.unconfirmed: set[int] = set()
        "Seals whose messages may still be in the queue, by their number in the log."
        self.head = 0
        self._seals: list[LogEntry] = []
        "Seals that Spark does not have yet: of batches after `committed`, and those that a commit has carried on."
        self._plans: dict[int, dict[str, Any]] = {}
        "Plans of batches after `committed` that this driver has seen or made."
        self._retention_s = retention_s
        self._clean_at = float("-inf")
        self._began = time.time()
        self._load()

    def _load(self) -> None:
        commits = [_commit_of(name) for name in self.staging.storage.list("commits/")]
        self.head, self.committed = max(commits, default=(0, 0))
        written = set(self.staging.numbers("log"))
        settled = set(self.staging.numbers("confirmed")) | {number for number, _ in commits}
        self.unconfirmed = {number for number in written - settled if number <= self.head}
        self._last_batch = max([*self.staging.numbers("plans"), self.committed])
        last = self.staging.entry(self.head) if self.head else None
        for number in () if last is None else last.carried:
            seal = self.staging.entry(number)
            assert seal is not None, f"{self.staging.location} has lost seal {number}, which Spark does not have yet"
            self._seals.append(seal)
        self.refresh()

    def refresh(self) -> None:
        """Read the new entries of the log."""
        for entry in self.staging.entries_after(self.head):
            self._note(entry)
        self.unconfirmed = {number for number in self.unconfirmed if not self.staging.is_confirmed(number)}

    def _note(self, entry: LogEntry) -> None:
        self.head = entry.number
        if entry.kind == "seal":
            self._seals.append(entry)
            self.unconfirmed.add(entry.number)
        elif entry.kind == "commit":
            self.committed = max(self.committed, entry.batch)
            self._seals = [seal for seal in self._seals if seal.batch > self.committed or seal.number in entry.carried]
            self.staging.note_commit(entry, time.time())
        else:
            self.staging.confirm(entry.number)

    # ── batches ──

    def first_offset(self) -> int:
        """Return the first offset of a query without a checkpoint. One number is left out, so that `committed` says
        nothing about batches that an earlier query with another checkpoint may have left behind."""
        return self._last_batch + 1 if self._last_batch else 0

    def check_id(self, offset_id: str | None) -> None:
        """Raise ConfigError for an offset of another location."""
        if not self.identity.accepts(offset_id):
            raise self.staging.refusal("the checkpoint names another location")

    def check_offset(self, batch: int, offset_id: str | None) -> None:
        """Raise ConfigError for an offset of another location, and of a batch that this location never knew."""
        self.check_id(offset_id)
        if batch > self.first_offset():
            raise self.staging.refusal(f"the checkpoint has micro-batch {batch}, which was never planned there")

    def has_sealed(self, batch: int) -> bool:
        """Return whether a task of a batch that is not committed yet has sealed something, or nothing."""
        return any(seal.batch == batch for seal in self._seals)

    def received(self, batch: int) -> int:
        """Return how many messages a batch that is not committed yet has brought so far."""
        return sum(seal.rows for seal in self._seals if seal.batch == batch)

    def commit(self, batch: int) -> int:
        """Note that Spark has the batch: no task seals in it any more, however late. No effect without a plan.

        Returns how many seals Spark has taken with it. Seals that no task has read are carried on.
        """
        plan = self._plan_of(batch) if batch > self.committed else None
        if plan is None:
            return 0
        before = len(self._waiting(batch))
        self._end("commit", batch, plan)
        self._plans = {number: plan for number, plan in self._plans.items() if number > self.committed}
        self.clean(time.time())
        return before - len(self._waiting(batch))

    def _waiting(self, batch: int) -> list[LogEntry]:
        """Return the seals with messages up to this batch that Spark does not have yet."""
        return [seal for seal in self._seals if seal.rows and seal.batch <= batch]

    def _plan_of(self, batch: int) -> dict[str, Any] | None:
        """Return a plan; the storage is read only when another driver may have made one."""
        if batch not in self._plans and batch <= self._last_batch and (plan := self.staging.plan(batch)) is not None:
            self._plans[batch] = plan
        return self._plans.get(batch)

    def has_abandoned(self, batch: int) -> bool:
        """Return whether there are sealed messages of earlier batches that Spark never committed."""
        return any(seal.rows for seal in self._seals if seal.batch < batch)

    def has_plan(self, batch: int) -> bool:
        return self._plan_of(batch) is not None

    def plan(self, batch: int, shares: list[int]) -> BatchPlan:
        """Return the plan of a batch; made now if there is none, and the same ever after."""
        plan = self._plan_of(batch)
        if plan is None and batch <= self.committed:
            raise ConfigError(
                f"option stagingLocation: {self.staging.location} has no stage of batch {batch} any more, which was"
                " committed: the checkpoint is older than what stageRetentionSeconds has kept"
            )
        is_new = False
        if plan is None:
            plan, is_new = self._new_plan(batch, shares)
        self._last_batch = max(self._last_batch, batch)
        self._plans[batch] = plan
        return BatchPlan(batch, plan["head"], tuple(plan["shares"]), tuple(plan["adopted"]), is_new)

    def _new_plan(self, batch: int, shares: list[int]) -> tuple[dict[str, Any], bool]:
        """Return the plan, and whether it is ours."""
        if self.committed < self._last_batch < batch:
            self._end("fence", batch - 1)  # from now on no late task adds to a batch that was given up
        adopted = [seal.number for seal in self._seals if seal.batch < batch and seal.rows]
        plan = {"head": self.head, "shares": shares, "adopted": adopted, "notes_reads": True}
        if self.staging.set_plan(batch, plan):
            return plan, True
        other_plan = self.staging.plan(batch)  # the plan of another driver, which came first
        assert other_plan is not None
        return other_plan, False

    def _end(self, kind: Literal["commit", "fence"], batch: int, plan: dict[str, Any] | None = None) -> None:
        while True:
            unread = () if plan is None else self._unread(batch, plan)
            entry = LogEntry(self.head + 1, kind, batch, carried=unread)
            if self.staging.append(entry):
                break
            self.refresh()
        self._note(entry)

    def _unread(self, batch: int, plan: dict[str, Any]) -> tuple[int, ...]:
        """Return the seals that no task of the batch has read.

        Tasks of releases up to 0.3 note no reads, and their plans do not promise it: there every seal counts as read.
        """

        def is_read(seal: LogEntry) -> bool:
            if plan.get("notes_reads"):
                return self.staging.is_read(batch, seal.number)
            return seal.batch == batch or seal.number in plan["adopted"]

        return tuple(seal.number for seal in self._waiting(batch) if not is_read(seal))

    # ── cleaning ──

    def clean(self, now: float) -> None:
        """Remove objects of batches that were committed longer ago than the retention."""
        if now < self._clean_at:
            return
        self._clean_at = now + min(max(CLEAN_EVERY_S, self._retention_s * CLEAN_SHARE), self._retention_s)
        staging = self.staging
        names = staging.storage.list("commits/")
        commits = {_commit_of(name): now - self._committed_at(name) for name in names}
        _, batch = _last_of(commits, self._retention_s)
        waiting = {seal.number for seal in self._seals}
        needed = {entry.stage for entry in map(staging.entry, self.unconfirmed) if entry is not None}
        needed |= {seal.stage for seal in self._seals}
        remove_stages(staging.storage, lambda name: int(name[:10]) <= batch and name not in needed)
        edge, batch = _last_of(commits, max(self._retention_s, LOG_AGE_MIN_S))
        # Plans first: a task that finds its plan knows that the log is whole from there on.
        for folder in ("plans", "read"):
            self._remove(folder, {number for number in staging.numbers(folder) if number <= batch})
        old = {number for number in staging.numbers("log") if number < edge} - self.unconfirmed - waiting
        for folder in ("log", "confirmed", "commits"):
            self._remove(folder, old)

    def _committed_at(self, name: str) -> float:
        """Return when a commit was noted. Names up to release 0.3 have no time: those count from this start on."""
        at_ms = name.split("-")[2:]
        return int(at_ms[0]) / 1000 if at_ms else self._began

    def _remove(self, folder: str, numbers: set[int]) -> None:
        if numbers:
            storage = self.staging.storage
            names = [name for name in storage.list(f"{folder}/") if int(name[:10]) in numbers]
            delete_all(storage, [f"{folder}/{name}" for name in names])


def _last_of(commits: dict[tuple[int, int], float], age_s: float) -> tuple[int, int]:
    """Return (number, batch) of the last commit that is at least so old."""
    return max((commit for commit, commit_age_s in commits.items() if commit_age_s >= age_s), default=(0, 0))


def _commit_of(name: str) -> tuple[int, int]:
    number, batch = name.split("-")[:2]
    return int(number), int(batch)
