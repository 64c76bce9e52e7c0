"""A box in memory: which messages wait, which are locked, which are deferred.

Laws.
 1. A message of the box is in exactly one place: waiting (`_ready`, `_returned` or `_waiting`), under a lock,
    deferred, scheduled (the queue's agenda), or carried by a write that is not yet committed. The last is why no
    write ever depends on another uncommitted one, and why a failed commit can always put its messages back.
 2. A waiting message costs one integer. Only `_ready` holds loaded messages, and it is bounded.
 3. Messages are handed out in the order of their numbers. `_ready` is ascending, every number in it is below every
    number in `_waiting`; `_returned` holds what came back, or came late, and is compared at every step.
 4. In a box whose messages expire, `_waiting` is left only at its front, or, after a commit, by way of `_gone`. So a
    number that is not below its front waits there: stale entries of the expiry heap are recognised without a set.
 5. `StoredMessage`s are never changed in place: stores and connections may hold the same object.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from pairbus.broker.due import SLACK, ExpiryHeap
from pairbus.broker.store import ACTIVE, DEFERRED, Delete, IndexRow, Store, StoredMessage
from pairbus.errors import StoreError

CHUNK_MAX = 256  # messages read at once, and lock tokens made at once
READY_MAX = 1024  # loaded messages of a box: 1024 × 400 B of objects, 0.4 MB, beside their bytes
READY_BYTES_MAX = 1 << 20
EXPIRED_MAX = 256  # expired messages that one search for the next message gets rid of

Handler = Callable[[Any, Any, StoreError | None], None]


class Lock:
    """One message, held by one receiver until `until_ms` (0: it was received and deleted, nothing is held)."""

    __slots__ = ("message", "token", "until_ms")

    def __init__(self, token: bytes, message: StoredMessage, until_ms: int) -> None:
        self.token = token
        self.message = message
        self.until_ms = until_ms

    def __repr__(self) -> str:
        return f"<Lock {self.token.hex()} of {self.message.seq} until {self.until_ms}>"


class Commits:
    """What to do after each commit, in order: one tuple and one shared callback instead of a closure per message."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._steps: deque[tuple[Handler, Any, Any]] = deque()
        self._callback = self._committed

    def then(self, handler: Handler, payload: Any, done: Any) -> None:
        """Call `handler(payload, done, error)` when everything written so far is durable, or has failed."""
        self._steps.append((handler, payload, done))
        self._store.after_commit(self._callback)

    def _committed(self, error: StoreError | None) -> None:
        handler, payload, done = self._steps.popleft()
        handler(payload, done, error)


