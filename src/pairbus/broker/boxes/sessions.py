"""The sessions of one box: for each its waiting messages in order and its holder; and which session is next.

A waiting message costs eight bytes, in an array of its session; a session about half a kilobyte.

Laws.
 1. A session is known as long as it has messages, a state, a holder, or a write of its state under way.
 2. `count` is all messages of the session that are in the box. Those that are neither waiting, loaded, deferred nor
    locked are *pending*: a write carries them, and they may come back, so no receiver gets the session until they have
    come or gone. Without that, the next holder would get the second message before the first.
 3. A session is *available* when it has no holder, messages of it wait and none is pending. Code that makes a session
    available puts it into the heap under its first number; the heap may also hold sessions that no longer are.
    When the last pending message of a session without a holder has come or gone, `on_freed` is called: receivers that
    were told "not yet" may try again. Who admits new messages tells of them itself.
 4. Only a held session has loaded messages. Their numbers are below those of its line.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Set
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import TYPE_CHECKING

from pairbus.broker.boxes.due import SLACK, ExpiryHeap
from pairbus.broker.boxes.line import CHUNK_MAX, EXPIRED_MAX, READY_BYTES_MAX, READY_MAX, Surroundings, pick, up_to
from pairbus.broker.boxes.merged_sessions import MergedSessions
from pairbus.broker.boxes.row_numbers import Numbers
from pairbus.broker.budget import READY_COST
from pairbus.broker.store import StoredMessage
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.boxes.holds import Hold


class MessageSession:
    __slots__ = (
        "count",
        "deferred",
        "hold",
        "id",
        "line",
        "loaded",
        "queued_n",
        "state_bytes",
        "state_n",
        "updated_ms",
        "writing",
    )

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.count = 0
        "Messages of the session in the box; scheduled ones are not yet there."
        self.line = Numbers()
        self.loaded: deque[StoredMessage] | None = None
        self.deferred: dict[int, int] | None = None
        "Sequence number → row number."
        self.hold: Hold | None = None
        self.queued_n = 0
        "Number under which the session is in the heap; 0: it is not."
        self.state_n = 0
        "Row of its state, which may be empty; 0: none was ever set."
        self.state_bytes: int | None = None
        "Bytes of its state; None: it has no state."
        self.updated_ms = 0
        "Time at which its state was set."
        self.writing = 0
        "Writes of its state under way."

    def __repr__(self) -> str:
        return f"<MessageSession {self.id!r} {self.count} messages, {'held' if self.hold is not None else 'free'}>"

    @property
    def waiting(self) -> int:
        return len(self.line) + (len(self.loaded) if self.loaded else 0)

    @property
    def pending(self) -> int:
        locked = len(self.hold.locks) if self.hold is not None else 0
        return self.count - self.waiting - locked - (len(self.deferred) if self.deferred else 0)

    @property
    def first_n(self) -> int:
        return self.loaded[0].n if self.loaded else self.line.first

    def waits(self, n: int) -> bool:
        if n in self.line:
            return True
        loaded = self.loaded
        if not loaded or not loaded[0].n <= n <= loaded[-1].n:
            return False
        return loaded[bisect_left(loaded, n, key=_number_of)].n == n

    def waiting_numbers(self) -> Iterator[int]:
        """Yield the numbers of the waiting messages, ascending."""
        yield from [message.n for message in self.loaded or ()]
        yield from self.line

    @property
    def is_available(self) -> bool:
        return self.hold is None and self.waiting > 0 and self.pending == 0

    @property
    def is_listed(self) -> bool:
        return self.count > 0 or self.state_bytes is not None


class Sessions:
    """The sessions of a box; also the place where its messages wait."""

    def __init__(self, around: Surroundings, on_freed: Callable[[], None]) -> None:
        self.stirred: dict[MessageSession, None] = {}
        "Held sessions that have got messages since the dispatcher last looked; the dispatcher clears it."
        self._around = around
        self._on_freed = on_freed
        self._sessions: dict[str, MessageSession] = {}
        self._heap: list[tuple[int, MessageSession]] = []
        self._expiry: ExpiryHeap[tuple[int, MessageSession]] = ExpiryHeap()
        self._loaded = self._loaded_bytes = 0
        self._ids: list[str] = []
        "Sorted ids, as of the last list of sessions."
        self._new_ids: list[str] | None = None
        "Ids of sessions that were made since; None: nobody has listed sessions."
        self._merged: MergedSessions | None = None
        "Waiting messages of all sessions in one order; None: nobody peeks over all sessions."
        self._merged_added = 0
        "Messages that were added to it since the last peek."
        self._with_loaded: set[MessageSession] = set()
        "Sessions that may have loaded messages."

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[MessageSession]:
        return iter(self._sessions.values())

    def find(self, session_id: str) -> MessageSession | None:
        return self._sessions.get(session_id)

    def make(self, session_id: str) -> MessageSession:
        """Return the session of this id; a new one where there is none."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = MessageSession(session_id)
            if self._new_ids is not None:
                self._note_new(self._new_ids, session_id)
        return session

    def _note_new(self, ids: list[str], session_id: str) -> None:
        ids.append(session_id)
        if len(ids) > len(self._sessions) + SLACK:  # nobody lists them any more
            self._ids, self._new_ids = [], None

    # ── messages come in ──

    def recover(self, session_id: str, n: int, expires_ms: int) -> None:
        """Take the rows of the store's index, in ascending order."""
        session = self.make(session_id)
        session.count += 1
        session.line.add(n)
        if expires_ms:
            self._expiry.add(expires_ms, (n, session))
        if not session.queued_n:
            session.queued_n = n
            heappush(self._heap, (n, session))

    def recover_deferred(self, session_id: str, seq: int, n: int) -> None:
        session = self.make(session_id)
        session.count += 1
        session.deferred = session.deferred or {}
        session.deferred[seq] = n

    def admit(self, messages: Sequence[StoredMessage]) -> None:
        """Take new messages; those of held sessions stay loaded while few are."""
        for message in messages:
            session = self.make(message.session_id)
            session.count += 1
            self._put(session, message)
        self._note_loaded()

    def give_back(self, message: StoredMessage) -> None:
        """Take back a message that had left, in its old place in the order."""
        session = self.make(message.session_id)
        self._put(session, message)
        self._note_loaded()
        self._tell_if_free(session)

    def _tell_if_free(self, session: MessageSession) -> None:
        if session.hold is None and not session.pending:
            self._on_freed()

    def _put(self, session: MessageSession, message: StoredMessage) -> None:
        if message.expires_ms:
            self._expect_expiry(session, message)
        if self._merged is not None:
            self._note_merged(self._merged, session, message.n)
        line = session.line
        if session.hold is None or (line and line.first < message.n) or not self._keep_loaded(session, message):
            line.add(message.n)
        if session.hold is None:
            self.offer(session)
        else:
            self.stirred[session] = None

    def _keep_loaded(self, session: MessageSession, message: StoredMessage) -> bool:
        """Insert a message among the loaded ones; False: no room, and the session is unloaded if law 4 asks for it."""
        loaded = session.loaded
        is_whole = bool(message.body) or message.is_whole
        if self._loaded >= READY_MAX or self._loaded_bytes >= READY_BYTES_MAX or not is_whole:
            if loaded and loaded[-1].n > message.n:
                self.unload(session)
            return False
        if loaded is None:
            loaded = session.loaded = deque()
            self._with_loaded.add(session)
        if not loaded or loaded[-1].n < message.n:
            loaded.append(message)
        elif loaded[0].n > message.n:
            loaded.appendleft(message)
        else:
            insort(loaded, message, key=_number_of)
        self._loaded += 1
        self._loaded_bytes += message.size
        return True

    def _expect_expiry(self, session: MessageSession, message: StoredMessage) -> None:
        self._expiry.add(message.expires_ms, (message.n, session))
        if self._expiry.crowded:
            # The message itself has no place yet, but it counts as waiting.
            self._expiry.compact(lambda entry: entry[0] == message.n or _waits(entry))

    def defer(self, message: StoredMessage) -> None:
        session = self.make(message.session_id)
        session.deferred = session.deferred or {}
        session.deferred[message.seq] = message.n
        self.offer(session)
        self._tell_if_free(session)

    def take_deferred(self, message: StoredMessage) -> None:
        session = self.make(message.session_id)
        assert session.deferred is not None
        del session.deferred[message.seq]
        if not session.deferred:
            session.deferred = None

    def forget(self, messages: Sequence[StoredMessage]) -> None:
        """Forget messages that had left: they do not come back."""
        for message in messages:
            session = self.make(message.session_id)
            session.count -= 1
            if session.hold is None:
                self.offer(session)
                self._tell_if_free(session)

    def drop_if_idle(self, session: MessageSession) -> None:
        """Forget a session that has neither messages, a state, a holder nor a write under way (law 1)."""
        if not session.is_listed and session.hold is None and not session.writing:
            self._sessions.pop(session.id, None)
            self.stirred.pop(session, None)

    # ── which is next ──

    def offer(self, session: MessageSession) -> None:
        """Check a session after a change that may make it available, or end it."""
        if session.is_available:
            first_n = session.first_n
            if not session.queued_n or first_n < session.queued_n:
                session.queued_n = first_n
                heappush(self._heap, (first_n, session))
                if len(self._heap) > 2 * len(self._sessions) + SLACK:
                    self._heap = [(each.queued_n, each) for each in self if each.queued_n]
                    heapify(self._heap)
        elif not session.count:
            self.drop_if_idle(session)

    def next_available(self, but: Set[MessageSession] = frozenset()) -> MessageSession | None:
        """Return the session that is locked next: the available one, none of `but`, whose first message is oldest.

        It stays in the heap until a receiver holds it.
        """
        heap = self._heap
        passed: list[tuple[int, MessageSession]] = []
        chosen: MessageSession | None = None
        while heap and chosen is None:
            n, session = heap[0]
            if n != session.queued_n:  # the session came in again, under a lower number
                heappop(heap)
            elif not session.is_available:
                heappop(heap)
                session.queued_n = 0
            elif session.first_n != n:  # the first ones have expired
                heappop(heap)
                session.queued_n = 0
                self.offer(session)
            elif session in but:
                passed.append(heappop(heap))
            else:
                chosen = session
        for entry in passed:
            heappush(heap, entry)
        return chosen

    def available(self, now_ms: int) -> bool:
        """Return whether some receiver may be served: a new one with a session, or a holder with a message."""
        return bool(self.stirred) or self.next_available() is not None

    # ── messages go out ──

    def next(self, session: MessageSession, limit: int, now_ms: int) -> list[StoredMessage]:
        """Take out the first messages of a held session, up to `limit` of those that are loaded; none: no message
        waits.

        StoreError: the messages could not be read; they still wait.
        """
        messages: list[StoredMessage] = []
        expired_count = 0
        while not messages and expired_count < EXPIRED_MAX:
            if not session.loaded and not self._load(session):
                return []
            if not session.loaded:  # all messages that were read are damaged
                continue
            messages, expired, size = pick(session.loaded, limit, sys.maxsize, now_ms)
            self._loaded -= len(messages) + len(expired)
            self._loaded_bytes -= size
            self._expiry.live -= sum([message.expires_ms > 0 for message in messages]) + len(expired)
            if expired:
                expired_count += len(expired)
                self._around.on_expired(expired, now_ms)
        self._note_loaded()
        return messages  # none: the entity announces the box again when the expired ones are removed

    def _load(self, session: MessageSession) -> bool:
        room = max(1, READY_MAX - self._loaded)
        numbers = session.line.take(min(self._around.chunk_size(), room))
        if not numbers:
            return False
        try:
            messages, rest = self._around.load(numbers)
        except StoreError:
            for n in reversed(numbers):
                session.line.add(n)
            raise
        for n in reversed(rest):
            session.line.add(n)
        session.count -= len(numbers) - len(rest) - len(messages)
        session.loaded = deque(messages)
        self._with_loaded.add(session)
        self._loaded += len(messages)
        self._loaded_bytes += sum(message.size for message in messages)
        return True

    def unload(self, session: MessageSession) -> None:
        """Unload the messages of the session: only their numbers are kept."""
        if self._put_down(session):
            self._note_loaded()

    def _put_down(self, session: MessageSession) -> bool:
        """Unload a session, and tell whether it had messages; the shelf is not told."""
        loaded, session.loaded = session.loaded, None
        self._with_loaded.discard(session)
        for message in reversed(loaded or ()):
            session.line.add(message.n)
            self._loaded -= 1
            self._loaded_bytes -= message.size
        return bool(loaded)

    def held_bytes(self) -> int:
        """Return what the loaded messages take in memory."""
        return self._loaded_bytes + READY_COST * self._loaded

    def _note_loaded(self) -> None:
        self._around.ready.note_size(self, self._loaded_bytes + READY_COST * self._loaded)

    def give_up(self) -> None:
        """Unload every session. The shelf that asks for it has forgotten this box, and is not told again."""
        for session in list(self._with_loaded):
            self._put_down(session)

    # ── looking ──

    def listed(self, since_ms: int | None, skip: int, top: int) -> list[str]:
        """Return a page of the sorted ids of sessions with messages or a state, or of those whose state was set since
        `since_ms`."""
        sessions = self._sessions
        known = (session for name in self._sorted_ids() if (session := sessions.get(name)) is not None)
        if since_ms is None:
            ids = (session.id for session in known if session.is_listed)
        else:
            ids = (each.id for each in known if each.state_bytes is not None and each.updated_ms >= since_ms)
        return list(islice(ids, skip, skip + top))

    def _sorted_ids(self) -> list[str]:
        """Return the ids of all sessions, and perhaps of some that are gone; pages of one list are sorted once."""
        size_max = 2 * len(self._sessions) + SLACK
        if self._new_ids is None or len(self._ids) + len(self._new_ids) > size_max:
            self._ids = sorted(self._sessions)
        elif self._new_ids:
            self._ids = list(dict.fromkeys(sorted(chain(self._ids, self._new_ids))))  # two runs, which are merged
        self._new_ids = []
        return self._ids

    def first_from(self, seq: int, session_id: str | None = None) -> int:
        """Return the lowest number whose sequence number is at least `seq`; 0: there is none.

        With a session id, all messages of that session are searched; without, the waiting messages of every session.
        """
        if session_id is None:
            return self._merge().first_from(seq, self._around.seq_of)
        session = self._sessions.get(session_id)
        if session is None:
            return 0
        known = [message.n for message in session.loaded or () if message.seq >= seq]
        known += [n for each, n in (session.deferred or {}).items() if each >= seq]
        if session.hold is not None:
            known += [lock.message.n for lock in session.hold.locks.values() if lock.message.seq >= seq]
        waiting = session.line.first_from(seq, self._around.seq_of)
        return min([*known, waiting] if waiting else known, default=0)

    def numbers_from(self, n: int, count: int) -> list[int]:
        """Return the `count` lowest numbers of waiting messages from `n` on, ascending."""
        return self._merge().numbers_from(n, count)

    def _merge(self) -> MergedSessions:
        if self._merged is None:
            self._merged = MergedSessions(self)
        self._merged_added = 0
        return self._merged

    def _note_merged(self, merged: MergedSessions, session: MessageSession, n: int) -> None:
        merged.add(n, session)
        self._merged_added += 1
        if self._merged_added > len(merged) // 2 + SLACK:  # nobody peeks any more
            self._merged = None

    def numbers_of(self, session_id: str, n: int, count: int) -> list[int]:
        """Return the numbers of all messages of a session from `n` on, in no order, among them the `count` lowest."""
        session = self._sessions.get(session_id)
        if session is None:
            return []
        numbers = session.line.since(n, count)
        numbers += [message.n for message in session.loaded or () if message.n >= n]
        numbers += [n_deferred for n_deferred in (session.deferred or {}).values() if n_deferred >= n]
        if session.hold is not None:
            numbers += [lock.message.n for lock in session.hold.locks.values() if lock.message.n >= n]
        return numbers

    def drain(self, limit: int) -> list[int]:
        """Take out up to `limit` numbers. For the end of a box; states are swept on their own."""
        numbers: list[int] = []
        while self._sessions and len(numbers) < limit:
            session = next(iter(self._sessions.values()))
            self.unload(session)
            numbers += session.line.take(limit - len(numbers))
            if not session.line:
                del self._sessions[session.id]
        return numbers

    # ── time to live ──

    def next_expiry_ms(self) -> int | None:
        return self._expiry.next_ms()

    def expired(self, now_ms: int) -> Set[MessageSession]:
        """Return the sessions of which every waiting message has expired."""
        counts = Counter(entry[1] for entry in self._expiry.due(now_ms) if _waits(entry))
        return {session for session, count in counts.items() if count == session.waiting}

    def withdraw_expired(self, now_ms: int, size_max: int) -> list[StoredMessage]:
        """Return some waiting messages whose time to live is over, without their bodies; the caller may give them back.
        The last one reaches `size_max` bytes."""
        next_ms = self._expiry.next_ms()
        if next_ms is None or next_ms > now_ms:
            return []
        due = [entry for entry in self._expiry.pop_due(now_ms, CHUNK_MAX) if _waits(entry)]
        self._expiry.live -= len(due)
        for _, session in due:
            self.unload(session)
        if not due:
            return []
        try:
            messages, unread = self._around.load_heads(sorted(n for n, _ in due))
        except StoreError:
            for entry in due:
                self._expiry.add(now_ms, entry)
            raise
        messages, later = up_to(messages, size_max)
        rest = {*unread, *(message.n for message in later)}
        for entry in due:
            if entry[0] in rest:
                self._expiry.add(now_ms, entry)
        due = [entry for entry in due if entry[0] not in rest]
        for n, session in due:
            session.line.discard(n)
        intact = {message.n for message in messages}
        for n, session in due:
            if n not in intact:
                session.count -= 1
                self.offer(session)
        return messages

    def trim(self) -> None:
        """Do nothing: withdrawn messages leave no entries behind."""


def _number_of(message: StoredMessage) -> int:
    return message.n


def _waits(entry: tuple[int, MessageSession]) -> bool:
    n, session = entry
    return session.waits(n)
