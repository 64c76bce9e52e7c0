"""`unwrap` for the messages of one queue, which mostly differ only in message id, destination and data.

Two things are remembered of messages that were read: the bytes around the message id in the properties, and the bytes
of the application properties, with their meaning and their form before `wrap`. A message needs no further look when it
has known bytes there, after the head that the service writes, and then one data section up to its end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pairbus.amqp.message import APPLICATION_PROPERTIES, DATA, PROPERTIES, sections
from pairbus.backlog.envelope import Home, Spoiled, unwrap
from pairbus.backlog.splice import field_span

SIZE_MAX = 4096  # of properties, and of application properties, that are remembered
KNOWN_MAX = 256  # application properties that are remembered

# A delivery count, a lock token, which not every service writes, and the three annotations of a locked message, in any
# order: 32 + 30 + 29 bytes, no other three fit.
_HEAD = re.compile(
    rb"(?s)\x00\x53\x70\xc0(?:\x06\x05@@@@\x43|\x07\x05@@@@\x52.)"
    rb"(\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98.{16})?"
    rb"\x00\x53\x72\xc1\x5c\x06"
    rb"(?:\xa3\x15x-opt-sequence-number\x81.{8}"
    rb"|\xa3\x13x-opt-enqueued-time\x83(.{8})"
    rb"|\xa3\x12x-opt-locked-until\x83(.{8})){3}"
)


class _Shape(NamedTuple):
    """Properties, except for the message id."""

    before: bytes
    id_size: int
    behind: bytes


class _Own(NamedTuple):
    """The meaning of a message's application properties."""

    path: str
    former: bytes
    "Application properties without the aliases."


class Reader:
    """A reader for the messages of one queue. When all messages differ, it tries to learn less and less often."""

    __slots__ = ("_known", "_misses", "_shape")

    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._known: dict[bytes, _Own] = {}
        self._misses = 0

    def unwrap(self, payload: bytes) -> Home | Spoiled:
        """Return the message as it was before `wrap`, as the function `unwrap` does."""
        shape = self._shape
        if shape is not None:
            head = _HEAD.match(payload)
            if head is not None:
                home = _home_like(shape, self._known, payload, head)
                if home is not None:
                    self._misses = 0
                    return home
        self._misses += 1
        read = unwrap(payload)
        if self._misses & (self._misses - 1) == 0 and isinstance(read, Home):  # 1, 2, 4, 8, …
            self._learn(payload, read)
        return read

    def _learn(self, payload: bytes, home: Home) -> None:
        """Remember the form of a message, unless it has more aliases than a path, or another form than most."""
        plain = home == Home(home.path, home.payload, home.message_id, enqueued_ms=home.enqueued_ms)._replace(
            locked_until_ms=home.locked_until_ms
        )
        head, rows = _HEAD.match(payload), sections(payload)[-3:]
        if not plain or head is None or [row[0] for row in rows] != [PROPERTIES, APPLICATION_PROPERTIES, DATA]:
            return
        (_, start, value_at, end), own, data = rows
        span = field_span(payload, value_at, end, 0)
        is_usual = start == head.end() and span is not None and payload[span[0]] == _STR8
        if span is None or not is_usual or max(end - start, own[3] - own[1]) > SIZE_MAX:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._shape = _Shape(payload[start : span[0] + 2], span[1] - span[0] - 2, payload[span[1] : end])
        former_ends = len(home.payload) - (len(payload) - data[1])
        self._known[payload[own[1] : own[3]]] = _Own(home.path, home.payload[end - start : former_ends])


def _home_like(shape: _Shape, known: dict[bytes, _Own], payload: bytes, head: re.Match[bytes]) -> Home | None:  # noqa: PLR0911 - one return for each case
    before, id_size, behind = shape
    at = head.end()
    token, enqueued, locked = head.groups()
    if at != _HEAD_SIZE + payload[4] + (0 if token is None else len(token)):
        return None  # one of the three annotations is missing, another is there twice
    id_at = at + len(before)
    id_end = id_at + id_size
    if not (payload.startswith(before, at) and payload.startswith(behind, id_end)):
        return None
    own_at = id_end + len(behind)
    if payload.startswith(_OWN_NARROW, own_at):
        data_at = own_at + 5 + int.from_bytes(payload[own_at + 4 : own_at + 5])
    elif payload.startswith(_OWN_WIDE, own_at):
        data_at = own_at + 8 + int.from_bytes(payload[own_at + 4 : own_at + 8])
    else:
        return None
    own = known.get(payload[own_at:data_at])
    if own is None:
        return None
    if payload.startswith(_DATA_WIDE, data_at):
        width = 4
    elif payload.startswith(_DATA_NARROW, data_at):
        width = 1
    else:
        return None
    body_at = data_at + 4 + width
    if int.from_bytes(payload[data_at + 4 : body_at]) != len(payload) - body_at:
        return None
    return Home(
        own.path,
        payload[at:own_at] + own.former + payload[data_at:],
        payload[id_at:id_end].decode("utf-8", "replace"),
        enqueued_ms=int.from_bytes(enqueued, "big", signed=True),
        locked_until_ms=int.from_bytes(locked, "big", signed=True),
    )


_HEAD_SIZE = 102  # plus the size of the header's list, 6 or 7
_STR8 = 0xA1
_OWN_NARROW, _OWN_WIDE = b"\x00\x53\x74\xc1", b"\x00\x53\x74\xd1"
_DATA_NARROW, _DATA_WIDE = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
