"""One namespace of a client: the SDK's own client for it, and the same way for our own transport.

The way is read from the SDK's client, so that a probe, a ping or the syphon never goes where the SDK would not: with
TLS the SDK drops the port of the endpoint and takes 5671, a custom endpoint changes only the target of the socket, a
proxy means web sockets.
"""

from __future__ import annotations

import ssl as tls
import weakref
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import certifi
from azure.servicebus import ServiceBusClient
from azure.servicebus import aio as sdk_aio

from pairbus.amqp.sasl import SaslClient
from pairbus.auth import emulator
from pairbus.auth.connection_string import ConnectionString, host_and_port
from pairbus.auth.hosts import in_url, is_loopback
from pairbus.errors import did_you_mean
from pairbus.sdk.administration import ADMINS, OF_CLIENT, AnyAdmin, new_admin, shared_secret
from pairbus.sdk.clients import AnyClient, ClientConfig, ProxySettings, check_flavour, config_of, proxy_of_sync_sdk
from pairbus.transport import Carrier, ClientConnection, connect
from pairbus.transport.connection.endpoint import Endpoint, TransportKind
from pairbus.transport.connection.trace import log_frames
from pairbus.transport.tokens.credential import AzureToken, Credential, SasKey, SasSignature, Token

CLIENTS = (ServiceBusClient, sdk_aio.ServiceBusClient)

KEYWORDS = {
    "auth_timeout",
    "connection_verify",
    "custom_endpoint_address",
    "http_proxy",
    "keep_alive",
    "logging_enable",
    "retry_backoff_factor",
    "retry_backoff_max",
    "retry_mode",
    "retry_total",
    "socket_timeout",
    "ssl_context",
    "transport_type",
    "try_timeout",
    "use_tls",
    "user_agent",
}
"Keywords that a client of the SDK uses. It ignores others, so a misspelt keyword would be lost without an error."

_PORTS = {("tcp", True): 5671, ("tcp", False): 5672, ("websocket", True): 443, ("websocket", False): 80}


