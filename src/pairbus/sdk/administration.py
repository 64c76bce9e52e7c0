"""The one maker of the SDK's administration clients: for commands, Spark, clients and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from azure.core.exceptions import ServiceRequestError
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.auth.emulator import ca_file_with, fetch_ca
from pairbus.auth.hosts import is_loopback
from pairbus.errors import ConfigError

CONNECT_WAIT_S = 10
READ_WAIT_S = 60

AnyAdmin = ServiceBusAdministrationClient | AsyncAdministrationClient
ADMINS = (ServiceBusAdministrationClient, AsyncAdministrationClient)

OF_COMMAND: Mapping[str, Any] = {
    "connection_timeout": CONNECT_WAIT_S,
    "read_timeout": READ_WAIT_S,
    "retry_connect": 1,
}
"Limits where a person waits, perhaps for a long list."
OF_CLIENT: Mapping[str, Any] = {
    "connection_timeout": 5,
    "read_timeout": 15,
    "retry_total": 1,
    "retry_backoff_factor": 0.2,
}
"Limits where a client waits for its pairing, or a page for its next look."


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
        client = new_admin(authority, credential, OF_COMMAND, verify=verify, is_emulator=emulator is not None)
        assert isinstance(client, ServiceBusAdministrationClient)
        yield ends.enter_context(client)


def new_admin(
    authority: str,
    credential: Any,
    limits: Mapping[str, Any],
    *,
    verify: str | bool,
    is_emulator: bool,
    proxy: str | None = None,
    aio: bool = False,
) -> AnyAdmin:
    """Return an administration client; the caller closes it. `credential` as in `administration_client`."""
    settings: dict[str, Any] = {**limits, "connection_verify": verify}
    if proxy is not None:
        settings["proxies"] = {"https": proxy}
    if is_emulator:
        settings["use_env_settings"] = False  # no proxy of the environment between this machine and itself
    if isinstance(credential, str):
        return ADMINS[aio].from_connection_string(f"Endpoint=sb://{authority};{credential}", **settings)
    return ADMINS[aio](authority, credential, **settings)


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
