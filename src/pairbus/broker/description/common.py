"""Parts that all descriptions share: names, ranges, statuses, the durable JSON form."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any, ClassVar, Protocol

from pairbus.errors import InvalidDescription
from pairbus.settings import STATUSES, Setting, path_of, settings_of
from pairbus.settings.types import FLAG, LIMITED_DURATION, NUMBER, PATH, STATUS, TEXT

PATH_LENGTH_MAX = 260
NAME_LENGTH_MAX = 50
MESSAGE_SIZE_MIN_KB = 1024
"Default and lowest limit of messages on the Premium tier."

_PATH = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


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


def checked_settings(description: Description) -> dict[str, Any]:
    """Return the settings in their normal spelling. InvalidDescription names the first that is out of its range."""
    values = {setting.attribute: _checked(setting, description) for setting in settings_of(description.KIND)}
    if values.get("forward_to"):
        # No client receives from an entity that forwards: it would count as idle for ever.
        values["auto_delete_on_idle_ms"] = None
    return values


def _checked(setting: Setting, description: Description) -> Any:
    value = getattr(description, setting.attribute)
    place = f"{setting.attribute} of {description.path!r}"
    if setting.type is PATH:
        path = path_of(value)
        return check_path(path, f"{place}:") if path is not None else None
    if setting.type is STATUS and value not in STATUSES:
        raise InvalidDescription(f"{place} is {value!r}; allowed are {', '.join(STATUSES)}")
    if value is None and setting.type in (LIMITED_DURATION, NUMBER, FLAG):
        raise InvalidDescription(f"{place} is {'unlimited' if setting.type is LIMITED_DURATION else 'not set'}")
    if value is None or setting.high is None:
        return value
    if setting.type is TEXT:
        if len(value) > setting.high:
            raise InvalidDescription(f"{place} has {len(value)} {setting.unit}; {setting.high} max")
    elif not setting.low <= value <= setting.high:
        allowed = f"{setting.low} to {setting.high} {setting.unit}".rstrip()
        raise InvalidDescription(f"{place} is {value}; allowed are {allowed}")
    return value


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
    known = {name: value for name, value in values.items() if name in names}
    if known.get("max_message_size_kb", MESSAGE_SIZE_MIN_KB) < MESSAGE_SIZE_MIN_KB:  # an earlier release allowed less
        known["max_message_size_kb"] = MESSAGE_SIZE_MIN_KB
    return known
