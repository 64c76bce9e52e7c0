"""Messages of the world, as a sender knows them and as a receiver recognises them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pairbus.amqp.message import Message


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as its sender knows it."""

    id: str
    entity: str
    number: int
    session: str
    digest: str
    is_scheduled: bool

    def record(self) -> tuple[Any, ...]:
        """Return the fields for a log; `Sent(*record)` is the same again."""
        return self.id, self.entity, self.number, self.session, self.digest, self.is_scheduled


def recognise(payload: bytes) -> tuple[str, int, str]:
    """Return id, sequence number and digest of a received message."""
    message = Message.decode(payload)
    found = message.properties
    assert found is not None, "every message of the world has properties"
    properties = {
        key: value
        for key, value in (message.application_properties or {}).items()
        if key not in ("DeadLetterReason", "DeadLetterErrorDescription")
    }
    digest = digest_of(
        str(found.message_id), found.group_id or "", str(found.subject), properties, b"".join(message.data or ())
    )
    return str(found.message_id), int((message.annotations or {})["x-opt-sequence-number"]), digest


def digest_of(message_id: str, session: str, subject: str, properties: dict[Any, Any], body: bytes) -> str:
    values = sorted((str(key), str(value)) for key, value in properties.items())
    return hashlib.sha256(repr((message_id, session, subject, values)).encode() + body).hexdigest()[:24]
