"""One namespace as both worlds see it: the genuine SDK's clients, and what our own transport needs to go there.

The way is the SDK's own (`sdk.config_of`), so that a probe, a ping or the syphon never goes where the SDK would not:
with TLS the SDK drops the port of the endpoint and takes 5671, a custom endpoint changes the target of the socket and
nothing else, a proxy means web sockets.
"""

from __future__ import annotations

import os
import ssl as tls
import tempfile
import weakref
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import certifi
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient
from azure.servicebus import aio as sdk_aio
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.access import emulator
from pairbus.access.connection_string import ConnectionString, host_and_port
from pairbus.access.hosts import in_url, is_loopback
from pairbus.sdk import AnyClient, ClientConfig, Proxy, check_flavour, config_of, proxy_of_sync_sdk
from pairbus.transport import Carrier, Connection, connect
from pairbus.transport.credential import AzureToken, Credential, SasKey, SasSignature, Token
from pairbus.transport.endpoint import Endpoint, TransportKind
from pairbus.transport.trace import log_frames

AnyAdmin = ServiceBusAdministrationClient | AsyncAdministrationClient

KEYWORDS = frozenset(
    {
        *("retry_total", "retry_backoff_factor", "retry_backoff_max", "retry_mode", "try_timeout", "socket_timeout"),
        *("transport_type", "http_proxy", "custom_endpoint_address", "connection_verify", "ssl_context", "use_tls"),
        *("user_agent", "logging_enable", "keep_alive", "auth_timeout"),
    }
)
"What a client of the SDK takes and uses. It takes anything, and a misspelt option would be lost without a word."

ADMIN: dict[str, Any] = {"connection_timeout": 5, "read_timeout": 15, "retry_total": 1, "retry_backoff_factor": 0.2}
_PORTS = {("tcp", True): 5671, ("tcp", False): 5672, ("websocket", True): 443, ("websocket", False): 80}


class Side:
    """One namespace of a pair. Made by one of the three class methods; `repr` never shows a key."""

    def __init__(self, config: ClientConfig, keywords: dict[str, Any], given_admin: AnyAdmin | None = None) -> None:
        self._config = config
        self._keywords = keywords
        self.given_admin = given_admin
        "The administration client that the user gave; it stays the user's to close."
        self.authority = config.authority
        "host, for an emulator host:port: what the primary's name is derived from."
        self.name = config.authority
        "For messages and the ledger."
        self.endpoint = _endpoint_of(config)
        self.credential = _credential_of(config)
        "For our own transport."
        self.reads_environment = False
        "Web sockets go through a proxy of the environment: those of the sync SDK do, those of asyncio do not."
        self._ca_file: str | None = None

    @classmethod
    def from_connection_string(cls, text: str, **keywords: Any) -> Side:
        """`keywords` are those of ServiceBusClient. ConfigError for the text, TypeError for an unknown keyword."""
        ConnectionString.parse(text)  # says more clearly than the SDK what is wrong
        _check(keywords)
        return cls(config_of(ServiceBusClient.from_connection_string(text, **keywords)), keywords)

    @classmethod
    def from_credential(cls, host: str, credential: Any, **keywords: Any) -> Side:
        """`credential`: whatever ServiceBusClient takes, of the flavour of the clients that will be made with it."""
        _check(keywords)
        return cls(config_of(ServiceBusClient(host, credential, **keywords)), keywords)

    @classmethod
    def from_client(cls, client: AnyClient, name: str, *, aio: bool, admin: AnyAdmin | None = None) -> Side:
        """As the given client goes; clients made here are new ones beside it. TypeError, with the `name` of what was
        given, for a client or an admin of the other flavour."""
        check_flavour(client, name, aio=aio, kinds=(ServiceBusClient, sdk_aio.ServiceBusClient))
        if admin is not None:
            kinds = (ServiceBusAdministrationClient, AsyncAdministrationClient)
            check_flavour(admin, "options.secondary_namespace_manager", aio=aio, kinds=kinds)
        config = config_of(client)
        return cls(config, config.keywords(), admin)

    def __repr__(self) -> str:
        way = "web socket" if self._config.websocket else "TLS" if self._config.tls else "TCP"
        return f"<Side {self.name} {way} {in_url(self.endpoint.host)}:{self.endpoint.port}>"

    @property
    def ssl(self) -> tls.SSLContext | str | None:
        """Whom our transport trusts: a context or a file of certificates, as the SDK would; None without TLS."""
        if not self._config.tls:
            return None
        return self._config.ssl_context or self._config.ca_file or certifi.where()

    @property
    def proxy(self) -> str | None:
        """As a URL, user and password included."""
        config = self._config
        if not config.websocket:
            return None
        known, proxy = config.http_proxy, cast(Proxy | None, None)
        if known:
            user = (known.get("username") or "", known.get("password") or "")
            proxy = known["proxy_hostname"], known["proxy_port"], user
        if self.reads_environment:
            proxy = proxy_of_sync_sdk(self.endpoint.host, proxy, tls=config.tls)
        return None if proxy is None else _proxy_url(*proxy)

    # ── our own transport ──

    def new_carrier(self, connect_timeout_s: float) -> Carrier:
        """Return a carrier that is not connected yet; the caller closes it."""
        return Carrier(self.endpoint, connect_timeout_s=connect_timeout_s, **self._way())

    async def connect(self, timeout_s: float) -> Connection:
        """Open a connection of the caller's own."""
        return await connect(self.endpoint, timeout_s=timeout_s, **self._way())

    def _way(self) -> dict[str, Any]:
        """Return what the user said of the way to this namespace, as keywords of our transport."""
        return {
            "credential": self.credential,
            "ssl": self.ssl,
            "proxy": self.proxy,
            "user_agent": self._config.user_agent,
            "trace": log_frames(self.name) if self._config.logging_enable else None,
        }

    # ── the SDK's clients ──

    def new_client(self, *, aio: bool = False) -> AnyClient:
        """A genuine client. Its receivers are as the SDK has them; of its senders `sdk.new_sender` takes retries and
        keep-alive, which are ours there."""
        kind = sdk_aio.ServiceBusClient if aio else ServiceBusClient
        keywords = {**self._keywords, "use_tls": self._config.tls, "entity_name": self._config.entity_name}
        return kind(self._config.authority, self._sdk_credential(aio), **keywords)

    def _sdk_credential(self, aio: bool) -> Any:
        """A key or signature suits both flavours in the form of azure-core; a token credential is as it was given."""
        if aio == self._config.aio:
            return self._config.credential
        if self._config.shared_key is not None:
            return AzureNamedKeyCredential(*self._config.shared_key)
        if self._config.signature is not None:
            return AzureSasCredential(self._config.signature)
        return self._config.credential

    def new_admin(self, *, aio: bool = False) -> AnyAdmin:
        """A genuine administration client; the caller closes it.

        For an emulator on this machine the broker's CA certificate is fetched first, which blocks for a moment:
        OSError when nobody answers, ConfigError when another server does.
        """
        config = self._config
        kind = AsyncAdministrationClient if aio else ServiceBusAdministrationClient
        authority = config.authority
        options = {**ADMIN, "connection_verify": config.ca_file or True}
        if self.proxy is not None:
            options["proxies"] = {"https": self.proxy}
        if not config.tls:
            host, port = host_and_port(authority, "Endpoint")
            authority = f"{in_url(host)}:{port or emulator.DEFAULT_PORT}"
            options["use_env_settings"] = False  # no proxy of the environment between this machine and itself
            if config.ca_file is None and is_loopback(host):
                options["connection_verify"] = self._fetched_ca(authority)
        secret = self._admin_secret()
        if secret is None:
            return kind(authority, config.credential, **options)
        return kind.from_connection_string(f"Endpoint=sb://{authority};{secret}", **options)

    def _admin_secret(self) -> str | None:
        if self._config.shared_key is not None:
            name, key = self._config.shared_key
            return f"SharedAccessKeyName={name};SharedAccessKey={key}"
        return None if self._config.signature is None else f"SharedAccessSignature={self._config.signature}"

    def _fetched_ca(self, authority: str) -> str:
        """A file, because the SDK takes nothing else; it goes with this object."""
        if self._ca_file is None:
            certificate = emulator.fetch_ca(authority, ADMIN["connection_timeout"])
            descriptor, name = tempfile.mkstemp(prefix="pairbus-ca-", suffix=".pem")
            with os.fdopen(descriptor, "wb") as file:
                file.write(certificate)
            self._ca_file = name
            weakref.finalize(self, Path(name).unlink, missing_ok=True)
        return self._ca_file


