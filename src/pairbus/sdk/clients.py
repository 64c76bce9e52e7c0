"""Settings and connections of an SDK client, read from its private attributes, and the moment at which it is closed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, TransportType
from azure.servicebus import aio as sdk_aio
from azure.servicebus._base_handler import ServiceBusSASTokenCredential, ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import ServiceBusSASTokenCredential as AsyncSasTokenCredential
from azure.servicebus.aio._base_handler_async import ServiceBusSharedKeyCredential as AsyncSharedKeyCredential

get_proxy_info: Callable[..., tuple[Any, ...]] | None
try:
    from websocket._url import get_proxy_info
except ImportError:  # websocket-client is an extra of the SDK
    get_proxy_info = None

DEFAULT_PROXY_PORT = 80
AnyClient = ServiceBusClient | sdk_aio.ServiceBusClient


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of an SDK client for the way to its namespace. `repr` and errors never show the credential."""

    authority: str
    "Host, or host:port for an emulator, as in the audience of tokens."
    credential: Any = field(repr=False)
    tls: bool
    websocket: bool
    http_proxy: dict[str, Any] | None = field(repr=False)
    custom_endpoint: str | None
    ssl_context: ssl.SSLContext | None
    ca_file: str | None
    entity_name: str | None
    user_agent: str | None = None
    logging_enable: bool = False

    @property
    def secret(self) -> tuple[str, str] | str | None:
        """Return the present name and key, or signature: azure-core's credentials can be updated at any time."""
        match self.credential:
            case AzureNamedKeyCredential():
                named = self.credential.named_key
                return named.name, named.key
            case ServiceBusSharedKeyCredential() | AsyncSharedKeyCredential():
                return self.credential.policy, self.credential.key
            case AzureSasCredential():
                return str(self.credential.signature)
            case ServiceBusSASTokenCredential() | AsyncSasTokenCredential():
                return str(self.credential.token)
        return None


def config_of(client: AnyClient) -> ClientConfig:
    """Read the settings of a client. ValueError for a client on uamqp, which does not send batches of encoded bytes."""
    if client._amqp_transport.KIND != "pyamqp":
        raise ValueError("uamqp_transport=True is not supported: leave it out, and the SDK uses its own AMQP library")
    config = client._config
    return ClientConfig(
        authority=client.fully_qualified_namespace,
        credential=client._credential,
        tls=bool(config.use_tls),
        websocket=config.transport_type.value == TransportType.AmqpOverWebsocket.value,
        http_proxy=config.http_proxy,
        custom_endpoint=client._custom_endpoint_address,
        ssl_context=config.ssl_context,
        ca_file=config.connection_verify,
        entity_name=client._entity_name,
        user_agent=config.user_agent,
        logging_enable=bool(config.logging_enable),
    )


ProxySettings = tuple[str, int, tuple[str, str] | None]
"Host, port, (user, password)."


def proxy_of_sync_sdk(host: str, configured: ProxySettings | None, *, tls: bool) -> ProxySettings | None:
    """Return the proxy that the sync SDK would use for this host. `configured`: the proxy of the client, or None.

    Its web sockets are those of websocket-client, which reads HTTPS_PROXY, HTTP_PROXY and NO_PROXY in its own way;
    NO_PROXY is also stronger than the proxy of the client. The asyncio SDK does not read the environment.
    """
    if get_proxy_info is None:
        return configured
    proxy, port, user = get_proxy_info(host, tls, *(configured or (None, 0, None)))
    return (proxy, port or DEFAULT_PROXY_PORT, user) if proxy else None


_kept: list[object] = []


def keep(inherited: object) -> None:
    """Keep an object of the parent process for ever in a forked child.

    A socket of asyncio that is collected removes itself from the selector, which the parent uses too: the parent would
    get no more events of its own socket.
    """
    _kept.append(inherited)


class _Canary:
    """A member of the senders and receivers of a client that calls a function when the client closes them all."""

    _container_id = "pairbus-canary"

    def __init__(self, callback: Callable[[], None], *, aio: bool) -> None:
        self._callback = callback
        self._aio = aio

    def close(self) -> Awaitable[None] | None:
        self._callback()
        return asyncio.sleep(0) if self._aio else None


def call_when_closed(client: AnyClient, callback: Callable[[], None]) -> None:
    """Call a function when this client is closed: the SDK does not remember that, and would open new connections."""
    canary = _Canary(callback, aio=isinstance(client, sdk_aio.ServiceBusClient))
    vars(client).setdefault("_pairbus_canaries", []).append(canary)  # kept alive: the client's own set is weak
    client._handlers.add(canary)


def check_flavour(client: object, name: str, *, aio: bool, kinds: tuple[type, type]) -> None:
    """Raise TypeError unless this is a sync client of the SDK (the first of `kinds`), or with `aio` an asyncio one.

    With the other flavour a send would seem to succeed, but its coroutine would never be awaited.
    """
    if isinstance(client, kinds[aio]):
        return
    homes, ours = ("azure.servicebus", "azure.servicebus.aio"), ("pairbus", "pairbus.aio")
    hint = ""
    if isinstance(client, kinds[not aio]):
        hint = f"; this one is of {homes[not aio]}, and belongs to {ours[not aio]}.PairedServiceBusClient"
    raise TypeError(f"{name} must be a {kinds[aio].__name__} of {homes[aio]}, not {type(client).__name__}{hint}")
