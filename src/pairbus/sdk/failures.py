"""The SDK's exceptions in the words of `pairing.policy`.

Four surprises of the SDK, all measured, are why the class of an exception does not say it all:
 1. What is not an AMQP error becomes `ServiceBusError("Handler failed: …")` that is never tried again: a token
    credential that cannot reach its authority, an answer to `$cbs` that never came, a property that cannot be encoded,
    an attribute that vanished when a connection died. The original exception is inside.
 2. A refused token is a ServiceBusConnectionError when the client has a custom endpoint, and a host name that cannot
    be resolved is a ServiceBusAuthenticationError when it uses web sockets.
 3. Nothing tells whether the message had left when the connection failed. The traceback does: what fails inside
    `_open` fails before the transfer. Without that proof the outcome counts as unknown.
 4. What the service says while it closes a connection is a ServiceBusConnectionError, also when it says that it is busy
    or that the client has no right. So the condition is asked before the class. (`last_words` has the conditions that
    the SDK does not tell at all.)
"""

from __future__ import annotations

import ssl
import sys
import traceback
from collections.abc import Iterator

from azure.core.exceptions import AzureError, ClientAuthenticationError, ServiceRequestError
from azure.servicebus import _pyamqp, exceptions
from azure.servicebus._pyamqp import error as amqp_error
from azure.servicebus._pyamqp.constants import SASLCode

from pairbus.pairing.policy import Failure, Kind, kind_of_condition

ERRORS = (exceptions.ServiceBusError, OSError, ValueError, TypeError)
"What a call of the SDK may raise and `failure_of` can judge."

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
_CBS_STATUS = {404: Kind.NOT_FOUND, 408: Kind.TIMEOUT, 429: Kind.BUSY, 500: Kind.INTERNAL, 503: Kind.BUSY}
_CBS_STATUS |= dict.fromkeys((502, 504), Kind.INTERNAL)
_OUTCOME_MAY_BE_UNKNOWN = frozenset({Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL})
_SAID_OF_A_LINK = frozenset(Kind) - _OUTCOME_MAY_BE_UNKNOWN - {Kind.FULL}
_SAID_OF_A_CONNECTION = frozenset({Kind.BUSY, Kind.UNAUTHORIZED})
"The rest blames a frame or the whole namespace, and not this send: a lost connection like any other."
_ENCODER = f"{_pyamqp.__name__}._encode"
_LIBRARIES = sys.stdlib_module_names | {"azure", "aiohttp", "websocket", "pairbus"}


def failure_of(error: BaseException, *, sending: bool = True) -> Failure | None:
    """What an exception of the SDK, or of a socket, means; None when it is not ours to judge.

    `sending=False` says that no message can have left, a probe or an opening for example.
    """
    kind = _kind_of(error)
    if kind is None:
        return None
    unanswered = kind in _OUTCOME_MAY_BE_UNKNOWN or _is_unanswered(error)
    unknown = sending and unanswered and not _failed_while_opening(error)
    return Failure(kind, _one_line(error), unknown, _as_the_sdk_says_it(error, kind))


def kind_said(error: BaseException) -> Kind | None:
    """What a peer has said in so many words, where that is no outage; None when it said anything else, or nothing.

    Of the exception and what it came from, but never of its `__context__`: that may be what the application was
    dealing with when it called.
    """
    for one in _chain(error):
        if isinstance(one, amqp_error.AMQPException) and not isinstance(one, amqp_error.AuthenticationException):
            kind = kind_of_condition(bytes(one.condition).decode())
            if kind in (_SAID_OF_A_CONNECTION if isinstance(one, amqp_error.AMQPConnectionError) else _SAID_OF_A_LINK):
                return kind
    return None


def _is_unanswered(error: BaseException) -> bool:
    """A link or connection ended under a message that waited for its answer, whatever the peer has said about it."""
    return any(
        isinstance(one, TimeoutError | exceptions.OperationTimeoutError)
        or (isinstance(one, amqp_error.MessageSendFailed) and one.condition == amqp_error.ErrorCondition.UnknownError)
        for one in _chain(error)
    )


