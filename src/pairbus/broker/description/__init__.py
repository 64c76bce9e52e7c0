"""The settings of entities: defaults, ranges, names, and the durable JSON form with its kind."""

from __future__ import annotations

import json
from typing import Any

from pairbus.broker.description.authorization import AuthorizationRule
from pairbus.broker.description.common import check_name, check_path, path_key
from pairbus.broker.description.queue import QueueDescription
from pairbus.broker.description.rule import RuleDescription
from pairbus.broker.description.subscription import SubscriptionDescription
from pairbus.broker.description.topic import TopicDescription

__all__ = [
    "AnyDescription",
    "AuthorizationRule",
    "QueueDescription",
    "RuleDescription",
    "SubscriptionDescription",
    "TopicDescription",
    "check_name",
    "check_path",
    "description_from_json",
    "path_key",
]

AnyDescription = QueueDescription | TopicDescription | SubscriptionDescription | RuleDescription
_KINDS: dict[str, Any] = {
    kind.KIND: kind for kind in (QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription)
}


def description_from_json(text: str) -> AnyDescription:
    """Read a stored description; ValueError or TypeError when it cannot be read. Without a kind it describes a
    queue."""
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"expected is a JSON object, found {text[:40]!r}")
    kind = values.get("kind", QueueDescription.KIND)
    if kind not in _KINDS:
        raise ValueError(f"the kind {kind!r} is not known")
    try:
        description: AnyDescription = _KINDS[kind].from_values(values)
    except (KeyError, AttributeError) as error:
        raise ValueError(f"a part of the {kind} cannot be read: {error!r}") from None
    return description
