"""The recorder: append-only, shared by all threads and tasks of a test, and the digest of a message."""

from __future__ import annotations

import datetime
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tests.history.events import Attempt, Drained, Event, Kind, Outcome, Place, Received, Sent, Settled

REFUSALS = (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
"After these the broker has said no. After any other error of a send or settlement its effect is unknown."


class Recorder:
    """Collects events in the order in which they were reported; with `file` also as JSON lines, for a post-mortem."""

    def __init__(self, file: Path | None = None) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._file = file.open("a", encoding="utf-8") if file is not None else None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            if self._file is not None:
                self._file.write(json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n")
                self._file.flush()

    def history(self) -> tuple[Event, ...]:
        with self._lock:
            return tuple(self._events)

    @contextmanager
    def sending(self, entity: str, *messages: ServiceBusMessage, expires_ms: int | None = None) -> Iterator[None]:
        """Record an attempt for each message, run the body (one send of them all), record its outcome.

        An SDK error is recorded and swallowed: a crash test goes on. Any other exception leaves the outcome unknown.
        """
        ids = [str(message.message_id) for message in messages]
        for id, message in zip(ids, messages, strict=True):
            self.add(Attempt(id, entity, digest_of(message), expires_ms))
        outcome = Outcome.UNKNOWN
        try:
            yield
            outcome = Outcome.OK
        except ServiceBusError as error:
            outcome = Outcome.FAILED if isinstance(error, REFUSALS) else Outcome.UNKNOWN
        finally:
            for id in ids:
                self.add(Sent(id, outcome))

    def received(self, entity: str, message: ServiceBusReceivedMessage) -> None:
        self.add(Received(id_of(message), entity, _sequence_number(message), digest_of(message)))

    @contextmanager
    def settling(self, entity: str, message: ServiceBusReceivedMessage, kind: Kind) -> Iterator[None]:
        """Run the body (one settlement) and record its outcome; SDK errors as in `sending`."""
        outcome = Outcome.UNKNOWN
        try:
            yield
            outcome = Outcome.OK
        except ServiceBusError as error:
            outcome = Outcome.FAILED if isinstance(error, REFUSALS) else Outcome.UNKNOWN
        finally:
            self.add(Settled(id_of(message), entity, _sequence_number(message), kind, outcome))

    def drained(self, entity: str, message: ServiceBusReceivedMessage, place: Place) -> None:
        self.add(Drained(id_of(message), entity, _sequence_number(message), digest_of(message), place))


def id_of(message: ServiceBusMessage) -> str:
    return str(_plain(message.message_id))


def digest_of(message: ServiceBusMessage) -> str:
    """Hash everything that must arrive as it was sent; equal for a message before its send and after its receive.

    Left out: time to live (the entity may lower it), the scheduled time (the SDK writes it into the sender's object),
    and what the broker adds: annotations, delivery count, and the two properties of a dead letter.
    """
    raw = message.raw_amqp_message
    properties = {
        name: _plain(getattr(message, name))
        for name in (
            "message_id",
            "session_id",
            "partition_key",
            "content_type",
            "correlation_id",
            "subject",
            "to",
            "reply_to",
            "reply_to_session_id",
        )
    }
    application = {
        str(_plain(key)): _plain(value)
        for key, value in (message.application_properties or {}).items()
        if _plain(key) not in ("DeadLetterReason", "DeadLetterErrorDescription")
    }
    body = raw.body
    if raw.body_type is AmqpMessageBodyType.DATA:
        body = b"".join(part.encode() if isinstance(part, str) else bytes(part) for part in body)
    elif raw.body_type is AmqpMessageBodyType.SEQUENCE:
        body = [_plain(part) for part in body]
    text = repr((str(raw.body_type), _plain(body), sorted(properties.items()), sorted(application.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """The SDK shows a received value in another type than the sent one: text as bytes, a time as milliseconds."""
    match value:
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
        case datetime.datetime():
            return round(value.timestamp() * 1000)
        case UUID():
            return str(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return sorted((str(_plain(key)), _plain(item)) for key, item in value.items())
        case _:
            return value


def _sequence_number(message: ServiceBusReceivedMessage) -> int:
    assert message.sequence_number is not None, "every stored message has a sequence number"
    return message.sequence_number
