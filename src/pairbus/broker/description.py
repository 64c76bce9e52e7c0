"""The settings of a queue: defaults, ranges, and the durable JSON form."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from typing import Any

from pairbus.errors import InvalidDescription

PATH_LENGTH_MAX = 260
DAY_MS = 24 * 60 * 60 * 1000
UNLIMITED_MS = 10_675_199 * DAY_MS
"A duration at or above .NET's TimeSpan.MaxValue in whole days means: never."

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_PATH = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")


def path_key(path: str) -> str:
    """Paths compare case-insensitively."""
    return path.strip("/").lower()


def check_path(path: str) -> str:
    """The path without surrounding slashes, or InvalidDescription."""
    path = path.strip("/")
    if not path or len(path) > PATH_LENGTH_MAX:
        raise InvalidDescription(f"queue path has {len(path)} characters; allowed are 1 to {PATH_LENGTH_MAX}")
    # URLs lose segments of dots on their way: a queue with one could not be addressed by every client.
    if not _PATH.fullmatch(path) or {"", ".", ".."} & set(path.split("/")):
        raise InvalidDescription(
            f"queue path {path!r}: letters, digits and . - _ / are allowed, it starts and ends with a letter or digit,"
            " and no segment is empty, '.' or '..'"
        )
    return path


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """One queue's settings. Durations are milliseconds; `None` is unlimited or not set."""

    path: str
    "As the creator spelled it."
    lock_duration_ms: int = 60_000
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_ttl_ms: int | None = None
    "Default and ceiling of the messages' time to live."
    dead_letter_on_expiration: bool = False
    duplicate_window_ms: int = 600_000
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: str = "Active"
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int | None = None
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_kb: int = 256
    created_ms: int = 0
    updated_ms: int = 0

    def to_json(self) -> str:
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> QueueDescription:
        values: dict[str, Any] = json.loads(text)
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in values.items() if k in known})

    def checked(self) -> QueueDescription:
        """The same description with a checked path, or InvalidDescription that names the setting and its range."""
        for name, low, high, unit in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidDescription(f"{name} of {self.path!r} is {value}; allowed are {low} to {high} {unit}")
        if self.status not in STATUSES:
            raise InvalidDescription(f"status of {self.path!r} is {self.status!r}; allowed are {', '.join(STATUSES)}")
        for name in ("requires_session", "forward_to", "forward_dead_lettered_to", "enable_partitioning"):
            if getattr(self, name):
                raise InvalidDescription(f"{name} of {self.path!r}: not supported yet by this broker")
        if self.user_metadata is not None and len(self.user_metadata) > 1024:
            raise InvalidDescription(
                f"user_metadata of {self.path!r} has {len(self.user_metadata)} characters; 1024 max"
            )
        return replace(self, path=check_path(self.path))


_RANGES = (
    ("lock_duration_ms", 1_000, 300_000, "ms"),
    ("max_size_mb", 1, 1_048_576, "MB"),
    ("default_ttl_ms", 1, UNLIMITED_MS, "ms"),
    ("duplicate_window_ms", 1_000, 7 * DAY_MS, "ms"),
    ("max_delivery_count", 1, 2_147_483_647, ""),
    ("auto_delete_on_idle_ms", 300_000, UNLIMITED_MS, "ms"),
    ("max_message_size_kb", 1, 102_400, "KB"),
)
