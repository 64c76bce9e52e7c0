"""The application properties of a backlog message that describe the message itself: their names and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pairbus.amqp.types import Described, Symbol, Timestamp, decode

SESSION_ID = "x-ms-sessionid"
TIME_TO_LIVE = "x-ms-timetolive"
SCHEDULED = "x-ms-scheduledenqueuetimeutc"
PATH = "x-ms-path"
FIRST_ATTEMPT = "x-pairbus-first-attempt"
SENDER = "x-pairbus-sender"
COUNTER = "x-pairbus-counter"
MISSING_SINCE = "x-pairbus-missing-since"
"Mark of a syphon that found the destination missing, removed on the way home; null: the destination exists again."
FORM = "x-pairbus-form"
"Constructor of the map of application properties; only when it was not the shortest, or the map was empty."

RESERVED = frozenset({SESSION_ID, TIME_TO_LIVE, SCHEDULED, PATH, FIRST_ATTEMPT, SENDER, COUNTER, FORM, MISSING_SINCE})
"Names that an application may not give to its own properties."

_TIME_SPAN = "com.microsoft:timespan"
_TICKS_PER_MS = 10_000
PATH_LENGTH_MAX = 260  # of any entity


class AliasValues(NamedTuple):
    """The values of the aliases of one message."""

    path: str
    session_id: str | None = None
    ttl_ms: int | None = None
    scheduled_ms: int | None = None
    first_attempt_ms: int | None = None
    sender: str | None = None
    counter: int | None = None
    form: int | None = None
    missing_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class InvalidAlias:
    name: str
    description: str


def read(encoded: dict[bytes, bytes]) -> AliasValues | InvalidAlias:
    """Read the aliases, given as encoded values by name."""
    raw = encoded.get(_PATH_NAME)
    if raw is None:
        return InvalidAlias(PATH, f"The message has no application property {PATH}, which names its destination.")
    path = decode(raw)[0]
    if type(path) is not str or not path.strip("/") or len(path) > PATH_LENGTH_MAX:
        return InvalidAlias(
            PATH, f"{PATH} must be the path of an entity, a string of 1 to {PATH_LENGTH_MAX} characters: {path!r:.80}."
        )
    if "$" in path:
        # A queue's `$management` or `$cbs` takes commands, and this message would be one with the syphon's rights.
        return InvalidAlias(PATH, f"{PATH} is {path!r:.80}: messages are not sent to nodes of the service.")
    if len(encoded) == 1:
        return AliasValues(path)
    values: dict[str, Any] = {}
    for key, raw in encoded.items():
        name = key.decode()
        if name == PATH:
            continue
        field, kinds, wanted = _TYPES[name]
        value = decode(raw)[0]
        if value is None and name == MISSING_SINCE:
            continue
        if isinstance(value, Described) and name == TIME_TO_LIVE:
            value = _milliseconds(value)
        if not isinstance(value, kinds) or isinstance(value, bool | Symbol) or (isinstance(value, int) and value < 0):
            return InvalidAlias(name, f"{name} must be {wanted}; it is {value!r:.80} ({type(value).__name__}).")
        values[field] = value
    return AliasValues(path, **values)


def _milliseconds(value: Described) -> object:
    """Return the ticks (100 ns) of a time span of .NET; a value of another kind as it is."""
    is_span = value.descriptor == _TIME_SPAN and isinstance(value.value, int) and not isinstance(value.value, bool)
    return value.value // _TICKS_PER_MS if is_span else value


_PATH_NAME = PATH.encode()
_TYPES: dict[str, tuple[str, type, str]] = {
    SESSION_ID: ("session_id", str, "a string"),
    TIME_TO_LIVE: ("ttl_ms", int, "a number of milliseconds (long) or a time span, not negative"),
    SCHEDULED: ("scheduled_ms", Timestamp, "a timestamp"),
    FIRST_ATTEMPT: ("first_attempt_ms", Timestamp, "a timestamp"),
    SENDER: ("sender", str, "a string"),
    COUNTER: ("counter", int, "a whole number (long), not negative"),
    FORM: ("form", int, "a constructor of a map"),
    MISSING_SINCE: ("missing_since_ms", Timestamp, "a timestamp"),
}
