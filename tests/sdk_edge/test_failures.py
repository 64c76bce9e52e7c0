"""What the genuine SDK raises, in the words of the failure policy: measured on the real broker, and on its absence."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType, aio, exceptions
from azure.servicebus._pyamqp.error import (
    AMQPConnectionError,
    AMQPLinkError,
    AMQPSessionError,
    AuthenticationException,
    ErrorCondition,
    MessageSendFailed,
    TokenAuthFailure,
    TokenExpired,
)
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from pairbus import sdk
from pairbus.pairing.policy import Failure, Kind
from tests.brokers import BrokerProcess
from tests.conftest import MakeQueue
from tests.sdk_edge.conftest import Strings

FAST: dict[str, Any] = {"retry_total": 0, "keep_alive": 0}


async def fails(
    is_aio: bool, where: str, queue: str, message: ServiceBusMessage | None = None, timeout: float = 5, **options: Any
) -> Failure:
    """One send on a new client; how it failed."""
    message = message or ServiceBusMessage(b"x")
    with pytest.raises(sdk.ERRORS) as caught:
        if is_aio:
            async with aio.ServiceBusClient.from_connection_string(where, **FAST, **options) as client:
                await client.get_queue_sender(queue).send_messages(message, timeout=timeout)
        else:
            await asyncio.to_thread(_send, where, queue, message, timeout, options)
    failure = sdk.failure_of(caught.value)
    assert failure is not None and failure.error is caught.value
    return failure


def _send(where: str, queue: str, message: ServiceBusMessage, timeout: float, options: dict[str, Any]) -> None:
    with ServiceBusClient.from_connection_string(where, **FAST, **options) as client:
        client.get_queue_sender(queue).send_messages(message, timeout=timeout)


# ── answers of a broker ──


async def test_a_missing_queue_is_not_found(is_aio: bool, strings: Strings) -> None:
    """It says nothing about the namespace."""
    failure = await fails(is_aio, strings.here, "no-such-queue")
    assert (failure.kind, failure.outcome_unknown) == (Kind.NOT_FOUND, False)


async def test_a_disabled_queue_is_disabled(is_aio: bool, strings: Strings, make_queue: MakeQueue) -> None:
    """The SDK would try it again; the policy does not."""
    failure = await fails(is_aio, strings.here, make_queue(status="Disabled"))
    assert (failure.kind, failure.outcome_unknown) == (Kind.DISABLED, False)


async def test_a_wrong_key_is_unauthorized(is_aio: bool, broker: BrokerProcess, queue_name: str) -> None:
    """A misconfigured client must never divert; the text has the status, which the SDK's own does not."""
    failure = await fails(is_aio, broker.connection_string(key="wrong"), queue_name)
    assert (failure.kind, failure.outcome_unknown) == (Kind.UNAUTHORIZED, False)
    assert "401" in failure.text and "wrong" not in failure.text


async def test_a_wrong_key_is_unauthorized_also_with_a_custom_endpoint(
    is_aio: bool, broker: BrokerProcess, queue_name: str
) -> None:
    """There the SDK calls a refused token a connection error, which would count towards failover."""
    failure = await fails(
        is_aio,
        broker.connection_string(key="wrong"),
        queue_name,
        custom_endpoint_address=f"sb://127.0.0.1:{broker.ports['contoso']}",
        transport_type=TransportType.Amqp,
    )
    assert isinstance(failure.error, exceptions.ServiceBusConnectionError)
    assert (failure.kind, failure.outcome_unknown) == (Kind.UNAUTHORIZED, False)


async def test_a_large_message_is_too_large(is_aio: bool, strings: Strings, queue_name: str) -> None:
    """The message is to blame, wherever it is sent."""
    failure = await fails(is_aio, strings.here, queue_name, ServiceBusMessage(bytes(300_000)))
    assert (failure.kind, failure.outcome_unknown) == (Kind.TOO_LARGE, False)


async def test_what_cannot_be_encoded_is_invalid(is_aio: bool, strings: Strings, queue_name: str) -> None:
    """The SDK says "Handler failed", as it does for a dead connection: the traceback tells the two apart."""
    message = ServiceBusMessage(b"x", application_properties={"large": 1 << 40})
    failure = await fails(is_aio, strings.here, queue_name, message)
    assert (failure.kind, failure.outcome_unknown) == (Kind.INVALID, False)


