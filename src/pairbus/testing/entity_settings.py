"""Settings of entities under the names of `ServiceBusAdministrationClient`, which users of the kit know."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.errors import did_you_mean

DURATIONS = {
    "lock_duration": "lock_duration_ms",
    "default_message_time_to_live": "default_ttl_ms",
    "duplicate_detection_history_time_window": "duplicate_window_ms",
    "auto_delete_on_idle": "auto_delete_on_idle_ms",
}
"Name in the SDK → field. A duration is a timedelta or a number of seconds."
OTHER_WORDS = {
    "max_size_in_megabytes": "max_size_mb",
    "max_message_size_in_kilobytes": "max_message_size_kb",
    "dead_lettering_on_message_expiration": "dead_letter_on_expiration",
    "dead_lettering_on_filter_evaluation_exceptions": "dead_letter_on_filter_error",
    "forward_dead_lettered_messages_to": "forward_dead_lettered_to",
    "filtering_messages_before_publishing": "filter_before_publishing",
}
SAME_WORDS = (
    "enable_batched_operations",
    "enable_express",
    "enable_partitioning",
    "forward_to",
    "max_delivery_count",
    "requires_duplicate_detection",
    "requires_session",
    "status",
    "support_ordering",
    "user_metadata",
)
WORDS = {**DURATIONS, **OTHER_WORDS, **{word: word for word in SAME_WORDS}}


def described_queue(name: str, settings: dict[str, Any]) -> QueueDescription:
    return QueueDescription(name, **_values(QueueDescription, settings))


def described_topic(name: str, settings: dict[str, Any]) -> TopicDescription:
    return TopicDescription(name, **_values(TopicDescription, settings))


def described_subscription(topic: str, name: str, settings: dict[str, Any]) -> SubscriptionDescription:
    return SubscriptionDescription(topic, name, **_values(SubscriptionDescription, settings))


def _values(kind: type[Any], settings: dict[str, Any]) -> dict[str, Any]:
    known = {each.name for each in fields(kind)}
    words = sorted(word for word, name in WORDS.items() if name in known)
    values: dict[str, Any] = {}
    for word, value in settings.items():
        if word not in words:
            hint = did_you_mean(word, words) or ";"
            raise TypeError(f"a {kind.KIND} has no setting {word!r}{hint} the settings are {', '.join(words)}")
        values[WORDS[word]] = _milliseconds(word, value) if word in DURATIONS else value
    return values


def _milliseconds(word: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{word} must be a timedelta or a number of seconds, not {value!r}")
    return round(value * 1000)
