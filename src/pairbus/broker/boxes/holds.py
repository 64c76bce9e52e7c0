"""Sessions that receivers hold, and the locks of messages that live under them.

A message lock of a session ends when the hold on the session ends, for whatever reason, and is renewed with it.
Settlements use this class as the `Locks` of a box with sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain
from typing import Protocol

from pairbus.broker.boxes.due import Agenda
from pairbus.broker.boxes.locks import Lock, LockTokens, give_room, take_room
from pairbus.broker.boxes.sessions import MessageSession, Sessions
from pairbus.broker.budget import Share
from pairbus.broker.refusal import session_cannot_be_locked
from pairbus.broker.store import StoredMessage


class Holder(Protocol):
    """The receiver that holds a session."""

    def session_lost(self) -> None:
        """Note that the lock of the session has expired."""
        ...


class Hold:
    """One receiver's lock on one session."""

    __slots__ = ("holder", "is_over", "locks", "session", "until_ms")

    def __init__(self, session: MessageSession, holder: Holder, until_ms: int) -> None:
        self.session = session
        self.holder = holder
        self.until_ms = until_ms
        self.locks: dict[bytes, SessionLock] = {}
        self.is_over = False

    def __repr__(self) -> str:
        return f"<Hold on {self.session.id!r} until {self.until_ms}>"


class SessionLock(Lock):
    """A message lock under a hold."""

    __slots__ = ("hold",)

    def __init__(self, token: bytes, message: StoredMessage, hold: Hold, share: Share | None) -> None:
        super().__init__(token, message, hold.until_ms, share)
        self.hold = hold


