"""The waiting messages of a box without sessions, in one line.

Laws.
 1. A waiting message costs one integer. Only `_ready` holds loaded messages; it is bounded, and the sum over all boxes
    is (budget.py): when another box needs the room, they become numbers in `_returned` again.
 2. Messages are handed out in the order of their numbers. `_ready` is ascending, every number in it is below every
    number in `_waiting`; `_returned` holds messages that came back, or came late, and is compared at every step.
 3. In a box whose messages expire, `_waiting` is left only at its front, or, after a commit, by way of `_gone`. So a
    number that is not below its front waits there: stale entries of the expiry heap are recognised without a set.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

from pairbus.broker.boxes.due import SLACK, ExpiryHeap
from pairbus.broker.budget import READY_COST, Shelf
from pairbus.broker.store import StoredMessage
from pairbus.errors import StoreError

CHUNK_MAX = 256  # messages read at once
READY_MAX = 1024  # loaded messages of a box: 1024 × 400 B of objects, 0.4 MB, beside their bytes
READY_BYTES_MAX = 1 << 20
EXPIRED_MAX = 256  # expired messages that one search for the next messages removes
BATCH_BYTES = 64 << 10
"Messages are handed out together up to this size; a larger one is the last, or the only one, of its batch."


class Surroundings(NamedTuple):
    """The parts of a box that a line calls."""

    load: Callable[[Sequence[int]], tuple[list[StoredMessage], list[int]]]
    """Reads messages that wait, ascending, until they have a megabyte; returns them and the numbers of the rest.
    Damaged ones are missing. StoreError: they cannot be read now."""
    load_heads: Callable[[Sequence[int]], tuple[list[StoredMessage], list[int]]]
    "Reads them without their bodies."
    seq_of: Callable[[int], int]
    "Reads the sequence number of a row."
    chunk_size: Callable[[], int]
    "Returns how many messages to read at once."
    on_expired: Callable[[list[StoredMessage], int], None]
    "Takes messages that a search found to have expired, at this time."
    ready: Shelf
    "Room for loaded messages of all boxes."


def pick(
    loaded: deque[StoredMessage], limit: int, before_n: int, now_ms: int
) -> tuple[list[StoredMessage], list[StoredMessage], int]:
    """Take the first of the loaded messages, with numbers below `before_n`; return (up to `limit` to hand out, those
    that have expired, the bytes of both)."""
    messages: list[StoredMessage] = []
    expired: list[StoredMessage] = []
    size = 0
    while loaded and size < BATCH_BYTES and len(messages) < limit and len(expired) < EXPIRED_MAX:
        if loaded[0].n > before_n:
            break
        message = loaded.popleft()
        size += message.size
        if 0 < message.expires_ms <= now_ms:
            expired.append(message)
        else:
            messages.append(message)
    return messages, expired, size


def up_to(messages: list[StoredMessage], size_max: int) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """Return (the first messages, until they have `size_max` bytes; the others)."""
    size = 0
    for place, message in enumerate(messages, 1):
        size += message.size
        if size >= size_max:
            return messages[:place], messages[place:]
    return messages, []


class Line:
    """Numbers of waiting messages, the first ones loaded, and the times when they expire."""

    __slots__ = ("_around", "_expiry", "_gone", "_ready", "_ready_bytes", "_returned", "_waiting")

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._waiting: deque[int] = deque()
        self._gone: set[int] = set()
        "Numbers in `_waiting` whose messages expired, or were taken out there."
        self._returned: list[int] = []
        self._ready: deque[StoredMessage] = deque()
        self._ready_bytes = 0
        self._expiry: ExpiryHeap[int] = ExpiryHeap()

    # ── messages come in ──

    def recover(self, n: int, expires_ms: int) -> None:
        """Take the numbers of the store's index, in ascending order."""
        self._waiting.append(n)
        if expires_ms:
            self._expiry.add(expires_ms, n)

    def admit(self, messages: Sequence[StoredMessage]) -> None:
        """Take new messages. While few wait, they stay loaded."""
        waiting = self._waiting
        for message in messages:
            if message.expires_ms:
                self._expect_expiry(message)
            if waiting:
                if message.n > waiting[-1]:
                    waiting.append(message.n)
                else:
                    heappush(self._returned, message.n)
            elif self._returned or not self._keep_loaded(message):  # behind numbers it would not be next
                if self._ready and message.n < self._ready[-1].n:
                    heappush(self._returned, message.n)
                else:
                    waiting.append(message.n)
        if not waiting:
            self._note_ready()

    def give_back(self, message: StoredMessage) -> None:
        """Take back a message that had left, in its old place in the order."""
        if message.expires_ms:
            self._expect_expiry(message)
        if message.n in self._gone:
            self._gone.discard(message.n)  # its removal failed; its number never left `_waiting`
        elif self._waiting or not self._keep_loaded(message):
            heappush(self._returned, message.n)
        else:
            self._note_ready()

    def _keep_loaded(self, message: StoredMessage) -> bool:
        ready = self._ready
        if len(ready) >= READY_MAX or self._ready_bytes >= READY_BYTES_MAX or (ready and message.n < ready[-1].n):
            return False
        if not message.body and not message.is_whole:
            return False
        ready.append(message)
        self._ready_bytes += message.size
        return True

    # ── loaded messages ──

    def held_bytes(self) -> int:
        """Return what the loaded messages take in memory."""
        return self._ready_bytes + READY_COST * len(self._ready)

    def _note_ready(self) -> None:
        self._around.ready.note_size(self, self._ready_bytes + READY_COST * len(self._ready))

    def give_up(self) -> None:
        """Unload the loaded messages: only their numbers are kept."""
        self._returned += [message.n for message in self._ready]
        heapify(self._returned)
        self._ready.clear()
        self._ready_bytes = 0

    def _expect_expiry(self, message: StoredMessage) -> None:
        self._expiry.add(message.expires_ms, message.n)
        if self._expiry.crowded:
            # The message itself has no place yet, but it counts as waiting.
            waits = self._waits()
            self._expiry.compact(lambda n: n == message.n or waits(n))

    # ── messages go out ──

    def available(self, now_ms: int) -> bool:
        """Return whether `next` is worth a call. It may still find that all messages have expired."""
        if self._waiting or self._returned:
            return True
        return any(not message.expires_ms or message.expires_ms > now_ms for message in self._ready)

    def next(self, limit: int, now_ms: int) -> list[StoredMessage]:
        """Take out the messages with the lowest numbers, up to `limit` of those that are loaded; none: no message
        waits.

        StoreError: the messages could not be read; they still wait.
        """
        ready, expired_count = self._ready, 0
        messages: list[StoredMessage] = []
        while not messages and expired_count < EXPIRED_MAX:
            while not ready or (self._returned and self._returned[0] < ready[0].n):
                if not self._load_chunk():
                    return []
            before_n = self._returned[0] if self._returned else sys.maxsize
            messages, expired, size = pick(ready, limit, before_n, now_ms)
            self._ready_bytes -= size
            self._expiry.live -= sum([message.expires_ms > 0 for message in messages]) + len(expired)
            if expired:
                expired_count += len(expired)
                self._around.on_expired(expired, now_ms)
        self._note_ready()
        return messages  # none: the queue announces the box again when the expired ones are removed

    def _load_chunk(self) -> bool:
        """Load the messages that come before `_ready`, or fill it when it is empty; False when there are none."""
        ready, waiting, returned = self._ready, self._waiting, self._returned
        numbers: list[int] = []
        limit = self._around.chunk_size()
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
            messages, rest = self._around.load(numbers)
        except StoreError:
            for n in numbers:
                heappush(returned, n)
            raise
        for n in rest:
            heappush(returned, n)
        ready.extendleft(reversed(messages))
        self._ready_bytes += sum(message.size for message in messages)
        return True

    def withdraw(self, numbers: Sequence[int]) -> list[StoredMessage]:
        """Take out messages of any place in the line; `numbers` are some that `numbers_from` has just named. The last
        ones stay when those before them have a megabyte.

        The caller gives them back, or trims when they have left for good. StoreError: they still wait.
        """
        wanted = set(numbers)
        ready = [message for message in self._ready if message.n in wanted]
        unloaded = wanted.difference([message.n for message in ready])
        loaded, rest = self._around.load(sorted(unloaded)) if unloaded else ([], [])
        if rest:
            ready = [message for message in ready if message.n < rest[0]]
        self._remove(ready, unloaded.difference(rest))
        messages = sorted(ready + loaded, key=lambda message: message.n)
        self._expiry.live -= sum([message.expires_ms > 0 for message in messages])
        return messages

    def _remove(self, loaded: list[StoredMessage], unloaded: set[int]) -> None:
        """Remove loaded messages, and numbers that wait and are not loaded."""
        if loaded:
            gone = {message.n for message in loaded}
            self._ready = deque(message for message in self._ready if message.n not in gone)
            self._ready_bytes -= sum(message.size for message in loaded)
            self._note_ready()
        returned = unloaded.intersection(self._returned)
        if returned:
            self._returned = [n for n in self._returned if n not in returned]
            heapify(self._returned)
        self._gone |= unloaded - returned

    # ── looking ──

    def first_from(self, seq: int) -> int:
        """Return the lowest number whose sequence number is at least `seq`; 0: there is none.

        Where only numbers are known, a binary search finds the place, with a read at each step.
        """
        first = min((message.n for message in self._ready if message.seq >= seq), default=0)
        returned = sorted(self._returned)
        for numbers, at in ((self._waiting, self._place_of(seq)), (returned, self._halved(returned, seq))):
            if at < len(numbers):
                first = min(first or numbers[at], numbers[at])
        return first

    def _halved(self, numbers: Sequence[int], seq: int) -> int:
        return bisect_left(numbers, seq, key=self._around.seq_of)

    def _place_of(self, seq: int) -> int:
        """Return the place in `_waiting` of the first message from `seq` on. Rows of deleted messages are not read."""
        waiting, gone = self._waiting, self._gone
        if not gone:
            return self._halved(waiting, seq)
        low, high = 0, len(waiting)
        while low < high:
            middle = probe = (low + high) // 2
            while probe < high and waiting[probe] in gone:
                probe += 1
            if probe == high:
                high = middle
            elif self._around.seq_of(waiting[probe]) < seq:
                low = probe + 1
            else:
                high = middle
        while low < len(waiting) and waiting[low] in gone:
            low += 1
        return low

    def numbers_from(self, n: int, count: int) -> list[int]:
        """Return the numbers from `n` on, in no order, among them the `count` lowest."""
        numbers = [message.n for message in self._ready if message.n >= n]
        numbers += [each for each in self._returned if each >= n]
        at = bisect_left(self._waiting, n)
        waiting = (each for each in islice(self._waiting, at, None) if each not in self._gone)
        numbers += islice(waiting, count)
        return numbers

    def drain(self, limit: int) -> list[int]:
        """Take out up to `limit` numbers, or a few more. For the end of a box."""
        waiting = self._waiting
        numbers = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
        if len(numbers) < limit:
            numbers += [message.n for message in self._ready]
            numbers += self._returned
            self._ready.clear()
            self._ready_bytes = 0
            self._note_ready()
            self._returned.clear()
        return numbers

    # ── time to live ──

    def next_expiry_ms(self) -> int | None:
        return self._expiry.next_ms()

    def withdraw_expired(self, now_ms: int, size_max: int) -> list[StoredMessage]:
        """Return some waiting messages whose time to live is over, perhaps without their bodies; the caller then gives
        them back or trims. The last one reaches `size_max` bytes."""
        next_ms = self._expiry.next_ms()
        if next_ms is None or next_ms > now_ms:
            return []
        waits = self._waits()
        due = {n for n in self._expiry.pop_due(now_ms, CHUNK_MAX) if waits(n)}
        if not due:
            return []
        self._expiry.live -= len(due)
        ready = [message for message in self._ready if message.n in due]
        unloaded = due.difference(message.n for message in ready)
        try:
            loaded, rest = self._around.load_heads(sorted(unloaded)) if unloaded else ([], [])
        except StoreError:
            for n in due:
                self._expiry.add(now_ms, n)
            raise
        loaded, later = up_to(loaded, size_max)
        rest += [message.n for message in later]
        for n in rest:
            self._expiry.add(now_ms, n)
        self._remove(ready, unloaded.difference(rest))
        return ready + loaded

    def _waits(self) -> Callable[[int], bool]:
        """Return a test whether the number of an expiry entry waits, valid until the index changes (laws 2 and 3).

        Numbers in `_gone` have no entry: it was popped when the message was withdrawn.
        """
        few = set(self._returned)
        few.update(message.n for message in self._ready)
        if not self._waiting:
            return few.__contains__
        first = self._waiting[0]
        return lambda n: n in few or n >= first

    def trim(self) -> None:
        """Forget withdrawn messages for good. Keeps `_gone` small against `_waiting`, also without receivers."""
        waiting, gone = self._waiting, self._gone
        while waiting and waiting[0] in gone:
            gone.discard(waiting.popleft())
        if len(gone) > len(waiting) // 2 + SLACK:
            self._waiting = deque(n for n in waiting if n not in gone)
            gone.clear()
