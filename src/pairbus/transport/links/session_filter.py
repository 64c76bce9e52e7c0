"""Sessions of receivers: the filter that asks for one, and the session that the peer gave, with the end of its lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pairbus.amqp.performatives import Attach, Source
from pairbus.amqp.types import Symbol, UInt
from pairbus.transport.times import NEXT_WAIT_S

SESSION_TIMEOUT = "com.microsoft:timeout"
"The condition of the refusal when no session became available in time."
_FILTER = Symbol("com.microsoft:session-filter")
_WAIT = Symbol("com.microsoft:timeout")
_NAME = Symbol("com.microsoft:receiver-name")
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
_TICKS_1970 = 621_355_968_000_000_000  # of 100 ns since the year 1, as .NET counts them
_TICKS_PER_S = 10_000_000


@dataclass(frozen=True, slots=True)
class NextSession:
    """Any session that has messages and no receiver."""

    wait_s: float = NEXT_WAIT_S
    "Seconds that the peer waits for a session before it refuses the link with SESSION_TIMEOUT."


Wanted = str | NextSession
"The id of a session, or the next available one."


def filter_of(wanted: Wanted | None) -> dict[Any, Any] | None:
    """Return the filter of the link's source; None for a receiver without a session."""
    return None if wanted is None else {_FILTER: wanted if isinstance(wanted, str) else None}


def properties_of(wanted: Wanted | None, identifier: str | None = None) -> dict[Any, Any] | None:
    """Return the properties of the attach: the wait for the next session, and the receiver's name in errors."""
    properties: dict[Any, Any] = {}
    if isinstance(wanted, NextSession):
        properties[_WAIT] = UInt(max(int(wanted.wait_s * 1000), 1))
    if identifier is not None:
        properties[_NAME] = identifier
    return properties or None


def wait_of(wanted: Wanted | None) -> float:
    """Return the seconds for which the peer may be silent because it waits for a session."""
    return wanted.wait_s if isinstance(wanted, NextSession) else 0.0


def session_of(attach: Attach | None) -> str | None:
    """Return the session that the peer's answer to the attach names."""
    source = None if attach is None else attach.source
    name = (source.filter or {}).get(_FILTER) if isinstance(source, Source) else None
    return name if isinstance(name, str) else None


def locked_until_of(attach: Attach | None) -> float | None:
    """Return the end of the session's lock in seconds since 1970, as the peer's answer to the attach tells it."""
    ticks = None if attach is None else (attach.properties or {}).get(_LOCKED_UNTIL)
    return (ticks - _TICKS_1970) / _TICKS_PER_S if isinstance(ticks, int) else None
