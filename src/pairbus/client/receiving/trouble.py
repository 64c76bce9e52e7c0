"""Decisions about failed attempts of a receiver: to wait, to take the other way, or to raise the SDK's error."""

from __future__ import annotations

from typing import Any, cast

from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusError

from pairbus.amqp.errors import ILLEGAL_STATE
from pairbus.pairing.policy import BUSY_WAIT_S, Failure, Kind
from pairbus.sdk.failures import failure_of, failure_of_transport
from pairbus.syphon.decide.pace import Pauses
from pairbus.transport import SESSION_TIMEOUT, Refused, Timeout, TransportError

FIRST_PAUSE_S, PAUSE_MAX_S = 0.25, 15.0  # between tries to open the link again
TRIES_MAX = 4  # of a service that says that it failed, as the SDK tries
SILENT_S = 1.0  # a peer that was silent for less, when the time of a call was over, may be well

LOST_SESSION = "com.microsoft:session-lock-lost"
WAITED_OUT = {Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL, Kind.BUSY}
"Failures that may go away by themselves."
FINAL = {LOST_SESSION, "com.microsoft:session-cannot-be-locked"}
"Conditions of the service that stay, although their kind may go away."


def failure_for(error: TransportError, *, any_session: bool) -> Failure:
    """Return the failure with the SDK's error, which has a hint when no session came."""
    failure = failure_of_transport(error)
    if any_session and isinstance(error, Refused) and error.condition == SESSION_TIMEOUT:
        text = f"{failure.error} If trying to receive from NEXT_AVAILABLE_SESSION, use max_wait_time"
        text += " on the ServiceBusReceiver to control the timeout."
        return Failure(Kind.INVALID, failure.text, error=OperationTimeoutError(message=text, error=error))
    return failure


def may_go_away(failure: Failure, error: TransportError, tries: int) -> bool:
    if failure.kind not in WAITED_OUT or (isinstance(error, Refused) and error.condition in FINAL):
        return False
    return failure.kind is not Kind.INTERNAL or tries < TRIES_MAX


def may_succeed_by_token(error: TransportError) -> bool:
    """Tell whether a settlement that failed on the link may be tried by lock token: not when the service refused it."""
    if not isinstance(error, Refused) or error.condition == ILLEGAL_STATE or error.outcome_unknown:
        return True
    return failure_of_transport(error).kind in WAITED_OUT and error.condition not in FINAL


def was_short(error: TransportError) -> bool:
    """Tell whether the call gave up before it could know that the peer is away."""
    return isinstance(error, Timeout) and error.silence.lasted_s < SILENT_S


def pause_s(failure: Failure, pauses: Pauses) -> float:
    return BUSY_WAIT_S if failure.kind is Kind.BUSY else min(pauses.after(delivered=False), PAUSE_MAX_S)


def sdk_error(failure: Failure) -> BaseException:
    assert failure.error is not None, "failures of the transport have one"
    return failure.error


def unknown(error: TransportError) -> OperationTimeoutError:
    """Return the error of a settlement that was sent, and whose answer did not come."""
    text = f"It is not known whether the message was settled: {error}"
    raised: Any = OperationTimeoutError(message=text, error=error)
    raised.outcome_unknown = True
    return cast(OperationTimeoutError, raised)


def outcome_of(error: ServiceBusError) -> str:
    """Return the outcome of an operation for the ledger."""
    failure = failure_of(error)
    return Kind.INTERNAL.value if failure is None else failure.kind.value
