"""Messages of the SDK: in all the forms that it accepts, and as a backlog queue gets them.

A caller's message object is never modified here. Copies are as deep as needed and share the body.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar, cast

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._common.utils import transform_outbound_messages
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from pairbus.pairing.aliases import COUNTER, FIRST_ATTEMPT, PATH, SCHEDULED, SENDER, SESSION_ID, TIME_TO_LIVE

AnyMessage = ServiceBusMessage | AmqpAnnotatedMessage
Plain = TypeVar("Plain", AmqpAnnotatedMessage, AmqpMessageProperties, AmqpMessageHeader)

_SCHEDULED_ANNOTATIONS = (b"x-opt-scheduled-enqueue-time", "x-opt-scheduled-enqueue-time")
USUAL_ENVELOPE_BYTES = 60  # header and properties around a body: an id, and a few bytes for the rest
SMALL = 1 << 15  # bytes of a body that leave room for anything else in the smallest limit of any tier
_TTL_MAX_MS = 0xFFFFFFFF  # a uint on the wire
_TTL_UNLIMITED_MS = 922337203685477  # the SDK's own word for it


def as_messages(given: Any) -> list[ServiceBusMessage]:
    """What `send_messages` of the SDK accepts, as a list: a message, an annotated message, a mapping, an iterable
    of these, a batch. Wrong types raise what the SDK raises. Messages of the caller are returned as they are."""
    if isinstance(given, ServiceBusMessage):
        return [given]
    if isinstance(given, AmqpAnnotatedMessage):
        return [_message_of(given)]
    if isinstance(given, ServiceBusMessageBatch):
        return list(given._messages)
    if isinstance(given, Iterable) and not isinstance(given, Mapping):
        return [message for one in given for message in _as_one(one)]
    return _as_one(given) if not isinstance(given, Mapping) or given else []  # the SDK sends nothing for {} either


def members(batch: ServiceBusMessageBatch) -> list[ServiceBusMessage]:
    """The batch's own list."""
    return batch._messages


def _as_one(given: Any) -> list[ServiceBusMessage]:
    if isinstance(given, ServiceBusMessage):
        return [given]
    if isinstance(given, AmqpAnnotatedMessage):
        return [_message_of(given)]
    # A mapping, or something that the SDK refuses in its own words.
    made = transform_outbound_messages([given], ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message)
    assert isinstance(made, list)
    return made


def _message_of(raw: AmqpAnnotatedMessage) -> ServiceBusMessage:
    # The SDK makes `message` anew at every send.
    return ServiceBusMessage(None, message=None, raw_amqp_message=raw)


def raw_of(message: AnyMessage) -> AmqpAnnotatedMessage:
    return message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message


def clone(original: Plain) -> Plain:
    """A shallow copy of a plain object, at a tenth of the price of `copy.copy`."""
    twin: Plain = object.__new__(type(original))
    twin.__dict__.update(original.__dict__)
    return twin


def ensure_message_id(message: ServiceBusMessage) -> ServiceBusMessage:
    """The message, or a copy with a random id when it has none: duplicate detection then knows it again."""
    properties = message.raw_amqp_message.properties
    if properties is not None and properties.message_id not in (None, "", b""):
        return message
    raw = clone(message.raw_amqp_message)
    raw.properties = properties = AmqpMessageProperties() if properties is None else clone(properties)
    properties.message_id = str(uuid.uuid4())
    return _message_of(raw)


def spared(message: ServiceBusMessage) -> ServiceBusMessage:
    """The message, or a copy when it has binary application properties: the SDK turns them into text where they are,
    which is in the caller's own dictionary."""
    properties = message.raw_amqp_message.application_properties
    if not properties or not any(isinstance(one, bytes) for item in properties.items() for one in item):
        return message
    raw = clone(message.raw_amqp_message)
    raw.application_properties = dict(properties)
    return _message_of(raw)


