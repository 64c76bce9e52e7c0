"""Messages of every kind that the SDK can send, and what of their bytes is the sender's."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from pairbus.amqp.message import PROPERTIES, Message, sections

WHEN = datetime.datetime(2031, 2, 3, 4, 5, 6, 789000, tzinfo=datetime.UTC)
TYPED: dict[str, tuple[str, Any]] = {
    "ubyte": ("UBYTE", 200),
    "byte": ("BYTE", -3),
    "ushort": ("USHORT", 40_000),
    "short": ("SHORT", -4),
    "uint": ("UINT", 4_000_000_000),
    "ulong": ("ULONG", 2**63),
    "long": ("LONG", -(2**40)),
    "float": ("FLOAT", 1.5),
    "symbol": ("SYMBOL", "symbol"),
    "binary": ("BINARY", b"\x00\xff"),
}
PROPERTIES_OF_ALL_TYPES: dict[str, Any] = {
    "int": 1,
    "negative": -5,
    "largest": 2**31 - 1,
    "double": 0.1,
    "text": "grüße",
    "empty": "",
    "long text": "x" * 1000,
    "true": True,
    "false": False,
    "null": None,
    "uuid": uuid.UUID("01234567-89ab-cdef-0123-456789abcdef"),
    "time": WHEN,
    **{name: {"TYPE": kind, "VALUE": value} for name, (kind, value) in TYPED.items()},
}
BODIES: dict[str, dict[str, Any]] = {
    "data": {"data_body": b"\x00\x01\xff"},
    "empty data": {"data_body": b""},
    "two data sections": {"data_body": [b"one", b"two"]},
    "text value": {"value_body": "text"},
    "number value": {"value_body": 7},
    "map value": {"value_body": {"a": [1, "x", None, True, 2.5], "b": {"c": b"y"}}},
    "sequence": {"sequence_body": [1, "a", None]},
    "two sequences": {"sequence_body": [[1, "a"], [2, None]]},
}


def of_every_kind() -> dict[str, Any]:
    """By message id."""
    made: dict[str, Any] = {
        name: AmqpAnnotatedMessage(properties=AmqpMessageProperties(message_id=name), **body)
        for name, body in BODIES.items()
    }
    made["no body"] = ServiceBusMessage(None, message_id="no body")
    made["application properties"] = AmqpAnnotatedMessage(
        data_body=b"x",
        properties=AmqpMessageProperties(message_id="application properties"),
        application_properties={**PROPERTIES_OF_ALL_TYPES},
    )
    made["many properties"] = ServiceBusMessage(
        "x", message_id="many properties", application_properties={f"p{i}": "v" * 20 for i in range(300)}
    )
    made["properties"] = ServiceBusMessage(
        "body",
        message_id="properties",
        session_id="session-1",
        partition_key="session-1",
        content_type="text/plain",
        correlation_id="correlation-1",
        subject="subject-1",
        to="to-1",
        reply_to="reply-1",
        reply_to_session_id="reply-session-1",
        application_properties={"k": "v"},
    )
    made["the rest"] = AmqpAnnotatedMessage(
        data_body=b"x",
        header=AmqpMessageHeader(durable=True, priority=7),
        properties=AmqpMessageProperties(
            message_id="the rest",
            user_id=b"user",
            content_encoding="gzip",
            group_id="g",
            group_sequence=5,
            creation_time=1_700_000_000_000,
            absolute_expiry_time=4_000_000_000_000,
        ),
        annotations={"x-mine": 1, "x-text": "t"},
        footer={"checksum": "abc"},
    )
    made["large"] = ServiceBusMessage(bytes(range(256)) * 1000, message_id="large", session_id="s")
    return made


def id_of(payload: bytes) -> str:
    properties = Message.decode(payload).properties
    assert properties is not None
    return str(properties.message_id)


OF_THE_BROKER = (
    *("x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-locked-until", "x-opt-message-state"),
    *("x-opt-enqueue-sequence-number", "x-opt-scheduled-enqueue-time"),
)


def senders_part(payload: bytes, *, without_times: bool = False) -> tuple[Any, ...]:
    """Return the part of a message that must arrive as it was sent: all bytes from the properties on, and of the
    header the fields that the broker does not write.

    `without_times`: the properties decoded and without the two times that the SDK derives at each send of a message
    with a time to live.
    """
    message = Message.decode(payload)
    header = message.header
    head = (header.durable, header.priority, header.ttl) if header is not None else (None, None, None)
    annotations = {str(key): value for key, value in (message.annotations or {}).items()}
    kept = sorted((key, value) for key, value in annotations.items() if key not in OF_THE_BROKER)
    rest = {start: (code, payload[start:end]) for code, start, _, end in sections(payload) if code >= PROPERTIES}
    if without_times:
        properties = message.properties
        assert properties is not None
        properties.creation_time = properties.absolute_expiry_time = None
        rest = {start: (code, raw) for start, (code, raw) in rest.items() if code != PROPERTIES}
        return head, kept, properties, list(rest.values())
    return head, kept, list(rest.values())
