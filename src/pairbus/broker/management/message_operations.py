"""Operations on messages: peek, lock renewal, scheduling, deferred messages, settlement by lock token."""

from __future__ import annotations

from uuid import UUID

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED, NOT_ALLOWED
from pairbus.amqp.message import DATA, SEQUENCE, VALUE, sections
from pairbus.amqp.types import Array, Int, Long, Timestamp
from pairbus.auth.sas import LISTEN, SEND
from pairbus.broker.boxes.box import Lock
from pairbus.broker.entities.draft import check_session_ids
from pairbus.broker.entities.queue import Outcome, Queue
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.entities.topic import Topic
from pairbus.broker.management.node import Answer, Fields, ManagementNode, Operation
from pairbus.broker.management.session_operations import held
from pairbus.broker.refusal import (
    ARGUMENT_ERROR,
    MESSAGE_NOT_FOUND,
    SERVER_BUSY,
    Refusal,
    dead_letters_take_no_sends,
    lock_lost,
    messages_not_found,
)
from pairbus.broker.wire.deliveries import encode_delivery, patch_of
from pairbus.broker.wire.messages import draft_of

PEEK_COUNT_MAX = 250
DELETE_COUNT_MAX = 4000
ANSWER_SIZE_MAX = 1 << 20  # bytes of messages in one answer; it has at least one message
SEQUENCE_NUMBER_MAX = (1 << 63) - 1  # the largest AMQP long; a request may name a larger ulong
BODIES = (DATA, SEQUENCE, VALUE)
SENT_TO = (Queue, Topic)
RECEIVED_FROM = (Queue, Subscription)


