"""Queues read over plain HTTP, without the SDK, whose import takes longer than all the rest of a command together.

Functions return None for every answer that is not a plain one: the caller then uses the SDK, which has the texts of
errors. This way is for a broker on this machine and for Azure with a key; a proxy of the environment is left to the
SDK.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import quote
from xml.etree import ElementTree

from pairbus.auth.connection_string import ConnectionString
from pairbus.auth.emulator import DEFAULT_PORT, fetch_ca
from pairbus.auth.hosts import in_url, is_loopback
from pairbus.auth.sas import sign
from pairbus.settings import Setting, settings_of

WAIT_S = 2.0
"Longest wait for one answer; after it the SDK is used, which waits longer."
TOKEN_S = 300
PAGE_SIZE = 100  # the largest page of the service
VERSION = "api-version=2021-05"
PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
T = TypeVar("T")


class _Refused(Exception):
    """An answer that does not describe queues."""


def _read(setting: Setting) -> Callable[[str], Any]:
    return lambda text: setting.type.to_sdk(setting.type.read(text))


FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    **{setting.sdk: (setting.element, _read(setting)) for setting in settings_of("queue")},
    "created_at_utc": ("CreatedAt", datetime.fromisoformat),
    "updated_at_utc": ("UpdatedAt", datetime.fromisoformat),
    "accessed_at_utc": ("AccessedAt", datetime.fromisoformat),
    "size_in_bytes": ("SizeInBytes", int),
    "total_message_count": ("MessageCount", int),
    "active_message_count": ("CountDetails/{*}ActiveMessageCount", int),
    "dead_letter_message_count": ("CountDetails/{*}DeadLetterMessageCount", int),
    "scheduled_message_count": ("CountDetails/{*}ScheduledMessageCount", int),
    "transfer_message_count": ("CountDetails/{*}TransferMessageCount", int),
    "transfer_dead_letter_message_count": ("CountDetails/{*}TransferDeadLetterMessageCount", int),
}
"Attribute of the SDK → element below QueueDescription, and how its text is read."
_NEEDED = ("status", "size_in_bytes", "total_message_count", "active_message_count", "dead_letter_message_count")


def plain_queues(connection_string: str, ca_file: Path | None = None) -> list[Any] | None:
    """List the queues, each with settings and counts under the names of the SDK; None: ask the SDK."""
    return _asked(connection_string, ca_file, lambda get: list(_listed(get)))


def plain_queue(connection_string: str, name: str, ca_file: Path | None = None) -> Any | None:
    """Return a queue with settings and counts under the names of the SDK; None: ask the SDK."""
    return _asked(connection_string, ca_file, lambda get: _queue(get(f"/{quote(name)}?enrich=false&{VERSION}")))


Get = Callable[[str], ElementTree.Element]


def _asked(connection_string: str, ca_file: Path | None, read: Callable[[Get], T]) -> T | None:
    parsed = ConnectionString.parse(connection_string)
    is_here = parsed.emulator and is_loopback(parsed.host)
    if not parsed.key or not parsed.key_name or (parsed.emulator and not is_here):
        return None
    if not is_here and any(os.environ.get(variable) for variable in PROXIES):
        return None
    port = parsed.port or (DEFAULT_PORT if parsed.emulator else None)
    authority = in_url(parsed.host) + (f":{port}" if port else "")
    token = sign(f"https://{authority}/", parsed.key_name, parsed.key, int(time.time()) + TOKEN_S)
    try:
        certificate = fetch_ca(authority, WAIT_S).decode("ascii", "ignore") if is_here and ca_file is None else None
        trusted = ssl.create_default_context(cafile=ca_file, cadata=certificate)
        with closing(HTTPSConnection(authority, timeout=WAIT_S, context=trusted)) as connection:

            def get(path: str) -> ElementTree.Element:
                connection.request("GET", path, headers={"Authorization": token})
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200:
                    raise _Refused
                return ElementTree.fromstring(body)

            return read(get)
    except (OSError, HTTPException, ElementTree.ParseError, ValueError, _Refused):
        return None


def _listed(get: Get) -> Iterator[Any]:
    skipped, count = 0, PAGE_SIZE
    while count == PAGE_SIZE:
        entries = get(f"/$Resources/queues?{VERSION}&$skip={skipped}&$top={PAGE_SIZE}").findall("{*}entry")
        yield from map(_queue, entries)
        count = len(entries)
        skipped += count


def _queue(entry: ElementTree.Element) -> SimpleNamespace:
    description = entry.find("{*}content/{*}QueueDescription")
    name = entry.findtext("{*}title")
    if description is None or name is None:
        raise _Refused
    texts = {field: description.findtext(f"{{*}}{path}") for field, (path, _) in FIELDS.items()}
    values = {field: None if text is None else FIELDS[field][1](text) for field, text in texts.items()}
    if any(values[field] is None for field in _NEEDED):
        raise _Refused
    return SimpleNamespace(name=name, **values)
