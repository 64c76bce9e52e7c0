"""Lists queues and subscriptions that match a pattern, by the genuine administration client."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from azure.core.exceptions import AzureError, HttpResponseError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.auth.emulator import DEFAULT_PORT
from pairbus.auth.hosts import in_url
from pairbus.errors import ConfigError, PairbusError
from pairbus.sdk.administration import administration_client, shared_secret
from pairbus.spark.options import Options
from pairbus.transport import TransportError


def matching_entities(options: Options, pattern: str) -> tuple[str, ...]:
    """Return all queues and subscriptions that match now, in order; ConfigError when there are none."""
    entities = sorted(path for path in _paths(options) if matches(path, pattern))
    if not entities:
        raise ConfigError(
            f"option entityPattern: no queue and no subscription of {options.address} matches {pattern!r}"
        )
    return tuple(entities)


def matches(path: str, pattern: str) -> bool:
    """Tell whether a path matches. Case is ignored, and `*` also matches slashes."""
    return fnmatch.fnmatchcase(path.lower(), pattern.lower())


def _paths(options: Options) -> list[str]:
    try:
        with _administration(options) as client:
            return list(_listed(client))
    except (AzureError, OSError) as error:
        raise _explained(error, options) from error


def _listed(client: Any) -> Iterator[str]:
    for queue in client.list_queues():
        yield queue.name
    for topic in client.list_topics():
        for subscription in client.list_subscriptions(topic.name):
            yield f"{topic.name}/Subscriptions/{subscription.name}"


def _administration(options: Options) -> AbstractContextManager[ServiceBusAdministrationClient]:
    endpoint = options.secret.endpoint()
    if options.secret.credential is not None:
        return administration_client(endpoint.host, options.secret.token_credential(), ca_file=options.ca_file)
    authority = in_url(endpoint.host) + (f":{endpoint.port or DEFAULT_PORT}" if endpoint.emulator else "")
    secret = shared_secret(endpoint.key_name, endpoint.key, endpoint.signature)
    emulator = endpoint.host if endpoint.emulator else None
    return administration_client(authority, secret, emulator=emulator, ca_file=options.ca_file)


def _explained(error: AzureError | OSError, options: Options) -> PairbusError:
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if status in (401, 403):
        return ConfigError(
            f"option entityPattern: {options.address} refuses to list its entities: the pattern needs the Manage claim;"
            " name them in option entity, for which Listen is enough"
        )
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return TransportError(f"option entityPattern: the entities of {options.address} cannot be listed: {first_line}")