# ── no answer ──


async def test_nobody_there_is_communication_and_nothing_was_sent(
    is_aio: bool, strings: Strings, free_port: int
) -> None:
    """A refused connection has carried no message."""
    failure = await fails(is_aio, strings.at(free_port), "q")
    assert (failure.kind, failure.outcome_unknown) == (Kind.COMMUNICATION, False)


async def test_a_silent_peer_is_a_time_out_and_nothing_was_sent(strings: Strings, silent_port: int) -> None:
    """Before the link is open no message can have left. (The sync SDK would wait here for ever.)"""
    failure = await fails(True, strings.at(silent_port), "q", timeout=0.3)
    assert (failure.kind, failure.outcome_unknown) == (Kind.TIMEOUT, False)


@pytest.mark.slow
async def test_an_answer_that_does_not_come_leaves_the_outcome_unknown(is_aio: bool, tmp_path: Path) -> None:
    """The stopped broker may store the message when it goes on."""
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"]) as own:
        with own.admin() as admin:
            admin.create_queue("q")
        failure = await _on_open_sender(is_aio, own, lambda: os.kill(own.pid, signal.SIGSTOP))
        os.kill(own.pid, signal.SIGCONT)
    assert (failure.kind, failure.outcome_unknown) == (Kind.TIMEOUT, True)


@pytest.mark.slow
async def test_a_connection_that_dies_under_a_send_leaves_the_outcome_unknown(is_aio: bool, tmp_path: Path) -> None:
    """Nobody can tell a message that was lost from an answer that was."""
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"]) as own:
        with own.admin() as admin:
            admin.create_queue("q")
        failure = await _on_open_sender(is_aio, own, own.kill)
    assert (failure.kind, failure.outcome_unknown) == (Kind.COMMUNICATION, True)


async def _on_open_sender(is_aio: bool, broker: BrokerProcess, strike: Callable[[], None]) -> Failure:
    where = broker.connection_string()
    with pytest.raises(sdk.ERRORS) as caught:
        if is_aio:
            async with aio.ServiceBusClient.from_connection_string(where, **FAST) as client:
                sender = client.get_queue_sender("q")
                await sender.send_messages(ServiceBusMessage("before"), timeout=5)
                strike()
                await sender.send_messages(ServiceBusMessage("after"), timeout=0.5)
        else:
            with ServiceBusClient.from_connection_string(where, **FAST) as sync_client:
                sync_sender = sync_client.get_queue_sender("q")
                sync_sender.send_messages(ServiceBusMessage("before"), timeout=5)
                strike()
                sync_sender.send_messages(ServiceBusMessage("after"), timeout=0.5)
    failure = sdk.failure_of(caught.value)
    assert failure is not None
    return failure


def test_a_probe_that_fails_has_sent_nothing() -> None:
    """The caller knows it, and says so."""
    assert sdk.failure_of(TimeoutError("no answer")) == Failure(Kind.TIMEOUT, "TimeoutError: no answer", True)
    probed = sdk.failure_of(TimeoutError("no answer"), sending=False)
    assert probed == Failure(Kind.TIMEOUT, "TimeoutError: no answer", False)


# ── token credentials ──


