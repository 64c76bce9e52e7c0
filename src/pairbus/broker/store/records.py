"""Messages as rows, and the checksums that prove that a row is as it was written.

A row is (n, box, head, head_crc, body_crc, body). `head` holds every field but the body in one blob, so that a row
costs six bindings instead of eighteen. `head_crc` covers the head and is seeded with box and n: a row that turns up
under another number or in another box does not match. `body_crc` covers the body alone, so that `Update` and `Move` can
write a new head and carry the body over unread. A row that shares a payload has no body; a payload is (id, topic, crc,
body), its checksum seeded with the two numbers.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any
from zlib import crc32

from pairbus.broker.store import UNLIMITED, IndexRow, StoredMessage

_FIXED = struct.Struct("<qqBIqqqqqBHHI")
"""seq, payload, state, delivery count, enqueued, expires, scheduled, ttl, origin seq, hops, lengths of message id,
session id and annotations; patch = rest"""
_COUNTERS = struct.Struct("<qqq")
_CHANGE = struct.Struct("<qqq")
_JOURNAL = struct.Struct("<qqq")
_WORD = 0xFFFFFFFF
_SPREAD = 0x9E3779B1  # the golden ratio in 32 bits: neighbouring boxes get seeds that lie far apart

StoredRow = tuple[Any, Any, Any, Any, Any, Any]
"Row as it was read, perhaps from a damaged file: any column may be of any type."

COLUMNS = "n, box, head, head_crc, body_crc, body"
COLUMN_COUNT = 6
HEAD_COLUMNS = "n, box, head, head_crc, length(body), x''"
"Columns of a row without its body; SQLite knows the length without reading it."
NO_CRC = crc32(b"")


def pack_head(message: StoredMessage) -> bytes:
    message_id = message.message_id.encode()
    session_id = message.session_id.encode()
    annotations = message.annotations
    return (
        _FIXED.pack(
            message.seq,
            message.payload,
            message.state,
            message.delivery_count,
            message.enqueued_ms,
            message.expires_ms,
            message.scheduled_ms,
            message.ttl_ms,
            message.origin_seq,
            message.hops,
            len(message_id),
            len(session_id),
            len(annotations),
        )
        + message_id
        + session_id
        + annotations
        + message.patch
    )


def head_crc(box: int, n: int, head: bytes) -> int:
    return crc32(head, (n ^ (n >> 32) ^ (box * _SPREAD)) & _WORD)


def pack_rows(box: int, messages: Sequence[StoredMessage]) -> list[Any]:
    """Return the columns of all messages in one flat list, as a multi-row INSERT binds them.

    Every message passes here: hence `pack_head` and `head_crc` once more, with local names and without the calls.
    """
    flat: list[Any] = []
    pack, salt = _FIXED.pack, box * _SPREAD
    for message in messages:
        n, body, annotations = message.n, message.body, message.annotations
        message_id = message.message_id.encode()
        session_id = message.session_id
        head = (
            pack(
                message.seq,
                message.payload,
                message.state,
                message.delivery_count,
                message.enqueued_ms,
                message.expires_ms,
                message.scheduled_ms,
                message.ttl_ms,
                message.origin_seq,
                message.hops,
                len(message_id),
                len(session_id.encode()) if session_id else 0,
                len(annotations),
            )
            + message_id
        )
        if session_id or annotations or message.patch:
            head += session_id.encode() + annotations + message.patch
        crc = crc32(head, (n ^ (n >> 32) ^ salt) & _WORD)
        if message.payload:
            flat += (n, box, head, crc, NO_CRC, b"")
        else:
            flat += (n, box, head, crc, crc32(body), body)
    return flat


Bodies = tuple[Mapping[int, bytes], AbstractSet[int]]
"(bodies by the numbers of their payloads, payloads that were not looked at because the others have enough bytes)"


def messages_of(
    box: int,
    rows: Iterable[StoredRow],
    payloads: Callable[[set[int]], Bodies],
    numbers: Sequence[int] = (),
    size_max: int = UNLIMITED,
) -> tuple[list[StoredMessage], list[int], list[int]]:
    """Return (the messages of the intact rows of the box, the numbers of the damaged ones, the numbers that were not
    reached: those behind `size_max` bytes, or behind the first message whose payload was not looked at).

    `payloads` finds the intact bodies among these numbers; a row whose payload is missing is damaged. `numbers` are
    those of the rows, ascending. Every delivered message passes here: hence a loop with local names and a bare object
    instead of a call for each. SQLite hands over one row at a time, so what is not reached is not in memory.
    """
    messages: list[StoredMessage] = []
    damaged: list[int] = []
    wanted: set[int] = set()
    rest: list[int] = []
    left = size_max
    unpack, fixed_size, new, salt = _FIXED.unpack_from, _FIXED.size, StoredMessage.__new__, box * _SPREAD
    for n, row_box, head, expected_head_crc, expected_body_crc, body in rows:
        if row_box != box:
            continue
        try:
            intact = (
                crc32(body) == expected_body_crc and crc32(head, (n ^ (n >> 32) ^ salt) & _WORD) == expected_head_crc
            )
        except TypeError:  # a flipped bit can turn a blob into NULL or a number
            intact = False
        if not intact:
            damaged.append(n)
            continue
        message = new(StoredMessage)
        message.n = n
        (
            message.seq,
            message.payload,
            message.state,
            message.delivery_count,
            message.enqueued_ms,
            message.expires_ms,
            message.scheduled_ms,
            message.ttl_ms,
            message.origin_seq,
            message.hops,
            id_size,
            session_size,
            annotations_size,
        ) = unpack(head)
        if message.payload:
            wanted.add(message.payload)
        message.body = body
        session_at = fixed_size + id_size
        annotations_at = session_at + session_size
        patch_at = annotations_at + annotations_size
        message.message_id = head[fixed_size:session_at].decode()
        message.session_id = head[session_at:annotations_at].decode() if session_size else ""
        message.annotations = head[annotations_at:patch_at]
        message.patch = head[patch_at:]
        message.size = size = len(body) + len(head) - annotations_at
        messages.append(message)
        left -= size
        if left <= 0:
            rest = list(numbers[bisect_right(numbers, n) :])
            break
    if wanted:
        bodies, unread = payloads(wanted)
        first = {messages[0].payload}
        if not first.isdisjoint(unread):  # at least one message is read, or found to be damaged
            bodies, unread = payloads(first)[0], (unread | wanted) - first
        messages, damaged, later = _with_bodies(messages, bodies, unread, damaged)
        rest = later + rest
    return messages, damaged, rest


def _with_bodies(
    messages: list[StoredMessage], payloads: Mapping[int, bytes], unread: AbstractSet[int], damaged: list[int]
) -> tuple[list[StoredMessage], list[int], list[int]]:
    """Put the payloads into the messages that share one; a message whose payload is missing is damaged."""
    whole: list[StoredMessage] = []
    for place, message in enumerate(messages):
        if message.payload:
            body = payloads.get(message.payload)
            if body is None and message.payload in unread:
                return whole, damaged, [later.n for later in messages[place:]]
            if body is None:
                damaged.append(message.n)
                continue
            message.body = body
            message.size += len(body)
        whole.append(message)
    return whole, damaged, []


def heads_of(
    box: int, rows: Iterable[StoredRow], numbers: Sequence[int] = (), size_max: int = UNLIMITED
) -> tuple[list[StoredMessage], list[int], list[int]]:
    """Return messages without bodies from rows with `HEAD_COLUMNS`, and the numbers of the damaged ones, and of those
    behind `size_max` bytes of heads."""
    sizes: dict[int, Any] = {}

    def heads() -> Iterator[StoredRow]:
        for n, row_box, head, crc, size, _ in rows:
            sizes[n] = size or 0
            yield n, row_box, head, crc, NO_CRC, b""

    messages, damaged, rest = messages_of(box, heads(), _no_bodies, numbers, size_max)
    for message in messages:
        message.size += sizes[message.n]
    return messages, damaged, rest


def _no_bodies(payloads: set[int]) -> Bodies:
    return dict.fromkeys(payloads, b""), frozenset()


def index_rows_of(rows: Iterable[tuple[Any, ...]]) -> tuple[list[IndexRow], list[tuple[int, Any]]]:
    """Return the index rows of (n, box, head, head_crc, size of the body) rows, and (n, box) of those that are damaged.

    Every stored message passes here at a start: hence `index_row_of` once more, with local names and without the call.
    """
    intact: list[IndexRow] = []
    damaged: list[tuple[int, Any]] = []
    unpack, fixed_size, new = _FIXED.unpack_from, _FIXED.size, tuple.__new__
    for n, box, head, crc, body_size in rows:
        try:
            if crc32(head, (n ^ (n >> 32) ^ (box * _SPREAD)) & _WORD) != crc:
                damaged.append((n, box))
                continue
            fixed = unpack(head)
            rest_at = fixed_size + fixed[10]
            session_size = fixed[11]
            session_id = head[rest_at : rest_at + session_size].decode() if session_size else ""
            size = body_size + len(head) - rest_at - session_size
        except TypeError:
            damaged.append((n, box))
            continue
        row = (n, box, fixed[0], fixed[2], fixed[5], fixed[6], size, fixed[1], session_id)
        intact.append(new(IndexRow, row))
    return intact, damaged


def index_row_of(n: Any, box: Any, head: Any, expected_head_crc: Any, body_size: Any) -> IndexRow | None:
    """Return the part of a waiting message that the broker keeps; None when the head is damaged. Reads no body."""
    try:
        if crc32(head, (n ^ (n >> 32) ^ (box * _SPREAD)) & _WORD) != expected_head_crc:
            return None
        fixed = _FIXED.unpack_from(head)
        session_size = fixed[11]
        rest_at = _FIXED.size + fixed[10]
        session_id = head[rest_at : rest_at + session_size].decode() if session_size else ""
        size = body_size + len(head) - rest_at - session_size
        return IndexRow(n, box, fixed[0], fixed[2], fixed[5], fixed[6], size, fixed[1], session_id)
    except TypeError:
        return None


def payload_crc(payload: int, topic_id: int, body: bytes) -> int:
    return crc32(body, (payload ^ (payload >> 32) ^ (topic_id * _SPREAD)) & _WORD)


def counters_crc(entity_id: int, high: int, rows: int) -> int:
    return crc32(_COUNTERS.pack(entity_id, high, rows))


def pack_changes(changes: Iterable[tuple[int, int, int]]) -> bytes:
    """Pack the (entity id, high, rows) triples of one commit."""
    return b"".join([_CHANGE.pack(*change) for change in changes])


def changes_of(packed: bytes) -> list[tuple[int, int, int]]:
    return list(_CHANGE.iter_unpack(packed))


def journal_crc(commit: int, last_id: int, last_n: int, changes: bytes) -> int:
    return crc32(changes, crc32(_JOURNAL.pack(commit, last_id, last_n)))


def text_crc(seed: int, text: bytes) -> int:
    """Compute the checksum of a description (seed: entity's id) or of a remembered message id (entity's id, time)."""
    return crc32(text, (seed ^ (seed >> 32)) & _WORD)
