"""The ways to the one port: plain TCP (everywhere else), TLS, web sockets with and without TLS, HTTP and HTTPS."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusConnectionError

from tests.brokers import BrokerProcess
from tests.sdk.flavours import Flavour, Sdk, receive_one, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
AZURE_HOST = "contoso.servicebus.windows.net"


def _as_azure(connection_string: str) -> str:
    """The same key for a namespace as it is named in Azure: the SDK then insists on TLS."""
    parts = [
        part
        for part in connection_string.split(";")
        if part.partition("=")[0] in ("SharedAccessKeyName", "SharedAccessKey")
    ]
    return ";".join([f"Endpoint=sb://{AZURE_HOST}", *parts])


def _transport(broker: BrokerProcess, kind: str) -> tuple[str, dict[str, Any]]:
    address = {"custom_endpoint_address": f"sb://127.0.0.1:{broker.ports['contoso']}"}
    plain, azure = broker.connection_string(), _as_azure(broker.connection_string())
    trust = {"connection_verify": str(broker.ca_file)}
    return {
        "TLS": (azure, {**address, **trust, "transport_type": TransportType.Amqp}),
        "web socket": (plain, {**address, "transport_type": TransportType.AmqpOverWebsocket}),
        "web socket over TLS": (azure, {**address, **trust, "transport_type": TransportType.AmqpOverWebsocket}),
    }[kind]


@pytest_asyncio.fixture(params=["TLS", "web socket", "web socket over TLS"], loop_scope="session")
async def transported(
    request: pytest.FixtureRequest, flavour: Flavour, broker: BrokerProcess, closing: list[asyncio.Task[None]]
) -> AsyncIterator[Sdk]:
    connection_string, options = _transport(broker, request.param)
    sdk = Sdk(flavour, connection_string, **options)
    yield sdk
    closing.append(asyncio.create_task(sdk.close()))


async def test_messages_travel_over_every_transport(transported: Sdk, queue_name: str) -> None:
    """Small and large ones, both ways, and a request over the management link."""
    sender, receiver = await transported.pair(queue_name)
    large = bytes(i % 251 for i in range(200_000))
    await sender.send_messages(ServiceBusMessage("small"), timeout=10)
    await sender.send_messages(ServiceBusMessage(large), timeout=10)
    assert len(await receiver.peek_messages(5, timeout=10)) == 2
    small = await receive_one(receiver)
    assert text(small) == "small"
    await receiver.complete_message(small)
    message = await receive_one(receiver)
    assert b"".join(message.body) == large
    await receiver.complete_message(message)


async def test_a_client_that_does_not_trust_the_certificate_refuses_the_broker(
    flavour: Flavour, broker: BrokerProcess, queue_name: str
) -> None:
    """The certificate is signed by the broker's own authority, which no machine trusts by itself."""
    connection_string, options = _transport(broker, "TLS")
    del options["connection_verify"]
    sdk = Sdk(flavour, connection_string, **options)
    with pytest.raises(ServiceBusConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        await sdk.sender(queue_name)
    await sdk.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_health_is_answered_on_the_same_port(broker: BrokerProcess, scheme: str) -> None:
    """With and without TLS, in the words of Microsoft's emulator."""
    url = f"{scheme}://127.0.0.1:{broker.ports['contoso']}/health"
    trust = ssl.create_default_context(cafile=str(broker.ca_file))

    def get() -> tuple[int, Any]:
        context = trust if scheme == "https" else None
        with urllib.request.urlopen(url, timeout=10, context=context) as answer:
            return answer.status, json.load(answer)

    assert await asyncio.to_thread(get) == (200, {"status": "healthy", "message": "Service is healthy."})