class Box:
    """One of the two boxes of a queue. The queue writes; the box knows what is where."""

    def __init__(
        self, number: int, store: Store, commits: Commits, *, on_expired: Callable[[list[StoredMessage], int], None]
    ) -> None:
        self.number = number
        self.lock_duration_ms = 0
        "Of locks made from now on; set by the queue."
        self.receivable = True
        "False while the queue's status forbids receiving, and once it is closed."
        self.active_count = 0
        "Waiting, locked, or carried by a write."
        self.deferred_count = 0
        self.scheduled_count = 0
        self.size_bytes = 0
        "Of all messages of the box, those of uncommitted sends included."
        self.accessed_ms = 0
        self.locks: OrderedDict[bytes, Lock] = OrderedDict()
        "By token, in the order in which they end, unless `_mixed_until_ms` says otherwise."
        self.deferred: set[int] = set()
        self._store = store
        self._commits = commits
        self._on_expired = on_expired
        self._waiting: deque[int] = deque()
        self._gone: set[int] = set()
        "Numbers in `_waiting` whose messages expired."
        self._returned: list[int] = []
        self._ready: deque[StoredMessage] = deque()
        self._ready_bytes = 0
        self._expiry = ExpiryHeap()
        self._tokens: list[bytes] = []
        self._latest_ms = 0
        self._mixed_until_ms = 0
        self._soonest_ms = 0

    def __repr__(self) -> str:
        return f"<Box {self.number} active={self.active_count} locked={len(self.locks)} deferred={self.deferred_count}>"

    # ── messages come in ──

    def recover(self, row: IndexRow) -> None:
        """Take an ACTIVE or DEFERRED row of the store's index; rows come in ascending order."""
        seq, state, expires_ms, _, size = row
        self.size_bytes += size
        if state == DEFERRED:
            self.deferred.add(seq)
            self.deferred_count += 1
            return
        self._waiting.append(seq)
        self.active_count += 1
        if expires_ms:
            self._expiry.add(expires_ms, seq)

    def admit(self, messages: Sequence[StoredMessage]) -> None:
        """Committed messages that are new in this box and ACTIVE. While few wait, they stay loaded."""
        self.active_count += len(messages)
        waiting = self._waiting
        for message in messages:
            if message.expires_ms:
                self._expect_expiry(message)
            if waiting:
                if message.seq > waiting[-1]:
                    waiting.append(message.seq)
                else:
                    heappush(self._returned, message.seq)
            elif not self._keep_loaded(message):
                if self._ready and message.seq < self._ready[-1].seq:
                    heappush(self._returned, message.seq)
                else:
                    waiting.append(message.seq)

    def give_back(self, message: StoredMessage) -> None:
        """A message that was handed out is free again, in its old place in the order."""
        if message.state == DEFERRED:
            self.deferred.add(message.seq)
            return
        if message.expires_ms:
            self._expect_expiry(message)
        if message.seq in self._gone:
            self._gone.discard(message.seq)  # its removal failed; its number never left `_waiting`
        elif self._waiting or not self._keep_loaded(message):
            heappush(self._returned, message.seq)

    def defer(self, message: StoredMessage) -> None:
        """A message of the box that was ACTIVE is now DEFERRED."""
        self.active_count -= 1
        self.deferred_count += 1
        self.deferred.add(message.seq)

    def forget(self, message: StoredMessage) -> None:
        """A message that was handed out has left the box for good."""
        self.size_bytes -= message.size
        if message.state == ACTIVE:
            self.active_count -= 1
        else:
            self.deferred_count -= 1

    def _keep_loaded(self, message: StoredMessage) -> bool:
        ready = self._ready
        if len(ready) >= READY_MAX or self._ready_bytes >= READY_BYTES_MAX or (ready and message.seq < ready[-1].seq):
            return False
        ready.append(message)
        self._ready_bytes += message.size
        return True

    def _expect_expiry(self, message: StoredMessage) -> None:
        self._expiry.add(message.expires_ms, message.seq)
        if self._expiry.crowded:
            # The message itself has no place yet; it is waiting all the same.
            waits = self._waits()
            self._expiry.compact(lambda seq: seq == message.seq or waits(seq))

    # ── messages go out ──

    def available(self, now_ms: int) -> bool:
        """Whether `lock_next` is worth a call. It may still find that everything has expired."""
        if not self.receivable:
            return False
        if self._waiting or self._returned:
            return True
        return any(not message.expires_ms or message.expires_ms > now_ms for message in self._ready)

    def lock_next(self, now_ms: int) -> Lock | None:
        """Lock the waiting message with the lowest number. StoreError: it could not be read; it still waits."""
        message = self._next(now_ms)
        return None if message is None else self.lock(message, now_ms)

    def lock(self, message: StoredMessage, now_ms: int) -> Lock:
        lock = Lock(self.new_token(), message, now_ms + self.lock_duration_ms)
        self._hold(lock)
        return lock

    def take_next(self, now_ms: int, done: Callable[[StoredMessage | None], None]) -> bool:
        """Receive and delete: False when nothing waits (`done` is not called).

        Otherwise `done(message)` follows when the deletion is durable: at most once. `done(None)` means that the
        store failed and the message waits again; the receiver's credit is not used up, so try again later.
        """
        message = self._next(now_ms)
        if message is None:
            return False
        self._store.write(Delete(self.number, (message.seq,)))
        self._commits.then(self._taken, message, done)
        return True

    def _taken(
        self, message: StoredMessage, done: Callable[[StoredMessage | None], None], error: StoreError | None
    ) -> None:
        if error is not None:
            self.give_back(message)
            done(None)
            return
        self.forget(message)
        done(message)

    def _next(self, now_ms: int) -> StoredMessage | None:
        if not self.receivable:
            return None
        self.accessed_ms = now_ms
        ready = self._ready
        for _ in range(EXPIRED_MAX):
            while not ready or (self._returned and self._returned[0] < ready[0].seq):
                if not self._load_chunk():
                    return None
            message = ready.popleft()
            self._ready_bytes -= message.size
            if not message.expires_ms:
                return message
            self._expiry.live -= 1
            if message.expires_ms > now_ms:
                return message
            self._on_expired([message], now_ms)
        return None  # the queue announces the box again when these are gone

    def _load_chunk(self) -> bool:
        """Load what comes before `_ready`, or fills it when it is empty; False when there is nothing."""
        ready, waiting, returned = self._ready, self._waiting, self._returned
        seqs: list[int] = []
        limit = self.chunk_size()
        while len(seqs) < limit:
            if returned and (not waiting or returned[0] < waiting[0]):
                if ready and returned[0] > ready[0].seq:
                    break
                seqs.append(heappop(returned))
            elif waiting and not ready:
                seq = waiting.popleft()
                if self._gone and seq in self._gone:
                    self._gone.discard(seq)
                else:
                    seqs.append(seq)
            else:
                break
        if not seqs:
            return False
        try:
            messages, _ = self._store.load(self.number, seqs)
        except StoreError:
            for seq in seqs:
                heappush(returned, seq)
            raise
        self.active_count -= len(seqs) - len(messages)  # damaged ones stay out: the store reports them
        ready.extendleft(reversed(messages))
        self._ready_bytes += sum(message.size for message in messages)
        return True

    def chunk_size(self) -> int:
        """As many messages as make a megabyte at the average size of this box."""
        count = self.active_count + self.deferred_count + self.scheduled_count
        return max(1, min(CHUNK_MAX, READY_BYTES_MAX * count // (self.size_bytes + 1)))

    # ── time to live ──

    def next_expiry_ms(self) -> int | None:
        return self._expiry.next_ms()

    def withdraw_expired(self, now_ms: int) -> list[StoredMessage]:
        """Some waiting messages whose time to live is over; they are the caller's until it gives back or trims."""
        next_ms = self._expiry.next_ms()
        if next_ms is None or next_ms > now_ms:
            return []
        waits = self._waits()
        due = {seq for seq in self._expiry.pop_due(now_ms, self.chunk_size()) if waits(seq)}
        if not due:
            return []
        self._expiry.live -= len(due)
        found = [message for message in self._ready if message.seq in due]
        unloaded = due.difference(message.seq for message in found)
        try:
            loaded = self._store.load(self.number, sorted(unloaded))[0] if unloaded else []
        except StoreError:
            for seq in due:
                self._expiry.add(now_ms, seq)
            raise
        if found:
            self._ready = deque(message for message in self._ready if message.seq not in due)
            self._ready_bytes -= sum(message.size for message in found)
        returned = unloaded.intersection(self._returned)
        if returned:
            self._returned = [seq for seq in self._returned if seq not in returned]
            heapify(self._returned)
        self._gone |= unloaded - returned
        self.active_count -= len(unloaded) - len(loaded)
        return found + loaded

    def _waits(self) -> Callable[[int], bool]:
        """A test whether the number of an expiry entry waits, good until the index changes (laws 3 and 4).

        What is in `_gone` has no entry: it was popped when the message was withdrawn.
        """
        few = set(self._returned)
        few.update(message.seq for message in self._ready)
        if not self._waiting:
            return few.__contains__
        first = self._waiting[0]
        return lambda seq: seq in few or seq >= first

    def trim(self) -> None:
        """What was withdrawn is gone for good. Keeps `_gone` small against `_waiting`, also when nobody receives."""
        waiting, gone = self._waiting, self._gone
        while waiting and waiting[0] in gone:
            gone.discard(waiting.popleft())
        if len(gone) > len(waiting) // 2 + SLACK:
            self._waiting = deque(seq for seq in waiting if seq not in gone)
            gone.clear()

    # ── locks ──

    def new_token(self) -> bytes:
        if not self._tokens:
            noise = os.urandom(16 * CHUNK_MAX)
            self._tokens = [noise[at : at + 16] for at in range(0, len(noise), 16)]
        return self._tokens.pop()

    def held(self, token: bytes, now_ms: int) -> Lock | None:
        """The lock, if it is still held at `now_ms`."""
        lock = self.locks.get(token)
        return lock if lock is not None and lock.until_ms > now_ms else None

    def renew(self, lock: Lock, now_ms: int) -> int:
        lock.until_ms = now_ms + self.lock_duration_ms
        del self.locks[lock.token]
        self._hold(lock)
        return lock.until_ms

    def release(self, tokens: Sequence[bytes], now_ms: int) -> tuple[list[Lock], list[bytes]]:
        """Take the locks out: (those held, the tokens that are lost). The messages are the caller's now."""
        pop = self.locks.pop
        held: list[Lock] = []
        lost: list[bytes] = []
        for token in tokens:
            lock = pop(token, None)
            if lock is None:
                lost.append(token)
            elif lock.until_ms > now_ms:
                held.append(lock)
            else:
                self._hold(lock)  # it has ended, and `lapse` counts that
                lost.append(token)
        return held, lost

    def restore(self, locks: Iterable[Lock]) -> None:
        """The write that would have ended these locks failed: they run on, or have ended meanwhile."""
        for lock in locks:
            self._hold(lock)

    def lapse(self, now_ms: int, limit: int) -> list[Lock]:
        """Up to `limit` locks that have ended; they leave the box's books and their messages are the caller's."""
        locks = self.locks
        if not self._mixed_until_ms:
            ended: list[Lock] = []
            while locks and len(ended) < limit and next(iter(locks.values())).until_ms <= now_ms:
                ended.append(locks.popitem(last=False)[1])
            return ended
        if self._soonest_ms > now_ms:
            return []
        ended = [lock for lock in locks.values() if lock.until_ms <= now_ms][:limit]
        for lock in ended:
            del locks[lock.token]
        self._soonest_ms = min((lock.until_ms for lock in locks.values()), default=0)
        if self._mixed_until_ms <= now_ms and len(ended) < limit:
            self._mixed_until_ms = 0
        return ended

    def next_lapse_ms(self) -> int | None:
        """Not later than the next end of a lock."""
        if not self.locks:
            return None
        return self._soonest_ms if self._mixed_until_ms else next(iter(self.locks.values())).until_ms

    def _hold(self, lock: Lock) -> None:
        until_ms = lock.until_ms
        if until_ms >= self._latest_ms:
            self._latest_ms = until_ms
        elif not self.locks:
            self._latest_ms = until_ms
            self._mixed_until_ms = 0
        else:
            # Out of order: the lock duration was shortened, a lock was restored, or the clock went back. Until the
            # latest of them has ended, all locks are looked at; a heap instead would keep every settled lock.
            first_ms = self.next_lapse_ms()
            self._soonest_ms = until_ms if first_ms is None else min(until_ms, first_ms)
            self._mixed_until_ms = self._latest_ms
        self.locks[lock.token] = lock
