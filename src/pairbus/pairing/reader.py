"""`unwrap` for the messages of one queue, which mostly differ in nothing but message id and data.

What stands around the id of a message that was read is remembered: its properties and its application properties,
aliases included. The next one that has the same bytes there, behind what the service writes before every message, and
then one data section up to its end, needs no second look.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pairbus.amqp.message import APPLICATION_PROPERTIES, DATA, PROPERTIES, sections
from pairbus.pairing.envelope import Home, Spoiled, unwrap
from pairbus.pairing.splice import field_span

LIKE_SIZE_MAX = 4096  # of what is remembered

# A delivery count and the three annotations of a locked message, in any order: 32 + 30 + 29 bytes, no other three fit.
_HEAD = re.compile(
    rb"(?s)\x00\x53\x70\xc0(?:\x06\x05@@@@\x43|\x07\x05@@@@\x52.)\x00\x53\x72\xc1\x5c\x06"
    rb"(?:\xa3\x15x-opt-sequence-number\x81.{8}"
    rb"|\xa3\x13x-opt-enqueued-time\x83(.{8})"
    rb"|\xa3\x12x-opt-locked-until\x83(.{8})){3}"
)


class _Like(NamedTuple):
    before: bytes
    "From the beginning of the properties to the message id."
    id_size: int
    behind: bytes
    "From the message id to the constructor of the data."
    own_from: int
    "Where in it the application properties begin."
    former: bytes
    "What they were before the aliases."
    path: str


class Reader:
    """Reads the messages of one queue. A queue whose messages are all different is learned from ever more rarely."""

    __slots__ = ("_like", "_misses")

    def __init__(self) -> None:
        self._like: _Like | None = None
        self._misses = 0

    def unwrap(self, payload: bytes) -> Home | Spoiled:
        """The same as the function of this name."""
        like = self._like
        if like is not None:
            head = _HEAD.match(payload)
            if head is not None:
                home = _home_like(like, payload, head)
                if home is not None:
                    self._misses = 0
                    return home
        self._misses += 1
        found = unwrap(payload)
        if self._misses & (self._misses - 1) == 0 and isinstance(found, Home):  # 1, 2, 4, 8, …
            self._like = _learn(payload, found)
        return found


def _home_like(like: _Like, payload: bytes, head: re.Match[bytes]) -> Home | None:
    before, id_size, behind, own_from, former, path = like
    at = head.end()
    id_at = at + len(before)
    id_end = id_at + id_size
    data_at = id_end + len(behind)
    if not (payload.startswith(before, at) and payload.startswith(behind, id_end)):
        return None
    width = 4 if behind[-1] == 0xB0 else 1
    if int.from_bytes(payload[data_at : data_at + width], "big") != len(payload) - data_at - width:
        return None
    enqueued, locked = head.groups()
    return Home(
        path,
        payload[at : id_end + own_from] + former + payload[data_at - 4 :],
        payload[id_at:id_end].decode("utf-8", "replace"),
        enqueued_ms=int.from_bytes(enqueued, "big", signed=True),
        locked_until_ms=int.from_bytes(locked, "big", signed=True),
    )


def _learn(payload: bytes, home: Home) -> _Like | None:
    """None when the message has more than a path to be restored, or another form than most."""
    plain = home == Home(home.path, home.payload, home.message_id, enqueued_ms=home.enqueued_ms)._replace(
        locked_until_ms=home.locked_until_ms
    )
    head, found = _HEAD.match(payload), sections(payload)
    if not plain or head is None or [row[0] for row in found[2:]] != [PROPERTIES, APPLICATION_PROPERTIES, DATA]:
        return None
    (_, start, value_at, end), own, data = found[2:]
    span = field_span(payload, value_at, end, 0)
    usual = data[2] - data[1] == 3 and payload[data[2]] in (0xA0, 0xB0) and start == head.end()
    if span is None or payload[span[0]] != 0xA1 or not usual or data[2] > LIKE_SIZE_MAX:
        return None
    id_at, id_end = span[0] + 2, span[1]
    kept = len(home.payload) - (len(payload) - data[1])
    return _Like(
        before=payload[start:id_at],
        id_size=id_end - id_at,
        behind=payload[id_end : data[2] + 1],
        own_from=own[1] - id_end,
        former=home.payload[own[1] - start : kept],
        path=home.path,
    )
