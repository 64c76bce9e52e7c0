"""Differences between Azure and this broker on the wire: one switch for each difference.

A broker is lenient unless it is told otherwise, so that clients meet few limits while they are written. `LIKE_AZURE`
has every switch on, with the numbers that public traces of the service show; a test turns on a single one, with small
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pairbus import __version__
from pairbus.amqp.link import Link
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Error
from pairbus.amqp.settings import ConnectionSettings
from pairbus.amqp.types import Symbol
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal

HIDES_PINGS = Symbol("com.pairbus:hides-pings")
PARTITION_KEY = "x-opt-partition-key"


@dataclass(frozen=True, slots=True)
class OpenNumbers:
    """Numbers in the broker's open frame, which has no properties then."""

    max_frame_size: int = 65_536
    channel_max: int = 4999
    idle_time_out_ms: int = 120_000


@dataclass(frozen=True, slots=True)
class BeginNumbers:
    """Numbers in the broker's begin frame, and the number of links that a session can have."""

    next_outgoing_id: int = 1
    window: int = 5000
    handle_max: int = 255
    link_max: int = 255


@dataclass(frozen=True, slots=True)
class Credit:
    """Credit of a sending client: a first amount, then more whenever `refill` sends are settled."""

    first: int = 1000
    refill: int = 100
    delay_s: float = 0.05
    "Seconds between the attach and the first credit."


@dataclass(frozen=True, slots=True)
class Idle:
    """Times that a sender may be silent, and a connection without links."""

    sender_s: float = 600.0
    connection_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """Interval of heartbeats, and the shortest idle time-out that a client may ask for."""

    share: float = 7 / 8
    idle_time_out_min_ms: int = 5000


@dataclass(frozen=True, slots=True)
class Strictness:
    """Switches, one field for each difference; with its default the broker is lenient in this respect."""

    open: OpenNumbers | None = None
    begin: BeginNumbers | None = None
    checks_window: bool = False
    "Transfers beyond the window end the session; the window is renewed when two thirds are used."
    credit: Credit | None = None
    bare_refusals: bool = False
    "A refused attach is answered with name, handle and role alone."
    token_max: int | None = None
    "Limit of tokens of one connection, which then can have one pair of `$cbs` links only."
    asks_for_renewal: bool = False
    "Links whose token has expired are detached by force, with the code RenewToken."
    idle: Idle | None = None
    heartbeats: Heartbeats | None = None
    tracks_errors: bool = False
    "Error texts end with TrackingId, SystemTracker and Timestamp, and have an info map."
    checks_envelopes: bool = False
    "Entities with sessions and partitions refuse batches whose envelope lacks the values of the first message."
    batch_size_max: int | None = None
    "Bytes of one batch, where a single message may have more; announced in the link property."
    answers_one_by_one: bool = False
    "Each disposition of the broker covers one delivery only."
    unsettled_max: int | None = None
    "Unsettled deliveries that a receiver may have; one more detaches it by force."


LENIENT = Strictness()
LIKE_AZURE = Strictness(
    open=OpenNumbers(),
    begin=BeginNumbers(),
    checks_window=True,
    credit=Credit(),
    bare_refusals=True,
    token_max=1000,
    asks_for_renewal=True,
    idle=Idle(),
    heartbeats=Heartbeats(),
    tracks_errors=True,
    checks_envelopes=True,
    batch_size_max=1 << 20,
    answers_one_by_one=True,
    unsettled_max=5000,
)


def settings_of(strictness: Strictness, name: str) -> ConnectionSettings:
    """Return the settings of a connection of the namespace `name`, without the wording of errors."""
    says: dict[str, Any] = {
        "properties": {Symbol("product"): "pairbus", Symbol("version"): __version__, HIDES_PINGS: True}
    }
    if strictness.open is not None:
        says = {
            "max_frame_size": strictness.open.max_frame_size,
            "channel_max": strictness.open.channel_max,
            "idle_time_out_ms": strictness.open.idle_time_out_ms,
        }
    begin, heartbeats = strictness.begin, strictness.heartbeats
    if begin is not None:
        says |= {
            "next_outgoing_id": begin.next_outgoing_id,
            "incoming_window": begin.window,
            "outgoing_window": begin.window,
            "handle_max": begin.handle_max,
            "session_link_max": begin.link_max,
        }
    if heartbeats is not None:
        says |= {"sign_of_life_share": heartbeats.share, "idle_time_out_min_ms": heartbeats.idle_time_out_min_ms}
    return ConnectionSettings(container_id=name, checks_window=strictness.checks_window, **says)


def track(text: str, system: str, now_ms: int) -> str:
    """Add the ending to an error text that the service's texts have."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text} TrackingId:{uuid4()}, SystemTracker:{system}, Timestamp:{at}"


def tracked(error: Error, system: str, now_ms: int) -> Error:
    """Add the ending and the info map to an error that the service's errors have."""
    return Error(error.condition, track(error.description or "", system, now_ms), error.info or {})


class IdleWatch:
    """Watch that finds senders that were silent too long, and connections that were without links too long."""

    def __init__(self, idle: Idle, now_ms: int) -> None:
        self._sender_ms = idle.sender_s * 1000
        self._connection_ms = idle.connection_s * 1000
        self._used_ms = now_ms

    def look(self, links: Iterable[tuple[Link, int | None]], now_ms: int) -> tuple[list[Link], bool]:
        """Return (senders that are idle, whether the connection is).

        `links`: each link but those of `$cbs`, with the time of its last message if it belongs to a sender.
        """
        idle: list[Link] = []
        for link, used_ms in links:
            if used_ms is not None and now_ms - used_ms >= self._sender_ms:
                idle.append(link)
            else:
                self._used_ms = now_ms
        return idle, now_ms - self._used_ms >= self._connection_ms


def check_envelope(payload: bytes) -> None:
    """Refuse a batch whose envelope lacks the id, the session or the partition key of its first message.

    The service finds the partition of a batch by its envelope, without a look at the messages.
    """
    envelope = Message.decode(payload)
    first = Message.decode(envelope.data[0])
    wanted, envelope_has = _placing(first), _placing(envelope)
    lacking = [name for name, value in wanted.items() if value is not None and envelope_has[name] != value]
    if lacking:
        raise Refusal(
            ARGUMENT_ERROR,
            f"The envelope of the batch lacks the {', '.join(lacking)} of its first message, which an entity with"
            " sessions and partitions needs.",
        )


def _placing(message: Message) -> dict[str, str | None]:
    properties = message.properties or Properties()
    return {
        "message-id": _text(properties.message_id),
        "group-id": _text(properties.group_id),
        PARTITION_KEY: _text((message.annotations or {}).get(PARTITION_KEY)),
    }


def _text(value: Any) -> str | None:
    """Return an id as text: it may come as text, bytes, a number or a UUID, and in another form the next time."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