def message_id_of(message: ServiceBusMessage) -> str:
    """As text, whatever type it has. The SDK's own property counts all fields first."""
    properties = message._raw_amqp_message.properties
    value = None if properties is None else properties.message_id
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def readied(message: ServiceBusMessage) -> ServiceBusMessage | None:
    """The message, or a copy with an id, when it has no application properties and a small body: nothing about it
    needs a closer look, and that is quickly said. None otherwise."""
    raw = message._raw_amqp_message
    sections = raw._data_body
    if raw._application_properties or not sections or len(sections) != 1 or len(sections[0]) >= SMALL:
        return None
    properties = raw._properties  # asked for None only: the SDK counts all fields to say whether it is true
    return ensure_message_id(message) if properties is None or not properties.message_id else message


def only_data_size(message: ServiceBusMessage) -> int:
    """Of one that is `readied`, about: its body, and what usually stands around it."""
    return len(message._raw_amqp_message._data_body[0]) + USUAL_ENVELOPE_BYTES


def reserved_property(message: AnyMessage, names: Container[str]) -> str | None:
    """The first application property that has one of these names."""
    properties = message.application_properties
    if not properties:
        return None
    for key in properties:
        name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
        if name in names:
            return name
    return None


def body_size(message: AnyMessage) -> int:
    """At least so many bytes has the message; costs no encoding."""
    raw = raw_of(message)
    sections = cast(list[bytes] | None, raw._data_body)
    if sections:
        return len(sections[0]) if len(sections) == 1 else sum(map(len, sections))
    value = raw._value_body
    return len(value) if isinstance(value, str | bytes) else 0


def wrapped(
    message: AnyMessage,
    *,
    path: str,
    first_attempt_ms: int | None = None,
    sender: str | None = None,
    counter: int | None = None,
) -> ServiceBusMessage:
    """The copy that goes to a backlog queue: session, time to live and scheduled time out of the way, as properties.

    `first_attempt_ms` (since 1970) only when the outcome at the primary is unknown; `sender` and `counter` only where
    order is kept.
    """
    raw = clone(raw_of(message))
    properties = raw.application_properties = dict(raw.application_properties or {})
    if raw.properties is not None:
        raw.properties = clone(raw.properties)
    _hide_time_to_live(raw, properties)
    if raw.properties is not None and raw.properties.group_id is not None:
        properties[SESSION_ID] = _text(raw.properties.group_id)
        raw.properties.group_id = None
    _hide_scheduled_time(raw, properties)
    properties[PATH] = path
    if first_attempt_ms is not None:
        properties[FIRST_ATTEMPT] = _timestamp(first_attempt_ms)
    if sender is not None:
        properties[SENDER] = sender
    if counter is not None:
        properties[COUNTER] = _long(counter)
    return _message_of(raw)


def _hide_time_to_live(raw: AmqpAnnotatedMessage, properties: dict[str | bytes, Any]) -> None:
    header = raw.header
    ttl_ms = None if header is None else header.time_to_live
    if header is None or ttl_ms is None:
        return
    if ttl_ms == _TTL_UNLIMITED_MS:
        ttl_ms = None
    elif not 0 <= ttl_ms <= _TTL_MAX_MS:
        raise ValueError(f"time_to_live is {ttl_ms} ms; Service Bus takes 0 to {_TTL_MAX_MS} ms over AMQP")
    else:
        # At each send the SDK derives creation and expiry time from it: those of this send stay in the copy.
        derived = PyamqpTransport.to_outgoing_amqp_message(raw).properties
        if derived is not None:
            times = raw.properties = AmqpMessageProperties() if raw.properties is None else raw.properties
            times.creation_time = derived.creation_time
            times.absolute_expiry_time = derived.absolute_expiry_time
        properties[TIME_TO_LIVE] = _long(ttl_ms)
    raw.header = header = clone(header)
    header.time_to_live = None


def _hide_scheduled_time(raw: AmqpAnnotatedMessage, properties: dict[str | bytes, Any]) -> None:
    if not raw.annotations:
        return
    for key in _SCHEDULED_ANNOTATIONS:
        given = raw.annotations.get(key)
        if given is not None:
            properties[SCHEDULED] = given if isinstance(given, datetime | dict) else _timestamp(int(given))
            raw.annotations = {name: value for name, value in raw.annotations.items() if name != key}


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _long(value: int) -> dict[str, Any]:
    return {"TYPE": "LONG", "VALUE": value}


def _timestamp(value_ms: int) -> dict[str, Any]:
    return {"TYPE": "TIMESTAMP", "VALUE": value_ms}
