"""The store without a disk: what the contract means, in its plainest form. The oracle of the contract test, the twin
for tests of everything above the store, and the broker's `--data :memory:`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from typing import Any

from pairbus.broker.store import (
    Delete,
    Done,
    DropQueue,
    Forget,
    IndexRow,
    Insert,
    Move,
    PutQueue,
    Recovered,
    RecoveredQueue,
    Remember,
    StoredMessage,
    Update,
    Write,
    box_of,
    dead_box_of,
)
from pairbus.errors import StoreError

_GONE: Any = object()


def _snapshot(op: Write) -> Write:
    """The write with messages of its own: what the caller changes afterwards was not written."""
    match op:
        case Insert(box, messages):
            return Insert(box, [message.revised() for message in messages])
        case Delete(box, seqs):
            return Delete(box, list(seqs))
        case Update(box, message):
            return Update(box, message.revised())
        case Move(box, seq, to_box, message):
            return Move(box, seq, to_box, message.revised())
        case Remember(queue_id, ids):
            return Remember(queue_id, list(ids))
        case _:
            return op


class MemoryStore:
    """See the contract in `pairbus.broker.store`.

    `schedule` is how a commit is put off: it gets a callable to call later. Without it a commit runs soon on the
    running event loop; where none runs, nothing is committed until `commit` is called, so that a test decides when.
    """

    def __init__(self, schedule: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._schedule = schedule
        self._descriptions: dict[int, str] = {}
        self._boxes: dict[int, dict[int, StoredMessage]] = {}
        self._last_seq: dict[int, int] = {}
        self._remembered: dict[int, dict[str, int]] = {}
        self._highest: dict[str, int] = {"queue_id": 0}
        self._writes: list[Write] = []
        self._callbacks: list[Done] = []
        self._scheduled = False
        self._failure: StoreError | None = None
        self._closed: StoreError | None = None
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    # ── for tests ──

    def commit(self) -> None:
        """Apply the current group and call its callbacks."""
        self._scheduled = False
        writes, self._writes = self._writes, []
        callbacks, self._callbacks = self._callbacks, []
        failure, self._failure = self._closed or self._failure, None
        if failure is None:
            failure = self._apply_all(writes)
        for done in callbacks:
            done(failure)

    def fail_next(self, error: StoreError) -> None:
        """The next group fails with this error, and nothing of it is applied."""
        self._failure = error

    # ── the contract ──

    def recover(self) -> Recovered:
        self._closed = None  # opened again, with what it kept
        queues = [
            RecoveredQueue(queue_id, description, self._last_seq[queue_id])
            for queue_id, description in sorted(self._descriptions.items())
        ]
        return Recovered(queues, [], self._highest["queue_id"])

    def index(self, box: int) -> Iterator[IndexRow]:
        for _, message in sorted(self._boxes.get(box, {}).items()):
            yield message.seq, message.state, message.expires_ms, message.scheduled_ms, message.size

    def remembered(self, queue_id: int) -> list[tuple[str, int]]:
        return list(self._remembered.get(queue_id, {}).items())

    def write(self, op: Write) -> None:
        self._writes.append(_snapshot(op))
        self._commit_later()

    def after_commit(self, done: Done) -> None:
        self._callbacks.append(done)
        self._commit_later()

    def probe(self, done: Done) -> None:
        self.after_commit(done)

    def load(self, box: int, seqs: Sequence[int]) -> tuple[list[StoredMessage], list[int]]:
        messages = self._readable(box)
        return [messages[seq].revised() for seq in sorted(set(seqs)) if seq in messages], []

    def scan(self, box: int, from_seq: int, limit: int) -> list[StoredMessage]:
        messages = self._readable(box)
        return [messages[seq].revised() for seq in nsmallest(limit, (seq for seq in messages if seq >= from_seq))]

    def _readable(self, box: int) -> dict[int, StoredMessage]:
        if self._closed is not None:
            raise self._closed
        return self._boxes.get(box, {})

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
        if self._scheduled:  # unless someone was faster with `commit`
            self.commit()

    def _apply_all(self, writes: list[Write]) -> StoreError | None:
        self._undo = []
        try:
            for op in writes:
                self._apply(op)
        except StoreError as error:
            for target, key, before in reversed(self._undo):
                if before is _GONE:
                    del target[key]
                else:
                    target[key] = before
            return error
        return None

    def _set(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        """Every change passes here, so that a failing group can be taken back."""
        before = target.get(key, _GONE)
        if value is _GONE and before is _GONE:
            return
        self._undo.append((target, key, before))
        if value is _GONE:
            del target[key]
        else:
            target[key] = value

    def _box(self, box: int) -> dict[int, StoredMessage]:
        if box not in self._boxes:
            raise StoreError(f"There is no box {box}.")
        return self._boxes[box]

    def _insert(self, box: int, message: StoredMessage) -> None:
        messages = self._box(box)
        if message.seq in messages:
            raise StoreError(f"Box {box} has a message {message.seq} already.")
        self._set(messages, message.seq, message)
        self._set(self._last_seq, box // 2, max(message.seq, self._last_seq[box // 2]))

    def _apply(self, op: Write) -> None:
        match op:
            case Insert(box, messages):
                for message in messages:
                    self._insert(box, message)
            case Delete(box, seqs):
                for seq in seqs:
                    self._set(self._box(box), seq, _GONE)
            case Update(box, message):
                stored = self._box(box).get(message.seq)
                if stored is not None:
                    self._set(self._box(box), message.seq, message.revised(body=stored.body))
            case Move(box, seq, to_box, message):
                stored = self._box(box).get(seq)
                if stored is not None:
                    self._set(self._box(box), seq, _GONE)
                    self._insert(to_box, message.revised(body=stored.body))
            case Remember(queue_id, ids):
                remembered = self._remembered.setdefault(queue_id, {})
                for message_id, until_ms in ids:
                    self._set(remembered, message_id, max(until_ms, remembered.get(message_id, 0)))
            case Forget(queue_id, until_ms):
                remembered = self._remembered.get(queue_id, {})
                for message_id in [each for each, until in remembered.items() if until <= until_ms]:
                    self._set(remembered, message_id, _GONE)
            case PutQueue(queue_id, description):
                self._put_queue(queue_id, description)
            case DropQueue(queue_id):
                for target in (self._descriptions, self._last_seq, self._remembered):
                    self._set(target, queue_id, _GONE)
                for box in (box_of(queue_id), dead_box_of(queue_id)):
                    self._set(self._boxes, box, _GONE)

    def _put_queue(self, queue_id: int, description: str) -> None:
        if queue_id not in self._descriptions:
            for box in (box_of(queue_id), dead_box_of(queue_id)):
                self._set(self._boxes, box, {})
            self._set(self._last_seq, queue_id, 0)
        self._set(self._descriptions, queue_id, description)
        self._set(self._highest, "queue_id", max(queue_id, self._highest["queue_id"]))
