"""Between the wire and the store: what the broker reads of a message that comes, and what it says on one that goes.

A message is never re-encoded. What comes is cut in two: the sender's annotations, and everything from the properties
on ("the bare message"), which stays as it is. What goes is a header and annotations of the broker's own in front of
those bytes. Only a settlement that changed application properties (a *patch*) makes one section to be written anew,
and a message without an id gets one, because the JavaScript SDK cannot settle a message that has none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple
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
    header_section,
    in_order,
    section,
    sections,
)
from pairbus.amqp.types import decode, encode, encode_string, encode_symbol, list_of, map_of, skip
from pairbus.broker.draft import Draft
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal
from pairbus.broker.store import ACTIVE, StoredMessage

PING_CONTENT_TYPE = b"application/vnd.ms-servicebus-ping"
_PING_SIZE_MIN = len(PING_CONTENT_TYPE)
MESSAGE_ID_LENGTH_MAX = 128
SESSION_ID_LENGTH_MAX = 128
_GROUP_ID = 10  # its place among the properties
HEAD_SIZE_MAX = 4096  # of what a `DraftReader` remembers
HEADS_MAX = 32
HEAD_KEY_SIZE = 8  # as far as the length of the id, where the properties come first
LEARN_FIRST, LEARN_EACH = 16, 256  # it learns from its first misses, then now and again
TIME_MAX_MS = 253_402_300_799_999  # the end of the year 9999: the SDKs' clocks cannot show more

SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
DEAD_LETTER_SOURCE = "x-opt-deadletter-source"
_OWNED_BY_THE_SERVICE = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        DEAD_LETTER_SOURCE,
    }
)
_EMPTY_MAPS = (b"\xc1\x01\x00", b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00")


# ── what comes ──


def drafts_of(payload: bytes, message_format: int, read: Callable[[bytes], Draft] | None = None) -> list[Draft]:
    """The messages of one delivery: one, or those of a batch. ProtocolError or Refusal when they cannot be taken.

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
    payload, found = in_order(payload)
    for code, _, value_at, end in found:
        if code == DATA:
            form = payload[value_at]
            if form not in (0xA0, 0xB0):  # whose size says where the section ends
                raise ProtocolError(DECODE_ERROR, "a data section of the batch is not binary")
            messages.append(payload[value_at + (2 if form == 0xA0 else 5) : end])
    if not messages:
        raise Refusal(ARGUMENT_ERROR, "The batch holds no message.")
    return messages


def draft_of(payload: bytes) -> Draft:
    """One encoded message as the queue takes it."""
    payload, found = in_order(payload)
    ttl_ms: int | None = None
    annotations, scheduled_ms = b"", 0
    message_id, is_ping = "", False
    session_id: str | None = None
    bare_at = total = len(payload)
    properties: tuple[int, int] | None = None
    for code, start, value_at, end in found:
        if code >= PROPERTIES:
            if bare_at == total:
                bare_at = start
            if code == PROPERTIES:
                properties = (value_at, end)
                message_id = _message_id(payload, value_at, end)
                session_id = _session_id(payload, value_at, end)
                is_ping = end - value_at > _PING_SIZE_MIN and _is_ping(payload, value_at, end)
            elif code == APPLICATION_PROPERTIES and not isinstance(decode(payload, value_at)[0], dict):
                raise ProtocolError(DECODE_ERROR, "the application properties are not a map")
        elif code == HEADER:
            ttl_ms = _ttl_ms(payload, value_at)
        elif code == MESSAGE_ANNOTATIONS and payload[value_at:end] not in _EMPTY_MAPS:
            annotations, scheduled_ms = _read_annotations(payload, value_at)
        else:
            assert code in (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS)
    body = payload[bare_at:] if bare_at else payload
    if not message_id:
        message_id = str(uuid4())
        body = _with_message_id(payload, bare_at, properties, message_id)
    elif len(message_id) > MESSAGE_ID_LENGTH_MAX:
        raise Refusal(
            ARGUMENT_ERROR, f"The message id has {len(message_id)} characters; {MESSAGE_ID_LENGTH_MAX} are allowed."
        )
    return Draft(body, annotations, message_id, ttl_ms, scheduled_ms, is_ping, session_id)


class Head(NamedTuple):
    """What stands around the id of a message: header, annotations, properties, application properties."""

    size: int
    "Up to the bytes of the data section."
    unpack: Callable[[bytes], tuple[Any, ...]]
    "(bytes before the id, id, bytes behind it, size of the data)"
    before: bytes
    behind: bytes
    bare_at: int
    annotations: bytes
    ttl_ms: int | None
    scheduled_ms: int
    is_ping: bool
    session_id: str | None


