"""A processor on every way to a namespace, and through what a namespace does to its connections, links and tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage, TransportType

import pairbus
import pairbus.aio
from pairbus.amqp.message import Message
from pairbus.client.receiving import trouble
from pairbus.testing.broker_thread import BrokerThread
from tests.processing.desk import Desk, until
from tests.scripted import ScriptedEndpoint
from tests.sdk.flavours import Flavour

CONDITIONS = [
    "amqp:connection:forced",
    "amqp:internal-error",
    "amqp:link:detach-forced",
    "amqp:link:stolen",
    "amqp:not-allowed",
    "amqp:not-found",
    "amqp:not-implemented",
    "amqp:resource-limit-exceeded",
    "amqp:resource-locked",
    "amqp:unauthorized-access",
    "com.microsoft:argument-error",
    "com.microsoft:auth-failed",
    "com.microsoft:container-close",
    "com.microsoft:entity-disabled",
    "com.microsoft:message-lock-lost",
    "com.microsoft:message-not-found",
    "com.microsoft:operation-cancelled",
    "com.microsoft:server-busy",
    "com.microsoft:session-lock-lost",
    "com.microsoft:timeout",
    "unheard-of:condition",
]
"Conditions with which the service ends links."


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    async with ScriptedEndpoint() as endpoint:
        yield endpoint


def message(body: str) -> bytes:
    return Message(data=[body.encode()]).encode()


async def check_way(desk: Desk, **options: Any) -> None:
    """One message is handled at once, another one after a delay, a third is dead-lettered."""
    queue, seen = desk.queue(), []

    def behave(message: Any) -> None:
        seen.append((str(message), message.attempt))
        if str(message) == "b" and message.attempt == 1:
            raise ValueError("not yet")
        if str(message) == "c":
            raise pairbus.DeadLetter("Bad", "by the test")

    await desk.send(queue, "a", "b", "c")
    async with desk.processor(queue, behave, retry=pairbus.Backoff(first=0.05)):
        await until(lambda: len(seen) == 4, "all attempts", within_s=30)
    assert sorted(seen) == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]
    assert await desk.take(queue, 0) == []
    assert (await desk.dead_letter(queue)).property("DeadLetterReason") == "Bad"


async def test_processor_works_with_the_limits_and_habits_of_the_service(flavour: Flavour) -> None:
    with BrokerThread(strict=True) as broker:
        desk = Desk(broker, flavour)
        await check_way(desk)
        await desk.close()


@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
async def test_processor_works_over_tls_and_over_web_sockets(desk: Desk, transport: TransportType) -> None:
    kind: Any = pairbus.aio.ServiceBusClient if desk.is_aio else pairbus.ServiceBusClient
    text = desk.broker.connection_string()
    host = text.partition("//")[2].partition(";")[0]
    as_azure = text.replace(f"//{host};", "//localhost;").replace(";UseDevelopmentEmulator=true", "")
    desk._client = kind.from_connection_string(
        as_azure,
        transport_type=transport,
        custom_endpoint_address=f"sb://{host}",
        connection_verify=str(desk.broker.namespace().ca_file),
    )
    await check_way(desk)


async def test_throttling_is_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A throttled entity costs time, and no message is handled twice or dead-lettered for it."""
    monkeypatch.setattr(trouble, "BUSY_WAIT_S", 0.2)
    queue, seen = desk.queue(), []
    await desk.send(queue, *map(str, range(20)))
    throttled = desk.broker.namespace().outage("throttle", entity=queue)
    async with desk.processor(queue, lambda message: seen.append(str(message)), max_concurrent_calls=4) as processor:
        await until(lambda: processor.outage is not None, "the throttling is noticed")
        throttled.end()
        await until(lambda: len(seen) == 20, "all are handled", within_s=30)
        with desk.broker.namespace().outage("throttle", entity=queue, direction="receive", for_s=1):
            await desk.send(queue, "later")
        await until(lambda: len(seen) == 21, "the later one too", within_s=30)
    assert len(set(seen)) == 21
    assert await desk.take(queue, 0) == []


@pytest.mark.parametrize("condition", CONDITIONS)
async def test_processor_goes_on_when_its_link_is_ended(
    endpoint: ScriptedEndpoint, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason, also one that stays for a send or a receive: it opens the link again by itself."""
    monkeypatch.setattr(trouble, "BUSY_WAIT_S", 0.2)
    seen: list[str] = []

    async def handle(message: Any) -> None:
        seen.append(str(message))

    client = pairbus.aio.ServiceBusClient.from_connection_string(endpoint.connection_string)
    async with client, client.get_queue_processor("orders", handle) as processor:
        endpoint.put("orders", message("a"))
        await until(lambda: seen == ["a"], "the message before")
        await until(lambda: processor.counts.completed == 1, "its completion")
        assert endpoint.close_idle_links("orders", condition) > 0
        endpoint.put("orders", message("b"))
        await until(lambda: seen == ["a", "b"], "the message after", within_s=30)
        await until(lambda: processor.outage is None, "all is well again")


async def test_processor_goes_on_when_its_connection_was_idle_for_too_long(endpoint: ScriptedEndpoint) -> None:
    """Nobody is told of an outage: the service closes what is idle."""
    seen: list[str] = []
    events: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(str(message))

    client = pairbus.aio.ServiceBusClient.from_connection_string(endpoint.connection_string)
    async with client, client.get_queue_processor("orders", handle, on_error=events.append):
        await until(lambda: endpoint.link_count("orders"), "the link")
        await asyncio.sleep(1.1)  # a link that ends sooner was not idle
        endpoint.close_connections()
        endpoint.put("orders", message("a"))
        await until(lambda: seen == ["a"], "the message", within_s=30)
    assert events == []


async def test_token_is_renewed_in_the_middle_of_a_long_handler(endpoint: ScriptedEndpoint) -> None:
    """The handler blocks the event loop of the application meanwhile, as far as the credential lets it."""
    gate = asyncio.Event()
    began: list[str] = []
    events: list[Any] = []

    class Credential:
        async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
            return AccessToken(f"token {len(endpoint.tokens)}", int(time.time()) + 3)

    async def handle(message: Any) -> None:
        began.append(str(message))
        await gate.wait()

    client = pairbus.aio.ServiceBusClient(f"127.0.0.1:{endpoint.port}", Credential(), use_tls=False)
    async with client, client.get_queue_processor("orders", handle, on_error=events.append) as processor:
        endpoint.put("orders", message("a"))
        await until(lambda: began, "the handler runs")
        before = len(endpoint.tokens)
        await until(lambda: len(endpoint.tokens) >= before + 2, "two more tokens", within_s=30)
        gate.set()
        await until(lambda: processor.counts.completed == 1, "the completion")
    assert began == ["a"] and events == []
    assert endpoint.settlements == [("orders", "accepted")]


async def test_message_can_be_sent_while_a_processor_runs(desk: Desk) -> None:
    """A handler that sends with the client of its processor, the usual worker."""
    source, target = desk.queue(), desk.queue()
    sender = desk.client.get_queue_sender(target)

    def behave(message: Any) -> Any:
        return sender.send_messages(ServiceBusMessage(f"after {message}"))

    await desk.send(source, "a")
    async with desk.processor(source, behave) as processor:
        await until(lambda: processor.counts.completed == 1, "the completion")
    (found,) = await desk.take(target, 1)
    assert bytes(found.body) == b"after a"
