"""The genuine administration client, as the commands need it: trusted certificates in, clear errors out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.auth.connection_string import ConnectionString, host_and_port
from pairbus.auth.emulator import DEFAULT_PORT, ca_file_with, fetch_ca, with_port
from pairbus.auth.hosts import in_url, is_loopback
from pairbus.cli.admin.connection import broker_hint
from pairbus.errors import ConfigError, EntityError, EntityExists, EntityNotFound, PairbusError
from pairbus.sdk.refusals import first_line, words_of

CONNECT_WAIT_S = 10
READ_WAIT_S = 60


@contextmanager
def administration(connection_string: str, ca_file: Path | None = None) -> Iterator[ServiceBusAdministrationClient]:
    """Connect an administration client; errors inside the `with` arrive as a PairbusError of one line.

    With `UseDevelopmentEmulator=true` and a loopback host the broker's own CA certificate is fetched from the
    broker and trusted: a process of this machine that can answer on that port could also read the certificate file.
    """
    given = ConnectionString.parse(connection_string)
    port = given.port or (DEFAULT_PORT if given.emulator else None)
    authority = in_url(given.host) + (f":{port}" if port else "")
    if given.emulator:
        connection_string = with_port(connection_string, authority)
    with trusted(given.host if given.emulator else None, authority, ca_file) as connection_verify:
        try:
            client = ServiceBusAdministrationClient.from_connection_string(
                connection_string,
                connection_verify=connection_verify,
                use_env_settings=not given.emulator,  # no proxy of the environment between this machine and itself
                connection_timeout=CONNECT_WAIT_S,
                read_timeout=READ_WAIT_S,
                retry_connect=1,
            )
        except ValueError as error:
            raise ConfigError(f"the connection string is wrong: {error}") from None
        with _one_line_errors(client, authority, "key of the connection string"):
            yield client


@contextmanager
def administration_of(
    host: str, credential: Any, ca_file: Path | None = None
) -> Iterator[ServiceBusAdministrationClient]:
    """Connect as `administration` does, with tokens of Microsoft Entra ID."""
    client = ServiceBusAdministrationClient(
        host,
        credential,
        connection_verify=True if ca_file is None else str(ca_file),
        connection_timeout=CONNECT_WAIT_S,
        read_timeout=READ_WAIT_S,
        retry_connect=1,
    )
    with _one_line_errors(client, host, "token of the credential"):
        yield client


@contextmanager
def _one_line_errors(client: ServiceBusAdministrationClient, authority: str, secret: str) -> Iterator[None]:
    with client:
        try:
            yield
        except AzureError as error:
            raise _in_one_line(error, authority, secret) from error


@contextmanager
def trusted(emulator: str | None, authority: str, ca_file: Path | None) -> Iterator[str | bool]:
    """Yield `connection_verify` for the SDK: a file of certificates, or True for the public authorities.

    `emulator` is the host of an emulator, None for any other namespace.
    """
    if ca_file is not None:
        yield str(ca_file)
        return
    if emulator is None:
        yield True
        return
    if not is_loopback(emulator):
        raise ConfigError(
            f"{emulator} is not this machine, so its certificate is not fetched from it;"
            " copy the broker's ca.pem and give it with --ca-file"
        )
    try:
        certificate = fetch_ca(authority, CONNECT_WAIT_S)
    except OSError as error:
        raise PairbusError(_unreachable(authority, error)) from None
    with ca_file_with(certificate) as name:
        yield name


def _unreachable(authority: str, error: object) -> str:
    host, _ = host_and_port(authority, "authority")
    return f"cannot reach {authority}: {first_line(error)}{broker_hint(host)}"


def _in_one_line(error: AzureError, authority: str, secret: str) -> PairbusError:
    detail = words_of(error)
    match error:
        case ResourceNotFoundError():
            kind = next((kind for kind in ("rule", "subscription") if f": {kind} '" in detail), None)
            lists = f"`pairbus {kind} list` shows" if kind else "`pairbus queue list` and `pairbus topic list` show"
            hint = f"{lists} what is there"
            return EntityNotFound(f"not found in {authority}: {detail}; {hint}")
        case ResourceExistsError():
            return EntityExists(f"refused by {authority}: {detail}")
        case ClientAuthenticationError():
            return ConfigError(f"{authority} refused the {secret}: {detail}")
        case HttpResponseError():
            return EntityError(f"refused by {authority}: {detail}")
        case ServiceRequestError() | ServiceResponseError():
            return PairbusError(_unreachable(authority, detail))
    return PairbusError(f"{authority}: {detail}")