class DraftReader:
    """`draft_of` for the messages of one sender, which mostly differ in nothing but message id and data.

    The head of a message that was read is remembered. The next one that has the same bytes there, and behind them one
    data section up to its end, needs no second look. Ids of one sender have few lengths, and each has a head.
    """

    __slots__ = ("_heads", "misses")

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}
        self.misses = 0
        "Messages that had another head than those remembered."

    def draft_of(self, payload: bytes) -> Draft:
        """The same as the function of this name, and the same refusals."""
        head = self._heads.get(payload[:HEAD_KEY_SIZE])
        if head is not None and len(payload) >= head[0]:
            size, unpack, before, behind, bare_at, annotations, ttl_ms, scheduled_ms, is_ping, session_id = head
            found_before, message_id, found_behind, data_size = unpack(payload)
            if found_before == before and found_behind == behind and data_size == len(payload) - size:
                try:
                    text = message_id.decode()
                except UnicodeDecodeError:  # what becomes of it depends on more than this
                    return draft_of(payload)
                return Draft(payload[bare_at:], annotations, text, ttl_ms, scheduled_ms, is_ping, session_id)
        draft = draft_of(payload)
        self.misses += 1
        # A sender whose heads are always other ones must not pay for the learning as well.
        if self.misses <= LEARN_FIRST or self.misses % LEARN_EACH == 0:
            self._learn(payload, draft)
        return draft

    def _learn(self, payload: bytes, draft: Draft) -> None:
        head, key = _head_of(payload, draft), payload[:HEAD_KEY_SIZE]
        if head is not None:
            if len(self._heads) >= HEADS_MAX and key not in self._heads:
                self._heads.clear()
            self._heads[key] = head


def _head_of(payload: bytes, draft: Draft) -> Head | None:
    """None unless the id is a string of the usual short form, and behind the head is data, its size in four bytes."""
    ordered, found = in_order(payload)
    if ordered is not payload:
        return None
    properties = [row for row in found if row[0] == PROPERTIES]
    if not properties or found[-1][0] != DATA:
        return None
    (_, bare_at, at, end), data_at = properties[0], found[-1][2]
    if payload[data_at] != 0xB0 or data_at > HEAD_SIZE_MAX:
        return None
    at += 3 if payload[at] == 0xC0 else 9
    if at + 1 >= end or payload[at] != 0xA1 or not 0 < payload[at + 1] <= MESSAGE_ID_LENGTH_MAX:
        return None
    before = payload[: at + 2]
    behind = payload[at + 2 + payload[at + 1] : data_at + 1]
    layout = struct.Struct(f">{len(before)}s{payload[at + 1]}s{len(behind)}sI")
    return Head(
        layout.size,
        layout.unpack_from,
        before,
        behind,
        bare_at,
        draft.annotations,
        draft.ttl_ms,
        draft.scheduled_ms,
        draft.is_ping,
        draft.session_id,
    )


def _session_id(payload: bytes, value_at: int, end: int) -> str | None:
    """The group id of the properties, which are checked: what no receiver could read is refused.

    Behind a message id there are mostly nulls, which need no look.
    """
    code = payload[value_at]
    first_at = value_at + (3 if code == 0xC0 else 9)
    if code == 0x45 or first_at >= end or not payload[skip(payload, first_at) : end].strip(b"\x40"):
        return None
    fields, stop = decode(payload, value_at)
    if stop != end:
        raise ProtocolError(DECODE_ERROR, "the properties end before or behind their fields")
    session_id = fields[_GROUP_ID] if len(fields) > _GROUP_ID else None
    if session_id is not None and not isinstance(session_id, str):
        raise ProtocolError(DECODE_ERROR, f"group-id is {session_id!r:.80}")
    if session_id is not None and len(session_id) > SESSION_ID_LENGTH_MAX:
        text = f"The session id has {len(session_id)} characters; {SESSION_ID_LENGTH_MAX} are allowed."
        raise Refusal(ARGUMENT_ERROR, text)
    return session_id


def _is_ping(payload: bytes, value_at: int, end: int) -> bool:
    """Whether the properties at `value_at` say so by their content type."""
    if PING_CONTENT_TYPE not in payload[value_at:end]:
        return False
    fields, _ = decode(payload, value_at)
    return len(fields) > 6 and fields[6] == PING_CONTENT_TYPE.decode()


def _message_id(payload: bytes, value_at: int, end: int) -> str:
    """Text of the first field of the properties; empty when there is none."""
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
    if isinstance(value, bytes):  # what the Python SDK sends when it re-sends a message that it received
        return value.decode("utf-8", "replace")
    if isinstance(value, str | UUID | int):
        return str(value)
    raise ProtocolError(DECODE_ERROR, f"message-id is {value!r:.80}")


