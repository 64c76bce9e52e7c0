"""Failures in the words of the policy, and the exceptions that the caller of a paired client gets for them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, exceptions
from azure.servicebus._pyamqp.error import AMQPLinkError, ErrorCondition, TokenAuthFailure
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from pairbus.pairing.policy import Kind, kind_of_condition
from pairbus.sdk.encoding import encode
from pairbus.sdk.failures import failure_of, failure_of_transport
from pairbus.transport import Carrier, ConnectionLost, Refused, Timeout, TransportError
from tests.scripted import Detach, Reject, ScriptedThread
from tests.transport.silences import HEARD, SILENT

TEXT = "The service says why."


def translated(error: Exception) -> exceptions.ServiceBusError:
    """Return what the SDK makes of an error of its AMQP layer."""
    return PyamqpTransport.create_servicebus_exception(logging.getLogger("quiet"), error)


# ── our transport: conditions by place ──

CONDITIONS = [
    "amqp:not-found",
    "amqp:unauthorized-access",
    "amqp:resource-limit-exceeded",
    "amqp:not-allowed",
    "amqp:internal-error",
    "amqp:link:message-size-exceeded",
    "com.microsoft:entity-disabled",
    "com.microsoft:server-busy",
    "com.microsoft:timeout",
    "com.microsoft:argument-error",
]


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_a_refused_message_has_the_plain_sdks_class_and_text(condition: str) -> None:
    """The paired and the plain client meet the same endpoint; code written for the SDK sees no difference."""
    with ScriptedThread() as endpoint:
        endpoint.on("transfer", Reject(condition, TEXT), path="orders")
        theirs = await asyncio.to_thread(plain_error, endpoint.connection_string)
        ours = await paired_error(endpoint.connection_string, condition)
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_a_refused_link_has_the_sdks_class_and_text(condition: str) -> None:
    """The SDK's own translation of the detach. (Its sender loses the words when the detach comes with the attach.)"""
    with ScriptedThread() as endpoint:
        endpoint.on("attach", Detach(condition, TEXT), path="orders")
        ours = await paired_error(endpoint.connection_string, condition)
    theirs = translated(AMQPLinkError(condition=condition.encode(), description=TEXT))
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)


async def paired_error(connection_string: str, condition: str) -> BaseException | None:
    carrier = Carrier(connection_string, connect_timeout_s=5)
    try:
        with pytest.raises(Refused) as refused:
            payload = encode(ServiceBusMessage("x", message_id="i"))
            await carrier.send("orders", payload, timeout_s=5, silence_s=5)
    finally:
        await carrier.close()
    failure = failure_of_transport(refused.value)
    assert failure.kind is kind_of_condition(condition)
    return failure.error


def plain_error(connection_string: str) -> Exception:
    client = ServiceBusClient.from_connection_string(connection_string, retry_total=0, keep_alive=0)
    with client, pytest.raises(exceptions.ServiceBusError) as raised:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x", message_id="i"), timeout=5)
    return raised.value


TRANSPORT: list[tuple[TransportError, Kind, type[Exception]]] = [
    (ConnectionLost("gone"), Kind.COMMUNICATION, exceptions.ServiceBusConnectionError),
    (ConnectionLost("bye", condition="amqp:connection:forced"), Kind.COMMUNICATION, exceptions.ServiceBusError),
    (Timeout("late", HEARD), Kind.TIMEOUT, exceptions.OperationTimeoutError),
    (Timeout("silent", SILENT), Kind.TIMEOUT, exceptions.OperationTimeoutError),
]


@pytest.mark.parametrize("is_unknown", [False, True])
@pytest.mark.parametrize(("error", "kind", "theirs"), TRANSPORT, ids=lambda value: str(value))
def test_an_unanswered_send_has_the_sdks_class(
    error: TransportError, kind: Kind, theirs: type[Exception], is_unknown: bool
) -> None:
    """The outcome is as unknown as the transport says; its error is the cause."""
    given = error.again(outcome_unknown=is_unknown)
    failure = failure_of_transport(given)
    assert (failure.kind, failure.outcome_unknown) == (kind, is_unknown)
    assert isinstance(failure.error, theirs) and failure.error.__cause__ is given
    assert str(given) in str(failure.error)


# ── the SDK's clients ──


def _wrapped_as_authentication() -> ClientAuthenticationError:
    """Return what azure-identity raises when it could not reach its authority."""
    error = ClientAuthenticationError("authentication failed: connection refused")
    error.__cause__ = ServiceRequestError("connection refused")
    return error


TABLE = [
    (exceptions.ServiceBusConnectionError(), Kind.COMMUNICATION),
    (exceptions.ServiceBusCommunicationError(), Kind.COMMUNICATION),
    (exceptions.OperationTimeoutError(), Kind.TIMEOUT),
    (exceptions.ServiceBusQuotaExceededError(), Kind.FULL),
    (exceptions.ServiceBusServerBusyError(), Kind.BUSY),
    (exceptions.ServiceBusAuthorizationError(), Kind.UNAUTHORIZED),
    (exceptions.ServiceBusAuthenticationError(), Kind.UNAUTHORIZED),
    (exceptions.MessagingEntityNotFoundError(), Kind.NOT_FOUND),
    (exceptions.MessagingEntityDisabledError(), Kind.DISABLED),
    (exceptions.MessageSizeExceededError(), Kind.TOO_LARGE),
    (exceptions.MessageLockLostError(), Kind.INVALID),
    (exceptions.SessionLockLostError(), Kind.INVALID),
    (exceptions.ServiceBusError("internal", retryable=True), Kind.INTERNAL),
    (exceptions.ServiceBusError("argument", retryable=False), Kind.INVALID),
    (translated(AMQPLinkError(ErrorCondition.NotFound, description="no")), Kind.NOT_FOUND),
    (translated(TokenAuthFailure(404, "no")), Kind.NOT_FOUND),  # type: ignore[no-untyped-call]
    (translated(TokenAuthFailure(401, "no")), Kind.UNAUTHORIZED),  # type: ignore[no-untyped-call]
    (translated(AMQPLinkError(ErrorCondition.InternalError, description="trouble")), Kind.INTERNAL),
    (translated(TimeoutError("Authentication attempt timed-out.")), Kind.TIMEOUT),
    (translated(AttributeError("'NoneType' object has no attribute 'listen'")), Kind.COMMUNICATION),
    (translated(FileNotFoundError("ca.pem")), Kind.INVALID),
    (ClientAuthenticationError("no such user"), Kind.UNAUTHORIZED),
    (ServiceRequestError("the authority cannot be reached"), Kind.COMMUNICATION),
    (_wrapped_as_authentication(), Kind.COMMUNICATION),
    (ConnectionRefusedError(), Kind.COMMUNICATION),
    (ValueError("The timeout must be greater than 0."), Kind.INVALID),
    (TypeError("Only AmqpAnnotatedMessage, ServiceBusMessage instances"), Kind.INVALID),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("error", "kind"), TABLE, ids=lambda value: getattr(value, "name", type(value).__name__))
def test_every_exception_has_its_kind(error: Exception, kind: Kind) -> None:
    """Row by row; the failure keeps the exception."""
    failure = failure_of(error)
    assert failure is not None and failure.kind is kind
    assert failure.error is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), ImportError("websocket"), KeyError()])
def test_a_bug_or_an_interruption_is_left_alone(error: Any) -> None:
    """The exception must reach code that can handle it, so it is no failure of a send."""
    assert failure_of(error) is None