class Side:
    """One namespace, with the SDK's client for it. `repr` never shows a key."""

    def __init__(self, client: AnyClient, given_admin: AnyAdmin | None = None) -> None:
        self.client = client
        "The SDK's client, given by the user or made here; the user of this object closes it."
        self.given_admin = given_admin
        "The administration client that the user gave, and closes."
        self._config = config = config_of(client)
        self.authority = config.authority
        "Host, or host:port for an emulator; the primary's name is derived from it."
        self.name = config.authority
        "Name in messages and in the ledger."
        self.endpoint = _endpoint_of(config)
        self.credential: Credential = AzureToken(config.credential) if config.secret is None else _Secret(config)
        "Credential of our own transport."
        self.reads_environment = False
        "True: web sockets go through a proxy of the environment, as in the sync SDK (not in that of asyncio)."
        self._ca_file: str | None = None

    @classmethod
    def from_connection_string(cls, text: str, *, aio: bool = False, **keywords: Any) -> Side:
        """Make a client of the SDK with these keywords. ConfigError for the text, TypeError for an unknown keyword."""
        ConnectionString.parse(text)  # says more clearly than the SDK what is wrong
        _check(keywords)
        return cls(CLIENTS[aio].from_connection_string(text, **keywords))

    @classmethod
    def from_credential(cls, host: str, credential: Any, *, aio: bool = False, **keywords: Any) -> Side:
        """Make a client of the SDK with this credential, which must be of the same flavour."""
        _check(keywords)
        return cls(CLIENTS[aio](host, credential, **keywords))

    @classmethod
    def from_client(cls, client: AnyClient, name: str, *, aio: bool, admin: AnyAdmin | None = None) -> Side:
        """Take a client of the user. TypeError, with its `name`, for a client or an admin of the other flavour."""
        check_flavour(client, name, aio=aio, kinds=CLIENTS)
        if admin is not None:
            check_flavour(admin, "options.secondary_namespace_manager", aio=aio, kinds=ADMINS)
        return cls(client, admin)

    def __repr__(self) -> str:
        way = "web socket" if self._config.websocket else "TLS" if self._config.tls else "TCP"
        return f"<Side {self.name} {way} {in_url(self.endpoint.host)}:{self.endpoint.port}>"

    @property
    def ssl(self) -> tls.SSLContext | str | None:
        """Return the trust of our transport, as in the SDK: a context or a file of certificates; None without TLS."""
        if not self._config.tls:
            return None
        return self._config.ssl_context or self._config.ca_file or certifi.where()

    @property
    def proxy(self) -> str | None:
        """Return the proxy as a URL, user and password included."""
        config = self._config
        if not config.websocket:
            return None
        known, proxy = config.http_proxy, cast(ProxySettings | None, None)
        if known:
            user = (known.get("username") or "", known.get("password") or "")
            proxy = known["proxy_hostname"], known["proxy_port"], user
        if self.reads_environment:
            proxy = proxy_of_sync_sdk(self.endpoint.host, proxy, tls=config.tls)
        return None if proxy is None else _proxy_url(*proxy)

    # ── our own transport ──

    def new_carrier(self, connect_timeout_s: float, credential: Credential | None = None) -> Carrier:
        """Return a carrier that is not connected yet; the caller closes it. `credential`: another form of ours."""
        way = self._way() | ({} if credential is None else {"credential": credential})
        return Carrier(self.endpoint, connect_timeout_s=connect_timeout_s, **way)

    async def connect(self, timeout_s: float) -> ClientConnection:
        """Open a connection, which the caller owns."""
        return await connect(self.endpoint, timeout_s=timeout_s, **self._way())

    def _way(self) -> dict[str, Any]:
        """Return the user's settings of the way to this namespace, as keywords of our transport."""
        return {
            "credential": self.credential,
            "ssl": self.ssl,
            "proxy": self.proxy,
            "user_agent": self._config.user_agent,
            "trace": log_frames(self.name) if self._config.logging_enable else None,
        }

    # ── administration ──

    def new_admin(self, *, aio: bool = False) -> AnyAdmin:
        """Return an administration client of the SDK; the caller closes it.

        For an emulator on this machine the broker's CA certificate is fetched first, which blocks for a moment:
        OSError when no server answers, ConfigError when another server does.
        """
        config, authority, verify = self._config, self._config.authority, self._config.ca_file or True
        if not config.tls:
            host, port = host_and_port(authority, "Endpoint")
            authority = f"{in_url(host)}:{port or emulator.DEFAULT_PORT}"
            if config.ca_file is None and is_loopback(host):
                verify = self._fetched_ca(authority)
        match config.secret:
            case None:
                credential: Any = config.credential
            case (name, key):
                credential = shared_secret(name, key, None)
            case signature:
                credential = shared_secret(None, None, signature)
        return new_admin(
            authority, credential, OF_CLIENT, verify=verify, is_emulator=not config.tls, proxy=self.proxy, aio=aio
        )

    def _fetched_ca(self, authority: str) -> str:
        """Fetch the broker's certificate into a file, because the SDK takes only files; removed with this object."""
        if self._ca_file is None:
            certificate = emulator.fetch_ca(authority, OF_CLIENT["connection_timeout"])
            self._ca_file = emulator.write_ca_file(certificate)
            weakref.finalize(self, Path(self._ca_file).unlink, missing_ok=True)
        return self._ca_file


def _proxy_url(host: str, port: int, user: tuple[str, str] | None) -> str:
    name, password = user or ("", "")
    who = f"{quote(name, '')}:{quote(password, '')}@" if name or password else ""
    return f"http://{who}{in_url(host)}:{port}"


def _check(keywords: dict[str, Any]) -> None:
    for name in keywords:
        if name not in KEYWORDS:
            hint = did_you_mean(name, KEYWORDS) or ";"
            raise TypeError(
                f"got an unexpected keyword argument {name!r}{hint} a ServiceBusClient takes {sorted(KEYWORDS)}"
            )


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


class _Secret:
    """A credential that reads key or signature anew from the SDK's credential for each token: it may be updated."""

    per_audience = True

    def __init__(self, config: ClientConfig) -> None:
        self._config = config

    def __repr__(self) -> str:
        return f"<key or signature of {self._config.authority}>"

    def sasl(self, hostname: str) -> SaslClient:
        return self._now().sasl(hostname)

    async def token(self, audience: str) -> Token:
        return await self._now().token(audience)

    def _now(self) -> SasKey | SasSignature:
        secret = self._config.secret
        assert secret is not None
        return SasKey(*secret) if isinstance(secret, tuple) else SasSignature(secret)
