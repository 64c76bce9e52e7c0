"""`<entity>/$management`: peek, lock renewal, scheduling, deferred messages, settlement by lock token.

Each operation is a row: its name, the right it needs, its function. A function reads the request's map, calls the
queue and answers; what the map lacks or has wrong is a Refusal that names the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from pairbus.amqp.errors import (
    INTERNAL_ERROR,
    MESSAGE_SIZE_EXCEEDED,
    NOT_FOUND,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    ProtocolError,
)
from pairbus.amqp.message import Message
from pairbus.amqp.types import Array, Int, Long, Symbol, Timestamp
from pairbus.broker.box import Box, Lock
from pairbus.broker.messages import draft_of, encode_delivery, patch_of
from pairbus.broker.meter import Meter
from pairbus.broker.queue import Outcome, Queue
from pairbus.broker.refusal import (
    ARGUMENT_ERROR,
    ENTITY_DISABLED,
    MESSAGE_LOCK_LOST,
    MESSAGE_NOT_FOUND,
    Refusal,
    dead_letters_take_no_sends,
    entity_not_found,
    lock_lost,
)
from pairbus.broker.requests import Reply
from pairbus.sas import LISTEN, SEND

PEEK_COUNT_MAX = 250
ANSWER_SIZE_MAX = 1 << 20  # bytes of messages in one answer; at least one message is always given
SEQUENCE_NUMBERS_MAX = 1000
SEQUENCE_NUMBER_MAX = (1 << 63) - 1  # an AMQP long; a ulong can ask for more

_STATUS_OF = {
    MESSAGE_LOCK_LOST: 410,
    MESSAGE_NOT_FOUND: 404,
    NOT_FOUND: 404,
    UNAUTHORIZED_ACCESS: 401,
    ARGUMENT_ERROR: 400,
    RESOURCE_LIMIT_EXCEEDED: 403,
    MESSAGE_SIZE_EXCEEDED: 403,
    ENTITY_DISABLED: 400,
    INTERNAL_ERROR: 500,
}


Told = Callable[[dict[str, Any] | None, Refusal | None], None]
"Hears the answer: what it says, or why it was refused."


class Answer:
    """The answer to one request; given exactly once, now or after a commit."""

    def __init__(self, reply: Reply, told: Told) -> None:
        self._reply = reply
        self._told = told

    def ok(self, body: dict[str, Any] | None = None) -> None:
        self._told(body, None)
        self._reply({"statusCode": Int(200), "statusDescription": "OK"}, body or {})

    def nothing(self) -> None:
        self._told(None, None)
        self._reply({"statusCode": Int(204), "statusDescription": "No Content"}, None)

    def refuse(self, refusal: Refusal) -> None:
        self._told(None, refusal)
        self._reply(
            {
                "statusCode": Int(_STATUS_OF.get(refusal.condition, 400)),
                "statusDescription": refusal.description,
                "errorCondition": Symbol(refusal.condition),
            },
            {},
        )

    def done(self, refusal: Refusal | None) -> None:
        if refusal is None:
            self.ok()
        else:
            self.refuse(refusal)


class ManagementNode:
    """The management of one queue or dead-letter sub-queue, for one peer."""

    def __init__(
        self,
        address: str,
        queue: Queue,
        box: Box,
        *,
        find: Callable[[], Queue | None],
        allows: Callable[[str], bool],
        changed: Callable[[Queue], None],
        meter: Meter | None = None,
    ) -> None:
        self.address = address
        self.queue = queue
        self.box = box
        self._find = find
        self._allows = allows
        self._changed = changed
        self._meter = meter

    def on_request(self, request: Message, reply: Reply, now_ms: int) -> None:
        operation = request.property("operation")

        def told(body: dict[str, Any] | None, refusal: Refusal | None) -> None:
            if self._meter is not None:
                self._meter.request(self.queue.path, operation, request.body, body, refusal)

        answer = Answer(reply, told)
        try:
            known = OPERATIONS.get(operation) if isinstance(operation, str) else None
            if known is None:
                raise Refusal(ARGUMENT_ERROR, f"The operation {operation!r} is not supported.")
            right, run = known
            if not self._allows(right):
                raise Refusal(UNAUTHORIZED_ACCESS, f"{operation} on '{self.queue.path}' needs the {right} claim.")
            if self.queue.closed:
                self._find_again()
            run(self, Fields(request.body), answer, now_ms)
            self.changed()
        except Refusal as refusal:
            answer.refuse(refusal)
        except ProtocolError as error:
            answer.refuse(Refusal(ARGUMENT_ERROR, error.description))

    def _find_again(self) -> None:
        """The queue was deleted; there may be another of its name. Clients keep this link and hear of no deletion."""
        queue = self._find()
        if queue is None:
            raise entity_not_found(self.queue.path)
        self.box = queue.dead if self.box is self.queue.dead else queue.main
        self.queue = queue

    def changed(self) -> None:
        """Locks were taken or moved: when something falls due may have changed."""
        self._changed(self.queue)


class Fields:
    """The map of a request, read with care."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise Refusal(ARGUMENT_ERROR, "The body of the request must be a map.")
        self._values = body

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Refusal(ARGUMENT_ERROR, f"'{key}' must be an integer, is {value!r:.80}.")
        return int(value)

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise Refusal(ARGUMENT_ERROR, f"'{key}' must be a string, is {value!r:.80}.")
        return value

    def mapping(self, key: str) -> dict[Any, Any]:
        value = self._values.get(key)
        if value is not None and not isinstance(value, dict):
            raise Refusal(ARGUMENT_ERROR, f"'{key}' must be a map, is {value!r:.80}.")
        return value or {}

    def many(self, key: str, kind: type) -> list[Any]:
        values = self._values.get(key)
        if not isinstance(values, list) or not values or not all(isinstance(value, kind) for value in values):
            raise Refusal(ARGUMENT_ERROR, f"'{key}' must hold at least one {kind.__name__}, is {values!r:.80}.")
        if len(values) > SEQUENCE_NUMBERS_MAX:
            raise Refusal(ARGUMENT_ERROR, f"'{key}' holds {len(values)} entries; {SEQUENCE_NUMBERS_MAX} are allowed.")
        return values

    def lock_tokens(self) -> list[bytes]:
        return [token.bytes_le for token in self.many("lock-tokens", UUID)]


