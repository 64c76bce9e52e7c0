"""Messages that a client receives over HTTP: their properties are headers, their body is the body of the answer."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pairbus.amqp.errors import INTERNAL_ERROR, ProtocolError
from pairbus.amqp.message import Message
from pairbus.amqp.types import Described, Timestamp
from pairbus.broker.refusal import Refusal
from pairbus.broker.rest.broker_properties import HEADER, write_header
from pairbus.broker.rest.dates import write_http_date
from pairbus.broker.rest.header_values import is_property_name, write_value
from pairbus.broker.store import StoredMessage
from pairbus.broker.wire.deliveries import encode_delivery

HEADERS_SIZE_MAX = 64 * 1024  # of one answer
DEFAULT_CONTENT_TYPE = "application/xml; charset=utf-8"  # the service's for messages that have none


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A message as an answer over HTTP has it."""

    headers: list[tuple[str, str]]
    body: bytes


def http_message(message: StoredMessage, locked_until_ms: int = 0, token: bytes = b"") -> HttpMessage:
    """Write a message for a receiver; without a lock and its token when it was deleted.

    Refusal: its properties are larger than an answer may have, or cannot be read.
    """
    try:
        decoded = Message.decode(encode_delivery(message, locked_until_ms, token))
    except ProtocolError as error:
        raise Refusal(INTERNAL_ERROR, f"The message {message.seq} cannot be read: {error.description}") from None
    lock = UUID(bytes_le=token) if token else None
    headers = [
        ("Content-Type", _content_type(decoded)),
        (HEADER, write_header(message, decoded, locked_until_ms, lock)),
    ]
    for name, value in (decoded.application_properties or {}).items():
        if isinstance(name, str) and is_property_name(name):
            text = write_value(value)
            if text is not None:
                headers.append((str(name), text))
    size = sum(len(name) + len(text.encode()) for name, text in headers)
    if size > HEADERS_SIZE_MAX:
        raise Refusal(
            INTERNAL_ERROR,
            f"The properties of the message {message.seq} have {size} bytes as HTTP headers; {HEADERS_SIZE_MAX} are"
            " allowed. It can be received over AMQP.",
        )
    return HttpMessage(headers, _body(decoded))


def _content_type(decoded: Message) -> str:
    text = decoded.properties.content_type if decoded.properties is not None else None
    return text if text and text.isascii() and text.isprintable() else DEFAULT_CONTENT_TYPE


def _body(decoded: Message) -> bytes:
    """Return the bytes of data sections, a text or bytes of an AmqpValue, or anything else as JSON."""
    if decoded.sequences:
        return _json([element for sequence in decoded.sequences for element in sequence])
    if not decoded.has_value:
        return b"".join(decoded.data)
    value = decoded.value
    if value is None or isinstance(value, bytes):
        return bytes(value or b"")
    return value.encode() if isinstance(value, str) else _json(value)


def _json(value: Any) -> bytes:
    return json.dumps(_plain(value), ensure_ascii=False).encode()


def _plain(value: Any) -> Any:
    """Return a value of AMQP as JSON can express it."""
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    return value


def _plain_map(value: dict[Any, Any]) -> dict[str, Any]:
    return {name if isinstance(name, str) else str(_plain(name)): _plain(each) for name, each in value.items()}


_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (Described, lambda value: _plain(value.value)),
    (Timestamp, lambda value: write_http_date(value) or int(value)),
    (float, lambda value: value if math.isfinite(value) else write_value(value)),
    (bytes, lambda value: b64encode(value).decode()),
    (UUID, str),
    (list, lambda value: [_plain(each) for each in value]),
    (dict, _plain_map),
)