def _as_the_sdk_says_it(error: BaseException, kind: Kind) -> BaseException:
    """A socket's error comes from our own probe: who wrote for the plain SDK catches a ServiceBusError."""
    if not isinstance(error, OSError):
        return error
    if kind is Kind.TIMEOUT:
        return exceptions.OperationTimeoutError(message=_one_line(error), error=error)
    if kind is Kind.COMMUNICATION:
        return exceptions.ServiceBusConnectionError(message=_one_line(error), error=error)
    return error


def _kind_of(error: BaseException) -> Kind | None:
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, amqp_error.AuthenticationException):
        return _of_authentication(inner)
    said = kind_said(error)
    if said is not None:
        return said
    for known, kind in _KINDS:
        if isinstance(error, known):
            return kind
    if isinstance(error, exceptions.ServiceBusError):
        if isinstance(inner, Exception) and not isinstance(inner, amqp_error.AMQPException | type(error)):
            return None if _is_the_applications(inner) else _of_wrapped(inner)
        if isinstance(error._condition, str):
            return kind_of_condition(error._condition)
        return Kind.INTERNAL if error._retryable else Kind.INVALID
    return _of_foreign(error)


def _of_authentication(error: amqp_error.AuthenticationException) -> Kind:
    """Refused by an answer of `$cbs`, or never answered: a link that did not open, a token that aged unnoticed."""
    if isinstance(error, amqp_error.TokenAuthFailure):
        return _CBS_STATUS.get(error.status_code, Kind.UNAUTHORIZED)
    return Kind.COMMUNICATION


def _of_wrapped(inner: Exception) -> Kind:
    """Of "Handler failed: …": the message's fault only where the encoder says so; otherwise the connection died."""
    if _raised_by_encoder(inner):
        return Kind.INVALID
    if _refused_by_sasl(inner):
        return Kind.UNAUTHORIZED
    if isinstance(inner, ValueError | TypeError | LookupError | AttributeError):
        return Kind.COMMUNICATION
    return _of_foreign(inner) or Kind.COMMUNICATION


def _of_foreign(error: BaseException) -> Kind | None:
    match error:
        case ClientAuthenticationError():
            # A token credential says so too when its authority cannot be reached; the reason is inside.
            unanswered = any(isinstance(one, ServiceRequestError | OSError) for one in _chain(error))
            return Kind.COMMUNICATION if unanswered else Kind.UNAUTHORIZED
        case AzureError():
            return Kind.COMMUNICATION  # a token credential, or the administration client, got no answer
        case FileNotFoundError():
            return Kind.INVALID  # of the client's options: a file of certificates that is not there
        case TimeoutError():
            return Kind.TIMEOUT
        case OSError() | ssl.SSLError() | EOFError():
            return Kind.COMMUNICATION
        case ValueError() | TypeError():
            return Kind.INVALID
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from: the SDK wraps twice at most."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseException) and one not in seen:
            seen.append(one)
            yield one
            waiting += [getattr(one, "inner_exception", None), one.__cause__]


def _failed_while_opening(error: BaseException) -> bool:
    return any(
        frame.f_code.co_name == "_open" for one in _chain(error) for frame, _ in traceback.walk_tb(one.__traceback__)
    )


def _is_the_applications(error: BaseException) -> bool:
    """Raised by its code in the middle of a call, by the handler of a signal for example: a time limit that the plain
    SDK would tell, and that must not be taken for an outage. A credential of its own is part of the call."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or any(frame.f_code.co_name == "update_token" for frame in frames):
        return False
    return str(frames[-1].f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES


def _raised_by_encoder(error: BaseException) -> bool:
    return any(frame.f_globals.get("__name__") == _ENCODER for frame, _ in traceback.walk_tb(error.__traceback__))


def _refused_by_sasl(error: BaseException) -> bool:
    """The negotiation failed because of who the client is; other codes are trouble of the service (AMQP 5.3.3.6)."""
    return any(
        frame.f_code.co_name == "_negotiate" and (frame.f_locals.get("fields") or [None])[0] == SASLCode.Auth
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _one_line(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None)
    # Of a refused token the SDK keeps the status to itself.
    said = inner if isinstance(inner, amqp_error.AuthenticationException) else error
    text = " ".join(line.strip() for line in str(said).splitlines())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
