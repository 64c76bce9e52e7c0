"""One `$management` node: each operation is a row of a table, the map of a request is checked, each answer is given
once.

A function of a row reads the request's map, calls the entity and answers; a key that is missing or wrong is a Refusal
that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pairbus.amqp.errors import (
    INTERNAL_ERROR,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    NOT_FOUND,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    ProtocolError,
)
from pairbus.amqp.message import Message
from pairbus.amqp.types import Int, Symbol
from pairbus.auth.sas import MANAGE
from pairbus.broker.boxes.box import Box
from pairbus.broker.budget import Share
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.entities.topic import Topic
from pairbus.broker.entities.transactions import Transaction
from pairbus.broker.refusal import (
    ARGUMENT_ERROR,
    ENTITY_DISABLED,
    ENTITY_EXISTS,
    MESSAGE_LOCK_LOST,
    MESSAGE_NOT_FOUND,
    SERVER_BUSY,
    SESSION_LOCK_LOST,
    TIMEOUT,
    Refusal,
    refusal_of,
    unreadable,
)
from pairbus.broker.wire.requests import OwnTransaction, SendReply
from pairbus.errors import EntityExists, EntityNotFound, InvalidDescription, StoreError

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

SEQUENCE_NUMBERS_MAX = 1000

_STATUS_OF = {
    MESSAGE_LOCK_LOST: 410,
    SESSION_LOCK_LOST: 410,
    MESSAGE_NOT_FOUND: 404,
    NOT_FOUND: 404,
    UNAUTHORIZED_ACCESS: 401,
    ARGUMENT_ERROR: 400,
    ENTITY_EXISTS: 409,
    RESOURCE_LIMIT_EXCEEDED: 403,
    MESSAGE_SIZE_EXCEEDED: 403,
    ENTITY_DISABLED: 400,
    SERVER_BUSY: 503,
    TIMEOUT: 408,
    INTERNAL_ERROR: 500,
}

OnAnswer = Callable[[dict[str, Any] | None, Refusal | None], None]
"Called with the answer: its content, or why it was refused."


class Answer:
    """The answer to one request; given exactly once, now or after a commit."""

    def __init__(self, reply: SendReply, on_answer: OnAnswer) -> None:
        self._reply = reply
        self._on_answer = on_answer

    def ok(self, body: dict[str, Any] | None = None) -> None:
        self._on_answer(body, None)
        self._reply({"statusCode": Int(200), "statusDescription": "OK"}, body or {})

    def nothing(self, condition: str | None = None) -> None:
        """Answer that there is no such message; some operations name this as a condition."""
        self._on_answer(None, None)
        status: dict[str, Any] = {"statusCode": Int(204), "statusDescription": "No Content"}
        self._reply(status if condition is None else {**status, "errorCondition": Symbol(condition)}, None)

    def refuse(self, refusal: Refusal) -> None:
        self._on_answer(None, refusal)
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


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Entity that an address names, and the box in it that is read."""

    entity: Queue | Topic | Subscription
    box: Box | None
    "Box that is read; None where a client cannot receive."


@dataclass(frozen=True, slots=True)
class Operation:
    """A row of the table."""

    right: str
    kinds: tuple[type, ...]
    "Entities on which the operation makes sense."
    run: Callable[[ManagementNode, Fields, Answer, int], None]
    sees_settlements: bool = False
    "True: runs when all earlier settlements are committed. Older SDKs settle without waiting for an answer."
    may_be_transactional: bool = False
    "True: may be requested in a transaction, because it changes nothing, or takes its change into the transaction."


