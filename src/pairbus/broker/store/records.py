"""How one message becomes one row, and how a row proves that it is what was written.

A row is (seq, head, head_crc, body_crc, body). `head` holds every field but the body in one blob, so that a row costs
five bindings instead of fourteen. `head_crc` covers the head and is seeded with box and seq: a row that turns up under
another number or in another box does not match. `body_crc` covers the body alone, so that `Update` and `Move` can write
a new head and carry the body over unread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from pairbus.broker.store import IndexRow, StoredMessage

_FIXED = struct.Struct("<BIqqqqII")
"state, delivery count, enqueued, expires, scheduled, ttl, length of message id, length of annotations; patch = rest"
_COUNTERS = struct.Struct("<qqqq")
_WORD = 0xFFFFFFFF
_SPREAD = 0x9E3779B1  # the golden ratio in 32 bits: neighbouring boxes get seeds that lie far apart

Row = tuple[Any, Any, Any, Any, Any]
"A row as it was read: of a damaged file, so any column may be of any type."

COLUMNS = "seq, head, head_crc, body_crc, body"


def pack_head(message: StoredMessage) -> bytes:
    message_id = message.message_id.encode()
    annotations = message.annotations
    return (
        _FIXED.pack(
            message.state,
            message.delivery_count,
            message.enqueued_ms,
            message.expires_ms,
            message.scheduled_ms,
            message.ttl_ms,
            len(message_id),
            len(annotations),
        )
        + message_id
        + annotations
        + message.patch
    )


def head_crc(box: int, seq: int, head: bytes) -> int:
    return crc32(head, (seq ^ (seq >> 32) ^ (box * _SPREAD)) & _WORD)


def pack_rows(box: int, messages: Sequence[StoredMessage]) -> list[Any]:
    """The columns of all messages in one flat list, as a multi-row INSERT binds them.

    Every message passes here: hence `pack_head` and `head_crc` once more, with local names and without the calls.
    """
    flat: list[Any] = []
    pack, salt = _FIXED.pack, box * _SPREAD
    for message in messages:
        seq, body, annotations = message.seq, message.body, message.annotations
        message_id = message.message_id.encode()
        head = (
            pack(
                message.state,
                message.delivery_count,
                message.enqueued_ms,
                message.expires_ms,
                message.scheduled_ms,
                message.ttl_ms,
                len(message_id),
                len(annotations),
            )
            + message_id
        )
        if annotations or message.patch:
            head += annotations + message.patch
        flat += (seq, head, crc32(head, (seq ^ (seq >> 32) ^ salt) & _WORD), crc32(body), body)
    return flat


def messages_of(box: int, rows: Iterable[Row]) -> tuple[list[StoredMessage], list[int]]:
    """(the messages of the intact rows, the numbers of the damaged ones).

    Every delivered message passes here: hence a loop with local names and a bare object instead of a call for each.
    """
    messages: list[StoredMessage] = []
    damaged: list[int] = []
    unpack, fixed_size, new, salt = _FIXED.unpack_from, _FIXED.size, StoredMessage.__new__, box * _SPREAD
    for seq, head, expected_head_crc, expected_body_crc, body in rows:
        try:
            intact = (
                crc32(body) == expected_body_crc
                and crc32(head, (seq ^ (seq >> 32) ^ salt) & _WORD) == expected_head_crc
            )
        except TypeError:  # a flipped bit can turn a blob into NULL or a number
            intact = False
        if not intact:
            damaged.append(seq)
            continue
        message = new(StoredMessage)
        message.seq = seq
        message.body = body
        (
            message.state,
            message.delivery_count,
            message.enqueued_ms,
            message.expires_ms,
            message.scheduled_ms,
            message.ttl_ms,
            id_size,
            annotations_size,
        ) = unpack(head)
        annotations_at = fixed_size + id_size
        patch_at = annotations_at + annotations_size
        message.message_id = head[fixed_size:annotations_at].decode()
        message.annotations = head[annotations_at:patch_at]
        message.patch = head[patch_at:]
        messages.append(message)
    return messages, damaged


def index_row_of(box: int, seq: Any, head: Any, expected_head_crc: Any, body_size: Any) -> IndexRow | None:
    """What the broker keeps of a waiting message, or None when the head is damaged. The body is not looked at."""
    try:
        if head_crc(box, seq, head) != expected_head_crc:
            return None
        state, _, _, expires_ms, scheduled_ms, _, id_size, _ = _FIXED.unpack_from(head)
        return seq, state, expires_ms, scheduled_ms, body_size + len(head) - _FIXED.size - id_size
    except TypeError:
        return None


def counters_crc(counter_id: int, high: int, live: int, dead: int) -> int:
    return crc32(_COUNTERS.pack(counter_id, high, live, dead))


def text_crc(seed: int, text: bytes) -> int:
    """Of a description (seeded with its queue's id) or a remembered message id (with its queue's id and its time)."""
    return crc32(text, (seed ^ (seed >> 32)) & _WORD)
