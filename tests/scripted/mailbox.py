"""Mailbox of a scripted endpoint: everything that was received, and the messages that it holds for receivers."""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass

from pairbus.amqp.message import (
    BATCH_FORMAT,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Message,
    header_section,
    section,
    sections,
)
from pairbus.amqp.types import Long, Symbol, Timestamp, decode, encode
from pairbus.proxy.conversation import path_of

LOCK_MS = 60_000


@dataclass(slots=True)
class Received:
    """Transfer that a client sent."""

    path: str
    payload: bytes
    message_format: int
    messages: tuple[bytes, ...]
    "The payload, or the messages of a batch: each encoded, byte for byte as it came."
    is_ping: bool
    connection: int
    "Number of the connection, from 1."
    stored: bool = False
    "Whether the namespace has the message now; the client may have been told otherwise."

    @property
    def is_batch(self) -> bool:
        return self.message_format == BATCH_FORMAT


def split(payload: bytes, message_format: int) -> tuple[bytes, ...]:
    """The messages of a transfer. ProtocolError when the bytes are none."""
    if message_format != BATCH_FORMAT:
        return (payload,)
    return tuple(decode(payload, value_at)[0] for code, _, value_at, _ in sections(payload) if code == DATA)


class Mailbox:
    """Messages by path, first in, first out; without locks that expire, counts of deliveries or dead letters."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._stored: dict[str, list[bytes]] = {}
        self._scheduled: dict[str, list[bytes]] = {}
        self._waiting: dict[str, deque[bytes]] = {}
        self._sequence = 0

    def store(self, path: str, messages: tuple[bytes, ...]) -> None:
        self._stored.setdefault(path_of(path), []).extend(messages)
        self.waiting(path).extend(messages)

    def schedule(self, path: str, messages: tuple[bytes, ...]) -> None:
        self._scheduled.setdefault(path_of(path), []).extend(messages)

    def scheduled(self, path: str) -> list[bytes]:
        """Return the messages that `schedule_messages` has brought; they are kept apart and never fall due."""
        return list(self._scheduled.get(path_of(path), []))

    def stored(self, path: str) -> list[bytes]:
        """Return all messages ever accepted for the path, in order, also those received since."""
        return list(self._stored.get(path_of(path), []))

    def waiting(self, path: str) -> deque[bytes]:
        return self._waiting.setdefault(path_of(path), deque())

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def as_delivery(self, payload: bytes, now_ms: int) -> tuple[bytes, bytes]:
        """(the message as a receiver gets it, its lock token)."""
        message = Message.decode(payload)
        bare_at = next((start for code, start, _, _ in sections(payload) if code >= PROPERTIES), len(payload))
        annotations = {
            **(message.annotations or {}),
            Symbol("x-opt-sequence-number"): Long(self.next_sequence()),
            Symbol("x-opt-enqueued-time"): Timestamp(now_ms),
            Symbol("x-opt-locked-until"): Timestamp(now_ms + LOCK_MS),
        }
        ttl_ms = (message.header.ttl or 0) if message.header is not None else 0
        head = header_section(ttl_ms, 0) + section(MESSAGE_ANNOTATIONS, encode(annotations))
        return head + payload[bare_at:], uuid.uuid4().bytes_le
