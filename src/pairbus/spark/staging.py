"""The staging location of a stream: received messages, and a log that says in which order they became Spark's.

    LOCATION/                    storage that every host sees: a folder, or a path in an object store
        owners/NNNNNNNNNN.json   users of the location; the highest number has it, and the one before it is told so
        plans/BATCH.json         contents of a micro-batch, so that a repetition has the same
        stages/BATCH-PARTITION-ATTEMPT.arrow
                                 messages as they were received, one object for each attempt of a task
        log/NNNNNNNNNN.json      seals and ends of batches, numbered without a gap
        confirmed/NNNNNNNNNN     the queue has forgotten every message of that seal
        commits/NUMBER-BATCH-MS  which entries of the log are commits, and their time, so that a start need not read
                                 all of it

Laws of this file.
 1. An object in owners, plans and log appears whole and durable, or not at all, and never twice: of several writers
    one succeeds, and each of them knows whether it was the one (`pairbus.storage`).
 2. A writer of entry N has read all entries before N. Hence all seals have one order, and each can be made without
    the messages that an earlier one has, whatever became of locks meanwhile: no message is in two seals.
 3. A partition of a batch is sealed once. After a commit or a fence of a batch no task seals in it, or in one before.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pairbus.errors import ConfigError
from pairbus.storage.entries import encode, publish, read
from pairbus.storage.opening import PATIENCE_S, check_access, open_storage

VISIBLE_S = 10.0  # time for which a network file system may hide a new file from another host
LOOK_S = 0.2
OWNER_SEEN_S = 300.0  # a worker that has seen the owner of the location looks again after that
OPTION = "option stagingLocation"
VERSION = 1
"Major version of the format, written by every owner; locations up to release 0.3 do not have it."
_DONE = b"{}"  # content of an object whose name says all

_seen: dict[tuple[str, Owner], float] = {}
"Time at which this process last saw that an owner still has its location."


@dataclass(frozen=True, slots=True)
class Owner:
    """One start of a query."""

    number: int
    token: str


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log."""

    number: int
    kind: Literal["seal", "commit", "fence"]
    "`commit`: Spark has the batch. `fence`: the batches up to this one were given up by Spark."
    batch: int
    partition: int = -1
    stage: str = ""
    rows: int = 0
    "Number of messages that it brings to Spark."
    without: tuple[int, ...] = ()
    "Rows of the stage that are in an earlier seal."
    spans: tuple[tuple[int, int], ...] | None = None
    "Sequence numbers of the stage, first and last of each run; None: not known, the stage has to be read."

    @property
    def ends(self) -> bool:
        return self.kind != "seal"


