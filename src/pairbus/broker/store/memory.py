"""The store without a disk: the contract in its plainest form. The oracle of the contract test, the twin for tests of
all code above the store, and the broker's `--data :memory:`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pairbus.broker.store import (
    UNLIMITED,
    Delete,
    Done,
    DropEntity,
    EraseEntity,
    Forget,
    Hindrance,
    IndexRow,
    Insert,
    InsertPayload,
    Loaded,
    Move,
    PayloadRow,
    PutEntity,
    RaiseSeq,
    RecoveredEntity,
    RecoveredStore,
    Remember,
    SetSessionState,
    StateRow,
    StoredMessage,
    Update,
    Write,
    entity_of,
)
from pairbus.broker.store.commit_times import CommitTimes
from pairbus.broker.store.group import SETTLING
from pairbus.broker.store.room_check import RoomCheck
from pairbus.broker.store.units import Units
from pairbus.errors import StoreError, StoreFull

if TYPE_CHECKING:
    from pairbus.broker.store.backup import Backup

_GONE: Any = object()


def _takes_room(op: Write) -> bool:
    is_state = isinstance(op, SetSessionState) and op.state is not None
    return is_state or isinstance(op, Insert | InsertPayload | PutEntity | Remember)


def _snapshot(op: Write) -> Write:
    """Return the write with its own copies of messages: later changes by the caller are not written."""
    match op:
        case Insert(box, messages):
            return Insert(box, [message.revised() for message in messages])
        case Delete(box, numbers, payloads):
            return Delete(box, list(numbers), list(payloads))
        case Update(box, message):
            return Update(box, message.revised())
        case Move(box, n, to_box, message):
            return Move(box, n, to_box, message.revised())
        case Remember(entity_id, ids):
            return Remember(entity_id, list(ids))
        case _:
            return op


def _head(message: StoredMessage) -> StoredMessage:
    head = message.revised()
    head.drop_body()
    return head


class MemoryStore(Units):
    """Store in memory; see the contract in `pairbus.broker.store`.

    `schedule` puts a commit off: it gets a callable to call later. Without it a commit runs soon on the running event
    loop; where no loop runs, commits wait until `commit` is called, so that a test decides when.
    """

    def __init__(self, schedule: Callable[[Callable[[], None]], object] | None = None) -> None:
        self.hindrance: Hindrance | None = None
        self.commit_times: CommitTimes | None = None
        self._schedule = schedule
        self._descriptions: dict[int, str] = {}
        "Descriptions by entity; a dropped entity that is not erased has an empty text."
        self._rows: dict[int, tuple[int, StoredMessage]] = {}
        "n → (box, message); a message that shares a payload has no body here."
        self._last_seq: dict[int, int] = {}
        self._remembered: dict[int, dict[str, int]] = {}
        self._payloads: dict[int, tuple[int, bytes]] = {}
        self._states: dict[int, SetSessionState] = {}
        self._shared: dict[int, int] = {}
        self._highest: dict[str, int] = {"id": 0}
        self._last_n = 0
        self._writes: list[Write] = []
        self._callbacks: list[tuple[Done, int]] = []
        "Callbacks, each with the number of writes before it. The writes between two callbacks are a unit."
        self._room_check: RoomCheck | None = None
        "Question of the probes among the callbacks; None: there are no probes."
        self._scheduled = False
        self._failure: StoreError | None = None
        self._closed: StoreError | None = None
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._released: set[int] = set()
        "Payloads that a row of the current group released; another row of the group may share them."

    # ── for tests ──

    def commit(self) -> None:
        """Apply the current group and call its callbacks."""
        self._scheduled = False
        writes, self._writes = self._writes, []
        callbacks, self._callbacks = self._callbacks, []
        self._room_check = None
        failure, self._failure = self._closed or self._failure, None
        if failure is None:
            failure = self._apply_all(writes)
        for done, _ in callbacks:
            done(failure)

    def fail_next(self, error: StoreError) -> None:
        """Let the next group fail with this error: none of its writes is applied."""
        self._failure = error

    # ── the contract ──

    def recover(self) -> RecoveredStore:
        self._closed = None  # opened again, with its old contents
        entities = [
            RecoveredEntity(entity_id, description, self._last_seq[entity_id])
            for entity_id, description in sorted(self._descriptions.items())
            if description
        ]
        dropped = [entity_id for entity_id, description in sorted(self._descriptions.items()) if not description]
        return RecoveredStore(entities, [], self._highest["id"], dropped)

    def index(self) -> Iterator[IndexRow]:
        for n, (box, one) in sorted(self._rows.items()):
            yield IndexRow(
                n, box, one.seq, one.state, one.expires_ms, one.scheduled_ms, one.size, one.payload, one.session_id
            )

    def payloads(self) -> Iterator[PayloadRow]:
        for payload, (topic_id, body) in sorted(self._payloads.items()):
            yield payload, topic_id, len(body)

    def remembered(self, entity_id: int) -> list[tuple[str, int]]:
        return list(self._remembered.get(entity_id, {}).items())

    def session_states(self) -> Iterator[StateRow]:
        for n, row in sorted(self._states.items()):
            yield StateRow(n, row.entity_id, row.session_id, row.updated_ms, len(row.state or b""))

    def load_state(self, n: int) -> bytes | None:
        self._check_open()
        row = self._states.get(n)
        return None if row is None else row.state

    def number(self, count: int = 1) -> int:
        first = self._last_n + 1
        self._last_n += count
        return first

    def write(self, op: Write) -> None:
        if self._unit is not None:
            self._unit.writes.append(_snapshot(op))
            return
        self._writes.append(_snapshot(op))
        self._commit_later()

    def after_commit(self, done: Done) -> None:
        if self._unit is not None:
            self._unit.callbacks.append(done)
            return
        self._callbacks.append((done, len(self._writes)))
        self._commit_later()

    def probe(self, done: Done) -> None:
        if self._room_check is None:
            self._room_check = RoomCheck()
        self.after_commit(partial(self._room_check.tell, done))

    def load(self, box: int, numbers: Sequence[int], size_max: int = UNLIMITED, *, with_bodies: bool = True) -> Loaded:
        self._check_open()
        messages: list[StoredMessage] = []
        ordered, size = sorted(set(numbers)), 0
        for place, n in enumerate(ordered):
            if size >= size_max:
                return Loaded(messages, [], ordered[place:])
            row = self._rows.get(n)
            if row is not None and row[0] == box:
                message = self._whole(row[1]) if with_bodies else _head(row[1])
                messages.append(message)
                size += message.size if with_bodies else message.size - len(row[1].body)
        return Loaded(messages, [], [])

    def _whole(self, message: StoredMessage) -> StoredMessage:
        body = self._payloads[message.payload][1] if message.payload else message.body
        return message.revised(body=body)

    def seq_of(self, box: int, n: int) -> int:
        self._check_open()
        row = self._rows.get(n)
        return 0 if row is None or row[0] != box else row[1].seq

    def payloads_of(self, numbers: Sequence[int]) -> list[int]:
        self._check_open()
        rows = [self._rows[n][1] for n in numbers if n in self._rows]
        return [message.payload for message in rows if message.payload]

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    async def back_up(self, backup: Backup) -> None:
        raise StoreError("This broker keeps its messages in memory: there is no store to back up.")

    async def close(self) -> None:
        self.commit()
        self._closed = StoreError("The store is closed.")

    # ── applying ──

    def _commit_later(self) -> None:
        if self._scheduled:
            return
        schedule = self._schedule
        if schedule is None:
            try:
                schedule = asyncio.get_running_loop().call_soon
            except RuntimeError:  # no loop: the test calls commit
                return
        self._scheduled = True
        schedule(self._commit_scheduled)

    def _commit_scheduled(self) -> None:
        if not self._scheduled:  # a call of `commit` came first
            return
        if self.hindrance is None:
            self.commit()
            return
        writes, self._writes = self._writes, []
        callbacks, self._callbacks = self._callbacks, []
        check, self._room_check = self._room_check, None
        takes_room = any(map(_takes_room, writes))
        self.hindrance(takes_room or check is not None, partial(self._commit_hindered, writes, callbacks, check))

    def _commit_hindered(
        self,
        writes: list[Write],
        callbacks: list[tuple[Done, int]],
        check: RoomCheck | None,
        error: StoreError | None,
    ) -> None:
        """Commit a group that had to wait, or fail it; then the groups behind it.

        On a full disk the units of settlements alone are committed, as the SQLite store does, and the probes fail.
        """
        if isinstance(error, StoreFull):
            if check is not None:
                check.error = error
            if not any(map(_takes_room, writes)):
                error = None  # only the probes need room
        if isinstance(error, StoreFull):
            results = self._settle_only(writes, [end for _, end in callbacks], error)
        else:
            results = [self._closed or error or self._apply_all(writes)] * len(callbacks)
        for (done, _), result in zip(callbacks, results, strict=True):
            done(result)
        if self._writes or self._callbacks:
            self._commit_scheduled()
        else:
            self._scheduled = False

    def _settle_only(self, writes: list[Write], ends: list[int], full: StoreFull) -> list[StoreError | None]:
        """Commit the units that only settle, and return the result of each unit."""
        units = [writes[start:end] for start, end in pairwise([0, *ends])]
        settles = [bool(unit) and all(type(op) in SETTLING for op in unit) for unit in units]
        settling = [op for unit, is_one in zip(units, settles, strict=True) if is_one for op in unit]
        settled = self._closed or self._apply_all(settling)
        return [settled if is_one else full for is_one in settles]

    def _apply_all(self, writes: list[Write]) -> StoreError | None:
        self._undo = []
        self._released = set()
        try:
            for op in writes:
                self._apply(op)
            for payload in self._released.difference(self._shared):
                self._set(self._payloads, payload, _GONE)
        except StoreError as error:
            for target, key, before in reversed(self._undo):
                if before is _GONE:
                    del target[key]
                else:
                    target[key] = before
            return error
        return None

    def _set(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        """Set or remove an entry; every change passes here, so that a failing group can be undone."""
        before = target.get(key, _GONE)
        if value is _GONE and before is _GONE:
            return
        self._undo.append((target, key, before))
        if value is _GONE:
            del target[key]
        else:
            target[key] = value

    def _insert(self, box: int, message: StoredMessage) -> None:
        if message.n in self._rows:
            raise StoreError(f"There is a row {message.n} already.")
        self._put(box, message)
        self._raise_seq(entity_of(box), message.seq)

    def _raise_seq(self, entity_id: int, seq: int) -> None:
        self._set(self._last_seq, entity_id, max(seq, self._last_seq.get(entity_id, 0)))

    def _put(self, box: int, message: StoredMessage) -> None:
        self._set(self._rows, message.n, (box, message.revised(body=b"") if message.payload else message))

    def _share(self, payload: int, rows: int) -> None:
        count = self._shared.get(payload, 0) + rows
        self._set(self._shared, payload, count if count > 0 else _GONE)

    def _apply(self, op: Write) -> None:  # noqa: PLR0912 - one branch for each case
        match op:
            case Insert(box, messages):
                for message in messages:
                    self._insert(box, message)
                    if message.payload:
                        self._share(message.payload, 1)
            case InsertPayload(payload, topic_id, body):
                if payload in self._payloads:
                    raise StoreError(f"There is a payload {payload} already.")
                self._set(self._payloads, payload, (topic_id, body))
            case Delete(_, numbers, payloads):
                for n in numbers:
                    self._set(self._rows, n, _GONE)
                for payload in payloads:
                    self._share(payload, -1)
                    self._released.add(payload)
            case Update(box, message):
                row = self._rows.get(message.n)
                if row is not None:
                    self._put(box, message.revised(body=row[1].body))
            case Move(_, n, to_box, message):
                row = self._rows.get(n)
                if row is not None:
                    self._insert(to_box, message.revised(body=row[1].body))
                    self._set(self._rows, n, _GONE)
            case _:
                self._apply_to_entity(op)

    def _apply_to_entity(self, op: Write) -> None:
        match op:
            case RaiseSeq(entity_id, seq):
                self._raise_seq(entity_id, seq)
            case Remember(entity_id, ids):
                remembered = self._remembered.setdefault(entity_id, {})
                for message_id, until_ms in ids:
                    self._set(remembered, message_id, max(until_ms, remembered.get(message_id, 0)))
            case Forget(entity_id, until_ms):
                remembered = self._remembered.get(entity_id, {})
                for message_id in [each for each, until in remembered.items() if until <= until_ms]:
                    self._set(remembered, message_id, _GONE)
            case SetSessionState():
                self._set(self._states, op.n, _GONE if op.state is None else op)
            case PutEntity(entity_id, description):
                if entity_id not in self._last_seq:
                    self._set(self._last_seq, entity_id, 0)
                self._set(self._descriptions, entity_id, description)
                self._set(self._highest, "id", max(entity_id, self._highest["id"]))
            case DropEntity(entity_id):
                self._set(self._descriptions, entity_id, "")
            case EraseEntity(entity_id):
                for target in (self._descriptions, self._last_seq, self._remembered):
                    self._set(target, entity_id, _GONE)
