"""Messages of the SDK as bytes, exactly those that it would send, and batches that are made of bytes."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Self, cast

from azure.core.settings import settings
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common.constants import _BATCH_MESSAGE_OVERHEAD_COST
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.amqp import AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.sdk.messages import AnyMessage, clone, raw_of

_EMPTY_HEADER = [None] * 5
_PROPERTIES = attrgetter(
    *("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding"),
    *("absolute_expiry_time", "creation_time", "group_id", "group_sequence", "reply_to_group_id"),
)  # in their order on the wire
_STRING, _SYMBOL, _NO_TEXT = b"\xa1", b"\xa3", b""
_TEXTS = (
    *(_STRING, _NO_TEXT, _STRING, _STRING, _STRING, _STRING, _SYMBOL, _SYMBOL),
    *(_NO_TEXT, _NO_TEXT, _NO_TEXT, _NO_TEXT, _NO_TEXT),
)
"What a short text has before its length, in each of them."
_NULL = b"\x40"
_SHORT_MAX = 0xFF


def encode(message: AnyMessage) -> bytes:
    """Exactly the bytes that the SDK would send now; what it cannot encode raises as it would in the SDK."""
    raw = raw_of(message)
    properties = raw.application_properties
    if not properties and (plain := plainly_encoded(message)) is not None:
        return plain
    if properties:
        raw = clone(raw)
        raw.application_properties = dict(properties)  # the SDK turns bytes into text in the one that it is given
    outgoing = ServiceBusMessage(None, message=PyamqpTransport.to_outgoing_amqp_message(raw), raw_amqp_message=raw)
    return bytes(PyamqpTransport.encode_message(outgoing))


def plainly_encoded(message: AnyMessage, aliases: bytes = b"") -> bytes | None:
    """As `encode`, a tenth of its work, for a message that has nothing but short texts as properties and one body of
    bytes, as most have; None for any other. `aliases`: its application properties, which stand behind the properties.
    """
    raw = raw_of(message)
    body, properties, header = raw._data_body, raw._properties, raw._header
    if body is None or len(body) != 1 or type(body[0]) is not bytes or type(properties) is not AmqpMessageProperties:
        return None
    if raw._application_properties or raw._annotations or raw._delivery_annotations or raw._footer:
        return None
    if raw._sequence_body is not None or raw._value_body is not None:
        return None
    if header is not None and (type(header) is not AmqpMessageHeader or list(vars(header).values()) != _EMPTY_HEADER):
        return None
    try:
        texts = _short_texts(_PROPERTIES(properties))
    except UnicodeEncodeError:
        return None
    if texts is None:
        return None
    data = body[0]
    size = b"\xa0%c" % len(data) if len(data) <= _SHORT_MAX else b"\xb0" + len(data).to_bytes(4, "big")
    return b"\x00\x53\x73\xc0%c\x0d%b%b\x00\x53\x75%b%b" % (1 + len(texts), texts, aliases, size, data)


def _short_texts(values: tuple[Any, ...]) -> bytes | None:
    """The fields of the properties, when one length of a byte holds them; None otherwise, and when there are none."""
    fields = []
    for value, code in zip(values, _TEXTS, strict=True):
        if value is None:
            fields.append(_NULL)
        elif code is _NO_TEXT or type(value) is not str:
            return None
        else:
            text = value.encode()
            if len(text) > _SHORT_MAX:
                return None
            fields.append(b"%b%c%b" % (code, len(text), text))
    joined = b"".join(fields)
    return joined if len(values) < len(joined) < _SHORT_MAX else None


def encoded(given: Any, messages: list[ServiceBusMessage]) -> list[bytes] | list[bytearray]:
    """Each message as it would be sent; those of a batch were encoded when they were added."""
    if isinstance(given, ServiceBusMessageBatch):
        return cast(list[bytearray], cast(list[Any], given._message)[5])
    return [encode(message) for message in messages]


class EncodedBatch(ServiceBusMessageBatch):
    """Takes messages as bytes. The SDK's own encodes each of them twice."""

    @classmethod
    def alone(cls, payload: bytes, *, aio: bool) -> Self:
        """One message; at a fraction of the price of making a batch and filling it."""
        batch = cls.__new__(cls)
        batch.__dict__.update(_EMPTY[aio])
        batch._message = batch._amqp_transport.build_batch_message([payload])
        batch._count, batch._size = 1, batch._size + len(payload) + max(_BATCH_MESSAGE_OVERHEAD_COST)
        return batch

    @property
    def payloads(self) -> list[bytes]:
        return cast(list[bytes], cast(list[Any], self._message)[5])

    def holds(self, payloads: list[bytes]) -> bool:
        """Take all of them, or none when they may be too large together."""
        size = self._size + sum(map(len, payloads)) + len(payloads) * max(_BATCH_MESSAGE_OVERHEAD_COST)
        if size > self.max_size_in_bytes:
            return False
        self.payloads.extend(payloads)
        self._size = size
        self._count += len(payloads)
        return True

    def add_encoded(self, payload: bytes) -> None:
        """MessageSizeExceededError when it does not fit."""
        size = self._size + len(payload) + _BATCH_MESSAGE_OVERHEAD_COST[0 if len(payload) < 256 else 1]
        if size > self.max_size_in_bytes:
            raise MessageSizeExceededError(message=f"the batch has reached its size limit: {self.max_size_in_bytes}")
        self.payloads.append(payload)
        self._size = size
        self._count += 1


_TRANSPORTS = {False: PyamqpTransport, True: PyamqpTransportAsync}
_EMPTY = {aio: EncodedBatch(amqp_transport=transport).__dict__ for aio, transport in _TRANSPORTS.items()}


def batch_transport(*, aio: bool) -> Any:
    """What a batch of this flavour is made with; one that was made with the other's is built anew at every send."""
    return _TRANSPORTS[aio]


def is_traced() -> bool:
    """The SDK writes the context of a span into each message that it sends, unless that comes as bytes."""
    return settings.tracing_implementation() is not None


def size(message: AnyMessage) -> int:
    return len(encode(message))
