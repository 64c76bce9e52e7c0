"""Messages that a sender makes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.nemesis.messages import Sent, digest_of

SIZES = (0, 20, 200, 200, 1000, 1000, 3000, 9000, 40_000)
SCHEDULED_S_MAX = 2.0


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
    digest = digest_of(message_id, session, f"subject of {message_id}", properties, body)
    return Sent(message_id, entity, number, session, digest, is_scheduled), message
