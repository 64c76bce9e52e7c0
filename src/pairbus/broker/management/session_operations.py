"""Operations on sessions: renewal of their locks, their states, and lists of their ids."""

from __future__ import annotations

from pairbus.amqp.errors import NOT_ALLOWED
from pairbus.amqp.types import Array, Int, Timestamp
from pairbus.auth.sas import LISTEN
from pairbus.broker.boxes.holds import Hold
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.session_service import SessionService
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.management.node import Answer, Fields, ManagementNode, Operation
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal

PAGE_MAX = 1000  # session ids in one answer
ALL_SESSIONS_MS = 253_402_300_799_999
"A last-updated time at the end of the calendar means: all sessions."
STRING_32 = 0xB1


def _service(node: ManagementNode) -> SessionService:
    sessions = node.receivable.sessions
    if sessions is None or node.box is not node.receivable.main:
        raise Refusal(NOT_ALLOWED, f"'{node.path}' has no sessions: they are a setting of an entity at its creation.")
    return sessions


def held(node: ManagementNode, fields: Fields, now_ms: int) -> Hold | None:
    """Return the client's hold on the session that its request must name; None: the entity has no sessions."""
    if node.receivable.sessions is None or node.box is not node.receivable.main:
        return None
    session_id = fields.text("session-id")
    if session_id is None:
        raise Refusal(ARGUMENT_ERROR, f"'session-id' is missing: '{node.path}' requires sessions.")
    return node.receivable.sessions.held(session_id, node.is_mine, now_ms)


def _held(node: ManagementNode, fields: Fields, now_ms: int) -> tuple[SessionService, Hold]:
    sessions = _service(node)
    hold = held(node, fields, now_ms)
    assert hold is not None
    return sessions, hold


def _renew(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    sessions, hold = _held(node, fields, now_ms)
    answer.ok({"expiration": Timestamp(sessions.renew(hold, now_ms))})


def _get_state(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    sessions, hold = _held(node, fields, now_ms)
    answer.ok({"session-state": sessions.state(hold)})


def _set_state(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    sessions, hold = _held(node, fields, now_ms)
    state = fields.binary("session-state")
    if fields.transaction is None:
        sessions.set_state(hold, state, now_ms, answer.done)
    else:
        fields.transaction.set_state(sessions, hold.session.id, node.is_mine, state, now_ms)
        answer.ok()


def _list(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    sessions = _service(node)
    skip, top = fields.integer("skip", 0), fields.integer("top", PAGE_MAX)
    if skip < 0 or top < 1:
        raise Refusal(ARGUMENT_ERROR, f"'skip' must not be negative and 'top' at least 1; they are {skip} and {top}.")
    since_ms = fields.integer("last-updated-time", ALL_SESSIONS_MS)
    session_ids = sessions.page(None if since_ms >= ALL_SESSIONS_MS else since_ms, skip, min(top, PAGE_MAX))
    if session_ids:
        answer.ok({"skip": Int(skip + len(session_ids)), "sessions-ids": Array(session_ids, STRING_32)})
    else:
        answer.nothing()


KINDS = (Queue, Subscription)
OPERATIONS = {
    "com.microsoft:renew-session-lock": Operation(LISTEN, KINDS, _renew, may_be_transactional=True),
    "com.microsoft:get-session-state": Operation(LISTEN, KINDS, _get_state, may_be_transactional=True),
    "com.microsoft:set-session-state": Operation(LISTEN, KINDS, _set_state, may_be_transactional=True),
    "com.microsoft:get-message-sessions": Operation(LISTEN, KINDS, _list),
}
