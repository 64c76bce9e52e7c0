"""Facts that are read out of the SDK's clients."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, TransportType, aio
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from pairbus.sdk.clients import call_when_closed, config_of

EMULATOR = "Endpoint=sb://127.0.0.1:7;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
AZURE = "Endpoint=sb://contoso.servicebus.windows.net;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


async def test_all_who_asked_are_told_when_somebody_closes_a_client(is_aio: bool) -> None:
    """The SDK itself does not remember it: it would open anew."""
    told: list[str] = []
    kind: Any = aio.ServiceBusClient if is_aio else ServiceBusClient
    client = kind.from_connection_string(EMULATOR)
    call_when_closed(client, lambda: told.append("one"))
    call_when_closed(client, lambda: told.append("two"))
    client.get_queue_sender("q")
    assert told == []
    if is_aio:
        await client.close()
    else:
        client.close()
    assert sorted(told) == ["one", "two"]


def test_the_way_of_a_client_is_read_whole() -> None:
    """Our transport goes the same way with the same trust."""
    context = ssl.create_default_context()
    options: dict[str, Any] = {
        "custom_endpoint_address": "sb://gateway:8443",
        "transport_type": TransportType.Amqp,
        "ssl_context": context,
        "connection_verify": "ca.pem",
    }
    config = config_of(ServiceBusClient.from_connection_string(AZURE, **options))
    assert (config.authority, config.tls, config.websocket) == ("contoso.servicebus.windows.net", True, False)
    assert config.secret == ("root", "c2VjcmV0")
    assert (config.custom_endpoint, config.ca_file) == ("sb://gateway:8443", "ca.pem")
    assert config.ssl_context is context
    assert "c2VjcmV0" not in repr(config)


async def test_keys_and_signatures_are_found_in_every_credential() -> None:
    """Given as connection string or as a credential of azure-core, which can be updated at any time."""
    named = AzureNamedKeyCredential("root", "one")
    config = config_of(aio.ServiceBusClient("h", named))
    assert config.secret == ("root", "one")
    named.update("root", "two")
    assert config.secret == ("root", "two")
    assert config_of(aio.ServiceBusClient.from_connection_string(AZURE)).secret == ("root", "c2VjcmV0")
    signed = "SharedAccessSignature sr=x&sig=y&se=1&skn=root"
    for client in (
        ServiceBusClient("h", AzureSasCredential(signed)),
        ServiceBusClient.from_connection_string(f"Endpoint=sb://h;SharedAccessSignature={signed}"),
    ):
        assert config_of(client).secret == signed


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
    assert config_of(ServiceBusClient.from_connection_string(AZURE, **options)).websocket


@pytest.mark.parametrize("given", ["primary", "options.messaging_factory", "options.secondary_namespace_manager"])
async def test_clients_of_the_other_flavour_are_refused(is_aio: bool, given: str) -> None:
    """A sync client would take the coroutine of an asyncio sender for a send that has ended, and lose the message."""
    clients = [ServiceBusClient.from_connection_string(EMULATOR), aio.ServiceBusClient.from_connection_string(EMULATOR)]
    admins = [
        ServiceBusAdministrationClient.from_connection_string(AZURE),
        AsyncAdministrationClient.from_connection_string(AZURE),
    ]
    right, wrong = (is_aio, not is_aio)
    options = pairbus.SendAvailabilityPairedNamespaceOptions(
        admins[wrong if given == "options.secondary_namespace_manager" else right],
        clients[wrong if given == "options.messaging_factory" else right],
    )
    kind: Any = pairbus.aio.PairedServiceBusClient if is_aio else pairbus.PairedServiceBusClient
    home = "pairbus" if is_aio else "pairbus.aio"
    with pytest.raises(TypeError, match=f"{given} must be .* belongs to {home}.PairedServiceBusClient"):
        kind(clients[wrong if given == "primary" else right], options)


def test_what_is_no_client_at_all_is_refused() -> None:
    with pytest.raises(TypeError, match=r"primary must be a ServiceBusClient of azure\.servicebus, not str$"):
        pairbus.PairedServiceBusClient(
            EMULATOR,
            pairbus.SendAvailabilityPairedNamespaceOptions(None, ServiceBusClient.from_connection_string(EMULATOR)),
        )


def test_a_client_on_uamqp_is_refused() -> None:
    """The uamqp transport would make a batch of bytes anew, from messages that are not in it, and send nothing."""
    client = ServiceBusClient("contoso.servicebus.windows.net", AzureNamedKeyCredential("name", "key"))
    client._amqp_transport = type("UamqpTransport", (), {"KIND": "uamqp"})
    with pytest.raises(ValueError, match="uamqp_transport"):
        config_of(client)
