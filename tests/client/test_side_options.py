"""Options of `primary_kwargs`: the paired client goes to its primary as the plain SDK's client would."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType, aio
from azure.servicebus.exceptions import ServiceBusConnectionError

import pairbus
import pairbus.aio
from pairbus.amqp.message import Message
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.client.sides import Side
from tests.client.plain import Caller
from tests.client.world import Stage
from tests.scripted import Reject, ScriptedEndpoint
from tests.sdk.flavours import Flavour, Guarded, in_thread

AZURE_HOST = "contoso.servicebus.windows.net"
QUEUE = "orders"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    namespaces = [NamespaceOptions("contoso", queues=(QueueDescription(QUEUE),))]
    async with Broker(namespaces, data=None, strict=True) as broker:
        yield broker


def fields(broker: Broker) -> dict[str, str]:
    return dict(part.split("=", 1) for part in broker.connection_string("contoso").rstrip(";").split(";"))


def as_azure(broker: Broker) -> str:
    """The broker's key for a namespace as it is named in Azure: the SDK insists on TLS there."""
    known = fields(broker)
    names = ("SharedAccessKeyName", "SharedAccessKey")
    return ";".join([f"Endpoint=sb://{AZURE_HOST}", *(f"{name}={known[name]}" for name in names)])


def port_of(broker: Broker) -> int:
    return int(fields(broker)["Endpoint"].rstrip("/").rpartition(":")[2])


def gateway(broker: Broker) -> dict[str, Any]:
    return {"custom_endpoint_address": f"sb://127.0.0.1:{port_of(broker)}"}


OPTIONS: dict[str, Any] = {"primary_name": "stage", "create_backlog_queues": False, "backlog_queue_count": 1}


async def sent(flavour: Flavour, client: Any, body: str = "hello", **keywords: Any) -> None:
    """Send one message to the queue with a paired client, and close it."""
    sender = client.get_queue_sender(QUEUE, **keywords)
    try:
        if flavour == "aio":
            await sender.send_messages(ServiceBusMessage(body), timeout=10)
        else:
            await in_thread(sender.send_messages, ServiceBusMessage(body), timeout=10)
    finally:
        await (client.close() if flavour == "aio" else in_thread(client.close))


def kind_of(flavour: Flavour) -> Any:
    return pairbus.aio.PairedServiceBusClient if flavour == "aio" else pairbus.PairedServiceBusClient


def by_strings(flavour: Flavour, stage: Stage, primary: str, **keywords: Any) -> Any:
    secondary = stage.secondary.connection_string
    return kind_of(flavour).from_connection_strings(primary, secondary, primary_kwargs=keywords, **OPTIONS)


def by_clients(flavour: Flavour, stage: Stage, host: str, credential: Any, **keywords: Any) -> Any:
    """The constructor with the SDK's clients, which take every kind of credential."""
    sdk = aio.ServiceBusClient if flavour == "aio" else ServiceBusClient
    secondary = sdk.from_connection_string(stage.secondary.connection_string)
    options = pairbus.SendAvailabilityPairedNamespaceOptions(None, secondary, **OPTIONS)
    return kind_of(flavour)(sdk(host, credential, **keywords), options)


# ── the way ──


@pytest.mark.parametrize("trust", ["connection_verify", "ssl_context"])
@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
async def test_tls_and_web_sockets_reach_a_custom_endpoint(
    stage: Stage, flavour: Flavour, broker: Broker, trust: str, transport: TransportType
) -> None:
    """The socket goes to the gateway; names and tokens stay those of the namespace."""
    given: dict[str, Any] = {"connection_verify": str(broker.ca_file)}
    if trust == "ssl_context":
        given = {"ssl_context": ssl.create_default_context(cafile=str(broker.ca_file))}
    client = by_strings(flavour, stage, as_azure(broker), transport_type=transport, **gateway(broker), **given)
    await sent(flavour, client)
    assert stage.secondary.received == []


