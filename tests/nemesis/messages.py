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
    """Return id, sequence number and digest of a received message; without properties, as nobody sent it, no id."""
    message = Message.decode(payload)
    number = int((message.annotations or {})["x-opt-sequence-number"])
    sent = message.properties
    if sent is None:
        return "", number, ""
    properties = {
        key: value
        for key, value in (message.application_properties or {}).items()
        if key not in ("DeadLetterReason", "DeadLetterErrorDescription")
    }
    digest = digest_of(
        str(sent.message_id), sent.group_id or "", str(sent.subject), properties, b"".join(message.data or ())
    )
    return str(sent.message_id), number, digest


def digest_of(message_id: str, session: str, subject: str, properties: dict[Any, Any], body: bytes) -> str:
    values = sorted((str(key), str(value)) for key, value in properties.items())
    return hashlib.sha256(repr((message_id, session, subject, values)).encode() + body).hexdigest()[:24]
