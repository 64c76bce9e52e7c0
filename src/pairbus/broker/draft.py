"""A message as its sender gave it, before it has a number and a place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Draft:
    """A message as its sender gave it."""

    body: bytes
    annotations: bytes = b""
    message_id: str = ""
    ttl_ms: int | None = None
    "None or 0: as long as the entity allows."
    scheduled_ms: int = 0
    "Unix time of activation; 0 or past: now."
    is_ping: bool = False
    "Proves that the entity takes messages; whoever reads it from the wire keeps it from the entity."
    session_id: str = ""
    hops: int = 0
    "How often the message was forwarded before."
    origin_seq: int = 0
    "Sequence number in the entity that it was first sent to; 0: this is the first."
    payload: int = 0
    "Number of a payload that is stored already and holds the body; 0: none."
