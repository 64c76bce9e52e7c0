"""Messages of the SDK as bytes: exactly the bytes that the SDK would send."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, cast

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpMessageHeader, AmqpMessageProperties

from pairbus.sdk.messages import AnyMessage, clone, raw_of
from pairbus.sdk.tracing import Traced

_EMPTY_HEADER = [None] * 5
_STRING, _SYMBOL = b"\xa1", b"\xa3"
_PROPERTIES = {
    "message_id": _STRING,
    "user_id": None,
    "to": _STRING,
    "subject": _STRING,
    "reply_to": _STRING,
    "correlation_id": _STRING,
    "content_type": _SYMBOL,
    "content_encoding": _SYMBOL,
    "absolute_expiry_time": None,
    "creation_time": None,
    "group_id": None,
    "group_sequence": None,
    "reply_to_group_id": None,
}
"Properties in their order on the wire, with the constructor of a short text if the quick encoder supports it."
_CODES = tuple(_PROPERTIES.values())
_NULLS = [b"\x40"] * len(_CODES)
_values_of = attrgetter(*_PROPERTIES)
BATCH_TRANSPORT: Any = PyamqpTransport
"The part of the SDK that makes batches."
_SHORT_MAX = 0xFF


def encode(message: AnyMessage, traced: Traced | None = None) -> bytes:
    """Return exactly the bytes that the SDK would send now; raises the SDK's error when that fails."""
    if traced is None and (plain := plainly_encoded(message)) is not None:
        return plain
    raw = raw_of(message)
    if raw.application_properties:
        raw = clone(raw)
        # The SDK turns binary values into text in the dictionary that it is given, which is the caller's own.
        raw.application_properties = dict(raw.application_properties or {})
    outgoing = PyamqpTransport.to_outgoing_amqp_message(raw)
    if traced is not None:
        outgoing = traced.trace(outgoing)
    return bytes(encode_payload(bytearray(), outgoing))


def plainly_encoded(message: AnyMessage) -> bytes | None:  # noqa: PLR0911 - one return for each case
    """Encode a message that has only short texts as properties and one body of bytes, as most messages do.

    The bytes are the SDK's, at a tenth of its time. None for any other message.
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
        texts = _short_texts(_values_of(properties))
    except UnicodeEncodeError:
        return None
    if texts is None:
        return None
    data = body[0]
    size = b"\xa0%c" % len(data) if len(data) <= _SHORT_MAX else b"\xb0" + len(data).to_bytes(4, "big")
    return b"\x00\x53\x73\xc0%c\x0d%b\x00\x53\x75%b%b" % (1 + len(texts), texts, size, data)


def _short_texts(values: tuple[Any, ...]) -> bytes | None:
    """Encode the fields of the properties; None when there are none, or more bytes than a short list holds."""
    fields = _NULLS.copy()
    for place, value in enumerate(values):
        if value is not None:
            code = _CODES[place]
            if code is None or type(value) is not str:
                return None
            text = value.encode()
            if len(text) > _SHORT_MAX:
                return None
            fields[place] = b"%b%c%b" % (code, len(text), text)
    joined = b"".join(fields)
    return joined if len(values) < len(joined) < _SHORT_MAX else None


def encoded(batch: ServiceBusMessageBatch) -> list[bytes]:
    """Return the messages of a batch, which encoded them when they were added."""
    return list(map(bytes, cast(list[Any], batch._message)[5]))
