"""The genuine administration client for commands, with errors of one line."""

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
from pairbus.auth.emulator import DEFAULT_PORT
from pairbus.auth.hosts import in_url
from pairbus.cli.admin.connection import broker_hint
from pairbus.errors import ConfigError, EntityError, EntityExists, EntityNotFound, PairbusError
from pairbus.sdk.administration import administration_client, shared_secret
from pairbus.sdk.refusals import first_line, words_of


@contextmanager
def administration(connection_string: str, ca_file: Path | None = None) -> Iterator[ServiceBusAdministrationClient]:
    """Connect an administration client; errors inside the `with` arrive as a PairbusError of one line."""
    parsed = ConnectionString.parse(connection_string)
    port = parsed.port or (DEFAULT_PORT if parsed.emulator else None)
    authority = in_url(parsed.host) + (f":{port}" if port else "")
    secret = shared_secret(parsed.key_name, parsed.key, parsed.signature)
    emulator = parsed.host if parsed.emulator else None
    with (
        _one_line_errors(authority, "key of the connection string"),
        administration_client(authority, secret, emulator=emulator, ca_file=_text(ca_file)) as client,
    ):
        yield client


@contextmanager
def administration_of(
    host: str, credential: Any, ca_file: Path | None = None
) -> Iterator[ServiceBusAdministrationClient]:
    """Connect as `administration` does, with tokens of Microsoft Entra ID."""
    with (
        _one_line_errors(host, "token of the credential"),
        administration_client(host, credential, ca_file=_text(ca_file)) as client,
    ):
        yield client


def _text(file: Path | None) -> str | None:
    return None if file is None else str(file)


@contextmanager
def _one_line_errors(authority: str, secret: str) -> Iterator[None]:
    try:
        yield
    except AzureError as error:
        raise _in_one_line(error, authority, secret) from error


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
