"""Errors of the transport → failures of the pairing core."""

from __future__ import annotations

from pairbus.pairing.policy import Failure, Kind, kind_of_condition
from pairbus.transport.errors import ConnectionLost, Refused, Timeout, TransportError


def failure_of(error: TransportError) -> Failure:
    """Convert one error of the transport; `outcome_unknown` and `silence` are those of the error."""
    return Failure(_kind_of(error), str(error), error.outcome_unknown, error, error.silence)


def _kind_of(error: TransportError) -> Kind:
    if isinstance(error, Refused):
        return kind_of_condition(error.condition)
    if isinstance(error, Timeout):
        return Kind.TIMEOUT
    if isinstance(error, ConnectionLost) and error.condition is not None:
        # A close is about the connection, not about the entity or the message: a fresh connection is tried. Only
        # after throttling, or without the right, the send must not be repeated at once.
        kind = kind_of_condition(error.condition)
        return kind if kind in (Kind.BUSY, Kind.UNAUTHORIZED) else Kind.COMMUNICATION
    return Kind.COMMUNICATION
