"""Errors of the protocol: one exception, which carries the AMQP condition to answer with."""

from __future__ import annotations

CONNECTION_FORCED = "amqp:connection:forced"
DECODE_ERROR = "amqp:decode-error"
DETACH_FORCED = "amqp:link:detach-forced"
FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small"
FRAMING_ERROR = "amqp:connection:framing-error"
HANDLE_IN_USE = "amqp:session:handle-in-use"
ILLEGAL_STATE = "amqp:illegal-state"
INTERNAL_ERROR = "amqp:internal-error"
INVALID_FIELD = "amqp:invalid-field"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
NOT_ALLOWED = "amqp:not-allowed"
NOT_FOUND = "amqp:not-found"
NOT_IMPLEMENTED = "amqp:not-implemented"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
TRANSACTION_TIMEOUT = "amqp:transaction:timeout"
TRANSACTION_UNKNOWN_ID = "amqp:transaction:unknown-id"
TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"
UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
WINDOW_VIOLATION = "amqp:session:window-violation"


class ProtocolError(Exception):
    """The peer broke the protocol. `condition` is the symbol for the error that ends the connection."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
