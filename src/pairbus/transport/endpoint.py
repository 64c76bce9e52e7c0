"""Where a namespace is and who asks: connection strings, hosts, ports, TLS, web sockets.

| connection string                               | goes to                                    |
| ----------------------------------------------- | ------------------------------------------ |
| `Endpoint=sb://h;…`                             | TLS h:5671                                 |
| `Endpoint=sb://h:P;…`                           | TLS h:P                                    |
| `Endpoint=sb://h;…;UseDevelopmentEmulator=true` | TCP h:5672                                 |
| `Endpoint=sb://h:P;…;UseDevelopmentEmulator=true` | TCP h:P, and P stays in the audience     |
| any of them as a web socket                     | wss (emulator: ws) to P, else 443 (80)     |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from pairbus.errors import ConfigError

TransportKind = Literal["tcp", "websocket"]
WEBSOCKET_PATH = "/$servicebus/websocket"
WEBSOCKET_PROTOCOL = "AMQPWSB10"

_KEYS = {
    name.lower(): name
    for name in (
        "Endpoint",
        "HostName",
        "SharedAccessKeyName",
        "SharedAccessKey",
        "SharedAccessSignature",
        "EntityPath",
        "UseDevelopmentEmulator",
    )
}
_PORTS = {("tcp", True): 5671, ("tcp", False): 5672, ("websocket", True): 443, ("websocket", False): 80}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A namespace or another AMQP 1.0 broker. Neither `repr` nor any error shows the key or the signature."""

    host: str
    "Where the socket goes."
    port: int
    tls: bool = True
    hostname: str = ""
    "What the broker is told it is called; `host` when empty."
    key_name: str | None = None
    key: str | None = field(default=None, repr=False)
    signature: str | None = field(default=None, repr=False)
    entity_path: str | None = None
    "The one entity that the credential is for; None: all."
    emulator: bool = False
    transport: TransportKind = "tcp"
    authority: str = ""
    "host[:port] as it stands in the audience of tokens; `hostname` when empty."

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
        values = _values(text)
        emulator = _flag(values)
        hostname, given_port = _authority(values)
        key_name, key, signature = _secrets(values)
        host, port = hostname, given_port
        if via is not None:
            host, via_port = _host_and_port(via, "via")
            port = via_port or given_port
        written = f"[{hostname}]" if ":" in hostname else hostname
        return cls(
            host=host,
            port=port or _PORTS[transport, not emulator],
            tls=not emulator,
            hostname=hostname,
            key_name=key_name,
            key=key,
            signature=signature,
            entity_path=values.get("EntityPath") or None,
            emulator=emulator,
            transport=transport,
            authority=f"{written}:{given_port}" if emulator and given_port else written,
        )

    @property
    def url(self) -> str:
        """Of the web socket."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{WEBSOCKET_PATH}"

    def audience(self, path: str) -> str:
        """What a token for this entity is for."""
        return f"sb://{self.authority}/{path.lstrip('/')}"

    def path(self, path: str | None) -> str:
        """The entity to use: `path`, or the one in the connection string; ConfigError when the two disagree."""
        own = self.entity_path
        if path is None:
            if own is None:
                raise ConfigError("no entity was named, and the connection string has no EntityPath")
            return own
        if own is not None and not f"{path}/".lower().startswith(f"{own}/".lower()):
            raise ConfigError(f"the connection string is for EntityPath {own!r}, not for {path!r}")
        return path


def _values(text: str) -> dict[str, str]:
    """The known keys by their proper names. Unknown keys are left alone, as the SDKs do."""
    values: dict[str, str] = {}
    for part in text.strip().split(";"):
        key, equals, value = part.partition("=")
        if not part.strip():
            continue
        if not equals:
            # The text of the part is not shown: a key with a stray semicolon in it would end here.
            raise ConfigError("connection string: a part has no '='; expected Key=value;Key=value")
        name = _KEYS.get(key.strip().lower())
        if name is None:
            continue
        if name in values:
            raise ConfigError(f"connection string: {name} is given twice")
        values[name] = value.strip()
    return values


def _flag(values: dict[str, str]) -> bool:
    text = values.get("UseDevelopmentEmulator", "false")
    # Both SDKs take only this spelling for yes and anything else for no, which would turn `True` into TLS.
    if text not in ("true", "false"):
        raise ConfigError(f"connection string: UseDevelopmentEmulator must be 'true' or 'false', not {text!r}")
    return text == "true"


def _authority(values: dict[str, str]) -> tuple[str, int | None]:
    for name in ("Endpoint", "HostName"):
        if values.get(name):
            return _host_and_port(values[name], name)
    raise ConfigError("connection string: Endpoint is missing")


def _host_and_port(text: str, name: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(text if "://" in text else f"sb://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"connection string: {name} {text!r}: {error}") from None
    if not host or parts.path.strip("/") or parts.query:
        raise ConfigError(f"connection string: {name} must be sb://host or sb://host:port, not {text!r}")
    return host, port


def _secrets(values: dict[str, str]) -> tuple[str | None, str | None, str | None]:
    key_name, key, signature = (
        values.get(name) or None for name in ("SharedAccessKeyName", "SharedAccessKey", "SharedAccessSignature")
    )
    if signature and (key or key_name):
        raise ConfigError("connection string: SharedAccessSignature and SharedAccessKey exclude each other")
    if key and not key_name:
        raise ConfigError("connection string: SharedAccessKeyName is missing beside SharedAccessKey")
    if key_name and not key:
        raise ConfigError("connection string: SharedAccessKey is missing beside SharedAccessKeyName")
    if not key and not signature:
        raise ConfigError("connection string: SharedAccessKey or SharedAccessSignature is missing")
    return key_name, key, signature
