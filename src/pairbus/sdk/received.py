"""Received messages and sessions of the SDK: made from bytes of our transport, and checked as the SDK checks them.

The SDK's objects ask their receiver for `session`, `_running` and `_handler`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus._common.constants import MESSAGE_RENEW_LOCK
from azure.servicebus._common.utils import utc_from_timestamp
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError

TRANSPORT: Any = PyamqpTransport
RENEW = MESSAGE_RENEW_LOCK


# ── making ──

M = TypeVar("M", bound=ServiceBusReceivedMessage)


def delivered(
    payload: bytes, mode: ServiceBusReceiveMode, place: Any, tag: bytes, receiver: Any
) -> ServiceBusReceivedMessage:
    """Return a message that came over a link. `place` becomes its delivery id, which the SDK passes on unread."""
    frame: Any = (0, place, tag)
    return ServiceBusReceivedMessage(
        decode_payload(memoryview(payload)), mode, frame, amqp_transport=TRANSPORT, receiver=receiver
    )


def delivered_as(
    kind: type[M], payload: bytes, mode: ServiceBusReceiveMode, place: Any, tag: bytes, receiver: Any
) -> M:
    """Return a message of a class of ours; otherwise as `delivered`."""
    frame: Any = (0, place, tag)
    return kind(decode_payload(memoryview(payload)), mode, frame, amqp_transport=TRANSPORT, receiver=receiver)


def peeked(payload: bytes, receiver: Any) -> ServiceBusReceivedMessage:
    message: Any = decode_payload(memoryview(payload))
    return ServiceBusReceivedMessage(message, amqp_transport=TRANSPORT, receiver=receiver, is_peeked_message=True)


def deferred(
    payload: bytes, token: UUID | None, mode: ServiceBusReceiveMode, receiver: Any
) -> ServiceBusReceivedMessage:
    """Return a message that was received by its sequence number."""
    return ServiceBusReceivedMessage(
        decode_payload(memoryview(payload)),
        mode,
        amqp_transport=TRANSPORT,
        receiver=receiver,
        lock_token=token,
        is_deferred_message=True,
    )


# ── settling and renewing ──


def check_alive(message: Any, operation: str, mode: ServiceBusReceiveMode, *, is_open: bool) -> None:
    """Raise the SDK's error for an operation on a message that cannot be settled, or not any more."""
    if message._is_peeked_message:
        raise ValueError(
            f"The operation {operation} is not supported for peeked messages."
            "Only messages received using receive methods in PEEK_LOCK mode can be settled."
        )
    if mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE:
        raise ValueError(f"The operation {operation} is not supported in 'RECEIVE_AND_DELETE' receive mode.")
    if message._settled:
        raise MessageAlreadySettled(action=operation)
    if not is_open:
        raise ValueError(
            f"Failed to {operation} the message as the handler has already been shutdown."
            "Please use ServiceBusClient to create a new instance."
        )


def check_message(message: Any) -> None:
    if not isinstance(message, ServiceBusReceivedMessage):
        raise TypeError("Parameter 'message' must be of type ServiceBusReceivedMessage")


def check_lock(message: Any) -> None:
    """Raise when the lock of a message is over by the clock of this machine, as the SDK does."""
    if message._lock_expired:
        raise MessageLockLostError(message="The lock on the message lock has expired.", error=message.auto_renew_error)


def place_of(message: Any) -> Any:
    """Return what `delivered` got as `place`; None for a message that came over no link."""
    return None if message._is_deferred_message else message._delivery_id


def mark_settled(message: Any) -> None:
    message._settled = True


def mark_renewed(message: Any, end_s: float) -> datetime:
    message._expiry = utc_from_timestamp(end_s)
    return message._expiry  # type: ignore[no-any-return]


# ── sessions ──


def note_session(session: Any, session_id: str | None, locked_until_s: float | None) -> None:
    """Tell a session of the SDK what is known about it: its id when it is accepted, and the end of its lock."""
    if session_id is not None:
        session._session_id = session_id
    if locked_until_s is not None:
        session._locked_until_utc = utc_from_timestamp(locked_until_s)


def begin_session(session: Any) -> None:
    """Note that a session was accepted now: the SDK's lock renewer counts from here."""
    session._session_start = datetime.now(UTC)


def is_session_over(session: Any) -> bool:
    """Tell whether the lock of a session is over by the clock of this machine."""
    return bool(session._lock_expired)
