"""Messages of the crash tests: made, recognised, and compared byte by byte."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from pairbus.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, Header, Message, Properties, sections
from pairbus.amqp.types import Symbol, Timestamp, UInt, decode, encode

SCHEDULED_TIME = Symbol("x-opt-scheduled-enqueue-time")
_ADDED = ("DeadLetterReason", "DeadLetterErrorDescription")
_MESSAGE_STATES = {0: "active", 1: "deferred", 2: "scheduled"}


@dataclass(frozen=True, slots=True)
class Found:
    """A message as a receiver sees it."""

    id: str
    sequence_number: int
    digest: str
    state: str


def make(
    message_id: str, source: random.Random, *, size: int | None = None, ttl_ms: int | None = None, due_ms: int = 0
) -> bytes:
    """An encoded message with a random body; most are small, some larger than a page of the store, few than ten."""
    if size is None:
        size = source.choice((0, 20, 200, 200, 1000, 1000, 1000, 9_000, 9_000, 90_000))
    return Message(
        header=Header(ttl=UInt(ttl_ms)) if ttl_ms is not None else None,
        annotations={SCHEDULED_TIME: Timestamp(due_ms)} if due_ms else None,
        properties=Properties(message_id=message_id, subject=f"subject of {message_id}"),
        application_properties={"number": source.getrandbits(31), "text": f"{source.getrandbits(64):x}"},
        data=[source.randbytes(size)],
    ).encode()


def digest_of(payload: bytes) -> str:
    """Hash every byte from the properties on. Application properties are compared by value, without the broker's
    two.
    """
    digest = hashlib.sha256()
    for code, start, value_at, end in sections(payload):
        if code == APPLICATION_PROPERTIES:
            values, _ = decode(payload, value_at)
            digest.update(encode({key: value for key, value in values.items() if key not in _ADDED}))
        elif code >= PROPERTIES:
            digest.update(payload[start:end])
    return digest.hexdigest()[:32]


def found(payload: bytes) -> Found:
    message = Message.decode(payload)
    annotations = message.annotations or {}
    assert message.properties is not None, "every message of these tests has properties"
    return Found(
        str(message.properties.message_id),
        int(annotations["x-opt-sequence-number"]),
        digest_of(payload),
        _MESSAGE_STATES[int(annotations.get("x-opt-message-state", 0))],
    )
