"""One namespace, two worlds: the SDK and our transport go to the same place with the same trust."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType, aio
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient

from pairbus.client.sides import Side
from pairbus.errors import ConfigError
from pairbus.pairing.options import primary_name_of
from pairbus.sdk.encoding import encode
from pairbus.transport import ConnectionLost
from pairbus.transport.tokens.credential import AzureToken
from tests.brokers import BrokerProcess
from tests.sdk_edge.conftest import Strings


def made(kind: str, broker: BrokerProcess, strings: Strings, *, is_aio: bool = False) -> Side:
    """The same namespace, described in every way."""
    port = broker.ports["contoso"]
    parts = dict(part.split("=", 1) for part in strings.here.split(";"))
    credential = AzureNamedKeyCredential(parts["SharedAccessKeyName"], parts["SharedAccessKey"])
    tls: dict[str, Any] = {
        "custom_endpoint_address": f"sb://127.0.0.1:{port}",
        "transport_type": TransportType.Amqp,
        "connection_verify": str(broker.ca_file),
    }
    match kind:
        case "connection string":
            return Side.from_connection_string(strings.here, aio=is_aio)
        case "credential":
            return Side.from_credential(f"127.0.0.1:{port}", credential, aio=is_aio, use_tls=False)
        case "client":
            kind_of_client = aio.ServiceBusClient if is_aio else ServiceBusClient
            return Side.from_client(kind_of_client.from_connection_string(strings.here), "primary", aio=is_aio)
        case "TLS":
            return Side.from_connection_string(strings.as_azure, aio=is_aio, **tls)
    over_web_socket = {**tls, "transport_type": TransportType.AmqpOverWebsocket}
    return Side.from_connection_string(strings.here, aio=is_aio, **over_web_socket)


KINDS = ["connection string", "credential", "client", "TLS", "web socket"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_client_of_a_side_reaches_the_namespace(
    kind: str, is_aio: bool, broker: BrokerProcess, strings: Strings, queue_name: str
) -> None:
    """The SDK sends and our transport receives, over each transport."""
    if is_aio and kind == "web socket":
        pytest.skip("the SDK's own aiohttp session is never closed then, which a later test would be blamed for")
    side = made(kind, broker, strings, is_aio=is_aio)
    client: Any = side.client
    if is_aio:
        async with client:
            await client.get_queue_sender(queue_name).send_messages(ServiceBusMessage("x"), timeout=5)
    else:
        with client:
            client.get_queue_sender(queue_name).send_messages(ServiceBusMessage("x"), timeout=5)
    async with await side.connect(5) as connection:
        assert len(await (await connection.receiver(queue_name)).receive(1, timeout_s=5)) == 1


@pytest.mark.parametrize("kind", ["connection string", "credential", "client"])
async def test_the_administration_of_an_emulator_needs_nothing_passed(
    kind: str, is_aio: bool, broker: BrokerProcess, strings: Strings, queue_name: str
) -> None:
    """The certificate of a broker on this machine is fetched from it, and goes again."""
    side = made(kind, broker, strings)
    admin: Any = await asyncio.to_thread(side.new_admin, aio=is_aio)
    if is_aio:
        async with admin:
            assert queue_name in [queue.name async for queue in admin.list_queues()]
    else:
        with admin:
            assert queue_name in [queue.name for queue in admin.list_queues()]
    file = str(side._ca_file)
    assert os.stat(file).st_mode & 0o077 == 0
    del side
    assert not os.access(file, os.F_OK)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("contoso.servicebus.windows.net", 5671, True, "tcp")),
        (
            {"transport_type": TransportType.AmqpOverWebsocket},
            ("contoso.servicebus.windows.net", 443, True, "websocket"),
        ),
        ({"custom_endpoint_address": "sb://gateway:8443"}, ("gateway", 8443, True, "websocket")),
        ({"custom_endpoint_address": "sb://gateway"}, ("gateway", 443, True, "websocket")),
        (
            {"custom_endpoint_address": "gateway", "transport_type": TransportType.Amqp},
            ("gateway", 5671, True, "tcp"),
        ),
    ],
)
def test_the_endpoint_is_where_the_sdk_would_go(
    options: dict[str, Any], expected: tuple[Any, ...], strings: Strings
) -> None:
    """Names and tokens stay those of the namespace."""
    side = Side.from_connection_string(strings.as_azure, **options)
    endpoint = side.endpoint
    assert (endpoint.host, endpoint.port, endpoint.tls, endpoint.transport) == expected
    assert endpoint.hostname == side.name == "contoso.servicebus.windows.net"
    assert endpoint.audience("orders") == "sb://contoso.servicebus.windows.net/orders"
    assert primary_name_of(side.authority) == "contoso"


def test_port_of_a_tls_endpoint_is_dropped_as_in_the_sdk() -> None:
    """Measured: the SDK goes to 5671 with any connection string."""
    side = Side.from_connection_string("Endpoint=sb://h.example:9;SharedAccessKeyName=n;SharedAccessKey=k")
    assert side.endpoint.port == 5671


def test_the_name_of_an_emulator_has_its_port(strings: Strings) -> None:
    """Two namespaces on one machine differ in nothing else."""
    side = Side.from_connection_string(strings.at(5673))
    assert side.name == "127.0.0.1:5673" and primary_name_of(side.authority) == "127-0-0-1-5673"


def test_a_proxy_is_passed_on_with_its_user(strings: Strings) -> None:
    """Our transport gets it as a URL, the SDK as it was given."""
    proxy = {"proxy_hostname": "proxy", "proxy_port": 3128, "username": "me", "password": "p@ss"}
    side = Side.from_connection_string(strings.as_azure, http_proxy=proxy)
    assert side.proxy == "http://me:p%40ss@proxy:3128"
    bare = Side.from_connection_string(strings.as_azure, http_proxy={"proxy_hostname": "proxy", "proxy_port": 3128})
    assert bare.proxy == "http://proxy:3128" and "p@ss" not in repr(side)


def test_clients_retry_as_the_sdk_has_it_unless_the_user_asked_otherwise(strings: Strings) -> None:
    """Receivers need it: a receiver that ended with a lost connection would end an application's loop."""
    ours = Side.from_connection_string(strings.here).client._config
    usual = ServiceBusClient.from_connection_string(strings.here)._config
    assert (ours.retry_total, ours.keep_alive) == (usual.retry_total, usual.keep_alive)
    theirs = Side.from_connection_string(strings.here, retry_total=2, keep_alive=10).client._config
    assert (theirs.retry_total, theirs.keep_alive) == (2, 10)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_carrier_of_a_side_reaches_the_namespace(
    kind: str, broker: BrokerProcess, strings: Strings, queue_name: str
) -> None:
    """Sends go with this carrier; it is not connected before the first of them."""
    side = made(kind, broker, strings)
    carrier = side.new_carrier(5)
    try:
        await carrier.send(queue_name, encode(ServiceBusMessage("x")), timeout_s=5, silence_s=5)
    finally:
        await carrier.close()
    async with await side.connect(5) as connection:
        assert len(await (await connection.receiver(queue_name)).receive(1, timeout_s=5)) == 1


