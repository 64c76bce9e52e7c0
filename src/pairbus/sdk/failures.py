"""Failures of `pairing.policy`, made from the exceptions of the SDK and of our own transport.

The caller of a paired client gets the exceptions of the plain SDK. Errors of our transport become such exceptions here,
made by the SDK's own code from the condition that the service named, so that class and text are the SDK's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, ServiceRequestError
from azure.servicebus import exceptions
from azure.servicebus._pyamqp import error as amqp_error
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from pairbus.pairing.policy import Failure, Kind, kind_of_condition
from pairbus.transport.errors import ConnectionLost, Refused, Timeout, TooLarge, TransportError
from pairbus.transport.errors import failure_of as failure_on_wire
from pairbus.transport.links.management import RequestRefused
from pairbus.transport.tokens.cbs import TokenRefused

_KINDS: tuple[tuple[type[BaseException], Kind], ...] = (
    (exceptions.OperationTimeoutError, Kind.TIMEOUT),
    (exceptions.ServiceBusQuotaExceededError, Kind.FULL),
    (exceptions.ServiceBusServerBusyError, Kind.BUSY),
    (exceptions.ServiceBusAuthorizationError, Kind.UNAUTHORIZED),
    (exceptions.ServiceBusAuthenticationError, Kind.UNAUTHORIZED),
    (exceptions.MessagingEntityNotFoundError, Kind.NOT_FOUND),
    (exceptions.MessagingEntityDisabledError, Kind.DISABLED),
    (exceptions.MessageSizeExceededError, Kind.TOO_LARGE),
    (exceptions.ServiceBusConnectionError, Kind.COMMUNICATION),
    (exceptions.ServiceBusCommunicationError, Kind.COMMUNICATION),
    (exceptions.MessageNotFoundError, Kind.INVALID),
    (exceptions.MessageLockLostError, Kind.INVALID),
    (exceptions.SessionLockLostError, Kind.INVALID),
    (exceptions.MessagingEntityAlreadyExistsError, Kind.INVALID),
)
_FOREIGN: tuple[tuple[type[BaseException], Kind], ...] = (
    (AzureError, Kind.COMMUNICATION),  # a token credential, or the administration client, got no answer
    (FileNotFoundError, Kind.INVALID),  # an option names a file of certificates that does not exist
    (TimeoutError, Kind.TIMEOUT),
    (OSError, Kind.COMMUNICATION),
    (EOFError, Kind.COMMUNICATION),
    (ValueError, Kind.INVALID),
    (TypeError, Kind.INVALID),
)
_silent = logging.getLogger("pairbus.sdk")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


# ── our transport ──


def failure_of_transport(error: TransportError) -> Failure:
    """Convert an error of our transport. The failure's `error` is the one that the plain SDK would have raised."""
    failure = failure_on_wire(error)
    sdk_error = _request_error(error) if isinstance(error, RequestRefused) else _send_error(error)
    sdk_error.__cause__ = error
    return replace(failure, error=sdk_error)


def _send_error(error: TransportError) -> exceptions.ServiceBusError:
    if isinstance(error, Timeout):
        return exceptions.OperationTimeoutError(message=str(error), error=error)
    if isinstance(error, TokenRefused):
        refusal = amqp_error.TokenAuthFailure(error.status, error.description)  # type: ignore[no-untyped-call]
        refused = sdk_error_for(refusal)
        refused.add_note(str(error))  # the SDK drops the service's text about the token
        return refused
    if isinstance(error, TooLarge):
        return exceptions.MessageSizeExceededError(message=error.description, error=error)
    if isinstance(error, Refused):
        return sdk_error_for(amqp_error.AMQPLinkError(error.condition.encode(), description=error.description))
    if isinstance(error, ConnectionLost) and error.condition is not None:
        return sdk_error_for(amqp_error.AMQPConnectionError(error.condition.encode(), description=str(error)))
    return exceptions.ServiceBusConnectionError(message=str(error), error=error)


def sdk_error_for(error: Exception) -> exceptions.ServiceBusError:
    """Return the error that the SDK raises where its AMQP library, or its encoder, raised this one."""
    return PyamqpTransport.create_servicebus_exception(_silent, error)


_REQUESTS = {
    "com.microsoft:schedule-message": "Scheduling messages failed.",
    "com.microsoft:peek-message": "Message peek failed.",
    "com.microsoft:renew-lock": "Message lock renew failed.",
    "com.microsoft:renew-session-lock": "Session lock renew failed.",
    "com.microsoft:receive-by-sequence-number": "Retrieving deferred messages failed.",
}
"Beginnings of the SDK's texts for requests that were refused."


def _request_error(error: RequestRefused) -> exceptions.ServiceBusError:
    text = _REQUESTS.get(error.operation, "Service request failed.")
    if error.description:
        text += f" {error.description.encode()!r}."  # the SDK prints the bytes of the wire
    condition = None if error.named is None else error.named.encode()
    status = None if error.status is None else str(error.status)
    return PyamqpTransport._handle_amqp_exception_with_condition(
        _silent, condition, description=text, status_code=status
    )


# ── the SDK's clients: administration, receivers ──


def failure_of(error: BaseException) -> Failure | None:
    """Convert an exception of an SDK client, or of a socket; None for other exceptions."""
    kind = _kind_of(error)
    return None if kind is None else Failure(kind, _one_line(error), False, error)


def condition_of(error: BaseException) -> str | None:
    """Return the condition of the service in an exception of the SDK; None when it has none."""
    condition = getattr(error, "_condition", None)
    condition = getattr(condition, "value", condition)
    return condition.decode() if isinstance(condition, bytes) else condition if isinstance(condition, str) else None


def _kind_of(error: BaseException) -> Kind | None:
    if isinstance(error, exceptions.ServiceBusAuthenticationError) and _status_of_token(error) == HTTPStatus.NOT_FOUND:
        return Kind.NOT_FOUND  # the service knows no entity for which the token could be
    for known, kind in _KINDS:
        if isinstance(error, known):
            return kind
    if isinstance(error, exceptions.ServiceBusError):
        inner = getattr(error, "inner_exception", None)
        if isinstance(inner, Exception) and not isinstance(inner, amqp_error.AMQPException | type(error)):
            return _kind_of_foreign(inner) or Kind.COMMUNICATION  # "Handler failed: …": the connection died
        if isinstance(error._condition, str):
            return kind_of_condition(error._condition)
        return Kind.INTERNAL if error._retryable else Kind.INVALID
    return _kind_of_foreign(error)


def _status_of_token(error: exceptions.ServiceBusError) -> Any:
    """Return the status with which the service refused a token; None: the error has another reason."""
    return next((one.status_code for one in _chain(error) if isinstance(one, amqp_error.TokenAuthFailure)), None)


def _kind_of_foreign(error: BaseException) -> Kind | None:
    if isinstance(error, ClientAuthenticationError):
        # A token credential raises the same error when its authority cannot be reached; its cause tells the difference.
        is_unanswered = any(isinstance(cause, ServiceRequestError | OSError) for cause in _chain(error))
        return Kind.COMMUNICATION if is_unanswered else Kind.UNAUTHORIZED
    return next((kind for known, kind in _FOREIGN if isinstance(error, known)), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes: the SDK wraps an error twice at most."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if isinstance(cause, BaseException) and cause not in seen:
            seen.append(cause)
            yield cause
            waiting += [getattr(cause, "inner_exception", None), cause.__cause__]


def _one_line(error: BaseException) -> str:
    text = " ".join(line.strip() for line in str(error).splitlines())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
