"""What one end of a connection says of itself, and the limits that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Trace = Callable[[str, int, str], None]
"(direction '<-' or '->', channel, text): told of every frame when tracing is on."


@dataclass(frozen=True, slots=True)
class Settings:
    """Most of it goes into open and begin; every limit of the core is here."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = 65_536
    channel_max: int = 1023
    "Sessions per connection, less one: the JavaScript SDK opens one for each link."
    handle_max: int = 1023
    "Links per session, less one."
    link_max: int = 4096
    "Links per connection, over all sessions."
    partial_bytes_max: int = 128 << 20
    "Bytes of messages that are not whole yet, over all links; the largest message of Service Bus has 100 MiB."
    idle_time_out_ms: int = 240_000
    "Advertised; Python senders look only every 30 s, so less than 120 s breaks them."
    incoming_window: int = 8192
    unsettled_max: int = 65_536
    "Deliveries per link that are not settled; a reader that stops reading keeps far below it."
    properties: dict[Any, Any] | None = None