class Holds:
    """Holds on the sessions of a box, their ends, and the message locks by token."""

    def __init__(self, sessions: Sessions, give_back: Callable[[StoredMessage], None]) -> None:
        self.duration_ms = 0
        "Duration of holds made from now on; set by the entity."
        self.new_tokens = LockTokens().take
        self._sessions = sessions
        self._give_back = give_back
        self._agenda: Agenda[Hold] = Agenda()
        self._locks: dict[bytes, SessionLock] = {}
        self._orphans: list[SessionLock] = []
        "Locks whose settlement failed when their hold was over."

    # ── sessions ──

    def take(self, session_id: str, holder: Holder, now_ms: int) -> Hold | None:
        """Hold this session; None: not yet, messages of it are on their way back. Refusal: another receiver holds
        it."""
        session = self._sessions.make(session_id)
        if session.hold is not None and session.hold.until_ms > now_ms:
            raise session_cannot_be_locked(session_id)
        if session.hold is not None or session.pending:
            return None
        return self._hold(session, holder, now_ms)

    def take_next(self, holder: Holder, now_ms: int, but: Set[MessageSession]) -> Hold | None:
        """Hold the available session with the oldest message, but none of these; None: there is no other."""
        session = self._sessions.next_available(but)
        return None if session is None else self._hold(session, holder, now_ms)

    def _hold(self, session: MessageSession, holder: Holder, now_ms: int) -> Hold:
        hold = session.hold = Hold(session, holder, now_ms + self.duration_ms)
        self._agenda.set(hold, hold.until_ms)
        return hold

    def held(self, token: bytes, now_ms: int) -> SessionLock | None:
        """Return the message lock, if it is still held at `now_ms`."""
        lock = self._locks.get(token)
        return lock if lock is not None and lock.until_ms > now_ms else None

    def renew_hold(self, hold: Hold, now_ms: int) -> int:
        """Start the time of the hold, and of the locks under it, again."""
        self._keep(hold, now_ms + self.duration_ms)
        return hold.until_ms

    def _keep(self, hold: Hold, until_ms: int) -> None:
        hold.until_ms = until_ms
        self._agenda.set(hold, until_ms)
        for lock in hold.locks.values():
            lock.until_ms = until_ms

    def release_hold(self, hold: Hold) -> None:
        """End a hold whose receiver goes: its messages wait again, and no delivery is counted. Harmless after its
        end."""
        if not hold.is_over:
            for lock in self._end(hold):
                self._give_back(lock.message)
            self._sessions.offer(hold.session)

    def _end(self, hold: Hold) -> list[SessionLock]:
        hold.is_over = True
        hold.session.hold = None
        self._agenda.set(hold, None)
        self._sessions.unload(hold.session)
        self._sessions.stirred.pop(hold.session, None)
        locks = list(hold.locks.values())
        hold.locks = {}
        for lock in locks:
            del self._locks[lock.token]
        give_room(locks)
        return locks

    # ── message locks ──

    def __len__(self) -> int:
        """Count all that can expire: holds, and locks that they left behind."""
        return len(self._agenda) + len(self._orphans)

    def __iter__(self) -> Iterator[SessionLock]:
        return chain(self._locks.values(), self._orphans)

    def clear(self) -> None:
        """Forget all holds, at the end of a box."""
        give_room(list(self._locks.values()))
        self._locks.clear()
        self._orphans.clear()

    def make(self, messages: Sequence[StoredMessage], now_ms: int, share: Share | None = None) -> list[Lock]:
        """Lock each of these messages for the holder of its session, which has this share of the budget."""
        locks: list[Lock] = []
        for token, message in zip(self.new_tokens(len(messages)), messages, strict=True):
            hold = self._sessions.make(message.session_id).hold
            assert hold is not None, "messages of a session go to its holder"
            lock = SessionLock(token, message, hold, share)
            self._locks[token] = hold.locks[token] = lock
            locks.append(lock)
        take_room(locks)
        return locks

    def _put(self, lock: SessionLock) -> None:
        lock.until_ms = lock.hold.until_ms
        take_room((lock,))
        self._locks[lock.token] = lock.hold.locks[lock.token] = lock

    def renew(self, lock: Lock, now_ms: int) -> int:
        """Return the end of the lock: a message lock is renewed with its session."""
        assert isinstance(lock, SessionLock)
        return self.renew_hold(lock.hold, now_ms)

    def remove(self, lock: Lock) -> None:
        """Take out a lock that is held. Its message now belongs to the caller."""
        assert isinstance(lock, SessionLock)
        del self._locks[lock.token]
        del lock.hold.locks[lock.token]
        give_room((lock,))

    def release(self, tokens: Sequence[bytes], now_ms: int) -> tuple[list[Lock], list[bytes]]:
        """Take the locks out and return (those held, the tokens that are lost). The caller has the messages now."""
        held: list[Lock] = []
        lost: list[bytes] = []
        for token in tokens:
            lock = self.held(token, now_ms)
            if lock is None:
                lost.append(token)
            else:
                self.remove(lock)
                held.append(lock)
        return held, lost

    def restore(self, locks: Iterable[Lock]) -> None:
        """Put locks back whose ending write failed: they go on, or end like those of their hold."""
        for lock in locks:
            assert isinstance(lock, SessionLock)
            if lock.hold.is_over:
                self._orphans.append(lock)
            else:
                self._put(lock)

    def lapse(self, now_ms: int, limit: int, size_max: int) -> list[Lock]:
        """End the holds that have expired, one after the other until they have `limit` locks or `size_max` bytes of
        messages; the messages belong to the caller. A session ends whole."""
        ended: list[Lock] = [*self._orphans]
        self._orphans = []
        size = sum([lock.message.size for lock in ended])
        while len(ended) < limit and size < size_max and (due := self._agenda.pop_due(now_ms, 1)):
            [hold] = due
            locks = self._end(hold)
            ended += locks
            size += sum([lock.message.size for lock in locks])
            self._sessions.offer(hold.session)
            hold.holder.session_lost()
        return ended

    def shift(self, ms: int) -> None:
        """Move the ends of all holds and of the locks under them: the clock was set."""
        for hold in self._agenda:
            self._keep(hold, hold.until_ms + ms)

    def next_lapse_ms(self) -> int | None:
        """Return a time not later than the next end."""
        return 0 if self._orphans else self._agenda.next_ms()
