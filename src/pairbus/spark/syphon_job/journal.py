"""The journal of a Spark syphon: a row for every message that came home, written before it leaves its backlog queue.

    LOCATION/                               storage that every host sees: a folder, or a path in an object store
        journal/day=2026-11-15/*.jsonl      a record for each attempt of a task: one file that is appended to, or one
                                            object for each append; never rewritten
        reports/RUN/*.json                  how each task ended: the basis of the driver's decisions
        missing/*.json                      destinations that do not exist, and since when
        checkpoint/, moves/, ledger/        Spark's own, and the tables that `compaction` makes; in a folder alone

Laws of this file.
 1. `append` returns when the lines are durable. Calls that wait at the same time share one fsync, or one object.
 2. After a failed write no more lines are written to that record: only the last line of a file can ever be torn.
 3. A row says that the destination has accepted the message. A message that was sent twice has two rows.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pairbus.errors import ConfigError
from pairbus.ledger.rows import day_of
from pairbus.spark.storage import Appender, LargeStorage
from pairbus.spark.storage.locations import is_url
from pairbus.spark.storage.opening import check_access, open_storage

SCHEMA = 1
MOVED, DEAD_LETTERED = "moved", "dead-lettered"
JOURNAL, MISSING = "journal/", "missing/"
_MARK, _STOP, _OVER = "location.json", "stop", "over"
_DONE = b"{}"  # content of an object whose name says all
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class JournalRow(NamedTuple):
    """One message of the journal, and of the rows that a task yields to Spark. Times are milliseconds since 1970."""

    outcome: str
    queue: str
    queue_created_ms: int | None
    "Time at which the queue was created; None: not known. Sequence numbers begin again with a new queue."
    sequence_number: int | None
    message_id: str | None
    destination: str | None
    size_bytes: int | None
    enqueued_ms: int | None
    "Time at which the backlog queue got the message."
    first_attempt_ms: int | None
    "Time of the first send to the primary, only if that may have stored the message all the same."
    at_ms: int
    "Time at which the destination had accepted the message."
    attempt: str
    "Attempt of the task, which names its file."
    reason: str | None


def encode_rows(rows: Iterable[JournalRow]) -> list[bytes]:
    """Return rows as lines. Only the message id is encoded for each row; the other texts are reused."""
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
    """Storage that all hosts share. Pickled: it holds the place of a key, and no key."""

    root: Path | str
    "A folder, or the URL of a path in an object store."
    credential: str | None = None
    "Credential of an object store: `env:NAME`, `@FILE`, `default` or `MODULE:CALLABLE`."

    @property
    def storage(self) -> LargeStorage:
        return open_storage(str(self.root), self.credential)

    @property
    def folder(self) -> Path | None:
        """Folder of the location, where Spark can write too; None when it is an object store."""
        return None if is_url(str(self.root)) else Path(self.root)

    def prepare(self, run: str) -> None:
        """Prepare the location on the driver, before a query starts. OSError when it cannot be written; ConfigError for
        a mistake, such as a wrong key."""
        check_access(self.storage)
        self.storage.put(_of_run(run, _MARK), _to_json({"run": run, "host": socket.gethostname()}).encode())

    def check_shared(self, run: str) -> None:
        """Check in a worker that this is the location that the driver has prepared."""
        if not self.storage.exists(_of_run(run, _MARK)):
            raise ConfigError(
                f"host {socket.gethostname()} does not see the journal location {self.root} of the driver:"
                " give a folder that every host of the cluster shares"
            )

    def ask_to_stop(self, run: str) -> None:
        self.storage.put(_of_run(run, _STOP), _DONE)

    def is_asked_to_stop(self, run: str) -> bool:
        return self.storage.exists(_of_run(run, _STOP))

    def end(self, run: str) -> None:
        """Note that a single drain is over."""
        self.storage.put(_of_run(run, _OVER), _DONE)

    def begin(self, run: str, tick: int, task: int) -> None:
        """Note that a task of a round has begun: the others share a budget with it."""
        self.storage.put(_of_run(run, f"begun-{tick}-{task}"), _DONE)

    def forget(self, run: str, name: str) -> None:
        """Remove a report, or a note of a task that has begun."""
        self.storage.delete(_of_run(run, name))

    def new_record(self, attempt: str, at_s: float) -> Appender:
        return self.storage.appender(f"{JOURNAL}day={day_of(at_s)}/{attempt}.jsonl")

    def look(self, run: str) -> RunLook:
        """Look once at the run: one call of the storage, because each call may cost money."""
        return RunLook(self, run, self.storage.list(_of_run(run, "")))


@dataclass(frozen=True, slots=True)
class RunLook:
    """The objects of a run at one time."""

    location: Location
    run: str
    names: list[str]

    @property
    def is_asked_to_stop(self) -> bool:
        return _STOP in self.names

    @property
    def has_ended(self) -> bool:
        return _OVER in self.names

    @property
    def reports(self) -> list[str]:
        """Names of the reports, in the order of ticks."""
        return [name for name in self.names if name[:1].isdigit() and name.endswith(".json")]

    def begun(self, tick: int) -> dict[int, str]:
        """Return the tasks of a round that have begun, each with the name of its note."""
        start = f"begun-{tick}-"
        return {int(name.removeprefix(start)): name for name in self.names if name.startswith(start)}

    def read_reports(self, without: Container[str] = (), tick: int | None = None) -> Iterator[tuple[str, TaskReport]]:
        """Yield each report with its name, in the order of ticks; without those named in `without`; of one tick only if
        it is given."""
        start = "" if tick is None else f"{tick:010d}-"
        for name in self.reports:
            if name not in without and name.startswith(start):
                data = self.location.storage.get(_of_run(self.run, name))
                if data is not None:
                    values = json.loads(data)
                    yield name, TaskReport(**{**values, "problems": tuple(values["problems"])})


def _of_run(run: str, name: str) -> str:
    return f"reports/{run}/{name}"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Says how one attempt of a task ended."""

    tick: int
    queue: str
    moved: int = 0
    "Messages that their destinations accepted."
    dead_lettered: int = 0
    held: int = 0
    "Messages left under their locks."
    errors: int = 0
    busy: bool = False
    "True when a destination was busy and asked for a lower rate."
    more: bool = False
    "True when the task ended because of its quota: there are probably more messages."
    problems: tuple[str, ...] = ()
    "Reasons why messages stayed, in words."
    task: int = 0
    "Number of the task in its round, the same for every attempt."
    began_ms: int = 0
    ended_ms: int = 0
    "Time of the end; like `began_ms` by the clock of its host."

    def write(self, location: Location, run: str, attempt: str) -> None:
        """Write the report without a sync: a report that a power failure loses was only advice."""
        values = {name: getattr(self, name) for name in self.__slots__}
        location.storage.put(_of_run(run, f"{self.tick:010d}-{attempt}.json"), _to_json(values).encode())


