"""`BrokerProperties`: the properties of a message that the service knows, as one JSON object.

A client may set those of `SETTABLE`; all others are ignored, as the service documents. Dates are dates of HTTP; ISO
8601 is read too. `TimeToLive` is a number of seconds; a batch may have `TimeToLiveTimeSpan` instead, `[days.]hh:mm:ss`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pairbus.amqp.message import Message, Properties
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal
from pairbus.broker.rest.dates import read_date, read_span, write_http_date
from pairbus.broker.rest.json_text import is_sound, read_json
from pairbus.broker.store import ACTIVE, DEFERRED, SCHEDULED, StoredMessage

HEADER = "BrokerProperties"
UNLIMITED_S = 922337203685.4775  # the longest time span of .NET: no time to live
UNLIMITED_MS = 922_337_203_685_477
PARTITION_KEY_LENGTH_MAX = 128

PARTITION_KEY = "x-opt-partition-key"
VIA_PARTITION_KEY = "x-opt-via-partition-key"
SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
DEAD_LETTER_SOURCE = "x-opt-deadletter-source"
_STATES = {ACTIVE: "Active", DEFERRED: "Deferred", SCHEDULED: "Scheduled"}


@dataclass(slots=True)
class SettableProperties:
    """Properties as a client set them; None: it did not."""

    correlation_id: str | None = None
    label: str | None = None
    message_id: str | None = None
    partition_key: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    scheduled_ms: int | None = None
    session_id: str | None = None
    to: str | None = None
    ttl_ms: int | None = None
    "Time to live in milliseconds."
    via_partition_key: str | None = None


def read_header(text: str) -> SettableProperties:
    """Read the value of the header; Refusal: it is no JSON object, or one of its values is not possible."""
    try:
        values = read_json(text)
    except ValueError as error:
        raise _invalid(HEADER, text, str(error)) from None
    if not isinstance(values, dict):
        raise _invalid(HEADER, text, "it must be a JSON object")
    return read_object(values)


def read_object(values: Mapping[str, Any]) -> SettableProperties:
    """Read the object; a null counts as absent."""
    properties = SettableProperties()
    for name, (field, read) in SETTABLE.items():
        value = values.get(name)
        if value is None:
            continue
        try:
            setattr(properties, field, read(value))
        except ValueError as error:
            raise _invalid(name, value, str(error)) from None
    key, session = properties.partition_key, properties.session_id
    if key is not None and session is not None and key != session:
        raise Refusal(ARGUMENT_ERROR, "If SessionId and PartitionKey are both set, they must have the same value.")
    return properties


def _invalid(name: str, value: Any, reason: str) -> Refusal:
    shown = value if isinstance(value, str) else repr(value)
    text = f"The value '{shown:.200}' of the HTTP header '{HEADER}' is invalid: {name}: {reason}."
    if name == HEADER:
        text = f"The value '{shown:.200}' of the HTTP header '{HEADER}' is invalid: {reason}."
    return Refusal(ARGUMENT_ERROR, text)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):  # a number is read as its text
        return str(value)
    if not isinstance(value, str) or not is_sound(value):
        raise ValueError("it must be a text")
    return value


def _key(value: Any) -> str:
    text = _text(value)
    if len(text) > PARTITION_KEY_LENGTH_MAX:
        raise ValueError(f"it has {len(text)} characters; {PARTITION_KEY_LENGTH_MAX} are allowed")
    return text


def _date(value: Any) -> int:
    time_ms = read_date(value) if isinstance(value, str) else None
    if time_ms is None:
        raise ValueError("it must be a date such as 'Sun, 06 Nov 1994 08:49:37 GMT'")
    return time_ms


def _seconds(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError("it must be a number of seconds above 0")
    return UNLIMITED_MS if math.isinf(value) or value >= UNLIMITED_S else max(1, round(value * 1000))


def _span(value: Any) -> int:
    span_ms = read_span(value) if isinstance(value, str) else None
    if not span_ms:
        raise ValueError("it must be a time span such as '0.00:00:40'")
    return min(span_ms, UNLIMITED_MS)


SETTABLE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "CorrelationId": ("correlation_id", _text),
    "Label": ("label", _text),
    "MessageId": ("message_id", _text),
    "PartitionKey": ("partition_key", _key),
    "ReplyTo": ("reply_to", _text),
    "ReplyToSessionId": ("reply_to_session_id", _text),
    "ScheduledEnqueueTimeUtc": ("scheduled_ms", _date),
    "SessionId": ("session_id", _text),
    "TimeToLive": ("ttl_ms", _seconds),
    "TimeToLiveTimeSpan": ("ttl_ms", _span),
    "To": ("to", _text),
    "ViaPartitionKey": ("via_partition_key", _key),
}
"Name in the JSON → field, and the reader of its value. `ForcePersistence` is ignored: every message is persistent."


def write_header(message: StoredMessage, decoded: Message, locked_until_ms: int, lock: UUID | None) -> str:
    """Write the properties of a message that is received: ASCII, without control characters, in the order of names."""
    sent, annotations = decoded.properties or Properties(), decoded.annotations or {}
    scheduled = annotations.get(SCHEDULED_TIME)
    values: dict[str, Any] = {
        "CorrelationId": _shown(sent.correlation_id),
        "DeadLetterSource": _shown(annotations.get(DEAD_LETTER_SOURCE)),
        "DeliveryCount": message.delivery_count + 1,
        "EnqueuedSequenceNumber": message.origin_seq,
        "EnqueuedTimeUtc": write_http_date(message.enqueued_ms),
        "Label": _shown(sent.subject),
        "LockToken": None if lock is None else str(lock),
        "LockedUntilUtc": write_http_date(locked_until_ms) if lock is not None else None,
        "MessageId": message.message_id,
        "PartitionKey": _shown(annotations.get(PARTITION_KEY)),
        "ReplyTo": _shown(sent.reply_to),
        "ReplyToSessionId": _shown(sent.reply_to_group_id),
        "ScheduledEnqueueTimeUtc": write_http_date(scheduled) if isinstance(scheduled, int) else None,
        "SequenceNumber": message.seq,
        "SessionId": _shown(sent.group_id),
        "State": _STATES[message.state],
        "TimeToLive": _seconds_of(message.ttl_ms),
        "To": _shown(sent.to),
        "ViaPartitionKey": _shown(annotations.get(VIA_PARTITION_KEY)),
    }
    return json.dumps({name: value for name, value in values.items() if value is not None}, separators=(",", ":"))


def _shown(value: Any) -> str | None:
    """Return an id as text: it may come as text, bytes, a number or a UUID."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _seconds_of(ttl_ms: int) -> float | int:
    if not ttl_ms or ttl_ms >= UNLIMITED_MS:
        return UNLIMITED_S
    return ttl_ms / 1000 if ttl_ms % 1000 else ttl_ms // 1000
