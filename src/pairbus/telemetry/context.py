"""The context of a trace that a message carries, read from its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import APPLICATION_PROPERTIES, sections

if TYPE_CHECKING:
    from opentelemetry.trace import Link

LINKS_MAX = 128  # as many as a span of OpenTelemetry keeps by default

# Property and value as short AMQP strings, symbols or binaries. SDKs write `traceparent`, older ones `Diagnostic-Id`.
_PARENT = re.compile(
    rb"(?:\x0btraceparent|\x0dDiagnostic-Id)[\xa0\xa1\xa3]\x37([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
)


def parent_of(message: bytes) -> tuple[int, int, int] | None:
    """Return trace id, span id and flags that an encoded message carries; None when it has none, or is no message."""
    try:
        rows = sections(message)
    except ProtocolError:
        return None
    for code, _, at, end in rows:
        if code == APPLICATION_PROPERTIES:
            parent = _PARENT.search(message, at, end)
            if parent is not None and parent[1] != b"ff":
                return int(parent[2], 16), int(parent[3], 16), int(parent[4], 16)
    return None


def links_to(messages: Iterable[bytes]) -> list[Link]:
    """Make links to the spans of messages, each once; messages without a context have none."""
    from opentelemetry.trace import Link, SpanContext, TraceFlags

    parents: dict[tuple[int, int, int], None] = {}
    for message in messages:
        parent = parent_of(message)
        if parent is not None and parent[0] and parent[1]:
            parents[parent] = None
            if len(parents) == LINKS_MAX:
                break
    return [Link(SpanContext(trace, own, True, TraceFlags(flags))) for trace, own, flags in parents]
