"""Settings of one end of a connection: how it describes itself, and the limits that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.amqp.performatives import Error

Trace = Callable[[str, int, str], None]
"Called with (direction '<-' or '->', channel, text) for every frame when tracing is on."


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Fields of open and begin, and every limit of the core."""

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
    next_outgoing_id: int = 0
    outgoing_window: int = 0x7FFFFFFF
    session_link_max: int | None = None
    "Links per session; one more ends the session. None: only `handle_max` counts."
    checks_window: bool = False
    "True: transfers beyond the window end their session, and the window is renewed after a read, when a third is left."
    sign_of_life_share: float = 0.5
    "Part of the peer's idle time-out after which it gets a sign of life."
    idle_time_out_min_ms: int = 20
    "Shortest idle time-out of a peer that is accepted: less would mean over a hundred signs of life a second (2.4.5)."
    word_error: Callable[[Error], Error] | None = None
    "Function that gives the errors of the core their final text."
