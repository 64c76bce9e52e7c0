"""Received messages of the SDK, made from the bytes that our transport received."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

TRANSPORT: Any = PyamqpTransport


def delivered(
    payload: bytes, mode: ServiceBusReceiveMode, place: Any, tag: bytes, receiver: Any
) -> ServiceBusReceivedMessage:
    """Return a message that came over a link. `place` becomes its delivery id, which the SDK passes on unread."""
    frame: Any = (0, place, tag)
    return ServiceBusReceivedMessage(
        decode_payload(memoryview(payload)), mode, frame, amqp_transport=TRANSPORT, receiver=receiver
    )


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
