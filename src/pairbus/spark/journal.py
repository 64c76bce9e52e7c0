"""The journal of a Spark syphon: every message that came home, written down before it leaves its backlog queue.

    LOCATION/                               a folder that every host sees
        journal/day=2026-11-15/*.jsonl      one file for each attempt of a task, appended to and never rewritten
        reports/RUN/*.json                  how each task ended: what the driver decides by
        missing/*.json                      destinations that do not exist, and since when
        checkpoint/, moves/, ledger/        Spark's own, and the tables that `compaction` makes

Laws of this file.
 1. `append` returns when the lines are on the disk. Whoever waits at the same time shares one fsync.
 2. After a write that failed nothing more is written to that file: only the last line of a file can ever be torn.
 3. A row says that the destination has accepted the message. A message that was sent twice has two rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pairbus.disk.folders import FILE_MODE, sync_folder
from pairbus.errors import ConfigError
from pairbus.ledger.rows import day_of

SCHEMA = 1
MOVED, DEAD_LETTERED = "moved", "dead-lettered"
_MARK = "location.json"
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class Row(NamedTuple):
    """One message of the journal, and of what a task yields to Spark. Times are milliseconds since 1970."""

    outcome: str
    queue: str
    queue_created_ms: int | None
    "When the queue was created; None when nobody could tell. Sequence numbers begin anew with it."
    sequence_number: int | None
    message_id: str | None
    destination: str | None
    size_bytes: int | None
    enqueued_ms: int | None
    "When the backlog queue got it."
    first_attempt_ms: int | None
    "When the primary was first asked; only when it may have stored the message all the same."
    at_ms: int
    "When the destination had accepted it."
    attempt: str
    "Of the task: the name of its file."
    reason: str | None


def encode_rows(rows: Iterable[Row]) -> list[bytes]:
    """As lines. Only the message id is encoded for each row; the other texts are those of the rows before."""
    return [
        (
            f'{{"schema":{SCHEMA},"outcome":{_text(row[0])},"queue":{_text(row[1])},"queue_created_ms":{_number(row[2])}'
            f',"sequence_number":{_number(row[3])},"message_id":{_to_json(row[4])},"destination":{_text(row[5])}'
            f',"size_bytes":{_number(row[6])},"enqueued_ms":{_number(row[7])},"first_attempt_ms":{_number(row[8])}'
            f',"at_ms":{row[9]},"attempt":{_text(row[10])},"reason":{_text(row[11])}}}\n'
        ).encode("ascii")
        for row in rows
    ]


@lru_cache(4096)
def _text(value: str | None) -> str:
    return _to_json(value)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Location:
    """The folder that all hosts share."""

    root: Path

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def missing(self) -> Path:
        return self.root / "missing"

    def prepare(self, run: str) -> None:
        """On the driver, before a query starts. ConfigError when the folder cannot be written."""
        try:
            self.reports(run).mkdir(parents=True)
            for folder in (self.journal, self.missing):
                folder.mkdir(exist_ok=True)
            _replace(self.reports(run) / _MARK, {"run": run, "host": socket.gethostname()})
        except OSError as error:
            raise ConfigError(f"the journal location {self.root} cannot be written: {error}") from None

    def check_shared(self, run: str) -> None:
        """In a worker: whether this is the folder that the driver has prepared."""
        if not (self.reports(run) / _MARK).is_file():
            raise ConfigError(
                f"host {socket.gethostname()} does not see the journal location {self.root} of the driver:"
                " give a folder that every host of the cluster shares"
            )

    def reports(self, run: str) -> Path:
        return self.root / "reports" / run

    def ask_to_stop(self, run: str) -> None:
        (self.reports(run) / "stop").touch()

    def is_asked_to_stop(self, run: str) -> bool:
        return (self.reports(run) / "stop").exists()

    def end(self, run: str) -> None:
        """Note that a single drain has found nothing more to do."""
        (self.reports(run) / "over").touch()

    def has_ended(self, run: str) -> bool:
        return (self.reports(run) / "over").exists()

    def begin(self, run: str, tick: int, task: int) -> None:
        """Note that a task of a round has begun: the others share a budget with it."""
        (self.reports(run) / f"begun-{tick}-{task}").touch()

    def begun(self, run: str, tick: int) -> set[int]:
        """Return the tasks of a round that have begun."""
        return {int(path.name.rpartition("-")[2]) for path in self.reports(run).glob(f"begun-{tick}-*")}

    def forget_begun(self, run: str, tick: int) -> None:
        for path in self.reports(run).glob(f"begun-{tick}-*"):
            path.unlink(missing_ok=True)

    def new_file(self, attempt: str, at_s: float) -> Path:
        return self.journal / f"day={day_of(at_s)}" / f"{attempt}.jsonl"


@dataclass(frozen=True, slots=True)
class Report:
    """How one attempt of a task ended."""

    tick: int
    queue: str
    moved: int = 0
    "Accepted by their destinations."
    dead_lettered: int = 0
    held: int = 0
    "Left under their locks."
    errors: int = 0
    busy: bool = False
    "A destination asked for less."
    more: bool = False
    "The task ended because of its quota: there is probably more."
    problems: tuple[str, ...] = ()
    "Why messages stayed, in words."
    task: int = 0
    "Of its round, the same for every attempt."
    began_ms: int = 0
    ended_ms: int = 0
    "Both by the clock of its host."

    def write(self, location: Location, run: str, attempt: str) -> None:
        """Not synced: what is lost with the power is only advice."""
        values = {name: getattr(self, name) for name in self.__slots__}
        _replace(location.reports(run) / f"{self.tick:010d}-{attempt}.json", values)


def read_reports(
    location: Location, run: str, without: Container[str] = (), tick: int | None = None
) -> Iterator[tuple[str, Report]]:
    """Each with its name, in the order of ticks; `without` those of these names, and of one `tick` only."""
    pattern = "[0-9]*.json" if tick is None else f"{tick:010d}-*.json"
    for path in sorted(location.reports(run).glob(pattern)):
        if path.name not in without:
            values = json.loads(path.read_text(encoding="utf-8"))
            yield path.name, Report(**{**values, "problems": tuple(values["problems"])})


def _replace(path: Path, values: dict[str, object]) -> None:
    """Whoever reads at this moment finds the whole file, or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(_to_json(values), encoding="utf-8")
    draft.replace(path)


class Journal:
    """One file, written by one event loop. Open it before the first message is touched: a bad disk shows then."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, FILE_MODE)
        sync_folder(path.parent)
        self._pending: list[bytes] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: OSError | None = None

    async def append(self, lines: list[bytes]) -> None:
        """OSError when they are not, or perhaps not, in the file; then the journal is of no more use."""
        if self._failure is not None:
            raise OSError(*self._failure.args)
        done = asyncio.get_running_loop().create_future()
        self._waiters.append(done)
        self.append_soon(lines)
        await done

    def append_soon(self, lines: list[bytes]) -> None:
        """With the next ones, or at the close."""
        self._pending += lines
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._pending:
            lines, self._pending = self._pending, []
            waiters, self._waiters = self._waiters, []
            if self._failure is None:
                try:
                    await asyncio.to_thread(self._commit, b"".join(lines))
                except OSError as error:
                    self._failure = error
            for waiter in waiters:
                if waiter.done():
                    continue  # its task was cancelled
                if self._failure is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(OSError(*self._failure.args))
        self._writing = None

    def _commit(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        os.fsync(self._fd)

    async def close(self) -> None:
        """After what was given before. A file into which nothing was written is removed."""
        if self._writing is not None:
            await self._writing
        if os.fstat(self._fd).st_size == 0:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)
