"""The sessions of an entity: receivers hold them, read and write their states, and list them.

`boxes/sessions.py` chooses the session that a receiver gets next (`Sessions.next_available`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED
from pairbus.broker.boxes.holds import Hold, Holder
from pairbus.broker.boxes.sessions import MessageSession
from pairbus.broker.entities.entity import EntityDone
from pairbus.broker.refusal import Refusal, refusal_of, session_lock_lost, unreadable
from pairbus.broker.store import SetSessionState, StateRow
from pairbus.errors import StoreError

if TYPE_CHECKING:
    from pairbus.broker.entities.receivable import Receivable

STATE_SIZE_MAX = 256 << 10  # the service's limit for the state of one session
STATE_ROW_BYTES = 64  # of each state, besides its id: many empty ones fill a disk as well


def state_size(session_id: str, state: int) -> int:
    """Return the bytes that a state of `state` bytes counts towards the quota."""
    return state + len(session_id.encode()) + STATE_ROW_BYTES


def _no_quota() -> None:
    """Do nothing: the owner of the sessions sets its own check."""


class SessionService:
    """Sessions of an entity. `expire` removes messages that have expired by a time."""

    def __init__(self, entity: Receivable, expire: Callable[[int], None]) -> None:
        box = entity.main
        assert box.sessions is not None and box.holds is not None
        self.state_bytes = 0
        "Bytes of all session states, also of those that are not committed yet: they count towards the quota."
        self.check_quota: Callable[[], None] = _no_quota
        "Raises the Refusal when the entity, or the topic of a subscription, is full."
        self._entity = entity
        self._box = box
        self._sessions = box.sessions
        self._holds = box.holds
        self._expire = expire

    # ── holding ──

    def accept(self, session_id: str | None, holder: Holder, now_ms: int) -> Hold | None:
        """Hold the session of this id, or the next available one; None: not yet. Refusal: another receiver holds it.

        After None, the box is announced as soon as a session becomes available. While due work is paused, a session
        that has only expired messages is not given away: they are removed after the pause.
        """
        self._entity.check_receive()
        self._entity.used_ms = now_ms
        if session_id is not None:
            return self._holds.take(session_id, holder, now_ms)
        if self._entity.may_run_due(now_ms):
            try:
                self._expire(now_ms)
            except StoreError:  # the messages cannot be read now, which the store itself reports
                self._entity.pause(now_ms)
        is_paused = not self._entity.may_run_due(now_ms)
        expired = self._sessions.expired(now_ms) if is_paused else frozenset[MessageSession]()
        return self._holds.take_next(holder, now_ms, expired)

    def release(self, hold: Hold) -> None:
        """End the hold because its receiver goes: another receiver may have the session."""
        if not hold.is_over:
            self._holds.release_hold(hold)
            self._entity.announce(self._box)

    def held(self, session_id: str, is_mine: Callable[[Holder], bool], now_ms: int) -> Hold:
        """Return the hold on the session by a receiver for which `is_mine` is true, or raise the Refusal."""
        session = self._sessions.find(session_id)
        hold = None if session is None else session.hold
        if hold is None or hold.until_ms <= now_ms or not is_mine(hold.holder):
            raise session_lock_lost(session_id)
        return hold

    def renew(self, hold: Hold, now_ms: int) -> int:
        """Start the time of a hold again and return its new end."""
        self._entity.used_ms = now_ms
        return self._holds.renew_hold(hold, now_ms)

    # ── state ──

    def recover_state(self, row: StateRow) -> None:
        """Take a state that the store holds."""
        session = self._sessions.make(row.session_id)
        session.state_n, session.state_bytes, session.updated_ms = row.n, row.size, row.updated_ms
        self.state_bytes += state_size(row.session_id, row.size)

    def state(self, hold: Hold) -> bytes | None:
        """Return the committed state of a session that is held. Refusal: it cannot be read."""
        session = hold.session
        if session.state_bytes is None:
            return None
        try:
            return self._entity.store.load_state(session.state_n)
        except StoreError as error:
            raise unreadable(error) from error

    def set_state(self, hold: Hold, state: bytes | None, now_ms: int, done: EntityDone) -> None:
        """Write the state, or clear it; `done` is called after the commit. Refusal: it is too large, or larger than the
        one before and the quota is used up."""
        self.check_state(hold, state)
        entity, session = self._entity, hold.session
        entity.used_ms = now_ms
        size = None if state is None else len(state)
        session.state_n = session.state_n or entity.store.number()
        session.writing += 1
        self.state_bytes += 0 if size is None else state_size(session.id, size)
        entity.store.write(SetSessionState(entity.entity_id, session.state_n, session.id, now_ms, state))
        entity.store.after_commit(partial(self._written, session, size, now_ms, done))

    def check_state(self, hold: Hold, state: bytes | None) -> None:
        """Refuse a state that is too large, or larger than the one before when the quota is used up."""
        size = None if state is None else len(state)
        if size is not None and size > STATE_SIZE_MAX:
            text = f"The state of a session has at most {STATE_SIZE_MAX} bytes; this one has {size}."
            raise Refusal(MESSAGE_SIZE_EXCEEDED, text)
        self._entity.check_receive()
        before = hold.session.state_bytes
        if size is not None and (before is None or size > before):
            self.check_quota()

    def _written(
        self, session: MessageSession, size: int | None, now_ms: int, done: EntityDone, error: StoreError | None
    ) -> None:
        session.writing -= 1
        replaced = session.state_bytes if error is None else size
        if replaced is not None:
            self.state_bytes -= state_size(session.id, replaced)
        if error is None:
            session.state_bytes, session.updated_ms = size, now_ms
        self._sessions.drop_if_idle(session)
        done(None if error is None else refusal_of(error))

    def state_rows(self) -> list[int]:
        """Return the rows of all states, for the sweep of a dropped entity."""
        return [session.state_n for session in self._sessions if session.state_n]

    # ── listing ──

    def page(self, since_ms: int | None, skip: int, top: int) -> list[str]:
        """Return a page of the ids of sessions, sorted (see `Sessions.listed`)."""
        return self._sessions.listed(since_ms, skip, top)
