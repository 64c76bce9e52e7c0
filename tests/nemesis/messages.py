"""Messages of the world: made for a sender, and recognised by a receiver."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage

from pairbus.amqp.message import Message

SIZES = (0, 20, 200, 200, 1000, 1000, 3000, 9000, 40_000)
SCHEDULED_S_MAX = 2.0


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


def make(message_id: str, entity: str, session: str, source: random.Random) -> tuple[Sent, ServiceBusMessage]:
    """Make a message with a random body; few are scheduled for a moment later."""
    number = source.getrandbits(20)
    body = source.randbytes(source.choice(SIZES))
    is_scheduled = source.random() < 0.05
    properties: dict[str | bytes, Any] = {"number": number, "text": f"{source.getrandbits(64):x}", "for": entity}
    message = ServiceBusMessage(
        body,
        message_id=message_id,
        session_id=session or None,
        subject=f"subject of {message_id}",
        application_properties=properties,
        scheduled_enqueue_time_utc=(
            datetime.now(UTC) + timedelta(seconds=source.uniform(0.0, SCHEDULED_S_MAX)) if is_scheduled else None
        ),
    )
    digest = _digest(message_id, session, f"subject of {message_id}", properties, body)
    return Sent(message_id, entity, number, session, digest, is_scheduled), message


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
    digest = _digest(
        str(found.message_id), found.group_id or "", str(found.subject), properties, b"".join(message.data or ())
    )
    return str(found.message_id), int((message.annotations or {})["x-opt-sequence-number"]), digest


def _digest(message_id: str, session: str, subject: str, properties: dict[Any, Any], body: bytes) -> str:
    values = sorted((str(key), str(value)) for key, value in properties.items())
    return hashlib.sha256(repr((message_id, session, subject, values)).encode() + body).hexdigest()[:24]