async def test_untrusted_certificate_is_refused_in_the_sdks_words(
    stage: Stage, flavour: Flavour, broker: Broker
) -> None:
    """The broker's certificate is signed by an authority of its own."""
    client = by_strings(flavour, stage, as_azure(broker), transport_type=TransportType.Amqp, **gateway(broker))
    with pytest.raises(ServiceBusConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        await sent(flavour, client)


class Proxy:
    """A small HTTP proxy that knows CONNECT only."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked += [line for line in head.split(b"\r\n") if line.startswith((b"CONNECT", b"Proxy-Authorization"))]
        host, port = head.split()[1].decode().rsplit(":", 1)
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(self._pipe(reader, far_writer), self._pipe(far_reader, writer))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()


async def test_http_proxy_is_asked_with_its_user(stage: Stage, flavour: Flavour, broker: Broker) -> None:
    """A proxy means web sockets, as in the SDK."""
    async with Proxy() as proxy:
        given = {"proxy_hostname": "127.0.0.1", "proxy_port": proxy.port, "username": "till", "password": "p@ss"}
        trust = {"connection_verify": str(broker.ca_file)}
        await sent(flavour, by_strings(flavour, stage, as_azure(broker), http_proxy=given, **gateway(broker), **trust))
    password = base64.b64encode(b"till:p@ss")
    assert proxy.asked == [
        f"CONNECT 127.0.0.1:{port_of(broker)} HTTP/1.1".encode(),
        b"Proxy-Authorization: Basic " + password,
    ]


@pytest.mark.parametrize(
    ("no_proxy", "transport", "is_asked"),
    [
        ("", TransportType.AmqpOverWebsocket, True),
        ("127.0.0.1", TransportType.AmqpOverWebsocket, False),
        ("127.0.0.0/8", TransportType.AmqpOverWebsocket, False),
        ("", TransportType.Amqp, False),
    ],
)
async def test_proxy_of_the_environment_is_used_where_the_sdk_uses_it(
    stage: Stage,
    flavour: Flavour,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    no_proxy: str,
    transport: TransportType,
    is_asked: bool,
) -> None:
    """Only web sockets of the sync client use it: those of the asyncio SDK do not look at the environment."""
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", no_proxy)
        given = {"connection_verify": str(broker.ca_file), "transport_type": transport, **gateway(broker)}
        await sent(flavour, by_strings(flavour, stage, as_azure(broker), **given))
    assert bool(proxy.asked) is (is_asked and flavour == "sync")


def test_no_proxy_overrides_a_given_proxy_in_sync_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK does so too, by the libraries of its web sockets."""
    monkeypatch.setenv("NO_PROXY", ".windows.net")
    given = {"proxy_hostname": "proxy", "proxy_port": 3128}
    text = f"Endpoint=sb://{AZURE_HOST};SharedAccessKeyName=k;SharedAccessKey=k"
    side = Side.from_connection_string(text, http_proxy=given)
    assert side.proxy == "http://proxy:3128"
    side.reads_environment = True
    assert side.proxy is None
    monkeypatch.setenv("NO_PROXY", "")
    assert side.proxy == "http://proxy:3128"


# ── the words ──


def opens(endpoint: ScriptedEndpoint) -> list[dict[str, Any]]:
    """The properties in the open of each connection that there is."""
    found = [peer._core.remote_open for peer in endpoint.peers]
    return [{str(key): value for key, value in (one.properties or {}).items()} for one in found if one is not None]


async def test_user_agent_stands_in_front_in_the_open(stage: Stage, flavour: Flavour) -> None:
    """Under the names that the SDK uses: support of the service finds a client by it."""
    said: dict[str, list[dict[str, Any]]] = {}
    for who in ("plain", "paired"):
        caller = Caller(stage, who, flavour, user_agent="till/7")
        sender = caller.client.get_queue_sender(QUEUE)
        await caller.call(sender.send_messages, ServiceBusMessage("x"))
        said[who] = opens(stage.primary)
        await caller.close()
        await stage.primary.until(lambda: stage.primary.open_connections == 0)
    [plain], [paired] = said["plain"], said["paired"]
    assert plain.keys() == paired.keys()
    assert paired["user-agent"].startswith("till/7 pairbus/") and plain["user-agent"].startswith("till/7 azsdk-python")
    assert (paired["framework"], paired["platform"]) == (plain["framework"], plain["platform"])


async def test_logging_enable_writes_frames_without_tokens_and_bodies(
    stage: Stage, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it no frame is logged, at any level."""
    with caplog.at_level(logging.DEBUG, logger="pairbus"):
        await sent(flavour, by_strings(flavour, stage, stage.primary.connection_string), "body-1")
        assert not [record for record in caplog.records if record.name == "pairbus.transport.frames"]
        await sent(flavour, by_strings(flavour, stage, stage.primary.connection_string, logging_enable=True), "body-2")
    frames = [record.getMessage() for record in caplog.records if record.name == "pairbus.transport.frames"]
    text = "\n".join(frames)
    assert "transfer" in text and f"127.0.0.1:{stage.primary.port}" in text
    assert f":{stage.secondary.port}" not in text, "frames of the other side are not logged"
    assert not any(secret in text for secret in ("body-2", "sig=%", "SAS_KEY_VALUE", "SharedAccessSignature sr"))


async def test_client_identifier_names_the_link(stage: Stage, flavour: Flavour) -> None:
    """The service tells it in its errors; senders without one share a link."""
    client = by_strings(flavour, stage, stage.primary.connection_string)
    named = client.get_queue_sender(QUEUE, client_identifier="till-7")
    one, other = client.get_queue_sender(QUEUE), client.get_queue_sender(QUEUE)
    for sender in (named, one, other):
        if flavour == "aio":
            await sender.send_messages(ServiceBusMessage("x"))
        else:
            await in_thread(sender.send_messages, ServiceBusMessage("x"))
    names = [link.name for peer in stage.primary.peers for link in peer.links(QUEUE)]
    assert len(names) == 2 and "till-7" in names
    assert named.client_identifier == "till-7" and one.client_identifier != other.client_identifier
    await (client.close() if flavour == "aio" else in_thread(client.close))


@pytest.mark.parametrize("options", [{"retry_total": 0}, {"retry_total": 0, "keep_alive": 1, "retry_backoff_max": 1}])
async def test_retry_and_keep_alive_options_change_nothing(
    stage: Stage, flavour: Flavour, options: dict[str, Any]
) -> None:
    """A send has the retries of the failure table; a receiver connects again as long as its call lasts."""
    stage.primary.on("transfer", Reject("amqp:internal-error"), path=QUEUE, times=2)
    stage.primary.on("attach", Reject("amqp:internal-error"), path="others", times=2)
    client = by_strings(flavour, stage, stage.primary.connection_string, **options)
    receiver = Guarded(client.get_queue_receiver("others"), flavour)
    stage.primary.put("others", Message(data=[b"x"]).encode())
    assert len(await receiver.receive_messages(1, 10)) == 1
    await sent(flavour, client)
    assert len(stage.primary.received) == 3 and stage.secondary.received == []


# ── credentials ──


async def last_token(stage: Stage, flavour: Flavour, credential: Any) -> tuple[str, str]:
    """(type, token) that a paired client with this credential puts."""
    host = f"127.0.0.1:{stage.primary.port}"
    await sent(flavour, by_clients(flavour, stage, host, credential, use_tls=False))
    audience, kind, token = stage.primary.tokens[-1]
    assert audience == f"sb://{host}/{QUEUE}"
    return str(kind), token if isinstance(token, str) else bytes(token).decode()


async def test_key_and_its_update_sign_the_token(stage: Stage, flavour: Flavour) -> None:
    """The SDK's own words for a shared access signature."""
    credential = AzureNamedKeyCredential("root", "one")
    kind, first = await last_token(stage, flavour, credential)
    credential.update("other", "two")
    _, second = await last_token(stage, flavour, credential)
    assert kind == "servicebus.windows.net:sastoken"
    assert first.endswith("&skn=root") and second.endswith("&skn=other")


async def test_signature_and_its_update_are_put_as_they_are(stage: Stage, flavour: Flavour) -> None:
    """The signature comes from elsewhere; the client has no key."""
    signed = [
        f"SharedAccessSignature sr=sb%3a%2f%2fh&sig={number}&se={int(time.time()) + 3600}&skn=k" for number in "12"
    ]
    credential = AzureSasCredential(signed[0])
    assert await last_token(stage, flavour, credential) == ("servicebus.windows.net:sastoken", signed[0])
    credential.update(signed[1])
    assert await last_token(stage, flavour, credential) == ("servicebus.windows.net:sastoken", signed[1])


class SyncCredential:
    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net//.default",)
        return AccessToken("sync-token", int(time.time()) + 3600)


class AsyncCredential:
    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net//.default",)
        return AccessToken("async-token", int(time.time()) + 3600)


@pytest.mark.parametrize("credential", [SyncCredential(), AsyncCredential()], ids=["sync", "async"])
async def test_token_credential_of_either_flavour_serves_both_clients(
    stage: Stage, flavour: Flavour, credential: Any
) -> None:
    """azure-identity has both; the plain SDK takes only the one of its own flavour."""
    wanted = "async-token" if isinstance(credential, AsyncCredential) else "sync-token"
    assert await last_token(stage, flavour, credential) == ("jwt", wanted)
    client = by_clients(flavour, stage, f"127.0.0.1:{stage.primary.port}", credential, use_tls=False)
    await Guarded(client.get_queue_receiver("others"), flavour).open()
    audience, _, token = stage.primary.tokens[-1]
    assert audience.endswith("/others") and token in (wanted, wanted.encode())
    await (client.close() if flavour == "aio" else in_thread(client.close))


# ── administration ──

PLAIN_PROXY = {"proxy_hostname": "proxy", "proxy_port": 3128, "username": "till", "password": "p@ss"}


@pytest.mark.parametrize("is_async", [False, True])
def test_administration_goes_the_way_of_its_client(is_async: bool) -> None:
    """Administration uses the client's credential and proxy: pairing fails where sends would fail."""
    key = f"Endpoint=sb://{AZURE_HOST};SharedAccessKeyName=k;SharedAccessKey=a2V5"
    by_key = Side.from_connection_string(key, http_proxy=PLAIN_PROXY).new_admin(aio=is_async)
    assert by_key.fully_qualified_namespace == AZURE_HOST
    assert by_key._config.proxy_policy.proxies == {"https": "http://till:p%40ss@proxy:3128"}
    signature = "SharedAccessSignature sr=x&sig=1&se=9999999999&skn=k"
    by_signature = Side.from_connection_string(f"Endpoint=sb://{AZURE_HOST};SharedAccessSignature={signature}")
    assert "SASToken" in type(by_signature.new_admin(aio=is_async)._credential).__name__
    credential = SyncCredential()
    for host, options in ((AZURE_HOST, {}), ("10.1.2.3:5672", {"use_tls": False})):
        admin = Side.from_credential(host, credential, **options).new_admin(aio=is_async)
        assert (admin.fully_qualified_namespace, admin._credential) == (host, credential)


def test_a_misspelt_keyword_is_refused() -> None:
    """The SDK takes any keyword, and a setting would be lost without a word."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'retry_totl'"):
        Side.from_credential(AZURE_HOST, SyncCredential(), retry_totl=0)
