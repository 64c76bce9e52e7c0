"""Messages that a client sends over HTTP become messages of AMQP, with one data section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.broker.entities.draft import Draft
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal
from pairbus.broker.rest.broker_properties import (
    HEADER,
    PARTITION_KEY,
    SCHEDULED_TIME,
    VIA_PARTITION_KEY,
    SettableProperties,
    read_header,
    read_object,
)
from pairbus.broker.rest.header_values import INTEGER_MAX, INTEGER_MIN, is_property_name, read_value
from pairbus.broker.rest.json_text import is_sound, read_json
from pairbus.broker.wire.messages import draft_of

BATCH_CONTENT_TYPE = "application/vnd.microsoft.servicebus.json"
BATCH_COUNT_MAX = 5000  # messages: each costs about 1 KB until its commit, however short its JSON is
PROPERTIES_SIZE_MAX = 64 * 1024  # of the properties of one message
CONTENT_TYPE_LENGTH_MAX = 1024

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class IncomingMessages:
    """Messages of one request."""

    drafts: list[Draft]
    sizes: list[int]
    "Bytes of each message as AMQP has it, which count against the limits."


def is_batch(content_type: str) -> bool:
    """Return whether a body of this content type is a batch in JSON."""
    return content_type.partition(";")[0].strip().lower() == BATCH_CONTENT_TYPE


def single(headers: Headers, body: bytes, size_max: int) -> IncomingMessages:
    """Read one message: its properties are in headers, its body is the body of the request."""
    sent = SettableProperties()
    content_type: str | None = None
    custom: dict[str, Any] = {}
    size = 0
    for raw_name, raw_value in headers:
        name, text = raw_name.decode("ascii", "replace"), _header_text(raw_value)
        key = name.lower()
        if key == HEADER.lower():
            sent = read_header(text)
        elif key == "content-type":
            content_type = _content_type(text)
        elif is_property_name(name):
            if name in custom:
                raise Refusal(ARGUMENT_ERROR, f"The HTTP header '{name}' occurs twice.")
            custom[name] = _custom(name, text)
        else:
            continue
        size += len(raw_name) + len(raw_value)
    if size > PROPERTIES_SIZE_MAX:
        text = f"The properties of the message have {size} bytes; {PROPERTIES_SIZE_MAX} are allowed."
        raise Refusal(ARGUMENT_ERROR, text)
    return _incoming([_encoded(sent, custom, content_type, body)], size_max)


def batch(body: bytes, size_max: int) -> IncomingMessages:
    """Read the messages of a batch, all or none."""
    try:
        entries = read_json(body.decode("utf-8-sig"))
    except ValueError as error:
        raise Refusal(ARGUMENT_ERROR, f"The body is not a batch of messages in JSON: {error}.") from None
    if not isinstance(entries, list) or not entries:
        raise Refusal(ARGUMENT_ERROR, "The body of a batch is a JSON array of at least one message.")
    if len(entries) > BATCH_COUNT_MAX:
        raise Refusal(ARGUMENT_ERROR, f"The batch has {len(entries)} messages; {BATCH_COUNT_MAX} are allowed.")
    return _incoming([_of_batch(number, entry) for number, entry in enumerate(entries)], size_max)


def _of_batch(number: int, entry: Any) -> tuple[bytes, int | None]:
    if not isinstance(entry, dict):
        raise Refusal(ARGUMENT_ERROR, f"Message {number} of the batch is no JSON object.")
    text, broker, user = entry.get("Body"), entry.get("BrokerProperties"), entry.get("UserProperties")
    if text is not None and not (isinstance(text, str) and is_sound(text)):
        raise Refusal(ARGUMENT_ERROR, f"'Body' of message {number} of the batch must be a text.")
    for name, value in (("BrokerProperties", broker), ("UserProperties", user)):
        if value is not None and not isinstance(value, dict):
            raise Refusal(ARGUMENT_ERROR, f"'{name}' of message {number} of the batch must be a JSON object.")
    custom = {name: _plain(number, name, value) for name, value in (user or {}).items()}
    return _encoded(read_object(broker or {}), custom, None, (text or "").encode())


def _plain(number: int, name: str, value: Any) -> Any:
    where = f"The property '{name:.80}' of message {number} of the batch"
    if not is_sound(name) or (isinstance(value, str) and not is_sound(value)):
        raise Refusal(ARGUMENT_ERROR, f"The properties of message {number} of the batch are no UTF-8.")
    if isinstance(value, list | dict):
        raise Refusal(ARGUMENT_ERROR, f"{where} must be a text, a number or a boolean.")
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        raise Refusal(ARGUMENT_ERROR, f"{where} is a number beyond 64 bits.")
    return value


def _custom(name: str, text: str) -> Any:
    try:
        return read_value(text)
    except ValueError as error:
        raise Refusal(
            ARGUMENT_ERROR, f"The value '{text:.200}' of the HTTP header '{name}' is invalid: {error}."
        ) from None


def _content_type(text: str) -> str | None:
    if not text.isascii() or not text.isprintable() or len(text) > CONTENT_TYPE_LENGTH_MAX:
        raise Refusal(ARGUMENT_ERROR, f"The value '{text:.200}' of the HTTP header 'Content-Type' is invalid.")
    return text or None


def _header_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _encoded(
    sent: SettableProperties, custom: dict[str, Any], content_type: str | None, body: bytes
) -> tuple[bytes, int | None]:
    """Return (the message as AMQP has it, its time to live). Without an id it gets one in the service's form."""
    annotations: dict[Symbol, Any] = {}
    if sent.partition_key is not None:
        annotations[Symbol(PARTITION_KEY)] = sent.partition_key
    if sent.via_partition_key is not None:
        annotations[Symbol(VIA_PARTITION_KEY)] = sent.via_partition_key
    if sent.scheduled_ms is not None:
        annotations[Symbol(SCHEDULED_TIME)] = Timestamp(sent.scheduled_ms)
    message = Message(
        annotations=annotations or None,
        properties=Properties(
            message_id=sent.message_id or uuid4().hex,
            to=sent.to,
            subject=sent.label,
            reply_to=sent.reply_to,
            correlation_id=sent.correlation_id,
            content_type=content_type,
            group_id=sent.session_id,
            reply_to_group_id=sent.reply_to_session_id,
        ),
        application_properties=custom or None,
        data=[body],
    )
    return message.encode(), sent.ttl_ms


def _incoming(messages: list[tuple[bytes, int | None]], size_max: int) -> IncomingMessages:
    sizes = [len(payload) for payload, _ in messages]
    if sum(sizes) > size_max:
        what = "message" if len(sizes) == 1 else "batch"
        raise Refusal(MESSAGE_SIZE_EXCEEDED, f"The {what} has {sum(sizes)} bytes; {size_max} are allowed.")
    drafts = []
    for payload, ttl_ms in messages:
        draft = draft_of(payload)
        draft.ttl_ms = ttl_ms  # which may be longer than an AMQP header can say
        drafts.append(draft)
    return IncomingMessages(drafts, sizes)
