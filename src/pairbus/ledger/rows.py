"""The schema of the ledger: a row, and its encoding as a line. No clock, no file.

A field that has no meaning for a row is absent from its line and None in `Row`. A reader ignores fields that it does
not know, so a field may be added without a new version; a change of a meaning needs a higher `SCHEMA`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, NamedTuple, get_type_hints

from pairbus.errors import LedgerNewer

SCHEMA = 1
TEXT_MAX = 1000  # characters of one text; error texts of a service can be pages long

SideName = Literal["primary", "secondary"]
MeterKind = Literal[
    "send", "receive", "empty receive", "ping", "complete", "renew", "peek", "management", "failed send"
]
Cause = Literal["application", "failover", "syphon", "spool", "pairing"]
"Cause of an operation: without pairing only operations of the application would be billed."

LOST_ROWS = "lost rows"
SETTLED: MeterKind = "complete"
SETTLEMENTS = "settlements"
"Name in the details of a row of lost rows."
EVENT = "event"
KIND_OF_EVENT = {"Diverted": "diverted", "Moved": "moved"}
"Events of single messages, with their own kinds; all other events are of kind `event`."

BILLING_UNIT_BYTES = 64 * 1024
FAILED_SEND: MeterKind = "failed send"
"Kind of a call that ended with an error: its attempts have rows of their own, so this row bills nothing."
UNREACHED = "communication"
"Outcome of an attempt that lost its connection or never had one: it is not billed."


def billable_operations(sizes: Iterable[int]) -> int:
    """Count billable operations: one for each started 64 KB of each message, and one for an empty message."""
    return sum(max(1, -(-size // BILLING_UNIT_BYTES)) for size in sizes)


def billing_groups(sizes: Iterable[int]) -> list[tuple[int, int]]:
    """Return (messages, bytes) of groups that `Ledger.meter` bills exactly: up to 64 KB together, larger ones alone."""
    small_count = small_bytes = 0
    groups: list[tuple[int, int]] = []
    for size in sizes:
        if size <= BILLING_UNIT_BYTES:
            small_count += 1
            small_bytes += size
        else:
            groups.append((1, size))
    return [(small_count, small_bytes), *groups] if small_count else groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the ledger. `docs/ledger.md` explains each field, and which kinds of row have it."""

    schema: int
    time: str
    client: str
    pid: int
    run: str
    kind: str
    event: str | None = None
    side: str | None = None
    namespace: str | None = None
    entity: str | None = None
    queue: str | None = None
    message_id: str | None = None
    cause: str | None = None
    outcome: str | None = None
    count: int | None = None
    billable_operations: int | None = None
    bytes: int | None = None
    rows: int | None = None
    since: str | None = None
    details: Mapping[str, Any] | None = None

    @property
    def at_s(self) -> float:
        """`time` in seconds since 1970."""
        return datetime.fromisoformat(self.time).timestamp()


class RemovedFile(NamedTuple):
    """Sums of a file that was removed from a full folder: an entry of `details.removed` in a row of lost rows."""

    size: int
    "Bytes of the file's whole lines."
    rows: int
    counted: int
    billable_operations: int
    bytes: int
    settlements: int = 0
    "Settlements among the billable operations, which not every way of counting bills."

    def plus(self, other: RemovedFile) -> RemovedFile:
        """Add sums; the size stays."""
        return RemovedFile(self.size, *(mine + its for mine, its in zip(self[1:], other[1:], strict=True)))

    def minus(self, other: RemovedFile) -> RemovedFile:
        """Subtract sums, never below zero; the size stays."""
        return RemovedFile(self.size, *(max(mine - its, 0) for mine, its in zip(self[1:], other[1:], strict=True)))


def removed_files(details: Mapping[str, Any] | None) -> dict[str, RemovedFile]:
    """Return the removed files that a row of lost rows stands for, by name. Rows of releases before 0.4 name none."""
    files_removed = (details or {}).get("removed")
    files = {}
    for name, sums in files_removed.items() if isinstance(files_removed, dict) else ():
        if isinstance(sums, list) and 5 <= len(sums) <= 6 and all(type(number) is int for number in sums):
            files[name] = RemovedFile(*sums)
    return files


