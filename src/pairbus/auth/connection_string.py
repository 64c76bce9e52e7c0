"""Connection strings: `Endpoint=sb://host:port;SharedAccessKeyName=…;SharedAccessKey=…;UseDevelopmentEmulator=true`."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pairbus.errors import ConfigError

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


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A parsed connection string. Neither `repr` nor any error shows the key or the signature."""

    host: str
    port: int | None
    "Port of the endpoint; None: the default port of the protocol that the caller speaks."
    key_name: str | None
    key: str | None = field(repr=False)
    signature: str | None = field(repr=False)
    entity_path: str | None
    "The one entity for which the credential is valid; None: all entities."
    emulator: bool

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Parse a connection string; ConfigError when a part is missing, wrong or given twice."""
        if not isinstance(text, str):
            raise ConfigError(f"connection string: a text is needed, not {text!r}")
        values = _values(text)
        emulator = _flag(values)
        host, port = _authority(values)
        key_name, key, signature = _secrets(values)
        return cls(host, port, key_name, key, signature, values.get("EntityPath") or None, emulator)


def host_and_port(text: str, name: str) -> tuple[str, int | None]:
    """Split `host`, `host:port` or `sb://host:port`; `name` is the key of the text, for errors."""
    try:
        parts = urlsplit(text if "://" in text else f"sb://{text}")
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except UnicodeError:  # no resolver can be asked: a label is empty, has more than 63 characters, or wrong ones
        raise ConfigError(f"connection string: {name} {text!r:.300}: no such host") from None
    except ValueError as error:
        raise ConfigError(f"connection string: {name} {text!r}: {error}") from None
    if not host or parts.path.strip("/") or parts.query:
        raise ConfigError(f"connection string: {name} must be sb://host or sb://host:port, not {text!r}")
    return host, port


def _values(text: str) -> dict[str, str]:
    """Return the values by the proper names of their keys. Unknown keys are ignored, as in the SDKs."""
    values: dict[str, str] = {}
    for part in text.strip().split(";"):
        key, equals, value = part.partition("=")
        if not part.strip():
            continue
        if not equals:
            # The error does not show the part: it may be the end of a secret key that has a stray semicolon in it.
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
    # The SDKs take only `true` for yes and any other text for no, so `True` would turn TLS on.
    if text not in ("true", "false"):
        raise ConfigError(f"connection string: UseDevelopmentEmulator must be 'true' or 'false', not {text!r}")
    return text == "true"


def _authority(values: dict[str, str]) -> tuple[str, int | None]:
    for name in ("Endpoint", "HostName"):
        if values.get(name):
            return host_and_port(values[name], name)
    raise ConfigError("connection string: Endpoint is missing")


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