class Journal:
    """One record, written by one event loop. Open it before the first message is touched, to notice a bad disk."""

    def __init__(self, record: Appender) -> None:
        self._record = record
        self._pending: list[bytes] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    async def append(self, lines: list[bytes]) -> None:
        """Append lines and wait until they are durable. OSError when they may not be; then the journal is unusable."""
        if self._failure is not None:
            raise _new_error(self._failure)
        written = asyncio.get_running_loop().create_future()
        self._waiters.append(written)
        self.append_soon(lines)
        await written

    def append_soon(self, lines: list[bytes]) -> None:
        """Append lines without waiting for them to be durable."""
        self._pending += lines
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._pending:
            lines, self._pending = self._pending, []
            waiters, self._waiters = self._waiters, []
            if self._failure is None:
                try:
                    await asyncio.to_thread(self._record.append, b"".join(lines))
                except Exception as error:  # every waiter is told, whatever it is; `close` raises what is no OSError
                    self._failure = error
            for waiter in waiters:
                if waiter.done():
                    continue  # its task was cancelled
                if self._failure is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(_new_error(self._failure))
        self._writing = None

    async def close(self) -> None:
        """Close the record after all lines given before. An empty record is removed.

        Raises the error that ended the journal when it is no OSError, such as ConfigError for a key that is refused:
        the pumps have stopped in order by then, and the task is to end with it.
        """
        if self._writing is not None:
            await self._writing
        self._record.close()
        if self._failure is not None and not isinstance(self._failure, OSError):
            raise self._failure


def _new_error(failure: Exception) -> OSError:
    """Return the error for one waiter: one instance raised twice would mix two tracebacks."""
    return OSError(*failure.args) if isinstance(failure, OSError) else OSError(str(failure))
