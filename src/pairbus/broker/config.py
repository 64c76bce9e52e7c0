"""The configuration file: namespaces with their queues and keys, in the JSON of Microsoft's emulator.

    {"UserConfig": {"Namespaces": [{
        "Name": "contoso",
        "Queues": [{"Name": "orders", "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3}}],
        "Keys": [{"Name": "app", "Key": "…", "Rights": ["Send", "Listen"]}]     // "Keys" is ours
    }]}}

Comments and trailing commas are tolerated, because the files that people have contain them. Everything else is
strict: a key that is misspelt and silently ignored is found in production.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pairbus.broker.admin.durations import parse_duration, parse_limited_duration
from pairbus.broker.description import QueueDescription, path_key
from pairbus.errors import ConfigError, InvalidDescription
from pairbus.sas import RIGHTS, SharedAccessKey

_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """One namespace of the file; every queue description is checked."""

    name: str
    queues: list[QueueDescription]
    keys: list[SharedAccessKey]
    "Empty when the file has none: the broker's own default then applies."


def load_config(file: Path) -> list[NamespaceConfig]:
    """Reads a file, or ConfigError that names the file, the place in it and what is allowed."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    return parse_config(text, str(file))


def parse_config(text: str, source: str) -> list[NamespaceConfig]:
    """Reads the text of a configuration file; `source` is its name in error texts."""
    plain = _STRING_OR_COMMENT.sub(_blank_comment, text)
    plain = _STRING_OR_TRAILING_COMMA.sub(lambda match: " " if match[0] == "," else match[0], plain)
    root = _Place(source)
    try:
        document = json.loads(plain, object_pairs_hook=lambda pairs: _object(pairs, root))
    except (ValueError, RecursionError) as error:
        raise root.error(f"not JSON: {error}") from None
    user = root.member(root.table(document, ("UserConfig",)), "UserConfig", dict)
    inside = root.into("UserConfig")
    inside.table(user, ("Namespaces", "Logging"))
    # Logging says where the emulator in its container writes; our log goes to stderr, always.
    inside.member(user, "Logging", dict, {})
    namespaces = [_namespace(item, inside) for item in inside.member(user, "Namespaces", list)]
    _refuse_repeated((item.name for item in namespaces), "namespace", inside)
    return namespaces


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the file we are, for error texts: `config.json: namespace 'contoso': queue 'orders'`."""

    text: str

    def into(self, name: str) -> _Place:
        return _Place(f"{self.text}: {name}")

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.text}: {problem}")

    def table(self, value: Any, allowed: Iterable[str]) -> dict[str, Any]:
        """The value as an object that has no other keys than these."""
        if not isinstance(value, dict):
            raise self.error(f"expected is an object, found {_kind(value)}")
        names = tuple(allowed)
        for name in value:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise self.error(f"unknown key {name!r}{hint} Allowed are {', '.join(names)}")
        return value

    def member(self, table: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
        """One entry of an object; without a default it must be there."""
        value = table.get(name, default)
        if value is None:
            raise self.error(f"{name!r} is missing")
        # JSON's true is an int to Python.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(f"{name} must be {_KINDS[kind]}, found {_kind(value)}")
        return value


_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
}


def _kind(value: Any) -> str:
    return "null" if value is None else f"{_KINDS.get(type(value), 'a number')} {json.dumps(value)[:40]}"


def _blank_comment(match: re.Match[str]) -> str:
    if match[0].startswith('"'):
        return match[0]
    return re.sub(r"[^\n]", " ", match[0])  # same length, same lines: the positions in error texts stay true


def _object(pairs: list[tuple[str, Any]], root: _Place) -> dict[str, Any]:
    _refuse_repeated((name for name, _ in pairs), "key", root)
    return dict(pairs)


def _refuse_repeated(names: Iterable[str], kind: str, place: _Place) -> None:
    seen: set[str] = set()
    for name in names:
        key = path_key(name)
        if key in seen:
            raise place.error(f"{kind} {name!r} occurs twice")
        seen.add(key)


def _namespace(value: Any, place: _Place) -> NamespaceConfig:
    table = place.table(value, ("Name", "Queues", "Topics", "Keys"))
    name = place.member(table, "Name", str)
    place = place.into(f"namespace {name!r}")
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", name):
        raise place.error("a name has 1 to 63 letters, digits and '-', and begins and ends with a letter or digit")
    if place.member(table, "Topics", list, []):
        raise place.error("Topics are not supported yet by this broker; only Queues are")
    queues = [_queue(item, place) for item in place.member(table, "Queues", list, [])]
    _refuse_repeated((queue.path for queue in queues), "queue", place)
    keys = [_key(item, place) for item in place.member(table, "Keys", list, [])]
    _refuse_repeated((key.name for key in keys), "key", place)
    return NamespaceConfig(name, queues, keys)


def _queue(value: Any, place: _Place) -> QueueDescription:
    table = place.table(value, ("Name", "Properties"))
    name = place.member(table, "Name", str)
    place = place.into(f"queue {name!r}")
    properties = place.table(place.member(table, "Properties", dict, {}), _PROPERTIES)
    values: dict[str, Any] = {}
    for property_name, given in properties.items():
        attribute, kind, convert = _PROPERTIES[property_name]
        if given in ("", None):  # the emulator's way to say: not set
            continue
        member = place.member(properties, property_name, kind)
        try:
            values[attribute] = convert(member)
        except ValueError as error:
            raise place.error(f"{property_name}: {error}") from None
    try:
        return replace(QueueDescription(name), **values).checked()
    except InvalidDescription as error:
        raise place.error(_in_words_of_the_file(str(error))) from None


def _key(value: Any, place: _Place) -> SharedAccessKey:
    table = place.table(value, ("Name", "Key", "SecondaryKey", "Rights"))
    name = place.member(table, "Name", str)
    place = place.into(f"key {name!r}")
    rights = place.member(table, "Rights", list, list(RIGHTS))
    if not rights or any(right not in RIGHTS for right in rights):
        raise place.error(f"Rights must be a list of {', '.join(RIGHTS)}, found {json.dumps(rights)}")
    secondary = place.member(table, "SecondaryKey", str, "") or None
    try:
        return SharedAccessKey(name, place.member(table, "Key", str), secondary, frozenset(rights))
    except ConfigError as error:
        raise place.error(str(error)) from None


def _same(value: Any) -> Any:
    return value


_PROPERTIES: dict[str, tuple[str, type, Callable[[Any], Any]]] = {
    "DeadLetteringOnMessageExpiration": ("dead_letter_on_expiration", bool, _same),
    "DefaultMessageTimeToLive": ("default_ttl_ms", str, parse_duration),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_window_ms", str, parse_limited_duration),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", str, _same),
    "ForwardTo": ("forward_to", str, _same),
    "LockDuration": ("lock_duration_ms", str, parse_limited_duration),
    "MaxDeliveryCount": ("max_delivery_count", int, _same),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", bool, _same),
    "RequiresSession": ("requires_session", bool, _same),
    # Beyond the emulator, which fixes these for every queue:
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", str, parse_duration),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", int, _same),
    "MaxSizeInMegabytes": ("max_size_mb", int, _same),
}


def _in_words_of_the_file(text: str) -> str:
    """Names the property as the file spells it: `LockDuration` rather than `lock_duration_ms`."""
    for name, (attribute, _, _) in _PROPERTIES.items():
        text = re.sub(rf"\b{attribute}\b", name, text)
    return text
