"""The locks of a box: which receiver holds which message until when."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from pairbus.broker.budget import LOCK_COST, Share
from pairbus.broker.store import StoredMessage

TOKENS = 256  # made at once


class Lock:
    """Lock on one message, held by one receiver until `until_ms` (0: it was received and deleted, there is no lock)."""

    __slots__ = ("cost", "message", "share", "token", "until_ms")

    def __init__(self, token: bytes, message: StoredMessage, until_ms: int, share: Share | None = None) -> None:
        self.token = token
        self.message = message
        "Once it is delivered, without its body."
        self.until_ms = until_ms
        self.share = share
        "The receiver's share of the budget; None: the lock does not count."
        self.cost = LOCK_COST + message.size - len(message.body)

    def __repr__(self) -> str:
        return f"<Lock {self.token.hex()} of {self.message.seq} until {self.until_ms}>"


def take_room(locks: Sequence[Lock]) -> None:
    """Count locks against the budget."""
    _move_room(locks, 1)


def give_room(locks: Sequence[Lock]) -> None:
    """Count locks against the budget no more."""
    _move_room(locks, -1)


def _move_room(locks: Sequence[Lock], sign: int) -> None:
    """Locks that come and go together are mostly of one receiver."""
    share, cost = None, 0
    for lock in locks:
        if lock.share is not share:
            if share is not None:
                share.take(cost) if sign > 0 else share.give(cost)
            share, cost = lock.share, 0
        cost += lock.cost
    if share is not None:
        share.take(cost) if sign > 0 else share.give(cost)


class LockTokens:
    """Lock tokens, made many at once."""

    def __init__(self) -> None:
        self._tokens: list[bytes] = []

    def take(self, count: int) -> list[bytes]:
        tokens = self._tokens
        while len(tokens) < count:
            noise = os.urandom(16 * TOKENS)
            tokens += [noise[at : at + 16] for at in range(0, len(noise), 16)]
        taken = tokens[-count:]
        del tokens[-count:]
        return taken


class Locks:
    """Locks by token, in the order in which they end, unless `_mixed_until_ms` says otherwise."""

    __slots__ = ("_latest_ms", "_locks", "_mixed_until_ms", "_soonest_ms", "duration_ms", "new_tokens")

    def __init__(self) -> None:
        self.duration_ms = 0
        "Duration of locks made from now on; set by the entity."
        self._locks: OrderedDict[bytes, Lock] = OrderedDict()
        self.new_tokens = LockTokens().take
        self._latest_ms = 0
        self._mixed_until_ms = 0
        self._soonest_ms = 0

    def __len__(self) -> int:
        return len(self._locks)

    def __iter__(self) -> Iterator[Lock]:
        return iter(self._locks.values())

    def clear(self) -> None:
        give_room(list(self))
        self._locks.clear()

    def make(self, messages: Sequence[StoredMessage], now_ms: int, share: Share | None = None) -> list[Lock]:
        """Lock each of these messages, for a receiver with this share of the budget."""
        until_ms = now_ms + self.duration_ms
        tokens = self.new_tokens(len(messages))
        locks = [Lock(token, message, until_ms, share) for token, message in zip(tokens, messages, strict=True)]
        if share is not None:
            share.take(sum([lock.cost for lock in locks]))
        self._expect(until_ms)
        self._locks.update(zip(tokens, locks, strict=True))
        return locks

    def held(self, token: bytes, now_ms: int) -> Lock | None:
        """Return the lock, if it is still held at `now_ms`."""
        lock = self._locks.get(token)
        return lock if lock is not None and lock.until_ms > now_ms else None

    def renew(self, lock: Lock, now_ms: int) -> int:
        lock.until_ms = now_ms + self.duration_ms
        del self._locks[lock.token]
        self._hold(lock)
        return lock.until_ms

    def remove(self, lock: Lock) -> None:
        """Take out a lock that is held. Its message now belongs to the caller."""
        del self._locks[lock.token]
        give_room((lock,))

    def release(self, tokens: Sequence[bytes], now_ms: int) -> tuple[list[Lock], list[bytes]]:
        """Take the locks out and return (those held, the tokens that are lost). The caller has the messages now."""
        pop = self._locks.pop
        held: list[Lock] = []
        lost: list[bytes] = []
        for token in tokens:
            lock = pop(token, None)
            if lock is None:
                lost.append(token)
            elif lock.until_ms > now_ms:
                held.append(lock)
            else:
                self._hold(lock)  # it has expired, and `lapse` counts that
                lost.append(token)
        give_room(held)
        return held, lost

    def restore(self, locks: Iterable[Lock]) -> None:
        """Put locks back whose ending write failed: they run on, or have expired meanwhile."""
        for lock in locks:
            take_room((lock,))
            self._hold(lock)

    def lapse(self, now_ms: int, limit: int, size_max: int) -> list[Lock]:
        """Remove and return up to `limit` locks that have expired, until their messages have `size_max` bytes; the
        messages belong to the caller."""
        locks = self._locks
        ended: list[Lock] = []
        size = 0
        if not self._mixed_until_ms:
            while locks and len(ended) < limit and size < size_max and next(iter(locks.values())).until_ms <= now_ms:
                lock = locks.popitem(last=False)[1]
                ended.append(lock)
                size += lock.message.size
            give_room(ended)
            return ended
        if self._soonest_ms > now_ms:
            return []
        for lock in locks.values():
            if lock.until_ms <= now_ms:
                ended.append(lock)
                size += lock.message.size
                if len(ended) == limit or size >= size_max:
                    break
        for lock in ended:
            del locks[lock.token]
        give_room(ended)
        self._soonest_ms = min((lock.until_ms for lock in locks.values()), default=0)
        if self._mixed_until_ms <= now_ms and len(ended) < limit and size < size_max:
            self._mixed_until_ms = 0
        return ended

    def shift(self, ms: int) -> None:
        """Move the ends of all locks: the clock was set."""
        for lock in self._locks.values():
            lock.until_ms += ms
        self._latest_ms += ms
        self._soonest_ms += ms
        if self._mixed_until_ms:
            self._mixed_until_ms += ms

    def next_lapse_ms(self) -> int | None:
        """Return a time not later than the next end of a lock."""
        if not self._locks:
            return None
        return self._soonest_ms if self._mixed_until_ms else next(iter(self._locks.values())).until_ms

    def _hold(self, lock: Lock) -> None:
        self._expect(lock.until_ms)
        self._locks[lock.token] = lock

    def _expect(self, until_ms: int) -> None:
        """Prepare for locks that end at this time and are put behind the others."""
        if until_ms >= self._latest_ms:
            self._latest_ms = until_ms
        elif not self._locks:
            self._latest_ms = until_ms
            self._mixed_until_ms = 0
        else:
            # Out of order: the lock duration was shortened, a lock was restored, or the clock went back. Until the
            # latest of them has ended, all locks are looked at. A heap instead would keep every settled lock.
            first_ms = self.next_lapse_ms()
            self._soonest_ms = until_ms if first_ms is None else min(until_ms, first_ms)
            self._mixed_until_ms = self._latest_ms