class ManagementNode:
    """The management of one entity or dead-letter sub-queue, for one peer."""

    def __init__(
        self,
        address: str,
        namespace: Namespace,
        operations: dict[str, Operation],
        *,
        find: Callable[[], RequestTarget],
        allows: Callable[[str], bool],
        is_mine: Callable[[object], bool],
        locked: Share,
    ) -> None:
        """Make the node. `find` looks the entity up and raises a Refusal when it does not exist; `is_mine` tells
        whether the holder of a session is a link of this peer; `locked` is what the peer holds of the budget."""
        self.address = address
        self.namespace = namespace
        self.target = find()
        self._operations = operations
        self._find = find
        self._allows = allows
        self.is_mine = is_mine
        self.locked = locked

    @property
    def path(self) -> str:
        return self.target.entity.path

    @property
    def entity(self) -> str:
        return self.path

    def right_of(self, request: Message) -> str:
        """Return the right that the operation needs; for one that does not exist, Manage."""
        name = request.property("operation")
        operation = self._operations.get(name) if isinstance(name, str) else None
        return MANAGE if operation is None else operation.right

    def refuse(self, reply: SendReply, refusal: Refusal) -> None:
        Answer(reply, lambda body, refusal: None).refuse(refusal)

    @property
    def message_size_max(self) -> int:
        """The largest message that a request may carry."""
        entity = self.target.entity
        return 0 if isinstance(entity, Subscription) else entity.description.max_message_size_kb * 1024

    @property
    def destination(self) -> Queue | Topic:
        """The entity, for operations that send."""
        assert not isinstance(self.target.entity, Subscription)
        return self.target.entity

    @property
    def receivable(self) -> Queue | Subscription:
        """The entity, for operations of receivers."""
        assert not isinstance(self.target.entity, Topic)
        return self.target.entity

    @property
    def box(self) -> Box:
        assert self.target.box is not None
        return self.target.box

    def on_request(
        self, request: Message, reply: SendReply, now_ms: int, transaction: OwnTransaction | None = None
    ) -> None:
        name = request.property("operation")
        meter = self.namespace.meter

        def count(body: dict[str, Any] | None, refusal: Refusal | None) -> None:
            if meter is not None:
                meter.request(self.path, name, request.body, body, refusal)
            if transaction is not None and refusal is not None:
                transaction.fail(refusal)

        answer = Answer(reply, count)
        try:
            operation = self._operations.get(name) if isinstance(name, str) else None
            if operation is None:
                raise Refusal(ARGUMENT_ERROR, f"The operation {name!r} is not supported.")
            if not self._allows(operation.right):
                raise Refusal(UNAUTHORIZED_ACCESS, f"{name} on '{self.path}' needs the {operation.right} claim.")
            if self.target.entity.closed:
                # Clients keep this link and are not told of a deletion; there may be another entity of this name now.
                self.target = self._find()
            if not isinstance(self.target.entity, operation.kinds):
                kind = self.target.entity.description.KIND
                raise Refusal(NOT_ALLOWED, f"{name} is not possible on the {kind} '{self.path}'.")
            if transaction is not None and not operation.may_be_transactional:
                raise Refusal(NOT_ALLOWED, f"{name} is not possible in a transaction.")
            fields = Fields(request.body, None if transaction is None else transaction.find(now_ms))
        except Refusal as refusal:
            answer.refuse(refusal)
            return
        if operation.sees_settlements:
            self.namespace.store.after_commit(
                lambda error: self._run(operation, fields, answer, self.namespace.now_ms())
            )
        else:
            self._run(operation, fields, answer, now_ms)

    def _run(self, operation: Operation, fields: Fields, answer: Answer, now_ms: int) -> None:
        try:
            operation.run(self, fields, answer, now_ms)
            self.changed()
        except Refusal as refusal:
            answer.refuse(refusal)
        except ProtocolError as error:
            answer.refuse(Refusal(ARGUMENT_ERROR, error.description))
        except StoreError as error:
            answer.refuse(unreadable(error))

    def changed(self) -> None:
        """Note that locks were taken or renewed: the next due time may have changed."""
        self.namespace.changed(self.target.entity)

    def carry_out(self, path: str, change: Coroutine[Any, Any, object], answer: Answer) -> None:
        """Run a change of the entity `path` of the namespace and answer when it is durable."""

        async def run() -> None:
            try:
                await change
            except EntityExists:
                answer.refuse(Refusal(ENTITY_EXISTS, f"The messaging entity '{path}' already exists."))
            except EntityNotFound as error:
                answer.refuse(Refusal(NOT_FOUND, f"The messaging entity '{self.path}' could not be found: {error}"))
            except InvalidDescription as error:
                answer.refuse(Refusal(ARGUMENT_ERROR, str(error)))
            except StoreError as error:
                answer.refuse(refusal_of(error))
            else:
                answer.ok()

        self.namespace.in_background(run())


class Fields:
    """The map of a request, with checked access."""

    def __init__(self, body: Any, transaction: Transaction | None = None) -> None:
        if not isinstance(body, dict):
            raise Refusal(ARGUMENT_ERROR, "The body of the request must be a map.")
        self._values = body
        self.transaction = transaction
        "Transaction that the request belongs to."

    def __contains__(self, key: str) -> bool:
        """Return whether the key has a value other than null; clients send null for: not set."""
        return self._values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Refusal(ARGUMENT_ERROR, f"'{key}' must be an integer, is {value!r:.80}.")
        return int(value)

    def boolean(self, key: str) -> bool:
        """Read a switch, which is off unless the request has it."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise Refusal(ARGUMENT_ERROR, f"'{key}' must be a boolean, is {value!r:.80}.")
        return bool(value)

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise Refusal(ARGUMENT_ERROR, f"'{key}' must be a string, is {value!r:.80}.")
        return value

    def binary(self, key: str) -> bytes | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bytes):
            raise Refusal(ARGUMENT_ERROR, f"'{key}' must be binary, is {value!r:.80}.")
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
