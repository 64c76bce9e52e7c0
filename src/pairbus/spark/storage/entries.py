"""Stores JSON objects that carry the token of their writer, so that a writer recognises its own object."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pairbus.spark.storage import Storage

DELETES_AT_ONCE = 8  # an object store deletes one object for each call
_TOKEN = "by"


def publish(storage: Storage, key: str, values: Mapping[str, Any]) -> bool:
    """Create an object of these values, unless there is one; False when another writer's exists."""
    return storage.put_new(key, encode({**values, _TOKEN: secrets.token_hex(8)}))


def read(storage: Storage, key: str) -> dict[str, Any] | None:
    """Return the values of an object; None when there is none."""
    data = storage.get(key)
    if data is None:
        return None
    values: dict[str, Any] = json.loads(data)
    values.pop(_TOKEN, None)
    return values


def encode(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def delete_all(storage: Storage, keys: Iterable[str]) -> None:
    with ThreadPoolExecutor(DELETES_AT_ONCE) as pool:
        for _ in pool.map(storage.delete, keys):
            pass
