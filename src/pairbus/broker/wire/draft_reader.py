"""Reads the messages of one sender, and parses the head of most of them only once."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from pairbus.amqp.message import DATA, PROPERTIES, in_order
from pairbus.broker.entities.draft import Draft
from pairbus.broker.wire.messages import MESSAGE_ID_LENGTH_MAX, draft_of

HEAD_SIZE_MAX = 4096  # bytes of a head that is remembered
HEADS_MAX = 32
HEAD_KEY_SIZE = 8  # as far as the length of the id, when the properties come first
LEARN_FIRST, LEARN_EACH = 16, 256  # learns from its first misses, then from one in so many


class Head(NamedTuple):
    """Sections around the id of a message: header, annotations, properties, application properties."""

    size: int
    "Bytes up to the data in the data section."
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
    """Reads as `draft_of` does. The messages of one sender mostly differ only in message id and data.

    The head of a message that was read is remembered. The next message that has the same bytes there, and behind them
    one data section up to its end, is not parsed again. The ids of one sender have few lengths, and there is one head
    for each length.
    """

    __slots__ = ("_heads", "misses")

    def __init__(self) -> None:
        self._heads: dict[bytes, Head] = {}
        self.misses = 0
        "Number of messages whose head was not remembered."

    def draft_of(self, payload: bytes) -> Draft:
        """Return the draft as the function of this name does, with the same refusals."""
        head = self._heads.get(payload[:HEAD_KEY_SIZE])
        if head is not None and len(payload) >= head[0]:
            size, unpack, before, behind, bare_at, annotations, ttl_ms, scheduled_ms, is_ping, session_id = head
            before_id, message_id, behind_id, data_size = unpack(payload)
            if before_id == before and behind_id == behind and data_size == len(payload) - size:
                try:
                    text = message_id.decode()
                except UnicodeDecodeError:  # an id that is no UTF-8 needs the full check
                    return draft_of(payload)
                return Draft(payload[bare_at:], annotations, text, ttl_ms, scheduled_ms, is_ping, session_id)
        draft = draft_of(payload)
        self.misses += 1
        # A sender whose heads always differ must not pay for the learning as well.
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
    """Return the head; None unless the id is a short string, and behind the head is data with a size of four bytes."""
    ordered, spans = in_order(payload)
    if ordered is not payload:
        return None
    properties = [row for row in spans if row[0] == PROPERTIES]
    if not properties or spans[-1][0] != DATA:
        return None
    (_, bare_at, at, end), data_at = properties[0], spans[-1][2]
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
