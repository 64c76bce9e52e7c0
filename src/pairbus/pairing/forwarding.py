"""What becomes of spooled messages: one lane for each path, so that a blocked entity holds nobody else up.

Laws of this file.
 1. A lane goes in order. Whatever goes wrong with the entity, its messages wait; only a message that is itself to blame
    steps aside, because what lies behind it must not wait for ever.
 2. A message is to blame only in the eyes of its own entity. A backlog queue may refuse what the primary would take
    (the aliases cost bytes): such a message waits for the primary.
 3. Several messages travel as one batch, which is taken whole or not at all, so a refusal cannot change their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import MESSAGE_ANNOTATIONS, PROPERTIES, sections
from pairbus.pairing.envelope import Away, wrap
from pairbus.pairing.policy import BUSY_WAIT_S, MESSAGE_FAULTS, Failure, Kind
from pairbus.pairing.splice import field_span

PAUSE_S, PAUSE_MAX_S = 1.0, 30.0  # before a lane tries again: doubling from the one to the other
MISSING_GRACE_S = 15 * 60.0  # how long an entity may not exist before its messages step aside: it may be redeployed

_GROUP_ID = 10  # place of the session id in the properties
_PARTITION_KEYS = (b"x-opt-partition-key", b"x-opt-via-partition-key")


@dataclass(frozen=True, slots=True)
class Way:
    """Where a lane sends: the entity itself, or a backlog queue."""

    queue: str | None = None

    def __str__(self) -> str:
        return self.queue or "primary"


PRIMARY = Way()


class Verdict(Enum):
    WAIT = "wait"
    "The same messages again, after a pause."
    SINGLY = "singly"
    "One of a batch is to blame: send each alone to find out which."
    REFUSE = "refuse"
    "The one message that was sent steps aside."


class Lane:
    """The state of one path's forwarding."""

    def __init__(self, path: str, missing_grace_s: float = MISSING_GRACE_S) -> None:
        self.path = path
        self.reason = ""
        "Why it does not move; empty while it does."
        self.pause_s = 0.0
        "How long to wait before the next attempt."
        self.is_busy = False
        "The pause is one that the service asked for: nothing may cut it short."
        self.singly = 0
        "How many of the next messages must go alone."
        self._missing_grace_s = missing_grace_s
        self._missing_since: float | None = None

    def __repr__(self) -> str:
        return f"<Lane {self.path} {self.reason or 'moving'}, pause {self.pause_s:g}s>"

    def moved(self, count: int) -> None:
        """Messages were accepted, or stepped aside."""
        self.reason = ""
        self.pause_s = 0.0
        self.is_busy = False
        self.singly = max(self.singly - count, 0)

    def accepted(self, count: int) -> None:
        self._missing_since = None
        self.moved(count)

    def failed(self, way: Way, failure: Failure, count: int, now: float) -> Verdict:
        """`count` messages, sent together, were not accepted."""
        if failure.kind in MESSAGE_FAULTS:
            if count > 1:
                self.singly = count
                return Verdict.SINGLY
            if way == PRIMARY:
                return Verdict.REFUSE
        if way == PRIMARY and self._is_missing_for_good(failure, now):
            if count > 1:
                self.singly = count
                return Verdict.SINGLY
            return Verdict.REFUSE
        self.stuck(f"{way}: {failure.text}", busy=failure.kind is Kind.BUSY)
        return Verdict.WAIT

    def stuck(self, reason: str, *, busy: bool = False) -> None:
        """Wait, each time twice as long."""
        self.reason = reason
        self.is_busy = busy
        self.pause_s = max(min(self.pause_s * 2, PAUSE_MAX_S), PAUSE_S, BUSY_WAIT_S if busy else 0.0)

    def _is_missing_for_good(self, failure: Failure, now: float) -> bool:
        if failure.kind is not Kind.NOT_FOUND:
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since >= self._missing_grace_s


def wrapped(payload: bytes, away: Away) -> bytes | Failure:
    """The backlog message; a message that cannot be read can only go home as it is."""
    try:
        return wrap(payload, away)
    except (ProtocolError, IndexError) as error:
        return Failure(Kind.INVALID, f"the message cannot be read: {error}", error=error)


def travels_alone(payload: bytes) -> bool:
    """Whether a message must not share a batch: the service files a batch under one session and one partition key."""
    try:
        for code, _, value_at, end in sections(payload):
            if code == PROPERTIES and field_span(payload, value_at, end, _GROUP_ID) is not None:
                return True
            if code == MESSAGE_ANNOTATIONS and any(key in payload[value_at:end] for key in _PARTITION_KEYS):
                return True
    except (ProtocolError, IndexError):
        return True  # whatever it is, only it shall be refused for it
    return False


def together(payloads: Sequence[bytes], max_bytes: int) -> int:
    """How many of them, from the first on, may go as one batch; at least 1."""
    size = 0
    for count, payload in enumerate(payloads):
        size += len(payload)
        if count and (size > max_bytes or travels_alone(payload)):
            return count
        if travels_alone(payload):
            return 1
    return len(payloads)
