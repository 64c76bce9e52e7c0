"""The error of a send that did not end well: it says where the messages are, and where they may be."""

from __future__ import annotations

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.errors import (
    BacklogMessageTooLarge,
    ClientClosed,
    PartlySent,
    SendAvailabilityBacklogError,
    may_be_in,
)
from pairbus.client.outgoing import THE_PRIMARY, Outgoing
from pairbus.pairing.envelope import Away, overhead
from pairbus.pairing.policy import Failure, Kind
from pairbus.pairing.sending import Unsent, Where

COUNTER_MAX = (1 << 63) - 1  # numbers and times take no more bytes than this one


def error_of(unsent: Unsent, path: str, going: Outgoing, *, ordered: bool) -> BaseException:
    """Return the SDK's own error of the primary, or one that says why the backlog failed as well."""
    failure, places = unsent.failure, going.may_be_in
    if going.stored_ids:
        return _because(_partly_sent(path, going, failure.text), failure)
    if failure.error is not None and (unsent.where is Where.PRIMARY or failure.kind is Kind.INVALID):
        if places and (places != (THE_PRIMARY,) or not failure.outcome_unknown):  # of more than the error tells
            failure.error.add_note(may_be_in(places))
        return failure.error
    if unsent.where is Where.PRIMARY:
        return OperationTimeoutError(message=failure.text)
    if failure.kind is Kind.TOO_LARGE:
        return _because(BacklogMessageTooLarge(path, overhead_of(path, ordered), failure.text, places), failure)
    is_spool = unsent.where is Where.SPOOL
    return _because(SendAvailabilityBacklogError(path, failure.text, places, is_spool=is_spool), failure)


def closed_meanwhile(closed: ClientClosed, path: str, going: Outgoing) -> BaseException:
    """Return the error of a send whose client was closed between two attempts."""
    if going.stored_ids:
        return _partly_sent(path, going, str(closed))
    return ClientClosed(path, going.may_be_in) if going.doubts else closed


def overhead_of(path: str, ordered: bool) -> int:
    """Return the bytes that a backlog message needs at most, with the mark of an unknown outcome and a number."""
    order = ("0" * 32, COUNTER_MAX) if ordered else (None, None)
    return overhead(Away(path, COUNTER_MAX, *order))


def _partly_sent(path: str, going: Outgoing, reason: str) -> PartlySent:
    return PartlySent(path, going.stored_ids, list(going.ids), reason, going.may_be_in)


def _because(error: BaseException, failure: Failure) -> BaseException:
    error.__cause__ = failure.error
    return error
