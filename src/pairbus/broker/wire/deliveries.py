"""Outgoing messages: the broker's own header and annotations in front of the bare message.

Only after a settlement that changed application properties (a *patch*) one section is written again.
"""

from __future__ import annotations

import struct

from pairbus.amqp.errors import DECODE_ERROR, ProtocolError
from pairbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    header_section,
    section,
    sections,
)
from pairbus.amqp.types import decode, encode, encode_string, encode_symbol, map_of, skip
from pairbus.broker.store import ACTIVE, StoredMessage
from pairbus.broker.wire.messages import (
    DELIVERY_ANNOTATIONS_START,
    HEADER_START,
    LOCK_TOKEN,
    SECTION_START,
    pair_spans,
    spans_of_pairs,
)

_SEQUENCE_KEY = encode_symbol("x-opt-sequence-number") + b"\x81"
_ENQUEUED_KEY = encode_symbol("x-opt-enqueued-time") + b"\x83"
_LOCKED_KEY = encode_symbol("x-opt-locked-until") + b"\x83"
_ORIGIN_KEY = encode_symbol("x-opt-enqueue-sequence-number") + b"\x81"
_STATE_PAIR = encode_symbol("x-opt-message-state") + b"\x54"
_UNLOCKED = struct.Struct(f">{len(_SEQUENCE_KEY)}sq{len(_ENQUEUED_KEY)}sq")
_LOCKED = struct.Struct(f">{len(_SEQUENCE_KEY)}sq{len(_ENQUEUED_KEY)}sq{len(_LOCKED_KEY)}sq")
_ORIGIN = struct.Struct(f">{len(_ORIGIN_KEY)}sq")

# The common delivery: no time to live, never delivered before, at most a header of the sender's, active, locked.
_TOKEN_KEY = encode_symbol(LOCK_TOKEN) + b"\x98"
_TOKEN_HEAD = b"\x00\x53\x71\xc1" + bytes((len(_TOKEN_KEY) + 17, 2)) + _TOKEN_KEY
_FIRST_HEAD = header_section(0, 0) + _TOKEN_HEAD
_FIRST_HEADS: dict[bytes, bytes] = {b"": _FIRST_HEAD}
"""Annotations that are none, or a header alone → all bytes before the lock token. The fields of a header that are kept
have some thousand values, of which senders use two or three."""
_BEFORE_SEQUENCE = b"\x00\x53\x72\xc1" + bytes((_LOCKED.size + 1, 6)) + _SEQUENCE_KEY
_BEFORE_SEQUENCE_OF_COPY = b"\x00\x53\x72\xc1" + bytes((_LOCKED.size + _ORIGIN.size + 1, 8)) + _SEQUENCE_KEY
_PLAIN = struct.Struct(f">IHH8s{len(_BEFORE_SEQUENCE)}sq{len(_ENQUEUED_KEY)}sq{len(_LOCKED_KEY)}sq")
_COPY = struct.Struct(f"{_PLAIN.format}{len(_ORIGIN_KEY)}sq")
_TOKEN = struct.Struct("<IHH8s")  # the fields of a UUID, in the order of lock tokens
_UUID = struct.Struct(">IHH8s")


def _uuid_bytes(token: bytes) -> bytes:
    """Return the bytes of the UUID that is the lock token."""
    return _UUID.pack(*_TOKEN.unpack(token))


def encode_delivery(message: StoredMessage, locked_until_ms: int = 0, token: bytes = b"") -> bytes:
    """Encode the message for a receiver; without a lock and its token for receive-and-delete and for peek."""
    if (
        token
        and (head := _FIRST_HEADS.get(message.annotations) or _first_head(message.annotations))
        and not message.ttl_ms
        and not message.delivery_count
        and not message.patch
        and message.state == ACTIVE
    ):
        seq, enqueued_ms, body = message.seq, message.enqueued_ms, message.body
        first, second, third, rest = _TOKEN.unpack(token)
        if message.origin_seq:
            return (
                head
                + _COPY.pack(
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
            head
            + _PLAIN.pack(
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
    sent: Header | None = None
    of_hop = _TOKEN_HEAD + _uuid_bytes(token) if token else b""
    annotations = message.annotations
    if annotations.startswith(SECTION_START):
        sent, hop_pairs, annotations = _apart(annotations)
        if hop_pairs:
            hop_pairs += [_TOKEN_KEY + _uuid_bytes(token)] if token else []
            of_hop = section(DELIVERY_ANNOTATIONS, map_of(b"".join(hop_pairs), 2 * len(hop_pairs)))
    if annotations:
        pairs += annotations
        count += 2 * len(spans_of_pairs(annotations))
    body = with_patch(message.body, message.patch) if message.patch else message.body
    return (
        header_section(message.ttl_ms, message.delivery_count, sent)
        + of_hop
        + section(MESSAGE_ANNOTATIONS, map_of(pairs, count))
        + body
    )


def _first_head(annotations: bytes) -> bytes:
    """Return the bytes before the lock token for annotations that are a header alone; otherwise none."""
    if not annotations.startswith(HEADER_START) or skip(annotations, len(HEADER_START)) < len(annotations):
        return b""
    head = _FIRST_HEADS[annotations] = header_section(0, 0, _apart(annotations)[0]) + _TOKEN_HEAD
    return head


def _apart(annotations: bytes) -> tuple[Header | None, list[bytes], bytes]:
    """Return the sender's header, its delivery annotations as pairs, and the pairs of its message annotations."""
    sent: Header | None = None
    of_hop: list[bytes] = []
    at = 0
    if annotations.startswith(HEADER_START):
        fields, at = decode(annotations, len(HEADER_START))
        sent = Header(*fields)
    if annotations.startswith(DELIVERY_ANNOTATIONS_START, at):
        map_at = at + len(DELIVERY_ANNOTATIONS_START)
        of_hop = [annotations[start:end] for _, start, _, end in pair_spans(annotations, map_at)]
        at = skip(annotations, map_at)
    return sent, of_hop, annotations[at:]


def without_pair(pairs: bytes, key: str) -> bytes:
    """Leave out the encoded pair of this key, if there is one."""
    return b"".join(pairs[start:end] for name, start, _, end in spans_of_pairs(pairs) if name != key)


def with_patch(body: bytes, patch: bytes) -> bytes:
    """Return the bare message with changed application properties; the last change to a property counts."""
    changes = {key: patch[start:end] for key, start, _, end in spans_of_pairs(patch)}
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
    """Encode changed application properties as pairs. ProtocolError when a key is no text."""
    parts = []
    for key, value in changes.items():
        if not isinstance(key, str):
            raise ProtocolError(DECODE_ERROR, f"property name {key!r:.80} is not text")
        parts.append(encode_string(str(key)) + encode(value))
    return b"".join(parts)
