"""The transport's errors in the words of the pairing core."""

from __future__ import annotations

from pairbus.pairing.policy import Failure, Kind, kind_of_condition
from pairbus.transport.errors import Refused, Timeout, TransportError


def failure_of(error: TransportError) -> Failure:
    if isinstance(error, Refused):
        kind = kind_of_condition(error.condition)
    elif isinstance(error, Timeout):
        kind = Kind.TIMEOUT
    else:
        kind = Kind.COMMUNICATION
    return Failure(kind, str(error), error.outcome_unknown, error)
