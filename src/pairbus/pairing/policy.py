"""The failure policy: answers that a namespace may give, and how a send reacts to each.

Foreign errors become a `Failure` at the edge (the SDK's exceptions in `sdk`, the transport's in `transport/errors.py`);
from there on only these names are used. The table is the policy: give a `FailurePolicy` with another one to change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Kind(Enum):
    """The failure of one attempt."""

    COMMUNICATION = "communication"
    "Connection or link lost, refused, forced off; also an authentication attempt that got no answer."
    TIMEOUT = "timeout"
    """No answer within the attempt's time, or the service's own time-out. The attempt is not repeated: it has cost
    enough time. `Failure.silence` tells whether the peer was heard."""
    INTERNAL = "internal"
    "The service says that it failed, or any other error after which the SDK would try again."
    FULL = "full"
    "Quota exceeded: the entity accepts no more messages."
    BUSY = "busy"
    "Throttled: come back in ten seconds."
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not found"
    DISABLED = "disabled"
    TOO_LARGE = "too large"
    INVALID = "invalid"
    "The message or the call is wrong, wherever it is sent."


MESSAGE_FAULTS = frozenset({Kind.TOO_LARGE, Kind.INVALID})
"Failures for which the message is to blame, not the entity."

BUSY_WAIT_S = 10.0  # pause that Service Bus asks of every throttled client


@dataclass(frozen=True, slots=True)
class Silence:
    """The silence of the peer when a call was given up by its clock, as it was measured at the socket.

    It travels from there to the plan of a send: whether the peer was heard is never inferred from the class of an
    error.
    """

    lasted_s: float
    "Seconds for which the peer had owed a sign of life, and given none. 0: it was heard just now, or owed nothing."
    allowed_s: float
    "The longest silence that the call allowed."

    @property
    def is_too_long(self) -> bool:
        return self.lasted_s >= self.allowed_s


@dataclass(frozen=True, slots=True)
class Failure:
    """One attempt that did not end with the message accepted."""

    kind: Kind
    text: str
    outcome_unknown: bool = False
    "True: the message may have been stored nevertheless."
    error: BaseException | None = field(default=None, compare=False)
    "The error that the plain SDK would have raised."
    silence: Silence | None = None
    "The silence of the peer. None: the attempt was not given up by its clock, so that its kind alone is judged."


class Reaction(Enum):
    """Reaction of a send to a failure of the primary."""

    COUNT = "count"
    "Try again for a moment, then count it towards failover."
    WAIT = "wait"
    "Wait as the service asks, then send again; it never counts."
    RAISE = "raise"
    "Raise at once: the same would happen in another place."


REACTIONS: MappingProxyType[Kind, Reaction] = MappingProxyType(
    {
        Kind.COMMUNICATION: Reaction.COUNT,
        Kind.TIMEOUT: Reaction.COUNT,
        Kind.INTERNAL: Reaction.COUNT,
        Kind.FULL: Reaction.COUNT,
        Kind.BUSY: Reaction.WAIT,
        Kind.UNAUTHORIZED: Reaction.RAISE,
        Kind.NOT_FOUND: Reaction.RAISE,
        Kind.DISABLED: Reaction.RAISE,
        Kind.TOO_LARGE: Reaction.RAISE,
        Kind.INVALID: Reaction.RAISE,
    }
)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Reactions to failures. Replace single rows: `FailurePolicy(REACTIONS | {Kind.DISABLED: Reaction.COUNT})`."""

    reactions: Mapping[Kind, Reaction] = field(default_factory=lambda: REACTIONS)

    def __post_init__(self) -> None:
        missing = [kind.name for kind in Kind if kind not in self.reactions]
        if missing:
            raise ValueError(f"the failure policy has no row for {', '.join(missing)}")

    def reaction(self, failure: Failure) -> Reaction:
        return self.reactions[failure.kind]


_CONDITIONS: Mapping[str, Kind] = MappingProxyType(
    {
        "amqp:not-found": Kind.NOT_FOUND,
        "amqp:resource-deleted": Kind.NOT_FOUND,
        "amqp:unauthorized-access": Kind.UNAUTHORIZED,
        "com.microsoft:auth-failed": Kind.UNAUTHORIZED,
        "status:401": Kind.UNAUTHORIZED,
        "status:403": Kind.UNAUTHORIZED,
        "status:404": Kind.NOT_FOUND,
        "com.microsoft:server-busy": Kind.BUSY,
        "status:503": Kind.BUSY,
        "com.microsoft:timeout": Kind.TIMEOUT,
        "status:408": Kind.TIMEOUT,
        "com.microsoft:entity-disabled": Kind.DISABLED,
        "amqp:resource-limit-exceeded": Kind.FULL,
        "amqp:link:message-size-exceeded": Kind.TOO_LARGE,
        "amqp:link:detach-forced": Kind.COMMUNICATION,
        "amqp:connection:forced": Kind.COMMUNICATION,
        "com.microsoft:argument-error": Kind.INVALID,
        "com.microsoft:message-not-found": Kind.INVALID,
        "com.microsoft:message-lock-lost": Kind.INVALID,
        "com.microsoft:argument-out-of-range": Kind.INVALID,
        "amqp:decode-error": Kind.INVALID,
        "amqp:invalid-field": Kind.INVALID,
        "amqp:not-allowed": Kind.INVALID,
        "amqp:not-implemented": Kind.INVALID,
        "amqp:precondition-failed": Kind.INVALID,
    }
)


def kind_of_condition(condition: str) -> Kind:
    """Return the kind of an AMQP condition; an unknown condition counts as trouble of the service."""
    return _CONDITIONS.get(condition, Kind.INTERNAL)
