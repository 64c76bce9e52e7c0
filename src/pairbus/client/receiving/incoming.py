"""Messages as they came over a link, and pings among them."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusReceivedMessage

from pairbus.amqp.message import Message
from pairbus.client.receiving.options import ReceiverOptions
from pairbus.client.receiving.settling import DeliveryPlace, Locked
from pairbus.pairing.pings import CONTENT_TYPE
from pairbus.sdk import received as sdk
from pairbus.transport import ReceivedMessage

_PING = CONTENT_TYPE.encode()
_PING_SIZE_MAX = 1024


class Incoming:
    """One received message, not decoded until its message is asked for."""

    __slots__ = ("_message", "_payload", "locked", "mode", "size", "tag")

    def __init__(self, delivery: ReceivedMessage, link_name: str, options: ReceiverOptions) -> None:
        self._payload = delivery.payload
        self._message: ServiceBusReceivedMessage | None = None
        self.size = len(delivery.payload)
        self.tag = delivery.tag
        self.mode = options.receive_mode
        token = None if delivery.settled else delivery.lock_token
        self.locked = Locked(DeliveryPlace(link_name, delivery.delivery_id), token)

    @property
    def payload(self) -> bytes:
        """The encoded message; empty when `message` was called."""
        return self._payload

    @property
    def is_ping(self) -> bool:
        return is_ping(self._payload)

    def message(self, receiver: Any) -> ServiceBusReceivedMessage:
        """Return the SDK's message; `receiver` is the object that its properties ask for the session."""
        if self._message is None:
            self._message = sdk.delivered(self._payload, self.mode, self.locked.place, self.tag, receiver)
            self._payload = b""  # the message has the bytes
        return self._message


def is_ping(payload: bytes) -> bool:
    if _PING not in payload[:_PING_SIZE_MAX]:
        return False
    properties = Message.decode(payload).properties
    return properties is not None and properties.content_type == CONTENT_TYPE


def sequence_number_of(payload: bytes) -> int:
    return int((Message.decode(payload).annotations or {})["x-opt-sequence-number"])
