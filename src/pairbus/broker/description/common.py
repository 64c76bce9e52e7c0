"""Parts that all descriptions share: names, ranges, statuses, the durable JSON form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, ClassVar, Protocol

from pairbus.errors import InvalidDescription

PATH_LENGTH_MAX = 260
NAME_LENGTH_MAX = 50
METADATA_LENGTH_MAX = 1024

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_PATH = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_AUTHORITY = re.compile(r"[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)


class Description(Protocol):
    """Settings of one entity of any kind."""

    KIND: ClassVar[str]
    "`queue`, `topic`, `subscription` or `rule`: the word in texts and in the durable form."
    IMMUTABLE: ClassVar[tuple[str, ...]]
    "Settings that are fixed at creation."

    @property
    def path(self) -> str: ...

    def to_json(self) -> str: ...


def path_key(path: str) -> str:
    """Return the key of a path: paths compare case-insensitively."""
    return path.strip("/").lower()


def check_path(path: str, kind: str = "queue") -> str:
    """Return the path of a queue or topic without surrounding slashes, or raise InvalidDescription."""
    path = path.strip("/")
    if not path or len(path) > PATH_LENGTH_MAX:
        raise InvalidDescription(f"{kind} path has {len(path)} characters; allowed are 1 to {PATH_LENGTH_MAX}")
    # URLs lose segments of dots on their way: some clients could not address an entity with such a segment.
    segments = path.lower().split("/")
    if not _PATH.fullmatch(path) or {"", ".", ".."} & set(segments):
        raise InvalidDescription(
            f"{kind} path {path!r}: letters, digits and . - _ / are allowed, it starts and ends with a letter or digit,"
            " and no segment is empty, '.' or '..'"
        )
    if "subscriptions" in segments[1:-1]:
        raise InvalidDescription(f"{kind} path {path!r}: the segment 'subscriptions' leads to a topic's subscriptions")
    return path


def check_name(name: str, kind: str) -> str:
    """Return the name of a subscription or rule, or raise InvalidDescription. `$Default` is a rule's name."""
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise InvalidDescription(f"{kind} name has {len(name)} characters; allowed are 1 to {NAME_LENGTH_MAX}")
    if not _NAME.fullmatch(name.removeprefix("$") if kind == "rule" else name):
        raise InvalidDescription(
            f"{kind} name {name!r}: letters, digits and . - _ are allowed, it starts and ends with a letter or digit"
        )
    return name


def check_ranges(description: Description, ranges: Iterable[tuple[str, int, int, str]]) -> None:
    """Raise InvalidDescription that names the first setting out of its range."""
    for name, low, high, unit in ranges:
        value = getattr(description, name)
        if value is not None and not low <= value <= high:
            allowed = f"{low} to {high} {unit}".rstrip()
            raise InvalidDescription(f"{name} of {description.path!r} is {value}; allowed are {allowed}")


def check_status(description: Description, status: str) -> None:
    if status not in STATUSES:
        raise InvalidDescription(f"status of {description.path!r} is {status!r}; allowed are {', '.join(STATUSES)}")


def check_metadata(description: Description, text: str | None) -> None:
    if text is not None and len(text) > METADATA_LENGTH_MAX:
        raise InvalidDescription(
            f"user_metadata of {description.path!r} has {len(text)} characters; {METADATA_LENGTH_MAX} max"
        )


def destination(description: Description, setting: str, text: str | None) -> str | None:
    """Return the path that a forwarding setting names. The SDKs write it as `sb://host/path`."""
    return check_path(_AUTHORITY.sub("", text, count=1), f"{setting} of {description.path!r}:") if text else None


def forwards_to(description: Any, setting: str) -> str | None:
    """Return where an entity forwards to, by one of its two settings.

    The service accepts the entity itself as a destination, and a destination of an entity with sessions: neither has an
    effect here, so that the messages can be received.
    """
    path: str | None = getattr(description, setting)
    if path is None or path_key(path) == path_key(description.path):
        return None
    return None if setting == "forward_to" and description.requires_session else path


def dump(description: Any, **replaced: Any) -> str:
    """Write the durable form: every field, and the kind. `replaced` has fields that are no JSON values."""
    values = {f.name: getattr(description, f.name) for f in fields(description)}
    return json.dumps({"kind": description.KIND, **values, **replaced}, separators=(",", ":"))


def known_values(cls: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Keep only the fields of the class: a later release may have written more."""
    names = {f.name for f in fields(cls)}
    return {name: value for name, value in values.items() if name in names}
