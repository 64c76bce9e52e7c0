"""Incoming messages: the parts that the broker reads.

A message is never re-encoded. It is cut in two: what the sender wrote before the properties ("the annotations"), and
the bytes from the properties on ("the bare message"), which stay as they are. Only a message without an id gets one,
because the JavaScript SDK cannot settle a message that has none. `deliveries.py` is the way back.

The annotations are encoded pairs. Before the sender's message annotations there may be two pairs whose keys are section
codes, which the standard reserves: the header, without time to live and delivery count, and the delivery annotations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from pairbus.amqp.errors import DECODE_ERROR, ProtocolError
from pairbus.amqp.message import (
    APPLICATION_PROPERTIES,
    BATCH_FORMAT,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    Header,
    SectionSpan,
    in_order,
    section,
)
from pairbus.amqp.types import ULong, decode, encode_string, list_of, map_of, skip
from pairbus.broker.entities.draft import Draft
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal

PING_CONTENT_TYPE = b"application/vnd.ms-servicebus-ping"
_PING_SIZE_MIN = len(PING_CONTENT_TYPE)
MESSAGE_ID_LENGTH_MAX = 128
SESSION_ID_LENGTH_MAX = 128
_GROUP_ID = 10  # position among the properties
TIME_MAX_MS = 253_402_300_799_999  # the end of the year 9999: the SDKs' clocks cannot show more

SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
DEAD_LETTER_SOURCE = "x-opt-deadletter-source"
SECTION_START = b"\x53"  # of a key that is a number
HEADER_START = SECTION_START + bytes((HEADER,))
_HEADER_WITHOUT_FIELDS = HEADER_START + b"\x45"
DELIVERY_ANNOTATIONS_START = SECTION_START + bytes((DELIVERY_ANNOTATIONS,))
LOCK_TOKEN = "x-opt-lock-token"
_OWNED_BY_THE_SERVICE: frozenset[object] = frozenset(
    {
        ULong(HEADER),
        ULong(DELIVERY_ANNOTATIONS),
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        DEAD_LETTER_SOURCE,
    }
)
_BINARY = (0xA0, 0xB0)  # constructors of binary values and of lists
_LISTS = (0x45, 0xC0, 0xD0)
_EMPTY_MAPS = (b"\xc1\x01\x00", b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00")


def drafts_of(payload: bytes, message_format: int, read: Callable[[bytes], Draft] | None = None) -> list[Draft]:
    """Read the messages of one delivery: one, or those of a batch. ProtocolError or Refusal when they cannot be taken.

    `read`: the `draft_of` of a `DraftReader`; without it, this file's.
    """
    read = read or draft_of
    if message_format == BATCH_FORMAT:
        return list(map(read, _batched(payload)))
    if message_format != 0:
        raise Refusal(ARGUMENT_ERROR, f"The message format 0x{message_format:08x} is not known.")
    return [read(payload)]


def _batched(payload: bytes) -> list[bytes]:
    messages = []
    payload, spans = in_order(payload)
    for code, _, value_at, end in spans:
        if code == DATA:
            form = payload[value_at]
            if form not in _BINARY:  # forms whose size says where the section ends
                raise ProtocolError(DECODE_ERROR, "a data section of the batch is not binary")
            messages.append(payload[value_at + (2 if form == 0xA0 else 5) : end])
    if not messages:
        raise Refusal(ARGUMENT_ERROR, "The batch holds no message.")
    return messages


def draft_of(payload: bytes) -> Draft:
    """Read one encoded message as the queue takes it."""
    payload, spans = in_order(payload)
    message_id, is_ping = "", False
    session_id: str | None = None
    bare_at = total = len(payload)
    properties: tuple[int, int] | None = None
    for code, start, value_at, end in spans:
        if code < PROPERTIES:
            continue
        if bare_at == total:
            bare_at = start
        if code == PROPERTIES:
            properties = (value_at, end)
            message_id = _message_id(payload, value_at, end)
            session_id = _session_id(payload, value_at, end)
            is_ping = end - value_at > _PING_SIZE_MIN and _is_ping(payload, value_at, end)
        elif code == APPLICATION_PROPERTIES and not isinstance(decode(payload, value_at)[0], dict):
            raise ProtocolError(DECODE_ERROR, "the application properties are not a map")
        elif code == DATA and payload[value_at] not in _BINARY:  # a body that no receiver could read
            raise ProtocolError(DECODE_ERROR, "a data section is not binary")
        elif code == SEQUENCE and payload[value_at] not in _LISTS:
            raise ProtocolError(DECODE_ERROR, "a sequence section is not a list")
    ttl_ms, annotations, scheduled_ms = _read_front(payload, spans) if bare_at else (None, b"", 0)
    body = payload[bare_at:] if bare_at else payload
    if not message_id:
        message_id = str(uuid4())
        body = _with_message_id(payload, bare_at, properties, message_id)
    elif len(message_id) > MESSAGE_ID_LENGTH_MAX:
        raise Refusal(
            ARGUMENT_ERROR, f"The message id has {len(message_id)} characters; {MESSAGE_ID_LENGTH_MAX} are allowed."
        )
    return Draft(body, annotations, message_id, ttl_ms, scheduled_ms, is_ping, session_id)


def _read_front(payload: bytes, spans: list[SectionSpan]) -> tuple[int | None, bytes, int]:
    """Return (time to live, annotations, scheduled time) from the sections before the properties."""
    ttl_ms: int | None = None
    annotations, scheduled_ms = b"", 0
    for code, _, value_at, end in spans:
        if code == HEADER:
            read = _read_short_header if end - value_at <= SHORT_HEADER_MAX else _read_header
            ttl_ms, annotations = read(payload[value_at:end])
        elif code == DELIVERY_ANNOTATIONS and payload[value_at:end] not in _EMPTY_MAPS:
            annotations += _read_delivery_annotations(payload, value_at)
        elif code == MESSAGE_ANNOTATIONS and payload[value_at:end] not in _EMPTY_MAPS:
            kept, scheduled_ms = _read_annotations(payload, value_at)
            annotations += kept
        elif code >= PROPERTIES:
            break
    return ttl_ms, annotations, scheduled_ms


def _session_id(payload: bytes, value_at: int, end: int) -> str | None:
    """Return the group id of the properties. Properties that no receiver could read are refused.

    The fields behind a message id are mostly nulls, which need no check.
    """
    code = payload[value_at]
    first_at = value_at + (3 if code == 0xC0 else 9)
    if code == 0x45 or first_at >= end or not payload[skip(payload, first_at) : end].strip(b"\x40"):
        return None
    fields, _ = decode(payload, value_at)
    session_id = fields[_GROUP_ID] if len(fields) > _GROUP_ID else None
    if session_id is not None and not isinstance(session_id, str):
        raise ProtocolError(DECODE_ERROR, f"group-id is {session_id!r:.80}")
    if session_id is not None and len(session_id) > SESSION_ID_LENGTH_MAX:
        text = f"The session id has {len(session_id)} characters; {SESSION_ID_LENGTH_MAX} are allowed."
        raise Refusal(ARGUMENT_ERROR, text)
    return session_id


def _is_ping(payload: bytes, value_at: int, end: int) -> bool:
    """Return whether the properties at `value_at` have the content type of a ping."""
    if PING_CONTENT_TYPE not in payload[value_at:end]:
        return False
    fields, _ = decode(payload, value_at)
    return len(fields) > 6 and fields[6] == PING_CONTENT_TYPE.decode()


def _message_id(payload: bytes, value_at: int, end: int) -> str:
    """Return the text of the first field of the properties; empty when there is none."""
    code = payload[value_at]
    if code == 0x45:
        return ""
    if code not in (0xC0, 0xD0):
        raise ProtocolError(DECODE_ERROR, "the properties are not a list")
    at = value_at + (3 if code == 0xC0 else 9)
    if at >= end or payload[at] == 0x40:
        return ""
    if payload[at] == 0xA1 and at + 1 < end:  # the usual case, without the general decoder
        stop = at + 2 + payload[at + 1]
        if stop <= end:
            return payload[at + 2 : stop].decode("utf-8", "replace")
    value, stop = decode(payload, at)
    if stop > end:
        raise ProtocolError(DECODE_ERROR, "the message id ends behind the properties")
    if isinstance(value, bytes):  # the Python SDK sends bytes when it re-sends a message that it received
        return value.decode("utf-8", "replace")
    if isinstance(value, str | UUID | int):
        return str(value)
    raise ProtocolError(DECODE_ERROR, f"message-id is {value!r:.80}")


def _read_header(encoded: bytes) -> tuple[int | None, bytes]:
    """Return (time to live, the other fields that are kept, as a pair) of the value of a header."""
    if encoded in (b"\x45", b"\xc0\x00"):
        return None, b""
    fields, _ = decode(encoded, 0)
    if not isinstance(fields, list):
        raise ProtocolError(DECODE_ERROR, "the header is not a list")
    durable, priority, ttl, first_acquirer = (fields + [None] * 4)[:4]
    # It is kept and sent again as a uint: any other value would fail the store, or every delivery of the message.
    if ttl is not None and not (isinstance(ttl, int) and 0 <= ttl <= 0xFFFFFFFF):
        raise ProtocolError(DECODE_ERROR, f"ttl is {ttl!r:.80}")
    sent = Header.from_values([durable, priority, None, first_acquirer]).encode()[1:]
    return ttl, b"" if sent == _HEADER_WITHOUT_FIELDS else sent


_read_short_header = lru_cache(maxsize=256)(_read_header)
SHORT_HEADER_MAX = 32  # bytes of a header that is remembered; the headers of one sender differ in the time to live


def _read_delivery_annotations(payload: bytes, value_at: int) -> bytes:
    """Return the sender's delivery annotations, without the lock token of an earlier delivery, as a pair."""
    if not isinstance(decode(payload, value_at)[0], dict):
        raise ProtocolError(DECODE_ERROR, "the delivery annotations are not a map")
    kept = [payload[start:end] for key, start, _, end in pair_spans(payload, value_at) if key != LOCK_TOKEN]
    return DELIVERY_ANNOTATIONS_START + map_of(b"".join(kept), 2 * len(kept)) if kept else b""


