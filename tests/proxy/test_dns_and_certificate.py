"""A name that does not resolve, and a certificate that has expired: the genuine SDK, and the paired client."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.broker.wire.certificate import server_context
from pairbus.errors import ConfigError
from pairbus.pairing.events import Recovered
from pairbus.pairing.failover import State
from pairbus.proxy import Proxy
from pairbus.testing import ServiceBusPair
from tests.client.losses import QUICK_S
from tests.client.outage import BACK_S, FLAVOURS
from tests.client.world import message as paired_message
from tests.client.world import new_client
from tests.limits import slowness
from tests.proxy.conftest import AZURE_HOST, World, message, until
from tests.sdk.flavours import Flavour

NAME = "contoso.example"
"A name that no resolver knows."


# ── dns ──


async def test_name_of_the_proxy_resolves_until_the_fault(world: World) -> None:
    """The aio SDK and our transport look names up in this process; open connections go on."""
    named = world.broker.connection_string("contoso").replace("127.0.0.1", NAME)
    with world.proxy.known_as(NAME):
        sender = await world.named_sender(named)
        world.faults.add("dns")
        await sender.send_messages(message("on the open link"), timeout=5)
        with pytest.raises(ServiceBusConnectionError, match="Name or service not known"):
            await world.named_sender(named)
        world.faults.clear()
        await (await world.named_sender(named)).send_messages(message("again"), timeout=5)
    assert world.waiting() == 2
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo(NAME, 1)
    await world.check_whole()


async def test_sync_sdk_meets_the_name_that_does_not_resolve(world: World) -> None:
    """The SDK runs in another thread than the proxy; look-ups use up a count."""
    named = world.broker.connection_string("contoso").replace("127.0.0.1", NAME)

    def send(body: str) -> None:
        with (
            ServiceBusClient.from_connection_string(named, retry_total=0) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(message(body), timeout=5)

    with world.proxy.known_as(NAME):
        world.faults.add("dns", count=1)
        with pytest.raises(ServiceBusConnectionError, match="Name or service not known"):
            await asyncio.to_thread(send, "lost")
        await asyncio.to_thread(send, "stored")
    assert world.waiting() == 1
    await world.check_whole()


async def test_name_leads_to_one_proxy_and_others_are_left_alone(world: World) -> None:
    before = socket.getaddrinfo
    with world.proxy.known_as(NAME):
        with pytest.raises(ConfigError, match="leads to a proxy of this process already"), world.proxy.known_as(NAME):
            pass
        world.faults.add("dns")
        assert socket.getaddrinfo("127.0.0.1", 80)[0][4] == ("127.0.0.1", 80)
        with pytest.raises(socket.gaierror):
            socket.getaddrinfo(NAME.upper().encode(), 80)
        world.faults.clear()
        assert socket.getaddrinfo(NAME, 5671)[0][4] == (world.proxy.host, world.proxy.port)
    assert socket.getaddrinfo is before


# ── certificate ──


async def test_expired_certificate_is_met_by_new_connections(secure: World) -> None:
    """Signed by the authority that the client trusts, so that its age is the only reason; open connections go on."""
    sender = await secure.sender()
    secure.faults.add("certificate")
    await sender.send_messages(message("on the open link"), timeout=5)
    with pytest.raises(ServiceBusConnectionError, match="certificate has expired"):
        await secure.sender()
    secure.faults.clear()
    await (await secure.sender()).send_messages(message("again"), timeout=5)
    assert secure.waiting() == 2


async def test_proxy_that_ends_tls_sees_frames(secure: World) -> None:
    sender = await secure.sender()
    secure.faults.add("throttle", entity="orders", count=1)
    with pytest.raises(Exception, match="50009"):
        await sender.send_messages(message("refused"), timeout=5)
    await sender.send_messages(message("stored"), timeout=5)
    assert secure.waiting() == 1


async def test_certificate_and_name_together_are_azures(secure: World) -> None:
    """A client with the unchanged connection string of a namespace in Azure: its name, its port, TLS."""
    secure.options = {"connection_verify": str(secure.proxy.ca_file)}
    azure = secure.proxy.connection_string(secure.broker.connection_string("contoso"))
    azure = azure.replace(azure.split(";", 1)[0], f"Endpoint=sb://{AZURE_HOST}")
    with secure.proxy.known_as(AZURE_HOST):
        sender = await secure.named_sender(azure)
        await sender.send_messages(message("as to Azure"), timeout=5)
        secure.faults.add("dns", count=1)
        with pytest.raises(ServiceBusConnectionError, match="Name or service not known"):
            await secure.named_sender(azure)
        secure.faults.add("certificate", count=1)
        with pytest.raises(ServiceBusConnectionError, match="certificate has expired"):
            await secure.named_sender(azure)
    assert (secure.waiting(), secure.faults.list()) == (1, [])


def test_certificates_are_kept_and_private(tmp_path: Path) -> None:
    """Clients need not trust anew at each start; the folder of a broker is not touched."""
    folder = tmp_path / "tls"
    Proxy("127.0.0.1", 1, tls=folder)
    first = (folder / "ca.pem").read_bytes()
    Proxy("127.0.0.1", 1, tls=folder)
    assert (folder / "ca.pem").read_bytes() == first
    assert stat.S_IMODE((folder / "server.key").stat().st_mode) == 0o600
    server_context(tmp_path / "broker")
    with pytest.raises(ConfigError, match="certificate of somebody else"):
        Proxy("127.0.0.1", 1, tls=tmp_path / "broker")


# ── the paired client ──


@pytest.fixture
async def primary_by_proxy(servicebus_pair: ServiceBusPair, tmp_path: Path) -> AsyncIterator[Proxy]:
    """The primary of the pair behind a proxy that ends TLS, under a name of this process."""
    servicebus_pair.primary.create_queue("orders")
    port = int(servicebus_pair.primary.connection_string.split(";")[0].rsplit(":", 1)[1])
    encrypts = ssl.create_default_context()
    encrypts.check_hostname, encrypts.verify_mode = False, ssl.CERT_NONE
    async with Proxy("127.0.0.1", port, tls=tmp_path / "tls", tls_names=[NAME], tls_to_target=encrypts) as proxy:
        with proxy.known_as(NAME):
            yield proxy
            proxy.faults.clear()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("kind", ["dns", "certificate"])
async def test_paired_client_diverts_and_comes_back(
    servicebus_pair: ServiceBusPair, primary_by_proxy: Proxy, flavour: Flavour, kind: str
) -> None:
    """The two faults make the service unreachable: sends go to the backlog, and pings find the way back."""
    given = servicebus_pair.primary.connection_string
    home = primary_by_proxy.connection_string(given).replace(given.split(";")[0], f"Endpoint=sb://{NAME}")
    trust: dict[str, Any] = {"connection_verify": str(primary_by_proxy.ca_file)}
    client = new_client(
        flavour, home, servicebus_pair.secondary.connection_string, primary_name="contoso", primary_kwargs=trust
    )
    try:
        await client.pair()
        await client.sender("orders").send(paired_message("first"))
        primary_by_proxy.faults.add(kind)
        primary_by_proxy.faults.add("refuse", for_s=0.01)  # cuts open connections, so that the next one meets the fault
        await until(lambda: len(primary_by_proxy.faults.list()) == 1)
        assert await client.sender("orders").send(paired_message("diverted")) < QUICK_S * slowness()
        assert client.state("orders") is State.FAILED_OVER
        primary_by_proxy.faults.clear()
        await client.until_state("orders", State.HEALTHY, BACK_S)
        assert client.told(Recovered)
        await client.sender("orders").send(paired_message("back"))
    finally:
        await client.close()
    assert [str(one) for one in servicebus_pair.primary.sent("orders")] == ["first", "back"]
