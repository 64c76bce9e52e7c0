"""The SDK's administration client for commands and for streams of Spark: with time limits, and trust in a broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from azure.core.exceptions import ServiceRequestError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.auth.emulator import ca_file_with, fetch_ca
from pairbus.auth.hosts import is_loopback
from pairbus.errors import ConfigError

CONNECT_WAIT_S = 10
READ_WAIT_S = 60


@contextmanager
def administration_client(
    authority: str, credential: Any, *, emulator: str | None = None, ca_file: str | None = None
) -> Iterator[ServiceBusAdministrationClient]:
    """Connect to `authority`, with a token credential, or with the text that `shared_secret` returns.

    `emulator` and `ca_file` as in `trusted`; ServiceRequestError when its certificate cannot be fetched.
    """
    with ExitStack() as ends:
        try:
            verify = ends.enter_context(trusted(emulator, authority, ca_file))
        except OSError as error:
            raise ServiceRequestError(str(error)) from None
        settings: dict[str, Any] = {
            "connection_verify": verify,
            "connection_timeout": CONNECT_WAIT_S,
            "read_timeout": READ_WAIT_S,
            "retry_connect": 1,
        }
        if emulator is not None:
            settings["use_env_settings"] = False  # no proxy of the environment between this machine and itself
        if isinstance(credential, str):
            text = f"Endpoint=sb://{authority};{credential}"
            client = ServiceBusAdministrationClient.from_connection_string(text, **settings)
        else:
            client = ServiceBusAdministrationClient(authority, credential, **settings)
        yield ends.enter_context(client)


def shared_secret(key_name: str | None, key: str | None, signature: str | None) -> str:
    """Return the part of a connection string that has the key or the signature."""
    return f"SharedAccessKeyName={key_name};SharedAccessKey={key}" if key else f"SharedAccessSignature={signature}"


@contextmanager
def trusted(emulator: str | None, authority: str, ca_file: str | None) -> Iterator[str | bool]:
    """Yield `connection_verify` for the SDK: a file of certificates, or True for the public authorities.

    `emulator` is the host of an emulator, None for any other namespace. Without a file the certificate of one on this
    machine is fetched from it and trusted: a process that can answer on that port could also read the broker's file.
    """
    if ca_file is not None or emulator is None:
        yield ca_file or True
        return
    if not is_loopback(emulator):
        raise ConfigError(
            f"{emulator} is not this machine, so its certificate is not fetched from it;"
            " copy the broker's ca.pem and give it with --ca-file"
        )
    with ca_file_with(fetch_ca(authority, CONNECT_WAIT_S)) as name:
        yield name