def lost_details(files: Mapping[str, RemovedFile], settlements: int) -> dict[str, Any] | None:
    """Return the details of a row of lost rows: the removed files, and the settlements among all its operations."""
    details: dict[str, Any] = {"files": len(files), "removed": files} if files else {}
    return details | ({SETTLEMENTS: settlements} if settlements else {}) or None


def lost_settlements(details: Mapping[str, Any] | None) -> int:
    """Return the settlements among the operations of a row of lost rows; 0 where the row has no such number."""
    settlements = (details or {}).get(SETTLEMENTS)
    return settlements if type(settlements) is int and settlements > 0 else 0


@dataclass(frozen=True, slots=True)
class Author:
    """Identifies the writer, the same on every row of one process."""

    client: str
    pid: int
    run: str

    def row(self, at_s: float, kind: str, **values: Any) -> Row:
        return Row(
            schema=SCHEMA, time=time_text(at_s), client=self.client, pid=self.pid, run=self.run, kind=kind, **values
        )


def time_text(at_s: float) -> str:
    """Return the time as text in UTC, always of one length, so that texts sort as times do."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def day_of(at_s: float) -> str:
    return time_text(at_s)[:10]


def event_lines(author: Author, event: object, at_s: float) -> list[bytes]:
    """Encode an event, any dataclass, as one line, or one for each of its messages; its name is that of its class."""
    name = type(event).__name__
    details = {field: _plain(getattr(event, field)) for field in getattr(event, "__dataclass_fields__", ())}
    details.pop("at_s", None)
    columns = {"entity": details.pop("path", None)}
    columns.update((field, details.pop(field, None)) for field in ("queue", "side", "message_id"))
    ids = details.pop("message_ids", None)
    if ids:
        details.pop("count", None)  # a count on each row of the event would be added up
        columns["message_id"] = _ANY_ID
    row = author.row(at_s, KIND_OF_EVENT.get(name, EVENT), event=name, details=details or None, **columns)
    line = encode(row)
    if not ids:
        return [line]
    # A syphon moves thousands of messages a second, in events of a hundred: only the id is encoded for each of them.
    head, _, tail = line.partition(_to_json(_ANY_ID).encode("ascii"))
    return [head + _to_json(message_id).encode("ascii") + tail for message_id in ids]


def _plain(value: object) -> Any:
    """Return the value of a field in a form that JSON has."""
    if isinstance(value, str):
        return value[:TEXT_MAX]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value)[:TEXT_MAX]


_ANY_ID = "\0"
_to_json = json.JSONEncoder(separators=(",", ":")).encode


def encode(row: Row) -> bytes:
    present = {name: value for name in _names() if (value := getattr(row, name)) is not None}
    return _to_json(present).encode("ascii") + b"\n"


def decode(line: bytes) -> Row:
    """Decode a line; ValueError when it is not a whole row, LedgerNewer when a newer version wrote it."""
    values = json.loads(line)
    if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
        raise ValueError("not a row of a ledger")
    if values["schema"] > SCHEMA:
        raise LedgerNewer(
            f"a row has schema {values['schema']}, and this version of Pairbus knows {SCHEMA}: upgrade it"
        )
    present = {name: values[name] for name in _names() if values.get(name) is not None}
    for name, value in present.items():
        if not isinstance(value, _types()[name]) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}")
    if missing := [field.name for field in fields(Row)[:6] if field.name not in present]:
        raise ValueError(f"{', '.join(missing)} missing")
    return Row(**present)


@cache
def _names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Row))


@cache
def _types() -> dict[str, type]:
    """Return the type of each field as JSON gives it: text, whole number or object."""
    hints = get_type_hints(Row)
    return {name: next((kind for kind in (str, int) if hints[name] in (kind, kind | None)), dict) for name in _names()}


def operations_by_cause(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """Add up operations, and billable operations, by their cause."""
    operations: Counter[str] = Counter()
    billable: Counter[str] = Counter()
    for row in rows:
        if row.cause is not None:
            operations[row.cause] += row.count or 0
            billable[row.cause] += row.billable_operations or 0
    return {"operations": dict(sorted(operations.items())), "billable_operations": dict(sorted(billable.items()))}
