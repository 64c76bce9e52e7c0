"""Sessions of receivers: the filter that asks for one, and the session that the peer gave."""

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


def properties_of(wanted: Wanted | None) -> dict[Any, Any] | None:
    """Return the properties of the attach: only a wait for the next session has one."""
    return {_WAIT: UInt(max(int(wanted.wait_s * 1000), 1))} if isinstance(wanted, NextSession) else None


def wait_of(wanted: Wanted | None) -> float:
    """Return the seconds for which the peer may be silent because it waits for a session."""
    return wanted.wait_s if isinstance(wanted, NextSession) else 0.0


def session_of(attach: Attach | None) -> str | None:
    """Return the session that the peer's answer to the attach names."""
    source = None if attach is None else attach.source
    found = (source.filter or {}).get(_FILTER) if isinstance(source, Source) else None
    return found if isinstance(found, str) else None
