"""What is read out of clients and senders of the SDK."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, TransportType, aio

from pairbus import sdk
from tests.sdk_edge.conftest import Strings

EMULATOR = "Endpoint=sb://127.0.0.1:7;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
AZURE = "Endpoint=sb://contoso.servicebus.windows.net;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


async def test_a_client_that_somebody_closed_is_seen_closed(is_aio: bool) -> None:
    """The SDK itself does not remember it: it would open anew."""
    if is_aio:
        client = aio.ServiceBusClient.from_connection_string(EMULATOR)
        assert not sdk.is_closed(client)
        client.get_queue_sender("q")
        assert not sdk.is_closed(client)
        await client.close()
        assert sdk.is_closed(client)
    else:
        sync = ServiceBusClient.from_connection_string(EMULATOR)
        assert not sdk.is_closed(sync)
        with sync:
            assert not sdk.is_closed(sync)
        assert sdk.is_closed(sync)


async def test_limits_are_known_once_the_link_was_open(is_aio: bool, strings: Strings, queue_name: str) -> None:
    """The broker says 256 KB; before, nobody knows."""
    if is_aio:
        async with aio.ServiceBusClient.from_connection_string(strings.here) as client:
            sender = sdk.new_sender(client, queue_name, topic=False)
            assert sdk.link_limits(sender) == (0, 0)
            async with sender:
                assert sdk.link_limits(sender) == (262_144, 262_144)
    else:
        with ServiceBusClient.from_connection_string(strings.here, keep_alive=0) as sync:
            sender = sdk.new_sender(sync, queue_name, topic=False)
            assert sdk.link_limits(sender) == (0, 0)
            with sender:
                assert sdk.link_limits(sender) == (262_144, 262_144)


def test_the_way_of_a_client_is_read_whole() -> None:
    """Another client made from it goes the same way."""
    context = ssl.create_default_context()
    options: dict[str, Any] = {
        "custom_endpoint_address": "sb://gateway:8443",
        "transport_type": TransportType.Amqp,
        "ssl_context": context,
        "connection_verify": "ca.pem",
    }
    config = sdk.config_of(ServiceBusClient.from_connection_string(AZURE, **options))
    assert (config.authority, config.tls, config.websocket) == ("contoso.servicebus.windows.net", True, False)
    assert config.shared_key == ("root", "c2VjcmV0") and config.signature is None
    again = sdk.config_of(ServiceBusClient(config.authority, config.credential, **config.keywords()))
    assert again == config
    assert "c2VjcmV0" not in repr(config)


async def test_keys_and_signatures_are_found_in_every_credential() -> None:
    """Given as connection string or as a credential of azure-core, which can be updated at any time."""
    named = AzureNamedKeyCredential("root", "one")
    config = sdk.config_of(aio.ServiceBusClient("h", named))
    assert config.aio and config.shared_key == ("root", "one")
    named.update("root", "two")
    assert config.shared_key == ("root", "two")
    assert sdk.config_of(aio.ServiceBusClient.from_connection_string(AZURE)).shared_key == ("root", "c2VjcmV0")
    signed = "SharedAccessSignature sr=x&sig=y&se=1&skn=root"
    for client in (
        ServiceBusClient("h", AzureSasCredential(signed)),
        ServiceBusClient.from_connection_string(f"Endpoint=sb://h;SharedAccessSignature={signed}"),
    ):
        assert sdk.config_of(client).signature == signed and sdk.config_of(client).shared_key is None


@pytest.mark.parametrize(
    "options",
    [
        {"transport_type": TransportType.AmqpOverWebsocket},
        {"http_proxy": {"proxy_hostname": "p", "proxy_port": 1}},
        {"custom_endpoint_address": "sb://gateway"},
    ],
)
def test_web_sockets_are_recognised_however_they_were_asked_for(options: dict[str, Any]) -> None:
    """A proxy or a bare custom endpoint means web sockets to the SDK."""
    assert sdk.config_of(ServiceBusClient.from_connection_string(AZURE, **options)).websocket


def test_a_client_on_uamqp_is_refused() -> None:
    """Its transport would make a batch of bytes anew, from messages that are not in it, and send nothing."""
    client = ServiceBusClient("contoso.servicebus.windows.net", AzureNamedKeyCredential("name", "key"))
    client._amqp_transport = type("UamqpTransport", (), {"KIND": "uamqp"})
    with pytest.raises(ValueError, match="uamqp_transport"):
        sdk.config_of(client)
