"""A box in memory: which messages wait, which are locked, which are deferred.

A box knows its messages by the numbers of their rows. Within a box their order is the order of the sequence numbers.

Laws.
 1. A message of the box is in exactly one place: waiting (`Line`, or the line of its session), under a lock,
    deferred, scheduled (`Schedule`), or carried by a write that is not yet committed. Hence no
    write ever depends on another uncommitted one, and a failed commit can always put its messages back.
 2. `StoredMessage`s are never changed in place: stores and connections may hold the same object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import nsmallest

from pairbus.broker.boxes.holds import Holds
from pairbus.broker.boxes.line import CHUNK_MAX, READY_BYTES_MAX, Line, Surroundings
from pairbus.broker.boxes.locks import Lock, Locks
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.boxes.sessions import MessageSession, Sessions
from pairbus.broker.budget import WAITING_COST, MemoryBudget, Share
from pairbus.broker.store import ACTIVE, DEFERRED, Delete, IndexRow, Store, StoredMessage
from pairbus.errors import StoreError

__all__ = ["CHUNK_MAX", "Box", "Lock"]


def deletion(box: Box, messages: Sequence[StoredMessage]) -> Delete:
    """Return the write that deletes messages of a box."""
    return Delete(
        box.number, [message.n for message in messages], [message.payload for message in messages if message.payload]
    )


class Box:
    """One of the boxes of an entity. The entity writes; the box knows where each message is."""

    def __init__(
        self,
        number: int,
        store: Store,
        payloads: Payloads,
        *,
        budget: MemoryBudget,
        on_expired: Callable[[list[StoredMessage], int], None],
        on_freed: Callable[[Box], None] | None = None,
    ) -> None:
        """Make a box. With `on_freed` it has sessions; the function is called when a session that receivers may wait
        for has become free."""
        self.number = number
        self.receivable = True
        "False while the entity's status forbids receiving, and once it is closed."
        self.active_count = 0
        "Messages that wait, are locked, or are carried by a write."
        self.deferred_count = 0
        self.scheduled_count = 0
        self.lapsed_count = 0
        "Number of locks that expired since the start."
        self.size_bytes = 0
        "Bytes of all messages of the box, including those of uncommitted sends."
        self.shared_bytes = 0
        "Part of `size_bytes` that is in payloads, which other boxes may share."
        self.accessed_ms = 0
        self.deferred: dict[int, int] = {}
        "Sequence number → row number."
        self._store = store
        self._payloads = payloads
        self._index = budget.index.share()
        self._ready = budget.ready
        around = Surroundings(self._load, self._load_heads, self._seq_of, self.chunk_size, on_expired, budget.ready)
        self._line: Line | Sessions
        self._plain: Line | None = None
        "Line of a box without sessions."
        self.locks: Locks | Holds
        self.sessions: Sessions | None = None
        "Sessions of the box, when its messages belong to sessions: they wait there."
        self.holds: Holds | None = None
        if on_freed is not None:
            self._line = self.sessions = Sessions(around, partial(on_freed, self))
            self.locks = self.holds = Holds(self.sessions, self.give_back)
        else:
            self._line = self._plain = Line(around)
            self.locks = Locks()

    def __repr__(self) -> str:
        return f"<Box {self.number} active={self.active_count} locked={len(self.locks)} deferred={self.deferred_count}>"

    # ── messages come in ──

    def recover(self, row: IndexRow) -> bool:
        """Take an ACTIVE or DEFERRED row of the store's index, in ascending order; False: its payload is missing."""
        n, _, seq, state, expires_ms, _, size, payload, _ = row
        if payload:
            if not self.recover_size(row):
                return False
        else:
            self.size_bytes += size
        if state == DEFERRED:
            self.deferred[seq] = n
            self.deferred_count += 1
            if self.sessions is not None:
                self.sessions.recover_deferred(row.session_id, row.seq, row.n)
            return True
        self.active_count += 1
        if self._plain is not None:
            self._plain.recover(n, expires_ms)
        else:
            assert self.sessions is not None
            self.sessions.recover(row.session_id, n, expires_ms)
        return True

    def recover_size(self, row: IndexRow) -> bool:
        """Count the size of a row of the index; False: its payload is missing."""
        size = row.size
        if row.payload:
            shared = self._payloads.size_of(row.payload)
            if shared is None:
                return False
            self._payloads.add_sharer(row.payload)
            self.shared_bytes += shared
            size += shared
        self.size_bytes += size
        return True

    def admit(self, messages: Sequence[StoredMessage]) -> None:
        """Take committed messages that are new in this box and ACTIVE."""
        self.active_count += len(messages)
        self._index.take(WAITING_COST * len(messages))
        self._line.admit(messages)

    def accept(self, messages: Sequence[StoredMessage]) -> None:
        """Take committed messages that come from another box and are ACTIVE: `admit`, and count their sizes."""
        for message in messages:
            self.size_bytes += message.size
            if message.payload:
                self.share(message)
        self.admit(messages)

    def share(self, message: StoredMessage) -> None:
        """Count the payload that a new committed message of this box shares."""
        self.shared_bytes += self._payloads.size_of(message.payload) or 0
        self._payloads.add_sharer(message.payload)

    def give_back(self, message: StoredMessage) -> None:
        """Make a message that was handed out available again, in its old place in the order."""
        if message.state == DEFERRED:
            self._keep_deferred(message)
        else:
            self._line.give_back(message)

    def defer(self, message: StoredMessage) -> None:
        """Note that an ACTIVE message of the box is now DEFERRED."""
        self.active_count -= 1
        self.deferred_count += 1
        self._keep_deferred(message)

    def _keep_deferred(self, message: StoredMessage) -> None:
        self.deferred[message.seq] = message.n
        if self.sessions is not None:
            self.sessions.defer(message)

    def take_deferred(self, messages: Iterable[StoredMessage]) -> None:
        """Hand out deferred messages."""
        for message in messages:
            del self.deferred[message.seq]
            if self.sessions is not None:
                self.sessions.take_deferred(message)

    def forget(self, messages: Sequence[StoredMessage]) -> None:
        """Remove messages that were handed out and have left the box for good."""
        self.size_bytes -= sum([message.size for message in messages])
        sharing = [message for message in messages if message.payload]
        if sharing:
            self.shared_bytes -= sum([self._payloads.size_of(message.payload) or 0 for message in sharing])
            self._payloads.release([message.payload for message in sharing])
        self._index.give(WAITING_COST * len(messages))
        active_count = [message.state for message in messages].count(ACTIVE)
        self.active_count -= active_count
        self.deferred_count -= len(messages) - active_count
        if self.sessions is not None:
            self.sessions.forget(messages)

    # ── messages go out ──

    def available(self, now_ms: int) -> bool:
        """Return whether `lock_next` is worth a call. It may still find that all messages have expired."""
        return self.receivable and self._line.available(now_ms)

    def lock_next(
        self, limit: int, now_ms: int, session: MessageSession | None = None, share: Share | None = None
    ) -> list[Lock]:
        """Lock the first waiting messages, at most `limit`; of the session, where the box has sessions. An empty list:
        no message waits. `share` is what the receiver holds of the budget.

        StoreError: the messages could not be read; they still wait.
        """
        messages = self._next(limit, now_ms, session)
        return self.locks.make(messages, now_ms, share) if messages else []

    def take_next(
        self, now_ms: int, done: Callable[[StoredMessage | None], None], session: MessageSession | None = None
    ) -> StoredMessage | None:
        """Receive and delete one message, and return it; None when no message waits (`done` is not called).

        Otherwise `done(message)` follows when the deletion is durable: at most once. `done(None)` means that the
        store failed and the message waits again; the receiver's credit is not used up, so try again later.
        """
        messages = self._next(1, now_ms, session)
        if not messages:
            return None
        self._store.write(deletion(self, messages))
        self._store.after_commit(partial(self._taken, messages[0], done))
        return messages[0]

    def _taken(
        self, message: StoredMessage, done: Callable[[StoredMessage | None], None], error: StoreError | None
    ) -> None:
        if error is not None:
            self.give_back(message)
            done(None)
            return
        self.forget((message,))
        done(message)

    def withdraw(
        self, limit: int, now_ms: int, session: MessageSession | None = None, *, size_max: int = sys.maxsize
    ) -> list[StoredMessage]:
        """Return up to `limit` waiting messages in order; of the session, where the box has sessions. They belong to
        the caller until it gives back or forgets them.

        The search ends when their bytes have reached `size_max`.
        """
        withdrawn: list[StoredMessage] = []
        size = 0
        try:
            while (
                len(withdrawn) < limit
                and size < size_max
                and (messages := self._next(limit - len(withdrawn), now_ms, session))
            ):
                withdrawn += messages
                size += sum([message.size for message in messages])
        except StoreError:
            for message in withdrawn:
                self.give_back(message)
            raise
        return withdrawn

    def waiting_numbers(self, count: int) -> list[int]:
        """Return the `count` lowest row numbers of messages that wait, ascending."""
        return nsmallest(count, self._line.numbers_from(0, count))

    def withdraw_these(self, numbers: Sequence[int]) -> list[StoredMessage]:
        """Return messages of a box without sessions, by row numbers that `waiting_numbers` has just named.

        They belong to the caller until it gives them back, or forgets them and trims. Damaged ones are missing; the
        last ones still wait when those before them have a megabyte.
        StoreError: they could not be read; they still wait.
        """
        assert self._plain is not None
        return self._plain.withdraw(numbers)

    def _next(self, limit: int, now_ms: int, session: MessageSession | None) -> list[StoredMessage]:
        if not self.receivable:
            return []
        self.accessed_ms = now_ms
        if self._plain is not None:
            return self._plain.next(limit, now_ms)
        assert self.sessions is not None and session is not None, "a receiver of this box holds a session"
        return self.sessions.next(session, limit, now_ms)

    def _load(self, numbers: Sequence[int]) -> tuple[list[StoredMessage], list[int]]:
        messages, _, rest = self._store.load(self.number, numbers, READY_BYTES_MAX)
        self._leave_out(len(numbers) - len(rest) - len(messages))
        return messages, rest

    def _load_heads(self, numbers: Sequence[int]) -> tuple[list[StoredMessage], list[int]]:
        messages, rest = self.heads(numbers)
        self._leave_out(len(numbers) - len(rest) - len(messages))
        return messages, rest

    def _leave_out(self, damaged: int) -> None:
        """Count damaged messages no more: the store reports them."""
        if damaged:
            self.active_count -= damaged
            self._index.give(WAITING_COST * damaged)

    def heads(self, numbers: Sequence[int]) -> tuple[list[StoredMessage], list[int]]:
        """Return (messages of the box without their bodies, until their heads have a megabyte; the other numbers).

        StoreError: they cannot be read now.
        """
        messages, _, rest = self._store.load(self.number, numbers, READY_BYTES_MAX, with_bodies=False)
        for message in messages:
            if message.payload:
                message.size += self._payloads.size_of(message.payload) or 0
        return messages, rest

    def recovered(self) -> None:
        """Count the messages of the index against the budget, when all of it was read."""
        self._index.take(WAITING_COST * (self.active_count + self.deferred_count))

    def leave_budget(self) -> None:
        """Count the messages against the budget no more: the box has come to its end."""
        self._index.close()
        self._ready.note_size(self._line, 0)

    def _seq_of(self, n: int) -> int:
        return self._store.seq_of(self.number, n)

    def chunk_size(self) -> int:
        """Return how many messages make a megabyte at the average size of this box: a guess that saves work, no
        limit."""
        count = self.active_count + self.deferred_count + self.scheduled_count
        return max(1, min(CHUNK_MAX, READY_BYTES_MAX * count // (self.size_bytes + 1)))

    # ── looking ──

    def first_from(self, seq: int, others: Iterable[tuple[int, int]], session_id: str | None = None) -> int:
        """Return the lowest row number of the box whose sequence number is at least `seq`; 0: there is none.

        `others`: (sequence number, row number) pairs of messages that the box does not know, such as scheduled ones.
        """
        numbers = [n for each, n in others if each >= seq]
        if session_id is not None:
            first_waiting = self.sessions.first_from(seq, session_id) if self.sessions is not None else 0
        else:
            numbers += [lock.message.n for lock in self.locks if lock.message.seq >= seq]
            numbers += [n for each, n in self.deferred.items() if each >= seq]
            first_waiting = self._line.first_from(seq)
        return min([*numbers, first_waiting] if first_waiting else numbers, default=0)

    def numbers_from(self, n: int, count: int, others: Iterable[int], session_id: str | None = None) -> list[int]:
        """Return up to `count` row numbers of the box from `n` on, ascending, of messages in any state."""
        numbers = [each for each in others if each >= n]
        if session_id is not None:
            numbers += self.sessions.numbers_of(session_id, n, count) if self.sessions is not None else ()
        else:
            numbers += self._line.numbers_from(n, count)
            numbers += [lock.message.n for lock in self.locks if lock.message.n >= n]
            numbers += [each for each in self.deferred.values() if each >= n]
        return nsmallest(count, numbers)

    def drain(self, limit: int) -> list[int]:
        """Return up to `limit` row numbers of the box, of messages in any state, and forget them. For its end only."""
        numbers = self._line.drain(limit)
        if len(numbers) < limit:
            numbers += [lock.message.n for lock in self.locks]
            numbers += self.deferred.values()
            self.locks.clear()
            self.deferred.clear()
        return numbers

    # ── time to live ──

    def next_expiry_ms(self) -> int | None:
        return self._line.next_expiry_ms()

    def withdraw_expired(self, now_ms: int, size_max: int) -> list[StoredMessage]:
        """Return some waiting messages whose time to live is over, perhaps without their bodies; the caller then gives
        them back or trims. The last one reaches `size_max` bytes."""
        return self._line.withdraw_expired(now_ms, size_max)

    def trim(self) -> None:
        """Forget withdrawn messages for good."""
        self._line.trim()