async def test_a_side_trusts_nobody_whom_the_sdk_would_not(broker: BrokerProcess, strings: Strings) -> None:
    side = Side.from_connection_string(
        strings.as_azure,
        custom_endpoint_address=f"sb://127.0.0.1:{broker.ports['contoso']}",
        transport_type=TransportType.Amqp,
    )
    with pytest.raises(ConnectionLost, match="CERTIFICATE_VERIFY_FAILED"):
        await side.connect(2)


def test_an_unknown_keyword_is_refused(strings: Strings) -> None:
    """The SDK swallows a misspelt option without a word."""
    with pytest.raises(TypeError, match="custom_endpoint_adress"):
        Side.from_connection_string(strings.here, custom_endpoint_adress="sb://gateway")


def test_a_wrong_connection_string_says_what_is_wrong() -> None:
    """The error never shows the key."""
    with pytest.raises(ConfigError, match="UseDevelopmentEmulator"):
        Side.from_connection_string(
            "Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=True"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_not_shown(kind: str, broker: BrokerProcess, strings: Strings) -> None:
    """The repr of a side, of its credential and of its endpoint shows no key."""
    side = made(kind, broker, strings)
    key = strings.here.split("SharedAccessKey=")[1].split(";")[0]
    assert key not in f"{side!r} {side.credential!r} {side.endpoint!r}"


async def test_a_key_that_is_updated_signs_the_next_token() -> None:
    """Rotation of keys must not need a restart."""
    named = AzureNamedKeyCredential("root", "one")
    side = Side.from_credential("h", named)
    first = await side.credential.token("sb://h/q")
    named.update("root", "two")
    second = await side.credential.token("sb://h/q")
    assert first is not None and second is not None and first.text != second.text


def test_a_token_credential_is_passed_on_as_it_is() -> None:
    """Sync or async: our transport takes both."""

    class Credential:
        def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
            return AccessToken("token", 1)

    credential = Credential()
    side = Side.from_credential("contoso.servicebus.windows.net", credential)
    assert side.credential == AzureToken(credential)
    assert side.client._credential is credential


async def test_a_side_keeps_the_clients_that_were_given(strings: Strings) -> None:
    """The clients belong to the user, who may have more plans with them."""
    given = aio.ServiceBusClient.from_connection_string(strings.here)
    admin = AsyncAdministrationClient.from_connection_string(strings.here)
    side = Side.from_client(given, "primary", aio=True, admin=admin)
    assert side.client is given and side.given_admin is admin
    await given.close()
