"""Events of a message, in the words of a history."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    OK = "ok"  # the broker said that it is done
    FAILED = "failed"  # the broker said that it is not done
    UNKNOWN = "unknown"  # no answer: it may or may not be done


class Kind(StrEnum):
    """Ways in which a receiver settles. The first two remove the message."""

    COMPLETE = "complete"
    DELETE = "delete"  # receive-and-delete: the delivery itself is the settlement
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


class Place(StrEnum):
    QUEUE = "queue"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A send begins. One id may be attempted several times."""

    id: str
    entity: str
    digest: str
    "Digest of everything that must arrive unchanged."
    expires_ms: int | None = None
    "Unix time from which the broker may drop it; None = never."


@dataclass(frozen=True, slots=True)
class Sent:
    """The last attempt with this id has ended."""

    id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Received:
    id: str
    entity: str
    sequence_number: int
    digest: str


@dataclass(frozen=True, slots=True)
class Settled:
    id: str
    entity: str
    sequence_number: int
    kind: Kind
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Drained:
    """Found in the final drain, after every sender and receiver has stopped."""

    id: str
    entity: str
    sequence_number: int
    digest: str
    place: Place


Event = Attempt | Sent | Received | Settled | Drained