class Staging:
    """The location, as driver and tasks use it."""

    def __init__(self, location: str, credential: str | None = None, patience_s: float = PATIENCE_S) -> None:
        try:
            self.storage = open_storage(
                location, credential, option="option storageCredential", patience_s=max(patience_s, 1.0)
            )
        except ConfigError as error:
            raise ConfigError(f"{OPTION}: {error}") from None
        self.location = location

    # ── who uses it ──

    def take(self, entity: str) -> Owner:
        """Take the location, on the driver, once for each start of a query, before any other call. ConfigError when it
        cannot be used."""
        try:
            check_access(self.storage)
            return self._take(entity)
        except ConfigError as error:
            raise ConfigError(f"{OPTION}: {error}") from None
        except OSError as error:
            raise ConfigError(
                f"{OPTION}: {self.location} cannot be used (it must be writable, and a folder's file system must have"
                f" hard links): {error}"
            ) from None

    def _take(self, entity: str) -> Owner:
        while True:
            before = self._last_owner()
            known = read(self.storage, _owner_key(before)) if before else None
            if known is not None and known.get("version", VERSION) > VERSION:
                raise ConfigError(
                    f"{self.location} was written by a newer version of Pairbus (staging version {known['version']},"
                    f" this one knows {VERSION}); nothing in it was changed. Upgrade Pairbus, or give another location"
                )
            if known is not None and known["entity"] != entity:
                raise ConfigError(
                    f"{self.location} belongs to a stream of {known['entity']}, not of {entity}: every stream needs a"
                    " location of its own"
                )
            owner = Owner(before + 1, secrets.token_hex(8))
            said = {"token": owner.token, "entity": entity, "host": socket.gethostname(), "version": VERSION}
            if not publish(self.storage, _owner_key(owner.number), said):
                continue
            if known is not None:
                self.storage.put(_owner_key(before), encode({**known, "taken": True}))
            for number in self.numbers("owners"):
                if number < before:
                    self.storage.delete(_owner_key(number))
            return owner

    def _last_owner(self) -> int:
        return max(self.numbers("owners"), default=0)

    def check_owner(self, owner: Owner) -> None:
        """Check that no other query has taken the location since."""
        if not self._has(owner):
            raise ConfigError(
                f"{OPTION}: another query has taken {self.location} while this one was running: every query needs a"
                " location of its own"
            )

    def _has(self, owner: Owner) -> bool:
        values = read(self.storage, _owner_key(owner.number))
        return values is not None and values["token"] == owner.token and not values.get("taken")

    def check_visible(self, owner: Owner, wait_s: float | None = None) -> None:
        """Check in a task, before a message is touched, that this host sees the files of the driver, and that this
        driver still has the location."""
        now = time.monotonic()
        if now - _seen.get((self.location, owner), float("-inf")) < OWNER_SEEN_S:
            return
        deadline = now + (VISIBLE_S if wait_s is None else wait_s)
        while not self._has(owner):
            if self._last_owner() > owner.number:
                self.check_owner(owner)
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{OPTION}: host {socket.gethostname()} does not see in {self.location} what the driver has written"
                    " there: give a folder that every host of the cluster shares"
                )
            time.sleep(LOOK_S)
        _seen.clear()
        _seen[self.location, owner] = now

    # ── the log ──

    def entry(self, number: int) -> LogEntry | None:
        values = read(self.storage, _log_key(number))
        if values is None:
            return None
        spans = values.pop("spans", None)
        return LogEntry(
            **{
                **{name: value for name, value in values.items() if name in LogEntry.__slots__},  # a later minor adds
                "without": tuple(values["without"]),
                "spans": None if spans is None else tuple((first, last) for first, last in spans),
            }
        )

    def entries_after(self, number: int) -> Iterator[LogEntry]:
        """Yield the entries after this one in order, up to the last one that is there now."""
        while (entry := self.entry(number + 1)) is not None:
            yield entry
            number += 1

    def append(self, entry: LogEntry) -> bool:
        """Append an entry; False when its number is taken: the caller reads on. True: it is durable and final."""
        values = {name: getattr(entry, name) for name in LogEntry.__slots__}
        return publish(self.storage, _log_key(entry.number), values)

    def take_back(self, entry: LogEntry) -> None:
        """Remove an entry in a part of the log that has been cleaned, which is never read."""
        self.storage.delete(_log_key(entry.number))

    def confirm(self, number: int) -> None:
        """Note that the queue has deleted the messages of a seal. Only advice: without it the seal is checked again."""
        self.storage.put(f"confirmed/{number:010d}", _DONE)

    def is_confirmed(self, number: int) -> bool:
        return self.storage.exists(f"confirmed/{number:010d}")

    def note_commit(self, entry: LogEntry, at_s: float) -> None:
        self.storage.put(f"commits/{entry.number:010d}-{entry.batch:010d}-{int(at_s * 1000):013d}", _DONE)

    @staticmethod
    def new_stage(batch: int, partition: int) -> str:
        return f"{batch:010d}-{partition:04d}-{secrets.token_hex(6)}.arrow"

    def numbers(self, folder: str) -> list[int]:
        return [int(name[:10]) for name in self.storage.list(f"{folder}/") if name[:1].isdigit()]

    # ── plans ──

    def has_plan(self, batch: int) -> bool:
        return self.storage.exists(_plan_key(batch))

    def plan(self, batch: int) -> dict[str, Any] | None:
        return read(self.storage, _plan_key(batch))

    def set_plan(self, batch: int, values: dict[str, Any]) -> bool:
        return publish(self.storage, _plan_key(batch), values)


def _owner_key(number: int) -> str:
    return f"owners/{number:010d}.json"


def _log_key(number: int) -> str:
    return f"log/{number:010d}.json"


def _plan_key(batch: int) -> str:
    return f"plans/{batch:010d}.json"
