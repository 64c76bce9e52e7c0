"""Queues of a broker on this machine, listed without the SDK, whose import takes longer than all the rest together."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from xml.etree import ElementTree

from pairbus.access.connection_string import ConnectionString
from pairbus.access.emulator import DEFAULT_PORT, fetch_ca
from pairbus.access.hosts import in_url, is_loopback
from pairbus.access.sas import sign

WAIT_S = 2.0
"Longest wait for one answer; after it the SDK is asked, which is more patient."
TOKEN_S = 300
PAGE_SIZE = 100  # the service gives no more in one answer
_COUNTS = ("Active", "DeadLetter", "Scheduled", "Transfer", "TransferDeadLetter")


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """A queue with its counts, under the names that the SDK gives them."""

    name: str
    status: str
    size_in_bytes: int
    total_message_count: int
    active_message_count: int
    dead_letter_message_count: int
    scheduled_message_count: int
    transfer_message_count: int
    transfer_dead_letter_message_count: int


class _Refused(Exception):
    """An answer that is no listing."""


def local_queues(connection_string: str, ca_file: Path | None = None) -> list[LocalQueue] | None:
    """List the queues of a broker on this machine.

    None when it is elsewhere, or gave no listing: the SDK then goes the long way, and finds the words for an error.
    """
    given = ConnectionString.parse(connection_string)
    if not given.emulator or not given.key or not given.key_name or not is_loopback(given.host):
        return None
    authority = f"{in_url(given.host)}:{given.port or DEFAULT_PORT}"
    token = sign(f"https://{authority}/", given.key_name, given.key, int(time.time()) + TOKEN_S)
    try:
        certificate = None if ca_file is not None else fetch_ca(authority, WAIT_S).decode("ascii", "ignore")
        trusted = ssl.create_default_context(cafile=ca_file, cadata=certificate)
        with closing(HTTPSConnection(authority, timeout=WAIT_S, context=trusted)) as connection:
            return list(_listed(connection, token))
    except (OSError, HTTPException, ElementTree.ParseError, ValueError, _Refused):
        return None


def _listed(connection: HTTPSConnection, token: str) -> Iterator[LocalQueue]:
    skipped, count = 0, PAGE_SIZE
    while count == PAGE_SIZE:
        path = f"/$Resources/queues?api-version=2021-05&$skip={skipped}&$top={PAGE_SIZE}"
        connection.request("GET", path, headers={"Authorization": token})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise _Refused
        entries = ElementTree.fromstring(body).findall("{*}entry")
        yield from map(_queue, entries)
        count = len(entries)
        skipped += count


def _queue(entry: ElementTree.Element) -> LocalQueue:
    def text(path: str) -> str:
        found = entry.findtext(path)
        if found is None:
            raise _Refused
        return found

    settings = "{*}content/{*}QueueDescription/{*}"
    counts = [int(text(f"{settings}CountDetails/{{*}}{name}MessageCount")) for name in _COUNTS]
    size, total = (int(text(f"{settings}{name}")) for name in ("SizeInBytes", "MessageCount"))
    return LocalQueue(text("{*}title"), text(f"{settings}Status"), size, total, *counts)