def _read_annotations(payload: bytes, value_at: int) -> tuple[bytes, int]:
    """Return (the sender's annotations as encoded pairs, without those that only the service gives; scheduled time)."""
    annotations, _ = decode(payload, value_at)
    if not isinstance(annotations, dict):
        raise ProtocolError(DECODE_ERROR, "the message annotations are not a map")
    scheduled = annotations.get(SCHEDULED_TIME)
    if scheduled is not None and not (isinstance(scheduled, int) and scheduled <= TIME_MAX_MS):
        raise Refusal(
            ARGUMENT_ERROR, f"{SCHEDULED_TIME} must be a timestamp up to the year 9999, is {scheduled!r:.40}."
        )
    kept = b"".join(
        payload[start:end] for key, start, _, end in pair_spans(payload, value_at) if key not in _OWNED_BY_THE_SERVICE
    )
    return kept, int(scheduled or 0)


def pair_spans(buf: bytes, map_at: int) -> list[tuple[Any, int, int, int]]:
    """Return for each pair of the map at `map_at`: (key, start of the pair, start of its value, end)."""
    if buf[map_at] == 0xC1:
        count, at = buf[map_at + 2], map_at + 3
    else:
        assert buf[map_at] == 0xD1, "whoever asks has decoded the map before"
        count, at = int.from_bytes(buf[map_at + 5 : map_at + 9], "big"), map_at + 9
    return _spans(buf, at, count // 2)


def _spans(buf: bytes, at: int, pairs: int) -> list[tuple[object, int, int, int]]:
    spans = []
    for _ in range(pairs):
        key, value_at = decode(buf, at)
        end = skip(buf, value_at)
        spans.append((key, at, value_at, end))
        at = end
    return spans


def spans_of_pairs(pairs: bytes) -> list[tuple[object, int, int, int]]:
    spans, at = [], 0
    while at < len(pairs):
        spans += _spans(pairs, at, 1)
        at = spans[-1][3]
    return spans


def _with_message_id(payload: bytes, bare_at: int, properties: tuple[int, int] | None, message_id: str) -> bytes:
    """Return the bare message with `message_id` as the first field of its properties, which are at `properties`."""
    fields = [encode_string(message_id)]
    if properties is None:
        return section(PROPERTIES, list_of(fields)) + payload[bare_at:]
    value_at, end = properties
    at = value_at + (3 if payload[value_at] == 0xC0 else 9)
    if payload[value_at] != 0x45 and at < end:
        at = skip(payload, at)
        while at < end:
            stop = skip(payload, at)
            fields.append(payload[at:stop])
            at = stop
        assert at == end, "whoever asks has read the fields before"
    return section(PROPERTIES, list_of(fields)) + payload[end:]
