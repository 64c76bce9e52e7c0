"""Endpoints of namespaces, with credentials: connection strings, hosts, ports, TLS, web sockets.

| connection string                               | goes to                                    |
| ----------------------------------------------- | ------------------------------------------ |
| `Endpoint=sb://h;…`                             | TLS h:5671                                 |
| `Endpoint=sb://h:P;…`                           | TLS h:P                                    |
| `Endpoint=sb://h;…;UseDevelopmentEmulator=true` | TCP h:5672                                 |
| `Endpoint=sb://h:P;…;UseDevelopmentEmulator=true` | TCP h:P, and P stays in the audience     |
| any of them as a web socket                     | wss (emulator: ws) to P, else 443 (80)     |
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import Literal

from pairbus import __version__
from pairbus.amqp.types import Symbol
from pairbus.auth.connection_string import ConnectionString, host_and_port
from pairbus.auth.hosts import in_url
from pairbus.errors import ConfigError

TransportKind = Literal["tcp", "websocket"]
WEBSOCKET_PATH = "/$servicebus/websocket"
WEBSOCKET_PROTOCOL = "AMQPWSB10"

_PORTS = {("tcp", True): 5671, ("tcp", False): 5672, ("websocket", True): 443, ("websocket", False): 80}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A namespace or another AMQP 1.0 broker. `repr` and errors never show the key or the signature."""

    host: str
    "Host to which the socket connects."
    port: int
    tls: bool = True
    hostname: str = ""
    "Name by which the broker is addressed; `host` when empty."
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    entity_path: str | None = None
    "The one entity that the credential is for; None: all."
    emulator: bool = False
    transport: TransportKind = "tcp"
    authority: str = ""
    "The host[:port] in the audience of tokens; `hostname` when empty."

    def __post_init__(self) -> None:
        object.__setattr__(self, "hostname", self.hostname or self.host)
        object.__setattr__(self, "authority", self.authority or self.hostname)

    @classmethod
    def parse(cls, text: str, *, transport: TransportKind = "tcp", via: str | None = None) -> Endpoint:
        """Read a connection string, or raise ConfigError.

        `via` ("host" or "host:port") is a custom endpoint: the socket goes there, names and tokens stay.
        """
        if transport not in ("tcp", "websocket"):
            raise ConfigError(f"transport must be 'tcp' or 'websocket', not {transport!r}")
        parsed = ConnectionString.parse(text)
        host, port = parsed.host, parsed.port
        if via is not None:
            host, via_port = host_and_port(via, "via")
            port = via_port or parsed.port
        written = in_url(parsed.host)
        return cls(
            host=host,
            port=port or _PORTS[transport, not parsed.emulator],
            tls=not parsed.emulator,
            hostname=parsed.host,
            key_name=parsed.key_name,
            key=parsed.key,
            signature=parsed.signature,
            entity_path=parsed.entity_path,
            emulator=parsed.emulator,
            transport=transport,
            authority=f"{written}:{parsed.port}" if parsed.emulator and parsed.port else written,
        )

    @property
    def url(self) -> str:
        """Return the URL of the web socket."""
        return f"{'wss' if self.tls else 'ws'}://{in_url(self.host)}:{self.port}{WEBSOCKET_PATH}"

    def audience(self, path: str) -> str:
        """Return the audience of a token for this entity."""
        return f"sb://{self.authority}/{path.lstrip('/')}"

    def path(self, path: str | None) -> str:
        """Return the entity to use: `path`, or the one in the connection string; ConfigError when the two differ."""
        own = self.entity_path
        if path is None:
            if own is None:
                raise ConfigError("no entity was named, and the connection string has no EntityPath")
            return own
        if own is not None and not f"{path}/".lower().startswith(f"{own}/".lower()):
            raise ConfigError(f"the connection string is for EntityPath {own!r}, not for {path!r}")
        return path


def open_properties(user_agent: str | None) -> dict[Symbol, str]:
    """Return the properties of our open, under the SDK's names; the user's agent comes first."""
    framework = f"Python/{platform.python_version()}"
    ours = f"pairbus/{__version__} {framework} ({platform.platform()})"
    texts = {
        "product": "pairbus",
        "version": __version__,
        "framework": framework,
        "platform": platform.platform(),
        "user-agent": f"{user_agent} {ours}" if user_agent else ours,
    }
    return {Symbol(name): text for name, text in texts.items()}
