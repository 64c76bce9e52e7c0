"""A box in memory: which messages wait, which are locked, which are deferred.

A box knows its messages by the numbers of their rows. Within a box their order is the order of the sequence numbers.

Laws.
 1. A message of the box is in exactly one place: waiting (`_ready`, `_returned` or `_waiting`), under a lock,
    deferred, scheduled (`Schedule`), or carried by a write that is not yet committed. The last is why no
    write ever depends on another uncommitted one, and why a failed commit can always put its messages back.
 2. A waiting message costs one integer. Only `_ready` holds loaded messages, and it is bounded.
 3. Messages are handed out in the order of their numbers. `_ready` is ascending, every number in it is below every
    number in `_waiting`; `_returned` holds what came back, or came late, and is compared at every step.
 4. In a box whose messages expire, `_waiting` is left only at its front, or, after a commit, by way of `_gone`. So a
    number that is not below its front waits there: stale entries of the expiry heap are recognised without a set.
 5. `StoredMessage`s are never changed in place: stores and connections may hold the same object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, nsmallest
from itertools import islice

from pairbus.broker.commits import Commits
from pairbus.broker.due import SLACK, ExpiryHeap
from pairbus.broker.locks import Lock, Locks
from pairbus.broker.payloads import Payloads
from pairbus.broker.store import ACTIVE, DEFERRED, Delete, IndexRow, Store, StoredMessage
from pairbus.errors import StoreError

__all__ = ["Box", "Lock"]

CHUNK_MAX = 256  # messages read at once
READY_MAX = 1024  # loaded messages of a box: 1024 × 400 B of objects, 0.4 MB, beside their bytes
READY_BYTES_MAX = 1 << 20
EXPIRED_MAX = 256  # expired messages that one search for the next message gets rid of


def deletion(box: Box, messages: Sequence[StoredMessage]) -> Delete:
    """The write that deletes messages of a box."""
    return Delete(
        box.number, [message.n for message in messages], [message.payload for message in messages if message.payload]
    )


class Box:
    """One of the boxes of an entity. The entity writes; the box knows what is where."""

    def __init__(
        self,
        number: int,
        store: Store,
        commits: Commits,
        payloads: Payloads,
        *,
        on_expired: Callable[[list[StoredMessage], int], None],
    ) -> None:
        self.number = number
        self.receivable = True
        "False while the entity's status forbids receiving, and once it is closed."
        self.active_count = 0
        "Waiting, locked, or carried by a write."
        self.deferred_count = 0
        self.scheduled_count = 0
        self.size_bytes = 0
        "Of all messages of the box, those of uncommitted sends included."
        self.shared_bytes = 0
        "The part of them that is in payloads, which other boxes may share."
        self.accessed_ms = 0
        self.locks = Locks()
        self.deferred: dict[int, int] = {}
        "Sequence number → row number."
        self._store = store
        self._commits = commits
        self._payloads = payloads
        self._on_expired = on_expired
        self._waiting: deque[int] = deque()
        self._gone: set[int] = set()
        "Numbers in `_waiting` whose messages expired."
        self._returned: list[int] = []
        self._ready: deque[StoredMessage] = deque()
        self._ready_bytes = 0
        self._expiry = ExpiryHeap()

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
            return True
        self._waiting.append(n)
        self.active_count += 1
        if expires_ms:
            self._expiry.add(expires_ms, n)
        return True

    def recover_size(self, row: IndexRow) -> bool:
        """Count what a row of the index holds; False: its payload is missing."""
        size = row.size
        if row.payload:
            shared = self._payloads.size_of(row.payload)
            if shared is None:
                return False
            self._payloads.hold(row.payload)
            self.shared_bytes += shared
            size += shared
        self.size_bytes += size
        return True

    def admit(self, messages: Sequence[StoredMessage]) -> None:
        """Committed messages that are new in this box and ACTIVE. While few wait, they stay loaded."""
        self.active_count += len(messages)
        waiting = self._waiting
        for message in messages:
            if message.expires_ms:
                self._expect_expiry(message)
            if waiting:
                if message.n > waiting[-1]:
                    waiting.append(message.n)
                else:
                    heappush(self._returned, message.n)
            elif not self._keep_loaded(message):
                if self._ready and message.n < self._ready[-1].n:
                    heappush(self._returned, message.n)
                else:
                    waiting.append(message.n)

    def accept(self, messages: Sequence[StoredMessage]) -> None:
        """Committed messages that come from elsewhere and are ACTIVE: `admit`, and their sizes."""
        for message in messages:
            self.size_bytes += message.size
            if message.payload:
                self.share(message)
        self.admit(messages)

    def share(self, message: StoredMessage) -> None:
        """A committed message that is new in this box shares its payload."""
        self.shared_bytes += len(message.body)
        self._payloads.hold(message.payload)

    def give_back(self, message: StoredMessage) -> None:
        """A message that was handed out is free again, in its old place in the order."""
        if message.state == DEFERRED:
            self.deferred[message.seq] = message.n
            return
        if message.expires_ms:
            self._expect_expiry(message)
        if message.n in self._gone:
            self._gone.discard(message.n)  # its removal failed; its number never left `_waiting`
        elif self._waiting or not self._keep_loaded(message):
            heappush(self._returned, message.n)

    def defer(self, message: StoredMessage) -> None:
        """A message of the box that was ACTIVE is now DEFERRED."""
        self.active_count -= 1
        self.deferred_count += 1
        self.deferred[message.seq] = message.n

    def forget(self, message: StoredMessage) -> None:
        """A message that was handed out has left the box for good."""
        self.size_bytes -= message.size
        if message.payload:
            self.shared_bytes -= len(message.body)
            self._payloads.release(message.payload)
        if message.state == ACTIVE:
            self.active_count -= 1
        else:
            self.deferred_count -= 1

    def _keep_loaded(self, message: StoredMessage) -> bool:
        ready = self._ready
        if len(ready) >= READY_MAX or self._ready_bytes >= READY_BYTES_MAX or (ready and message.n < ready[-1].n):
            return False
        ready.append(message)
        self._ready_bytes += message.size
        return True

    def _expect_expiry(self, message: StoredMessage) -> None:
        self._expiry.add(message.expires_ms, message.n)
        if self._expiry.crowded:
            # The message itself has no place yet; it is waiting all the same.
            waits = self._waits()
            self._expiry.compact(lambda seq: seq == message.n or waits(seq))

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
        return None if message is None else self.locks.make(message, now_ms)

    def take_next(self, now_ms: int, done: Callable[[StoredMessage | None], None]) -> bool:
        """Receive and delete: False when nothing waits (`done` is not called).

        Otherwise `done(message)` follows when the deletion is durable: at most once. `done(None)` means that the
        store failed and the message waits again; the receiver's credit is not used up, so try again later.
        """
        message = self._next(now_ms)
        if message is None:
            return False
        self._store.write(deletion(self, [message]))
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

    def withdraw(self, limit: int, now_ms: int) -> list[StoredMessage]:
        """Up to `limit` waiting messages in order; they are the caller's until it gives back or forgets them."""
        found: list[StoredMessage] = []
        try:
            while len(found) < limit and (message := self._next(now_ms)) is not None:
                found.append(message)
        except StoreError:
            for message in found:
                self.give_back(message)
            raise
        return found

    def _next(self, now_ms: int) -> StoredMessage | None:
        if not self.receivable:
            return None
        self.accessed_ms = now_ms
        ready = self._ready
        for _ in range(EXPIRED_MAX):
            while not ready or (self._returned and self._returned[0] < ready[0].n):
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
        numbers, limit = list[int](), self.chunk_size()
        while len(numbers) < limit:
            if returned and (not waiting or returned[0] < waiting[0]):
                if ready and returned[0] > ready[0].n:
                    break
                numbers.append(heappop(returned))
            elif waiting and not ready:
                n = waiting.popleft()
                if self._gone and n in self._gone:
                    self._gone.discard(n)
                else:
                    numbers.append(n)
            else:
                break
        if not numbers:
            return False
        try:
            messages, _ = self._store.load(self.number, numbers)
        except StoreError:
            for n in numbers:
                heappush(returned, n)
            raise
        self.active_count -= len(numbers) - len(messages)  # damaged ones stay out: the store reports them
        ready.extendleft(reversed(messages))
        self._ready_bytes += sum(message.size for message in messages)
        return True

    def chunk_size(self) -> int:
        """As many messages as make a megabyte at the average size of this box."""
        count = self.active_count + self.deferred_count + self.scheduled_count
        return max(1, min(CHUNK_MAX, READY_BYTES_MAX * count // (self.size_bytes + 1)))

    # ── looking ──

    def first_from(self, seq: int, others: Iterable[tuple[int, int]]) -> int:
        """The lowest row number of the box whose sequence number is not below `seq`; 0: there is none.

        `others`: (sequence number, row number) pairs of messages that the box does not know, such as scheduled ones.
        Where only row numbers are known, the place is found by halving, with a read at each step.
        """
        known = [message.n for message in self._ready if message.seq >= seq]
        known += [lock.message.n for lock in self.locks if lock.message.seq >= seq]
        known += [n for each, n in self.deferred.items() if each >= seq]
        known += [n for each, n in others if each >= seq]
        first = min(known, default=0)
        for numbers in (self._waiting, sorted(self._returned)):
            at = bisect_left(numbers, seq, key=lambda n: self._store.seq_of(self.number, n))
            if at < len(numbers):
                first = min(first or numbers[at], numbers[at])
        return first

    def numbers_from(self, n: int, count: int, others: Iterable[int]) -> list[int]:
        """Up to `count` row numbers of the box from `n` on, ascending, of messages in any state."""
        found = [message.n for message in self._ready if message.n >= n]
        found += [lock.message.n for lock in self.locks if lock.message.n >= n]
        found += [each for each in self.deferred.values() if each >= n]
        found += [each for each in self._returned if each >= n]
        found += [each for each in others if each >= n]
        at = bisect_left(self._waiting, n)
        waiting = (each for each in islice(self._waiting, at, None) if each not in self._gone)
        found += islice(waiting, count)
        return nsmallest(count, found)

    def drain(self, limit: int) -> list[int]:
        """Up to `limit` row numbers of the box, of messages in any state; they leave its books. For its end only."""
        waiting = self._waiting
        found = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        if len(found) < limit:
            found += [message.n for message in self._ready]
            found += [lock.message.n for lock in self.locks]
            found += self._returned
            found += self.deferred.values()
            self._ready.clear()
            self.locks.clear()
            self._returned.clear()
            self.deferred.clear()
        return found

    # ── time to live ──

    def next_expiry_ms(self) -> int | None:
        return self._expiry.next_ms()

    def withdraw_expired(self, now_ms: int) -> list[StoredMessage]:
        """Some waiting messages whose time to live is over; they are the caller's until it gives back or trims."""
        next_ms = self._expiry.next_ms()
        if next_ms is None or next_ms > now_ms:
            return []
        waits = self._waits()
        due = {n for n in self._expiry.pop_due(now_ms, self.chunk_size()) if waits(n)}
        if not due:
            return []
        self._expiry.live -= len(due)
        found = [message for message in self._ready if message.n in due]
        unloaded = due.difference(message.n for message in found)
        try:
            loaded = self._store.load(self.number, sorted(unloaded))[0] if unloaded else []
        except StoreError:
            for n in due:
                self._expiry.add(now_ms, n)
            raise
        if found:
            self._ready = deque(message for message in self._ready if message.n not in due)
            self._ready_bytes -= sum(message.size for message in found)
        returned = unloaded.intersection(self._returned)
        if returned:
            self._returned = [n for n in self._returned if n not in returned]
            heapify(self._returned)
        self._gone |= unloaded - returned
        self.active_count -= len(unloaded) - len(loaded)
        return found + loaded

    def _waits(self) -> Callable[[int], bool]:
        """A test whether the number of an expiry entry waits, good until the index changes (laws 3 and 4).

        What is in `_gone` has no entry: it was popped when the message was withdrawn.
        """
        few = set(self._returned)
        few.update(message.n for message in self._ready)
        if not self._waiting:
            return few.__contains__
        first = self._waiting[0]
        return lambda n: n in few or n >= first

    def trim(self) -> None:
        """What was withdrawn is gone for good. Keeps `_gone` small against `_waiting`, also when nobody receives."""
        waiting, gone = self._waiting, self._gone
        while waiting and waiting[0] in gone:
            gone.discard(waiting.popleft())
        if len(gone) > len(waiting) // 2 + SLACK:
            self._waiting = deque(n for n in waiting if n not in gone)
            gone.clear()
