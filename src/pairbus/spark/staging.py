"""The staging location of a stream: what was received, and a log that says in which order it became Spark's.

    LOCATION/                    a folder that every host sees
        owners/NNNNNNNNNN.json   who uses it; the highest number has it, and tasks look for it before anything else
        plans/BATCH.json         what a micro-batch consists of, so that a repetition consists of the same
        stages/BATCH-PARTITION-ATTEMPT.arrow
                                 messages as they were received, one file for each attempt of a task
        log/NNNNNNNNNN.json      seals and ends of batches, numbered without a gap
        confirmed/NNNNNNNNNN     the queue has forgotten every message of that seal
        commits/NUMBER-BATCH     which entries of the log are commits, so that a start need not read all of it

Laws of this file.
 1. A file in owners, plans and log appears whole and on the disk, or not at all, and never twice (a hard link is made
    to a finished draft; of several that try, one succeeds).
 2. Whoever appends entry N has read all entries before N. Hence all seals have one order, and each can be made without
    the messages that an earlier one has, whatever became of locks meanwhile: no message is in two seals.
 3. A partition of a batch is sealed once. After a commit or a fence of a batch nobody seals in it, or in one before.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pairbus.disk.folders import FILE_MODE, sync_folder
from pairbus.errors import ConfigError

VISIBLE_S = 10.0  # how long a network file system may hide a new file from another host
LOOK_S = 0.2
_FOLDERS = ("owners", "plans", "stages", "log", "confirmed", "commits")


@dataclass(frozen=True, slots=True)
class Owner:
    """One start of a query."""

    number: int
    token: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    number: int
    kind: Literal["seal", "commit", "fence"]
    "`commit`: Spark has the batch. `fence`: the batches up to this one were given up by Spark."
    batch: int
    partition: int = -1
    stage: str = ""
    rows: int = 0
    "Messages that it brings to Spark."
    without: tuple[int, ...] = ()
    "Rows of the stage that an earlier seal has."

    @property
    def ends(self) -> bool:
        return self.kind != "seal"


class Staging:
    """The folder, as driver and tasks use it. Every OSError here is about the option stagingLocation."""

    def __init__(self, location: str) -> None:
        if "://" in location or not Path(location).is_absolute():
            raise ConfigError(
                f"option stagingLocation must be the absolute path of a folder, not {location!r}: mount the storage on"
                " every host, and give the path of the mount"
            )
        self.root = Path(location)
        self.owners, self.plans, self.stages, self.log, self.confirmed, self.commits = (
            self.root / name for name in _FOLDERS
        )

    # ── who uses it ──

    def take(self, entity: str) -> Owner:
        """On the driver, once for each start of a query, before anything else. ConfigError when it cannot be used."""
        try:
            for name in _FOLDERS:
                (self.root / name).mkdir(parents=True, exist_ok=True)
            return self._take(entity)
        except OSError as error:
            raise ConfigError(
                f"option stagingLocation: {self.root} cannot be used (it must be writable, and its file system must"
                f" have hard links): {error}"
            ) from None

    def _take(self, entity: str) -> Owner:
        while True:
            before = max(self.numbers(self.owners), default=0)
            if before:
                known = json.loads((self.owners / _json_name(before)).read_bytes())["entity"]
                if known != entity:
                    raise ConfigError(
                        f"option stagingLocation: {self.root} belongs to a stream of {known}, not of {entity}:"
                        " every stream needs a folder of its own"
                    )
            owner = Owner(before + 1, secrets.token_hex(8))
            said = {"token": owner.token, "entity": entity, "host": socket.gethostname()}
            if publish(self.owners / _json_name(owner.number), said):
                for number in self.numbers(self.owners):
                    if number < before:
                        (self.owners / _json_name(number)).unlink(missing_ok=True)
                return owner

    def check_owner(self, owner: Owner) -> None:
        """Whether nobody has taken it since."""
        if max(self.numbers(self.owners), default=0) > owner.number:
            raise ConfigError(
                f"option stagingLocation: another query has taken {self.root} while this one was running: every query"
                " needs a folder of its own"
            )

    def check_visible(self, owner: Owner, wait_s: float | None = None) -> None:
        """In a task, before a message is touched: whether this host sees what the driver has written, and whether that
        driver still has the folder."""
        deadline = time.monotonic() + (VISIBLE_S if wait_s is None else wait_s)
        while not self._sees(owner):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"option stagingLocation: host {socket.gethostname()} does not see in {self.root} what the driver"
                    " has written there: give a folder that every host of the cluster shares"
                )
            time.sleep(LOOK_S)
        self.check_owner(owner)

    def _sees(self, owner: Owner) -> bool:
        try:
            return bool(json.loads((self.owners / _json_name(owner.number)).read_bytes())["token"] == owner.token)
        except FileNotFoundError:
            return False

    # ── the log ──

    def entry(self, number: int) -> Entry | None:
        try:
            values = json.loads((self.log / _json_name(number)).read_bytes())
        except FileNotFoundError:
            return None
        return Entry(**{**values, "without": tuple(values["without"])})

    def entries_after(self, number: int) -> Iterator[Entry]:
        """In order, up to the last one that is there now."""
        while (entry := self.entry(number + 1)) is not None:
            yield entry
            number += 1

    def append(self, entry: Entry) -> bool:
        """False when the number is taken: read on, think again. True: it is on the disk, for everybody, for good."""
        values = {name: getattr(entry, name) for name in Entry.__slots__}
        return publish(self.log / _json_name(entry.number), values)

    def confirm(self, number: int) -> None:
        """Not synced: without it the seal is only looked at again."""
        (self.confirmed / f"{number:010d}").touch(FILE_MODE)

    def new_stage(self, batch: int, partition: int) -> Path:
        return self.stages / f"{batch:010d}-{partition:04d}-{secrets.token_hex(6)}.arrow"

    @staticmethod
    def numbers(folder: Path) -> list[int]:
        return [int(name[:10]) for name in os.listdir(folder) if name[:1].isdigit()]

    # ── plans ──

    def has_plan(self, batch: int) -> bool:
        return (self.plans / _json_name(batch)).exists()

    def plan(self, batch: int) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.plans / _json_name(batch)).read_bytes())
        except FileNotFoundError:
            return None
        return found

    def set_plan(self, batch: int, values: dict[str, Any]) -> bool:
        return publish(self.plans / _json_name(batch), values)


def publish(path: Path, values: dict[str, Any]) -> bool:
    """Create a file: whole, on the disk, and only if it is not there. False when it is."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())
            file.flush()
            os.fsync(file.fileno())
        created = _link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    if created:
        sync_folder(path.parent)
    return created


def _link(draft: Path, path: Path) -> bool:
    try:
        os.link(draft, path)
    except FileExistsError:
        # Over NFS an answer may be lost and the call repeated: then it is our own link that exists.
        return os.path.samefile(draft, path)
    return True


def _json_name(number: int) -> str:
    return f"{number:010d}.json"
