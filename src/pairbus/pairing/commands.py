"""Values that a plan (`pairing/plan.py`) and its performer exchange: commands, their replies, and the end.

They are tuples, because one send makes several of them: a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import NamedTuple

from pairbus.pairing.policy import Failure


class Where(Enum):
    PRIMARY = "primary"
    BACKLOG = "backlog"
    SPOOL = "spool"


class Receipt(NamedTuple):
    """The place where the message is safe."""

    where: Where
    queue: str | None = None
    "The backlog queue."
    unanswered: str | None = None
    "An earlier backlog queue that did not answer, and may have stored the message too."


class ToPrimary(NamedTuple):
    """One attempt on the primary."""

    timeout_s: float
    silence_s: float
    opening_s: float
    "Longest silence in each step of opening a connection or a link."
    fresh: bool
    "True for an attempt on a new connection: the service may have closed the one in use while it was idle."
    trial: bool
    "True: goes to the primary although the entity is failed over."


class ToBacklog(NamedTuple):
    """One attempt on a backlog queue."""

    queue: str
    timeout_s: float
    silence_s: float
    opening_s: float
    "Longest silence in each step of opening a connection or a link."
    fresh: bool
    first_attempt_at: float | None
    "Time of the first attempt whose outcome is unknown; None: no other place can have stored the message."


class ToSpool(NamedTuple):
    """One write to the spool."""

    timeout_s: float
    first_attempt_at: float | None


class Pause(NamedTuple):
    seconds: float


Attempt = ToPrimary | ToBacklog
Command = ToPrimary | ToBacklog | ToSpool | Pause


class Reply(NamedTuple):
    """The result of a command."""

    now: float
    failure: Failure | None = None


class Unsent(Exception):
    """No place took the message."""

    def __init__(self, failure: Failure, where: Where, *, outcome_unknown: bool = False) -> None:
        super().__init__(failure.text)
        self.failure = failure
        "The last failure."
        self.where = where
        "The place of the last failure."
        self.outcome_unknown = outcome_unknown
        "True: an attempt of this call may have stored the message nevertheless."


Plan = Generator[Command, Reply, Receipt]
"Generator of the commands of one send; it returns the receipt, or raises Unsent."