def _ttl_ms(payload: bytes, value_at: int) -> int | None:
    if payload[value_at] == 0x45 or (payload[value_at] == 0xC0 and payload[value_at + 2 : value_at + 3] < b"\x03"):
        return None  # no third field
    fields, _ = decode(payload, value_at)
    if not isinstance(fields, list):
        raise ProtocolError(DECODE_ERROR, "the header is not a list")
    ttl = fields[2] if len(fields) > 2 else None
    # Kept and said again as a uint: what is none would fail the store, or every delivery of the message.
    if ttl is not None and not (isinstance(ttl, int) and 0 <= ttl <= 0xFFFFFFFF):
        raise ProtocolError(DECODE_ERROR, f"ttl is {ttl!r:.80}")
    return ttl


def _read_annotations(payload: bytes, value_at: int) -> tuple[bytes, int]:
    """(the sender's annotations as encoded pairs without those that are the service's to give, scheduled time)."""
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


def pair_spans(buf: bytes, map_at: int) -> list[tuple[object, int, int, int]]:
    """(key, where the pair begins, where its value begins, where it ends) of each pair of the map at `map_at`."""
    if buf[map_at] == 0xC1:
        count, at = buf[map_at + 2], map_at + 3
    elif buf[map_at] == 0xD1:
        count, at = int.from_bytes(buf[map_at + 5 : map_at + 9], "big"), map_at + 9
    else:
        raise ProtocolError(DECODE_ERROR, f"no map: 0x{buf[map_at]:02x}")
    return _spans(buf, at, count // 2)


def _spans(buf: bytes, at: int, pairs: int) -> list[tuple[object, int, int, int]]:
    spans = []
    for _ in range(pairs):
        key, value_at = decode(buf, at)
        end = skip(buf, value_at)
        spans.append((key, at, value_at, end))
        at = end
    return spans


def _with_message_id(payload: bytes, bare_at: int, properties: tuple[int, int] | None, message_id: str) -> bytes:
    """The bare message with `message_id` as the first field of its properties, whose value stands at `properties`."""
    fields = [encode_string(message_id)]
    if properties is None:
        return section(PROPERTIES, list_of(fields)) + payload[bare_at:]
    value_at, end = properties
    at = value_at + (3 if payload[value_at] == 0xC0 else 9)
    if payload[value_at] != 0x45 and at < end:
        try:
            at = skip(payload, at)
            while at < end:
                stop = skip(payload, at)
                fields.append(payload[at:stop])
                at = stop
        except IndexError:
            at = -1
        if at != end:
            raise ProtocolError(DECODE_ERROR, "the properties are cut")
    return section(PROPERTIES, list_of(fields)) + payload[end:]


# ── what goes ──

_SEQUENCE_KEY = encode_symbol("x-opt-sequence-number") + b"\x81"
_ENQUEUED_KEY = encode_symbol("x-opt-enqueued-time") + b"\x83"
_LOCKED_KEY = encode_symbol("x-opt-locked-until") + b"\x83"
_ORIGIN_KEY = encode_symbol("x-opt-enqueue-sequence-number") + b"\x81"
_STATE_PAIR = encode_symbol("x-opt-message-state") + b"\x54"
_UNLOCKED = struct.Struct(f">{len(_SEQUENCE_KEY)}sq{len(_ENQUEUED_KEY)}sq")
_LOCKED = struct.Struct(f">{len(_SEQUENCE_KEY)}sq{len(_ENQUEUED_KEY)}sq{len(_LOCKED_KEY)}sq")
_ORIGIN = struct.Struct(f">{len(_ORIGIN_KEY)}sq")

# The common delivery: no time to live, never delivered before, no annotations of the sender's, active, locked.
_FIRST_DELIVERY = header_section(0, 0)
_TOKEN_KEY = encode_symbol("x-opt-lock-token") + b"\x98"
_TOKEN_HEAD = b"\x00\x53\x71\xc1" + bytes((len(_TOKEN_KEY) + 17, 2)) + _TOKEN_KEY
_FIRST_HEAD = _FIRST_DELIVERY + _TOKEN_HEAD
_BEFORE_SEQUENCE = b"\x00\x53\x72\xc1" + bytes((_LOCKED.size + 1, 6)) + _SEQUENCE_KEY
_BEFORE_SEQUENCE_OF_COPY = b"\x00\x53\x72\xc1" + bytes((_LOCKED.size + _ORIGIN.size + 1, 8)) + _SEQUENCE_KEY
_PLAIN = struct.Struct(f">{len(_FIRST_HEAD)}sIHH8s{len(_BEFORE_SEQUENCE)}sq{len(_ENQUEUED_KEY)}sq{len(_LOCKED_KEY)}sq")
_COPY = struct.Struct(f"{_PLAIN.format}{len(_ORIGIN_KEY)}sq")
_TOKEN = struct.Struct("<IHH8s")  # the fields of a UUID, in the order of lock tokens
_UUID = struct.Struct(">IHH8s")


def _uuid_bytes(token: bytes) -> bytes:
    """The bytes of the UUID that a lock token is."""
    return _UUID.pack(*_TOKEN.unpack(token))


def encode_delivery(message: StoredMessage, locked_until_ms: int = 0, token: bytes = b"") -> bytes:
    """The message as a receiver gets it; without a lock and its token for receive-and-delete and for peek."""
    if (
        token
        and not message.annotations
        and not message.ttl_ms
        and not message.delivery_count
        and not message.patch
        and message.state == ACTIVE
    ):
        seq, enqueued_ms, body = message.seq, message.enqueued_ms, message.body
        first, second, third, rest = _TOKEN.unpack(token)
        if message.origin_seq:
            return (
                _COPY.pack(
                    _FIRST_HEAD,
                    first,
                    second,
                    third,
                    rest,
                    _BEFORE_SEQUENCE_OF_COPY,
                    seq,
                    _ENQUEUED_KEY,
                    enqueued_ms,
                    _LOCKED_KEY,
                    locked_until_ms,
                    _ORIGIN_KEY,
                    message.origin_seq,
                )
                + body
            )
        return (
            _PLAIN.pack(
                _FIRST_HEAD,
                first,
                second,
                third,
                rest,
                _BEFORE_SEQUENCE,
                seq,
                _ENQUEUED_KEY,
                enqueued_ms,
                _LOCKED_KEY,
                locked_until_ms,
            )
            + body
        )
    if locked_until_ms:
        pairs = _LOCKED.pack(
            _SEQUENCE_KEY, message.seq, _ENQUEUED_KEY, message.enqueued_ms, _LOCKED_KEY, locked_until_ms
        )
        count = 6
    else:
        pairs = _UNLOCKED.pack(_SEQUENCE_KEY, message.seq, _ENQUEUED_KEY, message.enqueued_ms)
        count = 4
    if message.origin_seq:
        pairs += _ORIGIN.pack(_ORIGIN_KEY, message.origin_seq)
        count += 2
    if message.state != ACTIVE:
        pairs += _STATE_PAIR + bytes((message.state,))
        count += 2
    if message.annotations:
        pairs += message.annotations
        count += 2 * len(_spans_of_pairs(message.annotations))
    body = with_patch(message.body, message.patch) if message.patch else message.body
    return (
        header_section(message.ttl_ms, message.delivery_count)
        + (_TOKEN_HEAD + _uuid_bytes(token) if token else b"")
        + section(MESSAGE_ANNOTATIONS, map_of(pairs, count))
        + body
    )


def _spans_of_pairs(pairs: bytes) -> list[tuple[object, int, int, int]]:
    spans, at = [], 0
    while at < len(pairs):
        spans += _spans(pairs, at, 1)
        at = spans[-1][3]
    return spans


def without_pair(pairs: bytes, key: str) -> bytes:
    """Leave out the encoded pair of this key, if there is one."""
    return b"".join(pairs[start:end] for name, start, _, end in _spans_of_pairs(pairs) if name != key)


def with_patch(body: bytes, patch: bytes) -> bytes:
    """Give the bare message with changed application properties; of several changes to one property the last counts."""
    changes = {key: patch[start:end] for key, start, _, end in _spans_of_pairs(patch)}
    properties_end = 0
    for code, start, value_at, end in sections(body):
        if code == APPLICATION_PROPERTIES:
            kept = {key: body[a:b] for key, a, _, b in pair_spans(body, value_at)}
            merged = kept | changes
            written = section(APPLICATION_PROPERTIES, map_of(b"".join(merged.values()), 2 * len(merged)))
            return body[:start] + written + body[end:]
        if code == PROPERTIES:
            properties_end = end
    written = section(APPLICATION_PROPERTIES, map_of(b"".join(changes.values()), 2 * len(changes)))
    return body[:properties_end] + written + body[properties_end:]


def patch_of(changes: dict[object, object]) -> bytes:
    """Changed application properties as encoded pairs. ProtocolError when a key is no text."""
    parts = []
    for key, value in changes.items():
        if not isinstance(key, str):
            raise ProtocolError(DECODE_ERROR, f"property name {key!r:.80} is not text")
        parts.append(encode_string(str(key)) + encode(value))
    return b"".join(parts)