def _peek(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    count = min(fields.integer("message-count"), PEEK_COUNT_MAX)
    if count < 1:
        raise Refusal(ARGUMENT_ERROR, f"'message-count' must be at least 1, is {count}.")
    from_seq = min(max(fields.integer("from-sequence-number"), 0), SEQUENCE_NUMBER_MAX)
    found = node.queue.peek(node.box, from_seq, count, now_ms, size_max=ANSWER_SIZE_MAX)
    messages: list[dict[str, bytes]] = []
    size = 0
    for message in found:
        encoded = encode_delivery(message)
        size += len(encoded)
        if messages and size > ANSWER_SIZE_MAX:
            break
        messages.append({"message": encoded})
    if messages:
        answer.ok({"messages": messages})
    else:
        answer.nothing()


def _renew_lock(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    until = node.queue.renew(node.box, fields.lock_tokens(), now_ms)
    answer.ok({"expirations": Array([Timestamp(until_ms) for until_ms in until], 0x83)})


def _check_takes_sends(node: ManagementNode) -> None:
    if node.box is node.queue.dead:
        raise dead_letters_take_no_sends(node.queue.path)


def _schedule(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    _check_takes_sends(node)
    limit = node.queue.message_size_max
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

    def scheduled(result: Refusal | list[int]) -> None:
        if isinstance(result, Refusal):
            answer.refuse(result)
        else:
            answer.ok({"sequence-numbers": Array([Long(seq) for seq in result], 0x81)})

    node.queue.schedule(drafts, now_ms, scheduled)


def _cancel_scheduled(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    _check_takes_sends(node)
    node.queue.cancel_scheduled(fields.many("sequence-numbers", int), now_ms, answer.done)


def _receive_deferred(node: ManagementNode, fields: Fields, answer: Answer, now_ms: int) -> None:
    node.queue.check_receive()

    def received(result: Refusal | list[Lock]) -> None:
        node.changed()
        if isinstance(result, Refusal):
            answer.refuse(result)
        else:
            answer.ok(
                {
                    "messages": [
                        {
                            "lock-token": UUID(bytes_le=lock.token),
                            "message": encode_delivery(lock.message, lock.until_ms),
                        }
                        for lock in result
                    ]
                }
            )

    lock = fields.integer("receiver-settle-mode", 1) == 1
    node.queue.receive_deferred(node.box, fields.many("sequence-numbers", int), now_ms, lock, received)


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
    if outcome is Outcome.COMPLETE:
        node.queue.complete_many(node.box, tokens, now_ms, lambda lost, error: answer.done(_lost(lost, error)))
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
            node.queue.settle(node.box, token, outcome, now_ms, settled, patch=patch)
        except Refusal as refusal:
            settled(refusal)


def _lost(lost: list[bytes], error: Refusal | None) -> Refusal | None:
    return (error or lock_lost(len(lost))) if lost else None


Operation = Callable[[ManagementNode, Fields, Answer, int], None]
OPERATIONS: dict[str, tuple[str, Operation]] = {
    "com.microsoft:peek-message": (LISTEN, _peek),
    "com.microsoft:renew-lock": (LISTEN, _renew_lock),
    "com.microsoft:schedule-message": (SEND, _schedule),
    "com.microsoft:cancel-scheduled-message": (SEND, _cancel_scheduled),
    "com.microsoft:receive-by-sequence-number": (LISTEN, _receive_deferred),
    "com.microsoft:update-disposition": (LISTEN, _update_disposition),
}