def _peek(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    count = min(fields.integer("message-count"), PEEK_COUNT_MAX)
    if count < 1:
        raise Refusal(ARGUMENT_ERROR, f"'message-count' must be at least 1, is {count}.")
    from_seq = min(max(fields.integer("from-sequence-number"), 0), SEQUENCE_NUMBER_MAX)
    session_id = fields.text("session-id") if node.box.sessions is not None else None
    peeked = node.receivable.peek(node.box, from_seq, count, now_ms, session_id=session_id, size_max=ANSWER_SIZE_MAX)
    omits_body = fields.boolean("omit-message-body")
    messages: list[dict[str, bytes]] = []
    size = 0
    for message in peeked:
        encoded = _without_body(encode_delivery(message)) if omits_body else encode_delivery(message)
        size += len(encoded)
        if messages and size > ANSWER_SIZE_MAX:
            break
        messages.append({"message": encoded})
    if messages:
        answer.ok({"messages": messages})
    else:
        answer.nothing()


def _without_body(encoded: bytes) -> bytes:
    """Leave out the body of an encoded message."""
    return b"".join(encoded[start:end] for code, start, _, end in sections(encoded) if code not in BODIES)


def _renew_lock(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    until = node.receivable.renew(node.box, fields.lock_tokens(), now_ms)
    answer.ok({"expirations": Array([Timestamp(until_ms) for until_ms in until], 0x83)})


def _check_takes_sends(node: ManagementNode) -> None:
    entity = node.destination
    if isinstance(entity, Queue) and node.box is not entity.main:
        raise dead_letters_take_no_sends(node.path)


def _schedule(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    _check_takes_sends(node)
    limit = node.destination.message_size_max
    drafts = []
    for entry in fields.many("messages", dict):
        payload = entry.get("message")
        if not isinstance(payload, bytes):
            raise Refusal(ARGUMENT_ERROR, "Every entry of 'messages' must hold 'message', an encoded message.")
        if len(payload) > limit:
            raise Refusal(MESSAGE_SIZE_EXCEEDED, f"A message of {len(payload)} bytes; {limit} are allowed.")
        draft = draft_of(payload)
        if draft.is_ping:
            raise Refusal(ARGUMENT_ERROR, "A ping cannot be scheduled.")
        drafts.append(draft)
    entity = node.destination
    if isinstance(entity, Queue) and entity.sessions is not None:
        check_session_ids(drafts, entity.path)

    def scheduled(result: Refusal | list[int]) -> None:
        if isinstance(result, Refusal):
            answer.refuse(result)
        else:
            answer.ok({"sequence-numbers": Array([Long(seq) for seq in result], 0x81)})

    node.destination.schedule(drafts, now_ms, scheduled)


def _cancel_scheduled(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    _check_takes_sends(node)
    node.destination.cancel_scheduled(fields.many("sequence-numbers", int), now_ms, answer.done)


def _receive_deferred(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    node.receivable.check_receive()
    if not node.locked.may_take:
        raise Refusal(SERVER_BUSY, "This connection has too many locked messages: settle some of them first.")

    def received(result: Refusal | list[Lock]) -> None:
        node.changed()
        if isinstance(result, Refusal):
            answer.refuse(result)
        else:
            messages = [
                {
                    "lock-token": UUID(bytes_le=lock.token),
                    "message": encode_delivery(lock.message, lock.until_ms, lock.token if holds else b""),
                }
                for lock in result
            ]
            for lock in result:
                lock.message.drop_body()
            answer.ok({"messages": messages})

    holds, numbers = fields.integer("receiver-settle-mode", 1) == 1, fields.many("sequence-numbers", int)
    hold = held(node, fields, now_ms)
    if hold is not None:
        strange = [seq for seq in numbers if seq not in (hold.session.deferred or {})]
        if strange:
            raise messages_not_found(strange, f"deferred (in session '{hold.session.id}')", node.path)
    node.receivable.receive_deferred(node.box, numbers, now_ms, holds, received, share=node.locked)


def _delete(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    count = fields.integer("message-count")
    if not 1 <= count <= DELETE_COUNT_MAX:
        raise Refusal(ARGUMENT_ERROR, f"'message-count' must be from 1 to {DELETE_COUNT_MAX}, is {count}.")
    if "session-id" in fields and node.box.sessions is None:
        raise Refusal(NOT_ALLOWED, f"'{node.address}' has no sessions of which messages could be deleted.")
    hold = held(node, fields, now_ms)

    def deleted(result: Refusal | int) -> None:
        if isinstance(result, Refusal):
            answer.refuse(result)
        elif result:
            answer.ok({"message-count": Int(result)})
        else:
            answer.nothing(MESSAGE_NOT_FOUND)

    before_ms, session = fields.integer("enqueued-time-utc", now_ms), None if hold is None else hold.session
    node.receivable.delete_waiting(node.box, count, before_ms, now_ms, deleted, session=session)


_OUTCOMES = {
    "completed": Outcome.COMPLETE,
    "abandoned": Outcome.ABANDON,
    "defered": Outcome.DEFER,
    "suspended": Outcome.DEAD_LETTER,
}


def _update_disposition(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    status = fields.text("disposition-status")
    outcome = _OUTCOMES.get(status or "")
    if outcome is None:
        raise Refusal(ARGUMENT_ERROR, f"'disposition-status' is {status!r}; known are {', '.join(_OUTCOMES)}.")
    changes = dict(fields.mapping("properties-to-modify"))
    if outcome is Outcome.DEAD_LETTER:
        for key, name in (
            ("deadletter-reason", "DeadLetterReason"),
            ("deadletter-description", "DeadLetterErrorDescription"),
        ):
            if (text := fields.text(key)) is not None:
                changes[name] = text
    patch, tokens = patch_of(changes), fields.lock_tokens()
    held(node, fields, now_ms)
    if fields.transaction is not None:
        for token in tokens:
            fields.transaction.settle(node.receivable, node.box, token, outcome, now_ms, patch=patch)
        answer.ok()
        return
    if outcome is Outcome.COMPLETE:
        node.receivable.complete_many(node.box, tokens, now_ms, lambda lost, error: answer.done(_lost(lost, error)))
        return
    waiting = len(tokens)
    refusals: list[Refusal] = []

    def settled(refusal: Refusal | None) -> None:
        nonlocal waiting
        waiting -= 1
        if refusal is not None:
            refusals.append(refusal)
        if not waiting:
            answer.done(refusals[0] if refusals else None)

    for token in tokens:
        try:
            node.receivable.settle(node.box, token, outcome, now_ms, settled, patch=patch)
        except Refusal as refusal:
            settled(refusal)


def _lost(lost: list[bytes], error: Refusal | None) -> Refusal | None:
    return (error or lock_lost(len(lost))) if lost else None


OPERATIONS = {
    "com.microsoft:peek-message": Operation(LISTEN, RECEIVED_FROM, _peek, may_be_transactional=True),
    "com.microsoft:renew-lock": Operation(LISTEN, RECEIVED_FROM, _renew_lock, may_be_transactional=True),
    "com.microsoft:schedule-message": Operation(SEND, SENT_TO, _schedule),
    "com.microsoft:cancel-scheduled-message": Operation(SEND, SENT_TO, _cancel_scheduled),
    "com.microsoft:receive-by-sequence-number": Operation(
        LISTEN, RECEIVED_FROM, _receive_deferred, sees_settlements=True
    ),
    "com.microsoft:batch-delete-messages": Operation(LISTEN, RECEIVED_FROM, _delete, sees_settlements=True),
    "com.microsoft:update-disposition": Operation(
        LISTEN, RECEIVED_FROM, _update_disposition, may_be_transactional=True
    ),
}
