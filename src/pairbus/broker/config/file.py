"""The configuration file: namespaces with their entities and keys, in the JSON of Microsoft's emulator.

    {"UserConfig": {"Namespaces": [{
        "Name": "contoso",
        "Queues": [{"Name": "orders", "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3}}],
        "Topics": [{"Name": "events", "Subscriptions": [{"Name": "audit", "Rules": [
            {"Name": "red", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "color = 'red'"}}}
        ]}]}],
        "Keys": [{"Name": "app", "Key": "…", "Rights": ["Send", "Listen"]}],    // "Keys" is ours
        "OperationsPerSecond": 1000                                             // ours too: throttle beyond this
    }]}}

Comments and trailing commas are tolerated, because existing files contain them. Unknown keys are refused: a misspelt
key that is silently ignored would be found in production.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairbus.auth.sas import RIGHTS, SharedAccessKey
from pairbus.broker.config.entity_settings import SubscriptionConfig, read_queue, read_topic
from pairbus.broker.config.place import ConfigPlace, parse_json
from pairbus.broker.description import QueueDescription, TopicDescription
from pairbus.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """One namespace of the file; every description is checked."""

    name: str
    queues: list[QueueDescription]
    keys: list[SharedAccessKey]
    "Keys of the namespace; empty when the file has none: the broker's own default then applies."
    topics: list[TopicDescription] = field(default_factory=list)
    subscriptions: list[SubscriptionConfig] = field(default_factory=list)
    operations_per_s: float | None = None
    "Operations beyond this rate are refused; None: no limit."


def load_config(file: Path, unknown: Callable[[str], None] | None = None) -> list[NamespaceConfig]:
    """Read a file, or raise ConfigError with the file, the place in it and the allowed values.

    `unknown` is told of each key that is not known and therefore ignored; without it such a key is an error.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: cannot be read: it is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    return parse_config(text, str(file), unknown)


def parse_config(text: str, source: str, unknown: Callable[[str], None] | None = None) -> list[NamespaceConfig]:
    """Read the text of a configuration file; `source` is its name in error texts."""
    root = ConfigPlace(source, unknown)
    document = parse_json(text, root)
    user = root.member(root.table(document, ("UserConfig",)), "UserConfig", dict)
    inside = root.into("UserConfig")
    inside.table(user, ("Namespaces", "Logging"))
    # Logging says where the emulator in its container writes its log; our log always goes to stderr.
    inside.member(user, "Logging", dict, {})
    namespaces = [_namespace(item, inside) for item in inside.member(user, "Namespaces", list)]
    inside.refuse_repeated((item.name for item in namespaces), "namespace")
    return namespaces


def _namespace(value: Any, place: ConfigPlace) -> NamespaceConfig:
    place = place.named("namespace", value)
    table = place.table(value, ("Name", "Queues", "Topics", "Keys", "OperationsPerSecond"))
    name = place.member(table, "Name", str)
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", name):
        raise place.error("a name has 1 to 63 letters, digits and '-', and begins and ends with a letter or digit")
    queues = [read_queue(item, place) for item in place.items(table, "Queues")]
    place.refuse_repeated((queue.path for queue in queues), "queue")
    topics = [read_topic(item, place) for item in place.items(table, "Topics")]
    place.refuse_repeated((topic.path for topic, _ in topics), "topic")
    place.refuse_repeated((*(queue.path for queue in queues), *(topic.path for topic, _ in topics)), "queue or topic")
    keys = [_key(item, place) for item in place.items(table, "Keys")]
    place.refuse_repeated((key.name for key in keys), "key")
    subscriptions = [subscription for _, belonging in topics for subscription in belonging]
    per_s = table.get("OperationsPerSecond")
    if per_s is not None and (isinstance(per_s, bool) or not isinstance(per_s, int | float) or not per_s > 0):
        raise place.error(f"OperationsPerSecond must be a number above 0, found {json.dumps(per_s)}")
    return NamespaceConfig(name, queues, keys, [topic for topic, _ in topics], subscriptions, per_s)


def _key(value: Any, place: ConfigPlace) -> SharedAccessKey:
    place = place.named("key", value)
    table = place.table(value, ("Name", "Key", "SecondaryKey", "Rights"))
    name = place.member(table, "Name", str)
    rights = place.member(table, "Rights", list, list(RIGHTS))
    if not rights or any(right not in RIGHTS for right in rights):
        raise place.error(f"Rights must be a list of {', '.join(RIGHTS)}, found {json.dumps(rights)}")
    secondary = place.member(table, "SecondaryKey", str, "") or None
    try:
        return SharedAccessKey(name, place.member(table, "Key", str), secondary, frozenset(rights))
    except ConfigError as error:
        raise place.error(str(error)) from None
