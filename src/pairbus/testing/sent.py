"""Recorded sends as plain objects, for assertions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.values import Timestamp
from pairbus.broker.kit.recorder import Recorded

_PLAIN = (bool, int, float, str, bytes)
"Python types of which the types of AMQP values are subclasses; a bool is an int, so it comes first."


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One message that an entity accepted, as its sender gave it."""

    body: Any
    "Body as bytes; for a message with an AMQP value or sequences, the value or the lists of values."
    message_id: str | None
    session_id: str | None
    correlation_id: str | None
    subject: str | None
    content_type: str | None
    reply_to: str | None
    reply_to_session_id: str | None
    to: str | None
    time_to_live: timedelta | None
    "Time to live that the sender gave, without the limit of the entity."
    application_properties: dict[str, Any] = field(hash=False)
    sequence_number: int
    accepted_at: datetime
    "Time of acceptance, by the clock of the namespace."
    scheduled_for: datetime | None
    "Time for which the message was scheduled; None: it could be received at once."

    def __str__(self) -> str:
        """Return the body as text."""
        return self.body.decode() if isinstance(self.body, bytes) else str(self.body)

    def json(self) -> Any:
        """Return the body decoded from JSON."""
        return json.loads(self.body)


def sent_message(recorded: Recorded) -> SentMessage:
    """Decode a recorded send."""
    draft = recorded.draft
    message = Message.decode(draft.body)
    properties = message.properties or Properties()
    return SentMessage(
        body=_plain(message.body),
        message_id=draft.message_id or None,
        session_id=draft.session_id,
        correlation_id=_text(properties.correlation_id),
        subject=properties.subject,
        content_type=_text(properties.content_type),
        reply_to=_text(properties.reply_to),
        reply_to_session_id=properties.reply_to_group_id,
        to=_text(properties.to),
        time_to_live=timedelta(milliseconds=draft.ttl_ms) if draft.ttl_ms else None,
        application_properties=_plain(message.application_properties or {}),
        sequence_number=recorded.seq,
        accepted_at=_date(recorded.accepted_ms),
        scheduled_for=_date(draft.scheduled_ms) if draft.scheduled_ms > recorded.accepted_ms else None,
    )


def _date(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    """Return the value in Python's own types, so that a test can compare and print it."""
    if isinstance(value, Timestamp):
        return _date(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    kind = next((each for each in _PLAIN if isinstance(value, each)), None)
    return value if kind is None else kind(value)
