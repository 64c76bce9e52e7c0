"""Entities by pattern: queues and subscriptions of the namespace, listed by the genuine administration client."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.auth.emulator import DEFAULT_PORT, ca_file_with, fetch_ca
from pairbus.auth.hosts import in_url, is_loopback
from pairbus.errors import ConfigError, PairbusError
from pairbus.spark.options import Options
from pairbus.transport import TransportError

CONNECT_WAIT_S = 10
READ_WAIT_S = 60


def matching_entities(options: Options, pattern: str) -> tuple[str, ...]:
    """Return all queues and subscriptions that match now, in order; ConfigError when there are none."""
    found = sorted(path for path in _paths(options) if matches(path, pattern))
    if not found:
        raise ConfigError(
            f"option entityPattern: no queue and no subscription of {options.address} matches {pattern!r}"
        )
    return tuple(found)


def matches(path: str, pattern: str) -> bool:
    """Tell whether a path matches. Case is ignored, and `*` also matches slashes."""
    return fnmatch.fnmatchcase(path.lower(), pattern.lower())


def _paths(options: Options) -> list[str]:
    try:
        with _administration(options) as client, client:
            return list(_listed(client))
    except (AzureError, OSError) as error:
        raise _explained(error, options) from error


def _listed(client: Any) -> Iterator[str]:
    for queue in client.list_queues():
        yield queue.name
    for topic in client.list_topics():
        for subscription in client.list_subscriptions(topic.name):
            yield f"{topic.name}/Subscriptions/{subscription.name}"


@contextmanager
def _administration(options: Options) -> Iterator[Any]:
    endpoint = options.secret.endpoint()
    settings: dict[str, Any] = {
        "connection_verify": options.ca_file or True,
        "connection_timeout": CONNECT_WAIT_S,
        "read_timeout": READ_WAIT_S,
        "retry_connect": 1,
    }
    if options.secret.credential is not None:
        credential: Any = options.secret.token_credential()
        yield ServiceBusAdministrationClient(endpoint.host, credential, **settings)
        return
    authority = in_url(endpoint.host)
    if endpoint.emulator:
        authority = f"{authority}:{endpoint.port or DEFAULT_PORT}"
        settings["use_env_settings"] = False  # no proxy of the environment between this machine and itself
    secret = f"SharedAccessKeyName={endpoint.key_name};SharedAccessKey={endpoint.key}"
    if endpoint.signature is not None:
        secret = f"SharedAccessSignature={endpoint.signature}"
    with ExitStack() as ends:
        if endpoint.emulator and options.ca_file is None and is_loopback(endpoint.host):
            certificate = fetch_ca(authority, CONNECT_WAIT_S)
            settings["connection_verify"] = ends.enter_context(ca_file_with(certificate))
        yield ServiceBusAdministrationClient.from_connection_string(f"Endpoint=sb://{authority};{secret}", **settings)


def _explained(error: AzureError | OSError, options: Options) -> PairbusError:
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if status in (401, 403):
        return ConfigError(
            f"option entityPattern: {options.address} refuses to list its entities: the pattern needs the Manage claim;"
            " name them in option entity, for which Listen is enough"
        )
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return TransportError(f"option entityPattern: the entities of {options.address} cannot be listed: {first_line}")
