"""What a service says when it ends a link or a connection reaches the policy, although the SDK does not tell it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, aio

from pairbus import sdk
from pairbus.pairing.policy import Failure, Kind
from pairbus.testing import Close, Detach, Reject, ScriptedThread
from tests.sdk.flavours import in_thread

BUSY, DISABLED, DENIED = "com.microsoft:server-busy", "com.microsoft:entity-disabled", "amqp:unauthorized-access"


class Sending:
    """One sender, as the paired client makes it, of a client that would repeat by itself."""

    def __init__(self, endpoint: ScriptedThread, is_aio: bool) -> None:
        self.endpoint = endpoint
        self._is_aio = is_aio
        kind: Any = aio.ServiceBusClient if is_aio else ServiceBusClient
        self._client = kind.from_connection_string(endpoint.connection_string)
        self._sender = sdk.new_sender(self._client, "orders", topic=False)

    async def _call(self, method: Any, *args: Any, **kwargs: Any) -> None:
        await (method(*args, **kwargs) if self._is_aio else in_thread(method, *args, **kwargs))

    async def send(self, timeout: float = 1.5) -> None:
        await self._call(self._sender.send_messages, ServiceBusMessage("x"), timeout=timeout)

    async def fails(self, timeout: float = 1.5) -> Failure:
        with pytest.raises(sdk.ERRORS) as caught:
            await self.send(timeout)
        failure = sdk.failure_of(caught.value)
        assert failure is not None
        return failure

    async def close(self) -> None:
        await self._call(self._client.close)


@pytest.fixture
async def sending(is_aio: bool) -> AsyncIterator[Sending]:
    with ScriptedThread() as endpoint:
        sending = Sending(endpoint, is_aio)
        yield sending
        await sending.close()


SAID: list[tuple[Any, Any, Kind, bool]] = [
    ("transfer", Detach(BUSY), Kind.BUSY, True),
    ("transfer", Detach(DENIED), Kind.UNAUTHORIZED, True),
    ("transfer", Detach(DISABLED), Kind.DISABLED, True),
    ("transfer", Detach("amqp:link:message-size-exceeded"), Kind.TOO_LARGE, True),
    ("transfer", Detach("amqp:resource-deleted"), Kind.NOT_FOUND, True),
    ("transfer", Detach("amqp:link:detach-forced"), Kind.COMMUNICATION, True),
    ("transfer", Detach("amqp:internal-error"), Kind.COMMUNICATION, True),
    ("transfer", Close(BUSY), Kind.BUSY, True),
    ("transfer", Close(DENIED), Kind.UNAUTHORIZED, True),
    ("transfer", Close("amqp:connection:forced"), Kind.COMMUNICATION, True),
    ("transfer", Reject(BUSY), Kind.BUSY, False),
    ("token", Detach(BUSY), Kind.BUSY, False),
    ("token", Close(BUSY), Kind.BUSY, False),
    ("open", Close(DENIED), Kind.UNAUTHORIZED, False),
    ("sasl", Reject(), Kind.UNAUTHORIZED, False),
]


@pytest.mark.parametrize(("step", "action", "kind", "unknown"), SAID, ids=lambda value: str(value)[:50])
async def test_what_the_service_says_decides(
    sending: Sending, step: Any, action: Any, kind: Kind, unknown: bool
) -> None:
    """And a message that was on its way may have been stored, whatever was said."""
    rule = sending.endpoint.on(step, action, times=1)
    failure = await sending.fails()
    assert (failure.kind, failure.outcome_unknown) == (kind, unknown)
    assert rule.hits == 1, "the SDK repeats nothing by itself"


@pytest.mark.parametrize("action", [Detach(BUSY), Detach(DENIED), Close(BUSY)], ids=str)
async def test_a_link_that_was_ended_is_not_used_again(sending: Sending, action: Any) -> None:
    """Throttled, the SDK keeps its handler; on the dead link every later send would fail for the same reason."""
    sending.endpoint.on("transfer", action, times=1)
    await sending.fails()
    await sending.send()
    assert len(sending.endpoint.stored("orders")) == 1


async def test_what_was_said_belongs_to_one_failure(sending: Sending) -> None:
    """The next ones, before there is a link and after it, say nothing of the kind."""
    sending.endpoint.on("transfer", Detach(DENIED), times=1)
    assert (await sending.fails()).kind is Kind.UNAUTHORIZED
    assert (await sending.fails(timeout=0.000_001)).kind is Kind.TIMEOUT
    sending.endpoint.on("transfer", Close("amqp:connection:forced"), times=1)
    assert (await sending.fails()).kind is Kind.COMMUNICATION


async def test_a_link_that_has_worked_may_have_been_ended_long_ago(sending: Sending) -> None:
    """What it says about the entity may be over; a new link tells. Throttling is believed at once."""
    for condition, kind in ((DISABLED, Kind.COMMUNICATION), (BUSY, Kind.BUSY)):
        await sending.send()
        sending.endpoint.on("transfer", Detach(condition), times=1)
        assert (await sending.fails()).kind is kind
    sending.endpoint.on("transfer", Detach(DISABLED), times=1)
    assert (await sending.fails()).kind is Kind.DISABLED