class Broken:
    """A credential of azure-identity that gets no token."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        raise self._error


def _wrapped_as_authentication() -> ClientAuthenticationError:
    """As azure-identity tells that it could not reach its authority."""
    error = ClientAuthenticationError("authentication failed: connection refused")
    error.__cause__ = ServiceRequestError("connection refused")
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientAuthenticationError("no such user"), Kind.UNAUTHORIZED),
        (ServiceRequestError("the authority cannot be reached"), Kind.COMMUNICATION),
        (_wrapped_as_authentication(), Kind.COMMUNICATION),
    ],
)
def test_a_credential_that_was_refused_differs_from_one_that_got_no_answer(
    broker: BrokerProcess, error: Exception, kind: Kind
) -> None:
    """The SDK says "Handler failed" to both and would retry neither; only the second counts towards failover."""
    authority = f"127.0.0.1:{broker.ports['contoso']}"
    client = ServiceBusClient(authority, Broken(error), use_tls=False, **FAST)
    with client, pytest.raises(exceptions.ServiceBusError) as caught:
        client.get_queue_sender("q").send_messages(ServiceBusMessage("x"), timeout=5)
    failure = sdk.failure_of(caught.value)
    assert failure is not None
    assert (failure.kind, failure.outcome_unknown) == (kind, False)


# ── the table ──


def translated(error: Exception) -> exceptions.ServiceBusError:
    """As the SDK translates what its AMQP layer raises."""
    return PyamqpTransport.create_servicebus_exception(logging.getLogger("quiet"), error)


def refused(status: int) -> exceptions.ServiceBusError:
    """As `$cbs` refuses a token."""
    return translated(TokenAuthFailure(status, b"refused"))  # type: ignore[no-untyped-call]


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
    (exceptions.ServiceBusError("internal", retryable=True), Kind.INTERNAL),
    (exceptions.ServiceBusError("argument", retryable=False), Kind.INVALID),
    (translated(AMQPLinkError(ErrorCondition.NotAllowed, description="sessions")), Kind.INVALID),
    (translated(AMQPLinkError(ErrorCondition.ResourceDeleted, description="deleted")), Kind.NOT_FOUND),
    (translated(AMQPLinkError(ErrorCondition.InternalError, description="trouble")), Kind.INTERNAL),
    (translated(AMQPSessionError(ErrorCondition.SessionWindowViolation, description="window")), Kind.INTERNAL),
    (translated(AMQPLinkError(ErrorCondition.LinkDetachForced, description="forced")), Kind.COMMUNICATION),
    (translated(AMQPConnectionError(ErrorCondition.ConnectionCloseForced, description="idle")), Kind.COMMUNICATION),
    (translated(AMQPConnectionError(b"com.microsoft:server-busy", description="busy")), Kind.BUSY),
    (translated(AMQPConnectionError(ErrorCondition.UnauthorizedAccess, description="no")), Kind.UNAUTHORIZED),
    (translated(AMQPConnectionError(ErrorCondition.InternalError, description="trouble")), Kind.COMMUNICATION),
    (translated(AMQPConnectionError(ErrorCondition.NotFound, description="namespace")), Kind.COMMUNICATION),
    (translated(AMQPConnectionError(ErrorCondition.NotAllowed, description="frame")), Kind.COMMUNICATION),
    (translated(MessageSendFailed(ErrorCondition.UnknownError)), Kind.COMMUNICATION),
    (refused(401), Kind.UNAUTHORIZED),
    (refused(404), Kind.NOT_FOUND),
    (refused(503), Kind.BUSY),
    (refused(500), Kind.INTERNAL),
    (translated(TokenExpired(ErrorCondition.InternalError, description="expired")), Kind.COMMUNICATION),
    (translated(AuthenticationException(ErrorCondition.ClientError, description="no such host")), Kind.COMMUNICATION),
    (translated(TimeoutError("Authentication attempt timed-out.")), Kind.TIMEOUT),
    (translated(AttributeError("'NoneType' object has no attribute 'listen'")), Kind.COMMUNICATION),
    (translated(FileNotFoundError("ca.pem")), Kind.INVALID),
    (ConnectionRefusedError(), Kind.COMMUNICATION),
    (ValueError("The timeout must be greater than 0."), Kind.INVALID),
    (TypeError("Only AmqpAnnotatedMessage, ServiceBusMessage instances"), Kind.INVALID),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("error", "kind"), TABLE, ids=lambda value: getattr(value, "name", type(value).__name__))
def test_every_exception_has_its_kind(error: Exception, kind: Kind) -> None:
    """Row by row; without a traceback that proves otherwise, what may be unknown is unknown."""
    failure = sdk.failure_of(error)
    assert failure is not None and failure.kind is kind
    assert failure.outcome_unknown is (kind in (Kind.COMMUNICATION, Kind.TIMEOUT, Kind.INTERNAL))


def test_what_the_application_was_dealing_with_says_nothing_about_the_call() -> None:
    """It may send from an `except` block: what it caught there is the context of what the send raises."""
    lost = translated(AMQPConnectionError(ErrorCondition.SocketError, description="lost"))
    lost.__context__ = translated(AMQPLinkError(b"com.microsoft:server-busy", description="busy"))
    failure = sdk.failure_of(lost)
    assert failure is not None and failure.kind is Kind.COMMUNICATION


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), ImportError("websocket"), KeyError()])
def test_what_is_not_ours_to_judge_is_left_alone(error: BaseException) -> None:
    """A bug or an interruption must reach whoever can answer it."""
    assert sdk.failure_of(error) is None
