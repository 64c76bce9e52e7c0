"""The staging location of a stream: received messages, and a log that says in which order they became Spark's.

    LOCATION/                    storage that every host sees: a folder, or a path in an object store
        location.json            id of the location, which every offset of a checkpoint names
        owners/NNNNNNNNNN.json   users of the location; the highest number has it, and the one before it is told so
        plans/BATCH.json         contents of a micro-batch, so that a repetition has the same
        stages/BATCH-PARTITION-ATTEMPT.arrow
                                 messages as they were received, one object for each attempt of a task
        log/NNNNNNNNNN.json      seals and ends of batches, numbered without a gap
        confirmed/NNNNNNNNNN     the queue has forgotten every message of that seal
        read/BATCH-NNNNNNNNNN    a task of the batch has given Spark all rows of that seal
        commits/NUMBER-BATCH-MS  which entries of the log are commits, and their time, so that a start need not read
                                 all of it

Laws of this file.
 1. An object in owners, plans and log appears whole and durable, or not at all, and never twice: of several writers
    one succeeds, and each of them knows whether it was the one (`pairbus.spark.storage`).
 2. A writer of entry N has read all entries before N. Hence all seals have one order, and each can be made without
    the messages that an earlier one has, whatever became of locks meanwhile: no message is in two seals.
 3. A partition of a batch is sealed once, by `SealTracker.try_to_seal` of `source/intake.py`. After a commit or a fence
    of a batch no task seals in it, or in one before.
 4. A seal stays until a batch is committed whose task has read it. A commit names the seals that nobody has read: they
    enter with the next batch.
 5. An offset names the location that has its batches, and no other location accepts it. Offsets of releases up to 0.3
    name none: only a location that such a release has used accepts them.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from pairbus.errors import ConfigError
from pairbus.spark.storage.entries import encode, publish, read
from pairbus.spark.storage.opening import PATIENCE_S, check_access, open_storage

VISIBLE_S = 10.0  # time for which a network file system may hide a new file from another host
LOOK_S = 0.2
OWNER_SEEN_S = 300.0  # a worker that has seen the owner of the location looks again after that
OPTION = "option stagingLocation"
VERSION = 1
"Major version of the format, written by every owner; locations up to release 0.3 do not have it."
_DONE = b"{}"  # content of an object whose name says all
_LOCATION = "location.json"

_seen: dict[tuple[str, Owner], float] = {}
"Time at which this process last saw that an owner still has its location."


@dataclass(frozen=True, slots=True)
class Owner:
    """One start of a query."""

    number: int
    token: str


@dataclass(frozen=True, slots=True)
class LocationIdentity:
    """Answer to the question which offsets belong to a location."""

    id: str | None
    "None: no query of this release has used the location yet."
    accepts_unnamed: bool
    "True when a release that did not name locations has used this one, so that its checkpoint may be continued."

    def accepts(self, offset_id: str | None) -> bool:
        return self.accepts_unnamed if offset_id is None else offset_id == self.id


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
    carried: tuple[int, ...] = ()
    "Seals of a commit that no task has read: they enter with the next batch."

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
        with self._explained():
            check_access(self.storage)
            return self._take(entity)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
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
            previous = read(self.storage, _owner_key(before)) if before else None
            if previous is not None and previous.get("version", VERSION) > VERSION:
                raise ConfigError(
                    f"{self.location} was written by a newer version of Pairbus (staging version {previous['version']},"
                    f" this one knows {VERSION}); nothing in it was changed. Upgrade Pairbus, or give another location"
                )
            if previous is not None and previous["entity"] != entity:
                raise ConfigError(
                    f"{self.location} belongs to a stream of {previous['entity']}, not of {entity}: every stream needs"
                    " a location of its own"
                )
            publish(self.storage, _LOCATION, {"id": secrets.token_hex(8)})
            owner = Owner(before + 1, secrets.token_hex(8))
            record = {
                "token": owner.token,
                "entity": entity,
                "host": socket.gethostname(),
                "version": VERSION,
                "accepts_unnamed": _accepts_unnamed(previous),
            }
            if not publish(self.storage, _owner_key(owner.number), record):
                continue
            if previous is not None:
                self.storage.put(_owner_key(before), encode({**previous, "taken": True}))
            for number in self.numbers("owners"):
                if number < before:
                    self.storage.delete(_owner_key(number))
            return owner

    # ── which offsets belong to it ──

    def identity(self) -> LocationIdentity:
        """Read the identity; nothing is written, and no query is stopped by that."""
        record = read(self.storage, _LOCATION)
        number = self._last_owner()
        owner = read(self.storage, _owner_key(number)) if number else None
        return LocationIdentity(None if record is None else record["id"], _accepts_unnamed(owner))

    def check_offset(self, offset_id: str | None) -> None:
        """Check, before the location is taken, that a checkpoint whose offset has this id may go on here."""
        with self._explained():
            identity = self.identity()
        if not identity.accepts(offset_id):
            raise self.refusal("the checkpoint names another location")

    def refusal(self, why: str) -> ConfigError:
        """Return the error for a checkpoint that cannot go on with this location."""
        return ConfigError(
            f"{OPTION}: {self.location} is not the location of this query ({why}). Messages that were received and are"
            " not in the output yet are only in the location that the query had: give that one; it may be moved, with"
            " all that is in it. If it is lost, give a new checkpointLocation: what only it had is lost too"
        )

    # ── the owner ──

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
                "carried": tuple(values.get("carried", ())),
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

    def note_read(self, batch: int, number: int) -> None:
        """Note that a task of the batch has given all rows of a seal to Spark; durable before Spark sees their end."""
        self.storage.put_new(_read_key(batch, number), _DONE)

    def is_read(self, batch: int, number: int) -> bool:
        return self.storage.exists(_read_key(batch, number))

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


def _accepts_unnamed(owner: dict[str, Any] | None) -> bool:
    """Return what an owner says; a release that did not name locations in offsets does not say it."""
    return owner is not None and bool(owner.get("accepts_unnamed", True))


def _read_key(batch: int, number: int) -> str:
    return f"read/{batch:010d}-{number:010d}"


def _owner_key(number: int) -> str:
    return f"owners/{number:010d}.json"


def _log_key(number: int) -> str:
    return f"log/{number:010d}.json"


def _plan_key(batch: int) -> str:
    return f"plans/{batch:010d}.json"