def _proxy_url(host: str, port: int, user: tuple[str, str] | None) -> str:
    name, password = user or ("", "")
    who = f"{quote(name, '')}:{quote(password, '')}@" if name or password else ""
    return f"http://{who}{in_url(host)}:{port}"


def _check(keywords: dict[str, Any]) -> None:
    for name in keywords:
        if name not in KEYWORDS:
            raise TypeError(f"got an unexpected keyword argument {name!r}; a ServiceBusClient takes {sorted(KEYWORDS)}")


def _endpoint_of(config: ClientConfig) -> Endpoint:
    transport: TransportKind = "websocket" if config.websocket else "tcp"
    name, port = host_and_port(config.authority, "Endpoint")
    target, target_port = name, port if transport == "tcp" and not config.tls else None
    if config.custom_endpoint:
        target, target_port = host_and_port(config.custom_endpoint, "custom_endpoint_address")
        # The SDK takes the TLS port here, also where it then speaks plain TCP.
        target_port = target_port or _PORTS[transport, True]
    return Endpoint(
        host=target,
        port=target_port or _PORTS[transport, config.tls],
        tls=config.tls,
        hostname=name,
        entity_path=config.entity_name,
        emulator=not config.tls,
        transport=transport,
        authority=config.authority,
    )


class _CurrentKey(SasKey):
    """The key that the credential holds when a token is made: an AzureNamedKeyCredential can be updated."""

    __slots__ = ("config",)
    config: ClientConfig

    def __init__(self, config: ClientConfig) -> None:
        assert config.shared_key is not None
        super().__init__(*config.shared_key)
        object.__setattr__(self, "config", config)

    async def token(self, audience: str) -> Token:
        assert self.config.shared_key is not None
        return await SasKey(*self.config.shared_key).token(audience)


class _CurrentSignature(SasSignature):
    __slots__ = ("config",)
    config: ClientConfig

    def __init__(self, config: ClientConfig) -> None:
        assert config.signature is not None
        super().__init__(config.signature)
        object.__setattr__(self, "config", config)

    async def token(self, audience: str) -> Token:
        assert self.config.signature is not None
        return await SasSignature(self.config.signature).token(audience)


def _credential_of(config: ClientConfig) -> Credential:
    if config.shared_key is not None:
        return _CurrentKey(config)
    return AzureToken(config.credential) if config.signature is None else _CurrentSignature(config)
