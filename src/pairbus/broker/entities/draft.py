"""A message as its sender gave it, before it has a number and a place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pairbus.amqp.errors import NOT_ALLOWED
from pairbus.broker.refusal import Refusal


@dataclass(slots=True)
class Draft:
    """A message as its sender gave it."""

    body: bytes
    annotations: bytes = b""
    message_id: str = ""
    ttl_ms: int | None = None
    "Time to live; None or 0: as long as the entity allows."
    scheduled_ms: int = 0
    "Unix time of activation; 0 or past: now."
    is_ping: bool = False
    "True for a ping, which only proves that the entity takes messages: it is never given to the entity."
    session_id: str | None = None
    "Session id; None: the sender gave none. The empty text is a session like any other."
    hops: int = 0
    "Number of times that the message was forwarded before."
    origin_seq: int = 0
    "Sequence number in the entity to which it was first sent; 0: this is the first."
    payload: int = 0
    "Number of a payload that is stored already and holds the body; 0: none."


def check_session_ids(drafts: Iterable[Draft], path: str) -> None:
    """Refuse messages without a session id for an entity with sessions; pings are allowed: they are not stored."""
    for draft in drafts:
        if draft.session_id is None and not draft.is_ping:
            raise Refusal(
                NOT_ALLOWED,
                f"The SessionId was not set on a message, and it cannot be sent to '{path}'. "
                "Entities that have session support enabled can only receive messages that have the SessionId set to "
                "a valid value.",
            )
