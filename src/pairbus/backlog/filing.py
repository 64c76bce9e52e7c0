"""The session and partition key under which the service files a message: a batch has one of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import MESSAGE_ANNOTATIONS, PROPERTIES, sections
from pairbus.backlog.splice import field_span, map_without

_GROUP_ID = 10
_PARTITION_KEYS = ("x-opt-partition-key", "x-opt-via-partition-key")
_KEY_NAMES = frozenset(name.encode() for name in _PARTITION_KEYS)
_KEY_MARK = b"partition-key"

Keys = tuple[bytes | None, bytes | None]
NO_KEYS: Keys = (None, None)


@dataclass(frozen=True, slots=True)
class Filing:
    """Encoded values by which the service files one message."""

    session: bytes | None = None
    keys: Keys = NO_KEYS
    "Partition key, and partition key of a transaction."


def filing_of(payload: bytes) -> Filing | None:
    """Read the filing of a message; None when the message cannot be read: it goes alone, for the service to refuse."""
    session: bytes | None = None
    keys: dict[bytes, bytes] = {}
    try:
        for code, _, value_at, end in sections(payload):
            if code == PROPERTIES and (span := field_span(payload, value_at, end, _GROUP_ID)) is not None:
                session = payload[slice(*span)]
            elif code == MESSAGE_ANNOTATIONS:
                _, _, keys = map_without(payload, value_at, end, _KEY_NAMES)
    except (ProtocolError, IndexError):
        return None
    first, second = (keys.get(name.encode()) for name in _PARTITION_KEYS)
    return Filing(session, (first, second))


def keys_of(payload: bytes) -> Keys:
    """Return the partition keys of a message; few messages have keys, so most messages are not decoded."""
    filing = filing_of(payload) if _KEY_MARK in payload else None
    return NO_KEYS if filing is None else filing.keys


def together(payloads: Sequence[bytes], max_bytes: int) -> int:
    """Count the messages, from the first on, that may go as one batch; at least 1."""
    size, filing = len(payloads[0]), filing_of(payloads[0])
    count = 1
    while filing is not None and count < len(payloads):
        size += len(payloads[count])
        if size > max_bytes or filing_of(payloads[count]) != filing:
            break
        count += 1
    return count
