"""Messages and filters for these tests."""

from __future__ import annotations

from typing import Any

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import encode_pairs
from pairbus.filters import MessageView, SqlFilter, Value, compile_filter


def view_of(
    user: dict[Any, Any] | None = None,
    annotations: dict[Any, Any] | None = None,
    *,
    body: bytes = b"body",
    known: dict[str, Any] | None = None,
    **properties: Any,
) -> MessageView:
    """Build a stored message; `known` are the values that the broker gives to the view."""
    message = Message(
        properties=Properties(**{"message_id": "m1", **properties}), application_properties=user, data=[body]
    )
    return MessageView(message.encode(), encode_pairs(annotations or {}), **(known or {}))


def evaluate(expression: str, view: MessageView, parameters: dict[str, Value] | None = None) -> bool | None:
    return compile_filter(SqlFilter(expression, parameters or {}))(view)
